//! Objects from an API server, over its wire protocol.

//! Where objects come from: the API server, or a folder of manifests. Both
//! give the same events.

pub mod api;
pub mod manifests;

//! Tests of the program as users meet it: real sockets, the real wire.

mod api;

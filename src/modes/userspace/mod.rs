//! Userspace mode: accept a connection, pick an endpoint, splice the bytes.

pub mod capture;

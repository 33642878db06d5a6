//! Functions of sockets that neither the standard library nor tokio offers: how they are opened,
//! share an address or a port, are filtered, watched, read and written.

pub mod bound;
pub mod datagram;
pub mod filter;
pub mod listening;
pub mod local_ports;
mod options;
pub mod owner;
pub mod pipe;
pub mod poller;
pub mod records;
pub mod stream;
pub mod unix;
pub mod user_timeout;

pub use self::options::{bind_transparent, set_keep_alive, set_unaltered};

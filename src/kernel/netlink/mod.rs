//! The base of every netlink subsystem: build requests, send several in one
//! datagram, follow dumps, match answers, name what failed.
//!
//! It stands on neli's low-level socket and not on its `NlRouter`, which sends
//! one message a call: a change of a thousand routes would be a thousand round
//! trips. Calls block; the kernel answers within microseconds.
//!
//! ```no_run
//! use tripod::kernel::netlink::{Protocol, Request, Socket};
//!
//! # fn main() -> Result<(), tripod::kernel::netlink::Error> {
//! let mut socket = Socket::open(Protocol::Route)?;
//! // RTM_GETLINK with an empty `struct ifinfomsg`.
//! let request = Request::new(18, 0, "list", "links").header(&[0; 16]);
//! let links = socket.dump(&request, |message| Ok(Some(message.body.len())))?;
//! println!("{} links", links.len());
//! # Ok(())
//! # }
//! ```

mod error;
pub mod generic;
mod headers;
mod notifications;
mod parse;
mod peer;
mod request;
mod socket;
mod transaction;

pub use error::{Error, Malformed};
pub use headers::{RtMsg, netfilter_kind};
pub use notifications::Notifications;
pub use parse::{Attribute, Attributes, Message, Messages};
pub use peer::Protocol;
#[cfg(test)]
pub(in crate::kernel) use peer::simulated;
pub use request::Request;
pub use socket::Socket;
pub(in crate::kernel) use transaction::{Fault, Refusal};

//! The base of every netlink subsystem: build requests, send several in one
//! datagram, follow dumps, match answers, name what failed.
//!
//! It stands on neli's low-level socket and not on its `NlRouter`, which sends
//! one message a call: a change of a thousand routes would be a thousand round
//! trips. Calls block; the kernel answers within microseconds.
//!
//! ```no_run
//! use netlink::{Protocol, Request, Socket};
//!
//! # fn main() -> Result<(), netlink::Error> {
//! let mut socket = Socket::open(Protocol::Route)?;
//! // RTM_GETLINK with an empty `struct ifinfomsg`.
//! let request = Request::new(18, 0, "list", "links").header(&[0; 16]);
//! let links = socket.dump(&request, |message| Ok(Some(message.body.len())))?;
//! println!("{} links", links.len());
//! # Ok(())
//! # }
//! ```

pub mod addresses;
pub mod connections;
pub mod conntrack;
mod error;
pub mod generic;
mod headers;
pub mod isolation;
pub mod links;
pub mod modules;
pub mod next_hop;
pub mod nfacct;
mod notifications;
mod parse;
pub mod passing;
mod request;
pub mod route_deletions;
pub mod routes;
pub mod rules;
pub mod scratch;
pub mod setting;
mod socket;
pub mod sysctl;
pub mod system;
mod transaction;
pub mod unix_listeners;
pub mod veth;

pub use error::{Error, Malformed};
pub use headers::{RtMsg, netfilter_kind};
pub use notifications::Notifications;
pub use parse::{Attribute, Attributes, Message, Messages};
pub use request::Request;
pub use socket::Socket;
pub use system::Protocol;
pub use transaction::{Fault, Refusal};

/// The protocol number of Tripod's routes (`rtm_protocol`) and rules
/// (`FRA_PROTOCOL`), which names the program that made them.
/// `linux/rtnetlink.h` gives out numbers to routing daemons; none of them has
/// this one.
pub const PROTOCOL: u8 = 84;

#![doc = include_str!("../README.md")]

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

pub use error::{Error, Malformed, Reason};
pub use headers::{RtMsg, netfilter_kind};
pub use notifications::Notifications;
pub use parse::{Attribute, Attributes, Message, Messages};
pub use request::Request;
pub use socket::Socket;
pub use system::Protocol;
pub use transaction::Refusal;

/// The protocol number of Tripod's routes (`rtm_protocol`) and rules
/// (`FRA_PROTOCOL`), which names the program that made them.
/// `linux/rtnetlink.h` gives out numbers to routing daemons; none of them has
/// this one.
pub const PROTOCOL: u8 = 84;

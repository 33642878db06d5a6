//! Access to the kernel. Nothing here knows of Services.
//!
//! What Tripod puts into the kernel has a mark by which a later process finds
//! it again: routes and rules [`PROTOCOL`], addresses [`addresses::LABEL`],
//! netfilter chains a name of their own.

pub mod addresses;
pub mod connections;
pub mod conntrack;
pub mod extension;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod inotify;
pub mod io_uring;
pub mod ipset;
pub mod ipvs;
pub mod isolation;
pub mod links;
pub mod memory_limit;
pub mod modules;
#[cfg(test)]
pub(crate) mod namespace;
pub mod netlink;
pub mod next_hop;
pub mod nfacct;
pub mod nftables;
pub mod open_files;
mod passing;
pub mod probe;
pub mod route_deletions;
pub mod routes;
pub mod rules;
mod scratch;
pub mod setting;
#[cfg(test)]
pub(crate) mod simulated;
pub mod socket;
pub mod sysctl;
pub mod unix_listeners;
pub mod uptime;
pub mod veth;
pub mod xtables;

use std::net::IpAddr;

/// The protocol number of Tripod's routes (`rtm_protocol`) and rules
/// (`FRA_PROTOCOL`), which names the program that made them.
/// `linux/rtnetlink.h` gives out numbers to routing daemons; none of them has
/// this one.
pub const PROTOCOL: u8 = 84;

/// Returns the octets of an address, as netlink attributes hold them.
pub(crate) fn octets(ip: &IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

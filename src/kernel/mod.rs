//! Thin doors to the kernel. Nothing here knows of Services.
//!
//! What Tripod puts into the kernel carries a mark by which a later process
//! finds it again: routes and rules [`PROTOCOL`], addresses
//! [`addresses::LABEL`], netfilter chains a name of their own.

pub mod addresses;
pub mod conntrack;
#[cfg(any(test, fuzzing))]
mod fuzz;
pub mod inotify;
pub mod ipset;
pub mod ipvs;
pub mod links;
pub mod modules;
#[cfg(test)]
pub(crate) mod namespace;
pub mod netlink;
pub mod next_hop;
pub mod nfacct;
pub mod nftables;
mod passing;
pub mod probe;
pub mod routes;
pub mod rules;
mod scratch;
pub mod sysctl;
pub mod xtables;

#[cfg(fuzzing)]
pub use fuzz::fuzz;

use std::{fmt, net::IpAddr};

use nix::libc;

/// The protocol number of Tripod's routes (`rtm_protocol`) and rules
/// (`FRA_PROTOCOL`): who put them there. `linux/rtnetlink.h` gives out numbers
/// to routing daemons; this one is taken by none of them.
pub const PROTOCOL: u8 = 84;

/// IP family of an object in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family that `ip` belongs to.
    pub fn of(ip: &IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Length in bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// `AF_INET` or `AF_INET6`.
    fn number(self) -> u8 {
        match self {
            Family::V4 => libc::AF_INET as u8,
            Family::V6 => libc::AF_INET6 as u8,
        }
    }

    fn from_number(number: u8) -> Option<Family> {
        Family::ALL.into_iter().find(|f| f.number() == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// The octets of an address, as netlink attributes hold them.
fn octets(ip: &IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

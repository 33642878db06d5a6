//! Sets of addresses and ports that netfilter's rules match against (ipset), over
//! nfnetlink (`linux/netfilter/ipset/ip_set.h`).
//!
//! ```no_run
//! use ipvs::ipset::{Element, IpSets, Kind, Set};
//! use net::Family;
//!
//! # fn main() -> Result<(), netlink::Error> {
//! let mut sets = IpSets::open()?;
//! let set = Set::new("WEB", Kind::IpPort, Family::V4);
//! sets.create(&set)?;
//! let member = Element::ip_port([10, 96, 0, 10].into(), 6, 80);
//! sets.add(&set, &[member])?;
//! assert_eq!(sets.members("WEB")?, [member]);
//! # Ok(())
//! # }
//! ```

pub mod client;
mod element;
mod members;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt};

use net::Family;
use nix::libc;

pub use self::{
    client::IpSets,
    element::Element,
    members::{Refused, TEMPORARY},
};

/// The longest name that the kernel takes (`IPSET_MAXNAMELEN`, without the
/// NUL).
pub const LONGEST_NAME: usize = 31;

/// The kernel's defaults (`linux/netfilter/ipset/ip_set_hash_gen.h`).
const HASH_SIZE: u32 = 1024;
const MAX_MEMBERS: u32 = 65_536;

/// Kinds of members that a set can have, as ipset(8) names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `hash:ip`: single addresses.
    Ip,
    /// Addresses with a protocol and port: `hash:ip,port`.
    IpPort,
    /// The same with a second address: `hash:ip,port,ip`.
    IpPortIp,
    /// The same with a network: `hash:ip,port,net`.
    IpPortNet,
    /// Ports, with room for all of them: `bitmap:port`.
    Port,
}

impl Kind {
    /// Every kind that Tripod knows.
    pub const ALL: [Kind; 5] = [
        Kind::Ip,
        Kind::IpPort,
        Kind::IpPortIp,
        Kind::IpPortNet,
        Kind::Port,
    ];

    /// The oldest revision that can do all that Tripod needs: kinds with a port know SCTP from 1 on
    /// (`ip_set_hash_ipport.c` and others, Linux 2.6.39).
    pub(super) fn revision(self) -> u8 {
        match self {
            Kind::IpPort | Kind::IpPortIp | Kind::IpPortNet => 1,
            Kind::Ip | Kind::Port => 0,
        }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ip => "hash:ip",
            Kind::IpPort => "hash:ip,port",
            Kind::IpPortIp => "hash:ip,port,ip",
            Kind::IpPortNet => "hash:ip,port,net",
            Kind::Port => "bitmap:port",
        }
    }

    /// The kind with this name in ipset(8).
    pub fn of(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns how many parts of a packet a rule names for it.
    pub fn dimensions(self) -> usize {
        match self {
            Kind::Ip | Kind::Port => 1,
            Kind::IpPort => 2,
            Kind::IpPortIp | Kind::IpPortNet => 3,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set as it is created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Set {
    /// Its name, at most [`LONGEST_NAME`] bytes.
    pub name: Cow<'static, str>,
    /// The kind of its members.
    pub kind: Kind,
    /// Family of its addresses; [`Kind::Port`] has none.
    pub family: Family,
    /// Buckets to begin with (the kernel's default: 1024).
    pub hash_size: u32,
    /// The most members that it takes (the kernel's default: 65536).
    pub max_members: u32,
}

impl Set {
    /// Returns a set with the kernel's default sizes.
    pub fn new(name: impl Into<Cow<'static, str>>, kind: Kind, family: Family) -> Set {
        Set {
            name: name.into(),
            kind,
            family,
            hash_size: HASH_SIZE,
            max_members: MAX_MEMBERS,
        }
    }

    /// Returns the same set with room for `members` and a quarter more, but no less than
    /// by default.
    #[must_use]
    pub fn with_room_for(self, members: u32) -> Set {
        let power = |number: u32| number.checked_next_power_of_two().unwrap_or(u32::MAX);
        Set {
            // The kernel puts several members into a bucket before it takes more buckets, for which
            // it hashes all members again.
            hash_size: power(members / 4).max(HASH_SIZE),
            max_members: power(members.saturating_add(members / 4)).max(MAX_MEMBERS),
            ..self
        }
    }

    /// Returns how many members it takes; 0: any number.
    pub fn room(&self) -> u32 {
        match self.kind {
            Kind::Port => 0,
            _ => self.max_members,
        }
    }

    /// `AF_*`, as the kernel expects it for this kind.
    fn family_number(&self) -> u8 {
        match self.kind {
            Kind::Port => libc::AF_UNSPEC as u8,
            _ => self.family.number(),
        }
    }
}

/// A set as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name that rules call it by.
    pub name: String,
    /// Name of its kind, which may be missing in [`Kind`].
    pub kind: String,
    /// Family of its addresses, where it has one.
    pub family: Option<Family>,
    /// The most members that it takes; 0 where its kind has no limit.
    pub max_members: u32,
    /// How many rules and sets refer to it.
    pub references: u32,
    /// How many members it has; `None`: the kernel does not say (before Linux 4.10).
    pub members: Option<u32>,
}

impl Listed {
    /// Returns true if it matches `set`, apart from the size.
    pub fn is(&self, set: &Set) -> bool {
        let family = match set.kind {
            Kind::Port => true,
            _ => self.family == Some(set.family),
        };
        self.name == set.name && self.kind == set.kind.name() && family
    }
}

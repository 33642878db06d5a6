//! The fixed headers that requests begin with.

use nix::libc::c_int;

use super::Request;

/// The type of a netfilter message: the number of its `subsystem` (`NFNL_SUBSYS_*`) in the upper
/// byte, that of the `message` in the lower one.
pub const fn netfilter_kind(subsystem: c_int, message: c_int) -> u16 {
    (subsystem << 8 | message) as u16
}

/// `struct rtmsg` of `linux/rtnetlink.h`; a field of 0 is unspecified.
#[derive(Clone, Copy, Debug, Default)]
pub struct RtMsg {
    /// The number of the IP family.
    pub family: u8,
    /// How many bits of the destination count.
    pub dst_len: u8,
    /// The routing table: `RT_TABLE_*`, or 0 where an attribute names it.
    pub table: u8,
    /// `RTPROT_*`: who made the route.
    pub protocol: u8,
    /// How far the destination is: `RT_SCOPE_*`.
    pub scope: u8,
    /// The type of the route: `RTN_*`.
    pub kind: u8,
}

impl Request {
    /// Appends `struct nfgenmsg` of `linux/netfilter/nfnetlink.h`: the number of the IP
    /// family, a version and a resource, both 0.
    #[must_use]
    pub fn nfgenmsg(self, family: u8) -> Request {
        self.header(&[family, 0, 0, 0])
    }

    /// Appends `struct rtmsg`.
    #[must_use]
    pub fn rtmsg(self, route: RtMsg) -> Request {
        let RtMsg {
            family,
            dst_len,
            table,
            protocol,
            scope,
            kind,
        } = route;
        // Length of the source, TOS and flags are 0.
        self.header(&[
            family, dst_len, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0,
        ])
    }
}

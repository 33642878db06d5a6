//! The states of entries of connection tracking, by the names that
//! `/proc/net/nf_conntrack` has for them.

use nix::libc;

/// `IPS_SEEN_REPLY` and `IPS_ASSURED` of `enum ip_conntrack_status`
/// (`linux/netfilter/nf_conntrack_common.h`).
pub(super) const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;

/// The names of `enum tcp_conntrack` (`linux/netfilter/nf_conntrack_tcp.h`).
const TCP: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];

/// `TCP_CONNTRACK_ESTABLISHED` and `TCP_CONNTRACK_CLOSE` among them.
const TCP_ESTABLISHED: u8 = 3;
const TCP_CLOSE: u8 = 8;

/// The names of `enum sctp_conntrack` (`linux/netfilter/nf_conntrack_sctp.h`).
const SCTP: [&str; 9] = [
    "NONE",
    "CLOSED",
    "COOKIE_WAIT",
    "COOKIE_ECHOED",
    "ESTABLISHED",
    "SHUTDOWN_SENT",
    "SHUTDOWN_RECD",
    "SHUTDOWN_ACK_SENT",
    "HEARTBEAT_SENT",
];

/// The state of an entry, as the kernel gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bits of `enum ip_conntrack_status`.
    pub status: u32,
    /// The protocol's own state, of the protocols that have one.
    pub of_protocol: Option<u8>,
}

impl State {
    /// The name of the protocol's state. A protocol without states has `UNREPLIED`, `REPLIED` and,
    /// after replies for some time, `ASSURED`.
    pub fn name(self, protocol: u8) -> &'static str {
        let names: &[&str] = match i32::from(protocol) {
            libc::IPPROTO_TCP => &TCP,
            libc::IPPROTO_SCTP => &SCTP,
            _ => &[],
        };
        let of_protocol = self.of_protocol.and_then(|at| names.get(usize::from(at)));
        match of_protocol {
            Some(name) => name,
            None if self.status & ASSURED != 0 => "ASSURED",
            None if self.is_answered() => "REPLIED",
            None => "UNREPLIED",
        }
    }

    /// Returns whether a reset that was the only answer ended this TCP entry: it is closed, and
    /// does not count as answered, since the kernel deletes it before that
    /// (`nf_conntrack_tcp_packet` in `net/netfilter/nf_conntrack_proto_tcp.c`). One that was
    /// deleted for another reason, as by `conntrack -F` or because the table is full, is not
    /// closed.
    pub fn is_refused(self) -> bool {
        !self.is_answered() && self.of_protocol == Some(TCP_CLOSE)
    }

    /// Returns whether this TCP entry is of an open connection, which neither side has ended.
    pub fn is_established(self) -> bool {
        self.is_answered() && self.of_protocol == Some(TCP_ESTABLISHED)
    }

    /// Returns whether packets came back.
    pub fn is_answered(self) -> bool {
        self.status & SEEN_REPLY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_names_of_proc() {
        for (protocol, status, of_protocol, name) in [
            (libc::IPPROTO_TCP, 0, Some(1), "SYN_SENT"),
            (libc::IPPROTO_TCP, 6, Some(3), "ESTABLISHED"),
            (libc::IPPROTO_TCP, 2, Some(99), "REPLIED"),
            (libc::IPPROTO_SCTP, 6, Some(4), "ESTABLISHED"),
            (libc::IPPROTO_UDP, 0, None, "UNREPLIED"),
            (libc::IPPROTO_UDP, 2, None, "REPLIED"),
            (libc::IPPROTO_UDP, 6, None, "ASSURED"),
        ] {
            let state = State {
                status,
                of_protocol,
            };
            assert_eq!(state.name(protocol as u8), name);
        }
    }
}

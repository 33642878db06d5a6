//! The transport protocols that a Service can have.

use std::fmt;

use nix::libc;

/// Transport protocol of a Service port (`core/v1 Protocol`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP, the default where a manifest names none.
    Tcp,
    /// User Datagram Protocol.
    Udp,
    /// Stream Control Transmission Protocol.
    Sctp,
}

impl Protocol {
    /// Every protocol that a Service can have.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Returns its number in IP headers and in the kernel's interfaces
    /// (`IPPROTO_*`).
    pub fn number(self) -> u8 {
        let number = match self {
            Protocol::Tcp => libc::IPPROTO_TCP,
            Protocol::Udp => libc::IPPROTO_UDP,
            Protocol::Sctp => libc::IPPROTO_SCTP,
        };
        number as u8
    }

    /// Returns the protocol with that number, or `None` if no Service can have it.
    pub fn from_number(number: u8) -> Option<Protocol> {
        let mut all = Protocol::ALL.into_iter();
        all.find(|protocol| protocol.number() == number)
    }

    /// Returns the protocol of that name, in upper or lower case.
    pub fn named(name: &str) -> Option<Protocol> {
        let mut all = Protocol::ALL.into_iter();
        all.find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    /// Returns the name that Kubernetes has for it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

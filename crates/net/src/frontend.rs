//! Where clients call a port of a Service.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    ops::RangeInclusive,
};

use super::{Family, Protocol};

/// An address that clients call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    /// Protocol of the packets.
    pub protocol: Protocol,
    /// Family of the packets.
    pub family: Family,
    /// The service address; `None`: a node port, on the node's own addresses.
    pub address: Option<IpAddr>,
    /// The port that clients call, or the first one of a range of ports.
    pub port: u16,
    /// The last port of a range, which may have a single port; `None`: it is no range.
    pub last_port: Option<NonZeroU16>,
}

impl Frontend {
    /// Returns a service address with a port.
    pub fn service(protocol: Protocol, address: IpAddr, port: u16) -> Frontend {
        Frontend {
            protocol,
            family: Family::of(&address),
            address: Some(address),
            port,
            last_port: None,
        }
    }

    /// Returns a service address with the ports from `first` to `last`.
    pub fn range(protocol: Protocol, address: IpAddr, first: u16, last: NonZeroU16) -> Frontend {
        Frontend {
            last_port: Some(last),
            ..Frontend::service(protocol, address, first)
        }
    }

    /// Returns a node port of `family`.
    pub fn node_port(protocol: Protocol, family: Family, port: u16) -> Frontend {
        Frontend {
            protocol,
            family,
            address: None,
            port,
            last_port: None,
        }
    }

    /// Returns all ports that clients call.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.port..=self.last_port.map_or(self.port, NonZeroU16::get)
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.last_port) {
            (Some(ip), Some(last)) => {
                let first = SocketAddr::new(ip, self.port);
                write!(f, "{first}-{last}/{}", self.protocol)
            }
            (Some(ip), None) => {
                write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.protocol)
            }
            (None, _) => write!(
                f,
                "{} node port {}/{}",
                self.family, self.port, self.protocol
            ),
        }
    }
}

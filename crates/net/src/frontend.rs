//! Where clients call a port of a Service.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
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
    /// The port that clients call.
    pub port: u16,
}

impl Frontend {
    /// Returns a service address with a port.
    pub fn service(protocol: Protocol, address: IpAddr, port: u16) -> Frontend {
        Frontend {
            protocol,
            family: Family::of(&address),
            address: Some(address),
            port,
        }
    }

    /// Returns a node port of `family`.
    pub fn node_port(protocol: Protocol, family: Family, port: u16) -> Frontend {
        Frontend {
            protocol,
            family,
            address: None,
            port,
        }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(ip) => write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.protocol),
            None => write!(
                f,
                "{} node port {}/{}",
                self.family, self.port, self.protocol
            ),
        }
    }
}

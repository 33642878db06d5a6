//! Members of sets, as the kernel reads and writes them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use net::octets;
use netlink::{Attribute, Attributes, Malformed, Request};
use nix::libc;

use super::client::big_endian;

// Attributes of a member (`IPSET_ATTR_*`).
const IP: u16 = 1;
const PORT: u16 = 4;
const PROTOCOL: u16 = 7;
const IP2: u16 = 20;
const CIDR2: u16 = 21;
// Attributes of an address (`IPSET_ATTR_IPADDR_IPV4`, `IPSET_ATTR_IPADDR_IPV6`).
const V4: u16 = 1;
const V6: u16 = 2;

/// A member of a set. Prints as `ipset save` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// A member of `hash:ip`.
    Ip(IpAddr),
    /// A member of `bitmap:port`.
    Port(u16),
    /// A member of `hash:ip,port`.
    IpPort {
        /// The address that comes first.
        ip: IpAddr,
        /// The number of the transport protocol (`IPPROTO_*`).
        protocol: u8,
        /// The port at that address.
        port: u16,
    },
    /// A member of `hash:ip,port,ip`.
    IpPortIp {
        /// The address that comes first.
        ip: IpAddr,
        /// The number of the transport protocol (`IPPROTO_*`).
        protocol: u8,
        /// The port at that address.
        port: u16,
        /// The address that comes last.
        other: IpAddr,
    },
    /// A member of `hash:ip,port,net`.
    IpPortNet {
        /// The address that comes first.
        ip: IpAddr,
        /// The number of the transport protocol (`IPPROTO_*`).
        protocol: u8,
        /// The port at that address.
        port: u16,
        /// The network. The kernel takes none with a prefix of 0 bits.
        net: IpNet,
    },
}

impl Element {
    /// Returns an [`Element::IpPort`] of these parts.
    pub fn ip_port(ip: IpAddr, protocol: u8, port: u16) -> Element {
        Element::IpPort { ip, protocol, port }
    }

    /// Appends its attributes to `request`.
    pub fn write(&self, request: Request) -> Request {
        let ported = |request: Request, ip: &IpAddr, protocol: u8, port: u16| {
            number(address(request, IP, ip), PORT, port).attribute(PROTOCOL, &[protocol])
        };
        match self {
            Element::Ip(ip) => address(request, IP, ip),
            Element::Port(port) => number(request, PORT, *port),
            Element::IpPort { ip, protocol, port } => ported(request, ip, *protocol, *port),
            Element::IpPortIp {
                ip,
                protocol,
                port,
                other,
            } => address(ported(request, ip, *protocol, *port), IP2, other),
            Element::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => address(ported(request, ip, *protocol, *port), IP2, &net.network())
                .attribute(CIDR2, &[net.prefix_len()]),
        }
    }

    /// Reads the attributes of a member of a set of the kind `kind`; `None` for
    /// a kind that is unknown here.
    pub fn read(kind: &str, attributes: Attributes<'_>) -> Result<Option<Element>, Malformed> {
        let (mut ip, mut other, mut port, mut protocol) = (None, None, None, 0);
        let mut other_bits = None;
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                IP => ip = Some(read_address(&attribute)?),
                IP2 => other = Some(read_address(&attribute)?),
                PORT => port = Some(attribute.port()?),
                PROTOCOL => protocol = attribute.u8()?,
                CIDR2 => other_bits = Some(attribute.u8()?),
                _ => {}
            }
        }
        let ip = ip.ok_or(Malformed("a member without an address"));
        let other = other.ok_or(Malformed("a member without its other address"));
        let port = port.ok_or(Malformed("a member without a port"));
        Ok(Some(match kind {
            "hash:ip" => Element::Ip(ip?),
            "bitmap:port" => Element::Port(port?),
            "hash:ip,port" => Element::IpPort {
                ip: ip?,
                protocol,
                port: port?,
            },
            "hash:ip,port,ip" => Element::IpPortIp {
                ip: ip?,
                protocol,
                port: port?,
                other: other?,
            },
            "hash:ip,port,net" => Element::IpPortNet {
                ip: ip?,
                protocol,
                port: port?,
                net: net(other?, other_bits)?,
            },
            _ => return Ok(None),
        }))
    }
}

fn net(ip: IpAddr, bits: Option<u8>) -> Result<IpNet, Malformed> {
    let whole = IpNet::from(ip).prefix_len();
    IpNet::new(ip, bits.unwrap_or(whole)).map_err(|_| Malformed("prefix is too long"))
}

fn number(request: Request, kind: u16, value: u16) -> Request {
    request.attribute(big_endian(kind), &value.to_be_bytes())
}

fn address(request: Request, kind: u16, ip: &IpAddr) -> Request {
    let of_family = if ip.is_ipv4() { V4 } else { V6 };
    request.nested(kind, |r| r.attribute(big_endian(of_family), &octets(ip)))
}

fn read_address(attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    for inner in attribute.nested() {
        let inner = inner?;
        if matches!(inner.kind, V4 | V6) {
            return inner.ip();
        }
    }
    Err(Malformed("an address without octets"))
}

struct Protocol(u8);

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::from(self.0) {
            libc::IPPROTO_TCP => f.write_str("tcp"),
            libc::IPPROTO_UDP => f.write_str("udp"),
            libc::IPPROTO_SCTP => f.write_str("sctp"),
            other => write!(f, "{other}"),
        }
    }
}

/// Prints a network as ipset does: those of a single address without their length.
struct Network<'a>(&'a IpNet);

impl fmt::Display for Network<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            write!(f, "{}", self.0.addr())
        } else {
            write!(f, "{}/{}", self.0.network(), self.0.prefix_len())
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Ip(ip) => write!(f, "{ip}"),
            Element::Port(port) => write!(f, "{port}"),
            Element::IpPort { ip, protocol, port } => {
                write!(f, "{ip},{}:{port}", Protocol(*protocol))
            }
            Element::IpPortIp {
                ip,
                protocol,
                port,
                other,
            } => write!(f, "{ip},{}:{port},{other}", Protocol(*protocol)),
            Element::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => write!(f, "{ip},{}:{port},{}", Protocol(*protocol), Network(net)),
        }
    }
}

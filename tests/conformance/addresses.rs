//! Addresses and ports: of the node, and of the Service of a case, which are derived from the
//! number of the case.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::case::{Family, Target};

/// The usual port of a Service, TCP and UDP.
pub const PORT: u16 = 80;
/// A second port, for Services that have several.
pub const SECOND_PORT: u16 = 81;
/// The ports of endpoints for these ports.
pub const TARGET: u16 = 8080;
pub const SECOND_TARGET: u16 = 8081;

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// The two addresses of the node.
pub const NODE: [(Ipv4Addr, Ipv6Addr); 2] = [
    (
        Ipv4Addr::new(192, 0, 2, 10),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10),
    ),
    (
        Ipv4Addr::new(198, 18, 0, 10),
        Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 0x10),
    ),
];

/// The addresses of the other node.
pub const OTHER_NODE: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(192, 0, 2, 30),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x30),
);

pub fn node_port_number(number: u16, port: u16) -> u16 {
    match port {
        SECOND_PORT => 31_000 + number,
        _ => 30_000 + number,
    }
}

pub fn health_check_port(number: u16) -> u16 {
    32_000 + number
}

pub fn address(target: Target, family: Family, number: u16) -> IpAddr {
    let low = u8::try_from(number).expect("fewer than 256 cases");
    let own = |v4: [u8; 3], v6: [u16; 3]| match family {
        Family::V4 => IpAddr::from([v4[0], v4[1], v4[2], low]),
        Family::V6 => IpAddr::from([v6[0], v6[1], v6[2], 0, 0, 0, 0, number]),
    };
    let pick = |(v4, v6): (Ipv4Addr, Ipv6Addr)| match family {
        Family::V4 => IpAddr::from(v4),
        Family::V6 => v6.into(),
    };
    match target {
        Target::ClusterIp => own([10, 96, 0], [0xfd00, 0x96, 0]),
        Target::ExternalIp => own([198, 51, 100], [0x2001, 0xdb8, 0x51]),
        Target::LoadBalancer => own([203, 0, 113], [0x2001, 0xdb8, 0x113]),
        Target::NodePort | Target::HealthCheck | Target::NodeAddress => pick(NODE[0]),
        Target::SecondNodePort | Target::SecondNodeAddress => pick(NODE[1]),
        Target::Loopback => pick((Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)),
    }
}

/// The address at which the Service of case `number` is called.
pub fn socket_address(target: Target, family: Family, number: u16, port: u16) -> SocketAddr {
    let port = match target {
        Target::ClusterIp
        | Target::LoadBalancer
        | Target::ExternalIp
        | Target::NodeAddress
        | Target::SecondNodeAddress => port,
        Target::NodePort | Target::SecondNodePort | Target::Loopback => {
            node_port_number(number, port)
        }
        Target::HealthCheck => health_check_port(number),
    };
    SocketAddr::new(address(target, family, number), port)
}

//! Which objects in the kernel carry a frontend. Pure.
//!
//! Policy routing asks, in this order (N: one number for each protocol and
//! port, so that all addresses with that port share one rule):
//!
//! ```text
//!  0: from all lookup local                  the kernel's own: the node's addresses
//! 77: ipproto tcp dport 80 lookup N          local ADDRESS for each service address with it
//! 78: ipproto udp dport 1-65534 goto 80
//! 79: ipproto udp lookup FRAGMENTS           local ADDRESS for each with a UDP port
//! 79: ipproto icmp lookup ICMP               local ADDRESS for each
//! 80: from all lookup REFUSED                prohibit ADDRESS for each that refuses the rest
//! ```
//!
//! - Plain local routes would lead every port of a service address to whatever
//!   listens on the node's wildcard address, sshd for instance, and have the
//!   node answer ARP for it. With a rule for each port they do neither: ARP
//!   asks without a port.
//! - Fragments have no ports, also the first (`__skb_flow_dissect` stops at
//!   it), and without netfilter nobody joins them before they are routed.
//!   Hence 78 and 79, or UDP datagrams larger than the path would be lost. Only
//!   a fragmented datagram can so reach another UDP port of the node.
//! - ICMP is let in because path MTU discovery needs it; echo requests are
//!   answered.
//! - `prohibit`, not `unreachable`: what the latter sends is a soft error that
//!   a UDP client is never told, what the former sends is a hard one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nix::libc;

use crate::{
    kernel::{
        routes::{Kind, Route, TABLE_LOCAL},
        rules::{Action, HIGHEST_PORT, Rule},
    },
    modes::userspace::capture::{Frontend, OtherPorts, Target},
    net::{Family, Protocol},
};

const PRIORITY_PORT: u32 = 77;
const PRIORITY_SKIP: u32 = 78;
const PRIORITY_PORTLESS: u32 = 79;
const PRIORITY_REFUSE: u32 = 80;

/// First of our table numbers; the upper bits of the others are the same.
/// Numbers follow from protocol and port alone, so that a later process finds
/// the tables of an earlier one without any record.
const TABLES: u32 = 0x5450_0000;
const TABLE_ICMP: u32 = TABLES + 0x3_0000;
const TABLE_REFUSED: u32 = TABLE_ICMP + 1;
const TABLES_END: u32 = TABLE_REFUSED;

/// Something in the kernel. In the order in which they are added: what
/// refuses comes first; removal goes the other way round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// The node may answer from this address.
    Address(IpAddr),
    /// A route.
    Route(Route),
    /// A rule.
    Rule(Rule),
}

impl Object {
    /// When it is added: all of a lower number are in the kernel by then.
    pub fn phase(&self) -> u8 {
        match self {
            Object::Address(_) => 0,
            Object::Route(r) if r.kind == Kind::Prohibit => 1,
            Object::Rule(r) => match r.priority {
                PRIORITY_REFUSE => 2,
                PRIORITY_SKIP => 3,
                PRIORITY_PORTLESS => 5,
                _ => 6,
            },
            Object::Route(_) => 4,
        }
    }

    /// Whether an object with our mark is of a shape that this mode makes.
    pub fn is_ours(&self) -> bool {
        match self {
            Object::Address(_) => true,
            Object::Route(r) => (TABLES..=TABLES_END).contains(&r.table) || r.table == TABLE_LOCAL,
            Object::Rule(r) => {
                let ours = |table| (TABLES..=TABLES_END).contains(&table);
                (PRIORITY_PORT..=PRIORITY_REFUSE).contains(&r.priority)
                    && match r.action {
                        Action::Lookup(table) => ours(table),
                        Action::Goto(priority) => priority == PRIORITY_REFUSE,
                    }
            }
        }
    }
}

/// A rule that finds nothing: its table belongs to port 0. Whatever becomes of
/// it, [`Object::is_ours`] knows it.
pub fn scratch(family: Family) -> Rule {
    Rule {
        family,
        priority: PRIORITY_PORTLESS,
        ip_protocol: None,
        ports: None,
        mark: None,
        action: Action::Lookup(TABLES),
    }
}

/// How one frontend is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing to do: a node port, or an address that is the node's own.
    Nothing,
    /// By rules for its port.
    Port(OtherPorts),
    /// By a plain local route: all ports of its address lead here.
    Plain,
}

/// What this kernel and node offer a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The family.
    pub family: Family,
    /// Rules can match ports.
    pub ports: bool,
    /// Index of the loopback interface.
    pub loopback: u32,
    /// The loopback address is there to be the source of what programs here
    /// send to service addresses; otherwise the service address itself is.
    pub has_loopback_address: bool,
}

/// How `frontend` is to be carried.
///
/// # Errors
/// Why it cannot be.
pub fn shape(
    frontend: &Frontend,
    target: &Target,
    ground: &Ground,
    is_own: impl Fn(&IpAddr) -> bool,
) -> Result<Shape, String> {
    let Some(address) = frontend.address else {
        return Ok(Shape::Nothing);
    };
    if Family::of(&address) != ground.family {
        return Err(format!("{address} is no {} address", ground.family));
    }
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(format!("{address} cannot be a service address"));
    }
    if frontend.port == 0 {
        return Err("port 0 cannot be called".to_owned());
    }
    Ok(if is_own(&address) {
        Shape::Nothing
    } else if ground.ports && frontend.port <= HIGHEST_PORT {
        Shape::Port(target.other_ports)
    } else {
        Shape::Plain
    })
}

/// The objects that carry `frontend`. Frontends share most of them.
pub fn objects(frontend: &Frontend, shape: Shape, ground: &Ground) -> Vec<Object> {
    let Some(address) = frontend.address else {
        return Vec::new();
    };
    let family = ground.family;
    let route = |table, kind| {
        let source = match kind {
            Kind::Local(_) if ground.has_loopback_address => Some(match family {
                Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
                Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
            }),
            _ => None,
        };
        Object::Route(Route {
            table,
            destination: IpNet::from(address),
            kind,
            source,
        })
    };
    let rule = |priority, ip_protocol, ports, action| {
        Object::Rule(Rule {
            family,
            priority,
            ip_protocol,
            ports,
            mark: None,
            action,
        })
    };
    let here = Kind::Local(ground.loopback);
    let other_ports = match shape {
        Shape::Nothing => return Vec::new(),
        Shape::Plain => return vec![route(TABLE_LOCAL, here)],
        Shape::Port(other_ports) => other_ports,
    };
    let (ip_protocol, slot) = match frontend.protocol {
        Protocol::Tcp => (libc::IPPROTO_TCP as u8, 0),
        Protocol::Udp => (libc::IPPROTO_UDP as u8, 1),
        Protocol::Sctp => (libc::IPPROTO_SCTP as u8, 2),
    };
    let icmp = match family {
        Family::V4 => libc::IPPROTO_ICMP as u8,
        Family::V6 => libc::IPPROTO_ICMPV6 as u8,
    };
    let any_port = TABLES + (slot << 16);
    let table = any_port + u32::from(frontend.port);
    let port = Some((frontend.port, frontend.port));
    let mut objects = vec![
        route(table, here),
        rule(
            PRIORITY_PORT,
            Some(ip_protocol),
            port,
            Action::Lookup(table),
        ),
        route(TABLE_ICMP, here),
        rule(
            PRIORITY_PORTLESS,
            Some(icmp),
            None,
            Action::Lookup(TABLE_ICMP),
        ),
        rule(PRIORITY_REFUSE, None, None, Action::Lookup(TABLE_REFUSED)),
    ];
    if family == Family::V4 {
        // IPv6 does not check source addresses against its own.
        objects.push(Object::Address(address));
    }
    if other_ports == OtherPorts::Refuse {
        objects.push(route(TABLE_REFUSED, Kind::Prohibit));
    }
    if frontend.protocol == Protocol::Udp {
        let all = Some((1, HIGHEST_PORT));
        let goto = Action::Goto(PRIORITY_REFUSE);
        let lookup = Action::Lookup(any_port);
        objects.push(route(any_port, here));
        objects.push(rule(PRIORITY_SKIP, Some(ip_protocol), all, goto));
        objects.push(rule(PRIORITY_PORTLESS, Some(ip_protocol), None, lookup));
    }
    objects
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use super::*;
    use crate::net::Family;

    const V4: Ground = Ground {
        family: Family::V4,
        ports: true,
        loopback: 1,
        has_loopback_address: true,
    };

    fn frontend(protocol: Protocol, address: Option<&str>, port: u16) -> Frontend {
        Frontend {
            protocol,
            family: Family::V4,
            address: address.map(|a| a.parse().unwrap()),
            port,
        }
    }

    fn target(other_ports: OtherPorts) -> Target {
        Target {
            port: 0,
            name: Arc::from("default/web:http"),
            other_ports,
        }
    }

    fn text(frontend: &Frontend, shape: Shape, ground: &Ground) -> Vec<String> {
        let mut all = objects(frontend, shape, ground);
        all.sort_by_key(|o| (o.phase(), o.clone()));
        all.iter()
            .map(|object| match object {
                Object::Address(a) => format!("address {a}"),
                Object::Route(r) => r.to_string().replace("54500", "X"),
                Object::Rule(r) => r.to_string(),
            })
            .collect()
    }

    #[test]
    fn a_tcp_cluster_ip_refuses_first_and_opens_last() {
        let web = frontend(Protocol::Tcp, Some("10.96.0.1"), 80);
        assert_eq!(
            text(&web, Shape::Port(OtherPorts::Refuse), &V4),
            [
                "address 10.96.0.1".to_owned(),
                format!("route prohibit 10.96.0.1/32 table {TABLE_REFUSED}"),
                format!("IPv4 rule 80: lookup {TABLE_REFUSED}"),
                format!("route local 10.96.0.1/32 table {}", TABLES + 80),
                format!("route local 10.96.0.1/32 table {TABLE_ICMP}"),
                format!("IPv4 rule 79: ipproto 1 lookup {TABLE_ICMP}"),
                format!("IPv4 rule 77: ipproto 6 dport 80 lookup {}", TABLES + 80),
            ]
        );
    }

    #[test]
    fn udp_fragments_have_a_table_behind_the_ports() {
        let dns = frontend(Protocol::Udp, Some("10.96.0.10"), 53);
        let text = text(&dns, Shape::Port(OtherPorts::PassOn), &V4);
        let fragments = TABLES + 0x1_0000;
        let skip = "IPv4 rule 78: ipproto 17 dport 1-65534 goto 80".to_owned();
        let lookup = format!("IPv4 rule 79: ipproto 17 lookup {fragments}");
        let at = |line: &str| text.iter().position(|t| t == line);
        assert!(at(&skip).is_some() && at(&skip) < at(&lookup), "{text:#?}");
        assert!(!text.iter().any(|t| t.contains("prohibit")), "{text:#?}");
    }

    #[test]
    fn shapes() {
        let own: IpAddr = "192.0.2.1".parse().unwrap();
        let blind = Ground { ports: false, ..V4 };
        let refuse = Shape::Port(OtherPorts::Refuse);
        let cases = [
            (Some("10.96.0.1"), 80, V4, Some(refuse)),
            (Some("10.96.0.1"), 80, blind, Some(Shape::Plain)),
            (Some("10.96.0.1"), 65534, V4, Some(refuse)),
            (Some("10.96.0.1"), 65535, V4, Some(Shape::Plain)),
            (Some("192.0.2.1"), 80, V4, Some(Shape::Nothing)),
            (None, 30080, V4, Some(Shape::Nothing)),
            (Some("10.96.0.1"), 0, V4, None),
            (Some("127.0.0.1"), 80, V4, None),
            (Some("0.0.0.0"), 80, V4, None),
            (Some("224.0.0.1"), 80, V4, None),
            (Some("fd00::1"), 80, V4, None),
        ];
        for (address, port, ground, expected) in cases {
            let frontend = frontend(Protocol::Tcp, address, port);
            let target = target(OtherPorts::Refuse);
            let shape = shape(&frontend, &target, &ground, |a| *a == own);
            assert_eq!(shape.ok(), expected, "{frontend}");
        }
    }

    #[test]
    fn every_object_is_found_again_and_no_two_tables_meet() {
        let mut tables = BTreeSet::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for port in [1, 2, 80, HIGHEST_PORT] {
                let frontend = frontend(protocol, Some("10.96.0.1"), port);
                for shape in [Shape::Port(OtherPorts::Refuse), Shape::Plain] {
                    for object in objects(&frontend, shape, &V4) {
                        assert!(object.is_ours(), "{object:?}");
                        if let Object::Rule(Rule {
                            priority: PRIORITY_PORT,
                            action,
                            ..
                        }) = object
                        {
                            assert!(tables.insert(format!("{action:?}")));
                        }
                    }
                }
            }
        }
        assert!(Object::Rule(scratch(Family::V6)).is_ours());
        let port_0 = format!("{:?}", scratch(Family::V6).action);
        assert!(!tables.contains(&port_0));
        let foreign = Rule {
            family: Family::V4,
            priority: 77,
            ip_protocol: None,
            ports: None,
            mark: None,
            action: Action::Lookup(100),
        };
        assert!(!Object::Rule(foreign).is_ours());
    }
}

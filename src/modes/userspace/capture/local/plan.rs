//! Objects in the kernel that deliver packets for a frontend. Pure.
//!
//! Policy routing evaluates these rules in order (N: one number for each protocol and port, so that
//! all addresses with that port share one rule):
//!
//! ```text
//!  0: from all lookup local                  the kernel's own: the node's addresses
//! 74: fwmark MARK goto 80                    IPv6: our own to an endpoint with such an address
//! 77: ipproto tcp dport 80 lookup N          local ADDRESS for each service address with it
//! 78: ipproto udp dport 1-65534 goto 80
//! 79: ipproto udp lookup FRAGMENTS           local ADDRESS for each with a UDP port
//! 79: ipproto icmp lookup ICMP               local ADDRESS for each
//! 80: from all lookup REFUSED                prohibit ADDRESS for each that refuses the rest
//! ```
//!
//! After another mode or method has taken over, the objects that open connections need stay
//! ([`Preserved`](super::preserved::Preserved)), with two more kinds of rules:
//!
//! ```text
//! 75: from CLIENT ipproto tcp dport 80 lookup N    for each address of the node's own clients
//! 76: iif lo goto 80                               new connections of the node go by its rules
//! ```
//!
//! - Plain local routes would deliver every port of a service address to whatever listens on the
//!   node's wildcard address, sshd for instance, and make the node answer ARP for it. With a rule
//!   for each port they do neither: ARP looks up routes without a port.
//! - Fragments have no ports, not even the first (`__skb_flow_dissect` stops at it), and without
//!   netfilter they are routed before they are reassembled. Without 78 and 79, UDP datagrams larger
//!   than the path MTU would be lost. Only a fragmented datagram can reach another UDP port of the
//!   node in this way.
//! - ICMP is accepted because path MTU discovery needs it; echo requests are answered.
//! - `prohibit`, not `unreachable`: the latter causes a soft error that a UDP client never sees,
//!   the former a hard one.

use std::{collections::HashSet, fmt, net::IpAddr};

use ipnet::IpNet;
use net::{Family, Frontend, Protocol};
use netlink::{
    routes::{Kind, Route, TABLE_LOCAL},
    rules::{Action, HIGHEST_PORT, Rule},
};
use nix::libc;

use crate::modes::userspace::capture::{MARK, OtherPorts, Target};

const PRIORITY_PASS: u32 = 74;
pub(super) const PRIORITY_CLIENT: u32 = 75;
pub(super) const PRIORITY_SENT_HERE: u32 = 76;
pub(super) const PRIORITY_PORT: u32 = 77;
const PRIORITY_SKIP: u32 = 78;
const PRIORITY_PORTLESS: u32 = 79;
pub(super) const PRIORITY_REFUSE: u32 = 80;

/// First of our table numbers; the upper bits of the others are the same.
/// Numbers follow from protocol and port alone, so that a later process finds
/// the tables of an earlier one without any record.
const TABLES: u32 = 0x5450_0000;
pub(super) const TABLE_ICMP: u32 = TABLES + 0x3_0000;
pub(super) const TABLE_REFUSED: u32 = TABLE_ICMP + 1;
const TABLES_END: u32 = TABLE_REFUSED;

/// An object in the kernel, ordered as the objects are added: those that refuse packets first. They
/// are removed in reverse order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// The node may answer from this address.
    Address(IpAddr),
    /// A route of table local.
    Route(Route),
    /// A routing rule.
    Rule(Rule),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Address(ip) => write!(f, "address {ip} of link lo"),
            Object::Route(route) => route.fmt(f),
            Object::Rule(rule) => rule.fmt(f),
        }
    }
}

impl Object {
    /// Phase in which it is added: all objects of lower phases are in the kernel by then.
    pub fn phase(&self) -> u8 {
        match self {
            Object::Address(_) => 0,
            Object::Route(r) if r.kind == Kind::Prohibit => 1,
            Object::Rule(r) => match r.priority {
                PRIORITY_REFUSE => 2,
                PRIORITY_SKIP | PRIORITY_PASS => 3,
                PRIORITY_PORTLESS => 5,
                PRIORITY_SENT_HERE => 7,
                _ => 6,
            },
            Object::Route(_) => 4,
        }
    }

    /// Returns whether it keeps packets from objects that are added later.
    pub fn refuses(&self) -> bool {
        match self {
            Object::Address(_) => false,
            Object::Route(route) => route.kind == Kind::Prohibit,
            Object::Rule(rule) => [PRIORITY_SKIP, PRIORITY_REFUSE].contains(&rule.priority),
        }
    }

    /// Returns whether it must not exist without `guard`. UDP packets with ports, to all addresses,
    /// follow a rule for packets without ports if no rule makes them skip it, or if the rule at
    /// which they would continue is missing.
    pub fn is_guarded_by(&self, guard: &Object) -> bool {
        let (Object::Rule(rule), Object::Rule(_)) = (self, guard) else {
            return false;
        };
        let udp = Some(Protocol::Udp.number());
        rule.priority == PRIORITY_PORTLESS && rule.ip_protocol == udp && guard.refuses()
    }

    /// Returns whether this mode creates such an object; for objects with our mark.
    pub fn is_ours(&self) -> bool {
        match self {
            Object::Address(_) => true,
            Object::Route(r) => (TABLES..=TABLES_END).contains(&r.table) || r.table == TABLE_LOCAL,
            Object::Rule(r) => {
                let ours = |table| (TABLES..=TABLES_END).contains(&table);
                (PRIORITY_PASS..=PRIORITY_REFUSE).contains(&r.priority)
                    && match r.action {
                        Action::Lookup(table) => ours(table),
                        Action::Goto(priority) => priority == PRIORITY_REFUSE,
                    }
            }
        }
    }
}

/// A rule without effect: its table belongs to port 0. [`Object::is_ours`] recognises it if it is
/// left behind.
pub fn scratch(family: Family) -> Rule {
    Rule::of_all(family, PRIORITY_PORTLESS, Action::Lookup(TABLES))
}

/// The rule for packets with our mark, which are routed as if no address but cluster IPs were
/// captured. IPv4 has none: answers do not have the mark, so that their source, which rules would
/// deliver here, counts as this node's own, and the kernel drops them (`fib_validate_source`,
/// verified on Linux 6.18).
pub fn passing(family: Family) -> Option<Rule> {
    let rule = Rule::of_all(family, PRIORITY_PASS, Action::Goto(PRIORITY_REFUSE));
    let mark = Some(MARK);
    (family == Family::V6).then_some(Rule { mark, ..rule })
}

/// How packets for one frontend are delivered to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// They are delivered anyway: the frontend is a node port, or has an address of the node's own.
    Already,
    /// By rules for the port.
    PerPort(OtherPorts),
    /// By a plain local route: all ports of the address are delivered.
    WholeAddress,
}

/// Abilities of this kernel and node for a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub family: Family,
    /// Whether routing rules of this kernel can match ports.
    pub matches_ports: bool,
    /// Index of the loopback interface.
    pub loopback: u32,
    /// The source of packets that programs on this node send to service addresses; `None`: the
    /// service address itself is.
    pub source: Option<IpAddr>,
    /// The node's own addresses, of any family.
    pub own: HashSet<IpAddr>,
}

/// How packets for `frontend` are delivered. Its address can be a Service's and its port is not 0:
/// `services` refuses others.
pub fn delivery(frontend: &Frontend, target: &Target, environment: &Environment) -> Delivery {
    let is_own = |address: &IpAddr| environment.own.contains(address);
    if frontend.address.as_ref().is_none_or(is_own) {
        Delivery::Already
    } else if environment.matches_ports && frontend.port <= HIGHEST_PORT {
        Delivery::PerPort(target.other_ports)
    } else {
        Delivery::WholeAddress
    }
}

/// The objects that deliver packets for `frontend`. Frontends share most of them.
pub fn objects(frontend: &Frontend, delivery: Delivery, environment: &Environment) -> Vec<Object> {
    let Some(address) = frontend.address else {
        return Vec::new();
    };
    let family = environment.family;
    let route = |table, kind| {
        let is_here = matches!(kind, Kind::Local(_));
        Object::Route(Route {
            table,
            destination: IpNet::from(address),
            kind,
            source: environment.source.filter(|_| is_here),
        })
    };
    let here = Kind::Local(environment.loopback);
    let other_ports = match delivery {
        Delivery::Already => return Vec::new(),
        Delivery::WholeAddress => return vec![route(TABLE_LOCAL, here)],
        Delivery::PerPort(other_ports) => other_ports,
    };
    let ip_protocol = IpProtocol::of(frontend.protocol);
    let table = ip_protocol.any_port + u32::from(frontend.port);
    let mut objects = rules(frontend, family, &ip_protocol);
    objects.extend([route(table, here), route(TABLE_ICMP, here)]);
    if family == Family::V4 {
        // IPv6 does not check source addresses against its own.
        objects.push(Object::Address(address));
    }
    match other_ports {
        OtherPorts::Refuse => objects.push(route(TABLE_REFUSED, Kind::Prohibit)),
        OtherPorts::PassOn => objects.extend(passing(family).map(Object::Rule)),
    }
    if frontend.protocol == Protocol::Udp {
        objects.push(route(ip_protocol.any_port, here));
    }
    objects
}

/// A protocol in rules and tables.
pub(super) struct IpProtocol {
    /// Protocol number (`IPPROTO_…`).
    number: u8,
    /// The table for its packets without ports. The table of a port is this number plus the port.
    pub(super) any_port: u32,
}

impl IpProtocol {
    pub(super) fn of(protocol: Protocol) -> IpProtocol {
        let slot = match protocol {
            Protocol::Tcp => 0,
            Protocol::Udp => 1,
            Protocol::Sctp => 2,
        };
        IpProtocol {
            number: protocol.number(),
            any_port: TABLES + (slot << 16),
        }
    }
}

/// The rules that direct packets for `frontend` to the tables with its routes.
fn rules(frontend: &Frontend, family: Family, ip_protocol: &IpProtocol) -> Vec<Object> {
    let rule = |priority, ip_protocol, ports, action| {
        Object::Rule(Rule {
            ip_protocol,
            ports,
            ..Rule::of_all(family, priority, action)
        })
    };
    let icmp = match family {
        Family::V4 => libc::IPPROTO_ICMP as u8,
        Family::V6 => libc::IPPROTO_ICMPV6 as u8,
    };
    let IpProtocol { number, any_port } = *ip_protocol;
    let number = Some(number);
    let port = Some((frontend.port, frontend.port));
    let of_port = Action::Lookup(any_port + u32::from(frontend.port));
    let to_icmp = Action::Lookup(TABLE_ICMP);
    let mut rules = vec![
        rule(PRIORITY_PORT, number, port, of_port),
        rule(PRIORITY_PORTLESS, Some(icmp), None, to_icmp),
        rule(PRIORITY_REFUSE, None, None, Action::Lookup(TABLE_REFUSED)),
    ];
    if frontend.protocol == Protocol::Udp {
        let all = Some((1, HIGHEST_PORT));
        let goto = Action::Goto(PRIORITY_REFUSE);
        let lookup = Action::Lookup(any_port);
        rules.push(rule(PRIORITY_SKIP, number, all, goto));
        rules.push(rule(PRIORITY_PORTLESS, number, None, lookup));
    }
    rules
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use net::Family;

    use super::*;

    fn v4() -> Environment {
        Environment {
            family: Family::V4,
            matches_ports: true,
            loopback: 1,
            source: Some(Family::V4.localhost()),
            own: HashSet::from(["192.0.2.1".parse().unwrap()]),
        }
    }

    fn frontend(protocol: Protocol, address: Option<&str>, port: u16) -> Frontend {
        match address {
            Some(ip) => Frontend::service(protocol, ip.parse().unwrap(), port),
            None => Frontend::node_port(protocol, Family::V4, port),
        }
    }

    fn text(frontend: &Frontend, delivery: Delivery, environment: &Environment) -> Vec<String> {
        let mut all = objects(frontend, delivery, environment);
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
            text(&web, Delivery::PerPort(OtherPorts::Refuse), &v4()),
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
        let text = text(&dns, Delivery::PerPort(OtherPorts::PassOn), &v4());
        let fragments = TABLES + 0x1_0000;
        let skip = "IPv4 rule 78: ipproto 17 dport 1-65534 goto 80".to_owned();
        let lookup = format!("IPv4 rule 79: ipproto 17 lookup {fragments}");
        let at = |line: &str| text.iter().position(|t| t == line);
        assert!(at(&skip).is_some() && at(&skip) < at(&lookup), "{text:#?}");
        assert!(!text.iter().any(|t| t.contains("prohibit")), "{text:#?}");
    }

    #[test]
    fn how_packets_are_delivered() {
        let without_ports = || Environment {
            matches_ports: false,
            ..v4()
        };
        let (refuse, whole) = (
            Delivery::PerPort(OtherPorts::Refuse),
            Delivery::WholeAddress,
        );
        let cases = [
            (Some("10.96.0.1"), 80, v4(), refuse),
            (Some("10.96.0.1"), 80, without_ports(), whole),
            (Some("10.96.0.1"), 65534, v4(), refuse),
            (Some("10.96.0.1"), 65535, v4(), whole),
            (Some("192.0.2.1"), 80, v4(), Delivery::Already),
            (None, 30080, v4(), Delivery::Already),
        ];
        for (address, port, environment, expected) in cases {
            let frontend = frontend(Protocol::Tcp, address, port);
            let delivery = delivery(&frontend, &Target::at(0), &environment);
            assert_eq!(delivery, expected, "{frontend}");
        }
    }

    #[test]
    fn every_object_is_found_again_and_no_two_tables_meet() {
        let mut tables = BTreeSet::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for port in [1, 2, 80, HIGHEST_PORT] {
                let frontend = frontend(protocol, Some("10.96.0.1"), port);
                for delivery in [
                    Delivery::PerPort(OtherPorts::Refuse),
                    Delivery::WholeAddress,
                ] {
                    for object in objects(&frontend, delivery, &v4()) {
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
        let foreign = Rule::of_all(Family::V4, 77, Action::Lookup(100));
        assert!(!Object::Rule(foreign).is_ours());
    }
}

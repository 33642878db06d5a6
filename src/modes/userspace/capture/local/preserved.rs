//! Objects that stay for open connections when another mode or another capture method takes over.
//! Pure.
//!
//! These connections end at sockets of the process that no longer serves, at service addresses:
//! without a route no packet reaches them. A route for everyone would also bring new connections to
//! the same address and port to this node, where other programs may listen; so it only stays as
//! long as it is needed, and [`retire`](super::retire) refuses packets that belong to no
//! connection. Nor may new connections from the node itself follow it: it gives them the loopback
//! address as source, and nothing that nat forwards from there reaches an endpoint.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use net::{Family, Protocol};
use netlink::{
    connections::Connection,
    routes::{Kind, TABLE_LOCAL},
    rules::{Action, Rule},
};

use super::plan::{
    IpProtocol, Object, PRIORITY_CLIENT, PRIORITY_PORT, PRIORITY_REFUSE, PRIORITY_SENT_HERE,
    TABLE_ICMP, TABLE_REFUSED,
};

/// Installed objects that open connections need, and additional ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Preserved {
    /// The service addresses of the connections.
    pub addresses: BTreeSet<IpAddr>,
    /// Number of open connections.
    pub connections: usize,
    /// Routes and rules to add.
    pub add: Vec<Object>,
    /// Routes and rules to remove.
    pub remove: Vec<Object>,
}

/// The address and port for which a route delivers packets of `protocol`; `None` for other objects.
pub fn captured(protocol: Protocol, object: &Object) -> Option<SocketAddr> {
    let Object::Route(route) = object else {
        return None;
    };
    let first = IpProtocol::of(protocol).any_port;
    let port = u16::try_from(route.table.checked_sub(first)?).ok()?;
    let delivers = matches!(route.kind, Kind::Local(_)) && port > 0;
    delivers.then(|| SocketAddr::new(route.destination.addr(), port))
}

/// The address for which a route delivers packets to all ports; `None` for other objects.
fn captured_whole(object: &Object) -> Option<IpAddr> {
    let Object::Route(route) = object else {
        return None;
    };
    let delivers = matches!(route.kind, Kind::Local(_)) && route.table == TABLE_LOCAL;
    delivers.then(|| route.destination.addr())
}

/// The needs of open connections, by which installed objects are kept.
pub struct Needed {
    /// The service addresses and ports of the connections.
    frontends: BTreeSet<SocketAddr>,
    addresses: BTreeSet<IpAddr>,
    tables: HashSet<u32>,
    connections: usize,
    /// Addresses of clients on this node, with the port that they call.
    clients: BTreeSet<(IpAddr, u16)>,
}

impl Needed {
    /// The needs of those `open` connections that arrive through `installed` objects. `own` are the
    /// node's addresses.
    pub fn of(installed: &[Object], open: &[Connection], own: &HashSet<IpAddr>) -> Needed {
        let tcp = |object: &Object| captured(Protocol::Tcp, object);
        let captured: HashSet<_> = installed.iter().filter_map(tcp).collect();
        let whole: HashSet<_> = installed.iter().filter_map(captured_whole).collect();
        let open = open.iter().filter(|Connection { local, .. }| {
            captured.contains(local) || whole.contains(&local.ip())
        });
        let (mut frontends, mut clients) = (BTreeSet::new(), BTreeSet::new());
        let mut connections = 0;
        for Connection { local, remote } in open {
            connections += 1;
            frontends.insert(*local);
            if remote.ip().is_loopback() || own.contains(&remote.ip()) {
                clients.insert((remote.ip(), local.port()));
            }
        }
        let first = IpProtocol::of(Protocol::Tcp).any_port;
        let tables = frontends.iter().map(|f| first + u32::from(f.port()));
        Needed {
            addresses: frontends.iter().map(SocketAddr::ip).collect(),
            tables: tables.collect(),
            frontends,
            connections,
            clients,
        }
    }

    pub fn includes(&self, object: &Object) -> bool {
        match object {
            Object::Address(ip) => self.addresses.contains(ip),
            Object::Route(route) if route.table == TABLE_ICMP => {
                self.addresses.contains(&route.destination.addr())
            }
            Object::Route(route) if route.table == TABLE_LOCAL => {
                captured_whole(object).is_some_and(|ip| self.addresses.contains(&ip))
            }
            Object::Route(_) => {
                captured(Protocol::Tcp, object).is_some_and(|f| self.frontends.contains(&f))
            }
            Object::Rule(rule) => match rule.action {
                Action::Lookup(TABLE_ICMP) => true,
                // The rule for packets from the node looks this table up.
                Action::Lookup(TABLE_REFUSED) => rule.priority == PRIORITY_REFUSE,
                Action::Lookup(table) => {
                    rule.priority == PRIORITY_PORT && self.tables.contains(&table)
                }
                Action::Goto(_) => false,
            },
        }
    }
}

/// Plans which of the `installed` objects in `family` stay for the `open` connections when nothing
/// new is captured any more. `own` are the node's addresses.
pub fn preserved(
    family: Family,
    installed: Vec<Object>,
    open: &[Connection],
    own: &HashSet<IpAddr>,
) -> Preserved {
    let needed = Needed::of(&installed, open, own);
    let first = IpProtocol::of(Protocol::Tcp).any_port;
    let rules = needed.clients.iter().map(|&(client, port)| {
        let action = Action::Lookup(first + u32::from(port));
        Rule {
            ip_protocol: Some(Protocol::Tcp.number()),
            ports: Some((port, port)),
            source: Some(client),
            ..Rule::of_all(family, PRIORITY_CLIENT, action)
        }
    });
    let sent_here = Rule {
        sent_here: true,
        ..Rule::of_all(family, PRIORITY_SENT_HERE, Action::Goto(PRIORITY_REFUSE))
    };
    let mut add: BTreeSet<_> = rules.chain([sent_here]).map(Object::Rule).collect();
    let mut remove = installed;
    remove.retain(|object| !add.remove(object) && !needed.includes(object));
    Preserved {
        addresses: needed.addresses,
        connections: needed.connections,
        add: add.into_iter().collect(),
        remove,
    }
}

#[cfg(test)]
mod tests {
    use net::Frontend;

    use super::*;
    use crate::modes::userspace::capture::{
        OtherPorts,
        local::plan::{Delivery, Environment, objects},
    };

    fn installed(frontends: &[(Protocol, &str, u16)]) -> Vec<Object> {
        let environment = Environment {
            family: Family::V4,
            matches_ports: true,
            loopback: 1,
            source: Some(Family::V4.localhost()),
            own: HashSet::new(),
        };
        let objects = frontends.iter().flat_map(|(protocol, ip, port)| {
            let frontend = Frontend::service(*protocol, ip.parse().unwrap(), *port);
            objects(
                &frontend,
                Delivery::PerPort(OtherPorts::Refuse),
                &environment,
            )
        });
        let objects: BTreeSet<_> = objects.collect();
        objects.into_iter().collect()
    }

    #[test]
    fn a_route_of_all_ports_stays_for_a_connection_to_any_of_them() {
        let environment = Environment {
            family: Family::V4,
            matches_ports: false,
            loopback: 1,
            source: None,
            own: HashSet::new(),
        };
        let route = |ip: &str| {
            let frontend = Frontend::service(Protocol::Tcp, ip.parse().unwrap(), 80);
            objects(&frontend, Delivery::WholeAddress, &environment)
        };
        let [used, unused] = ["10.96.0.1", "10.96.0.2"].map(route);
        let all = [used.clone(), unused.clone()].concat();
        let open = [connection("10.96.0.1:65535", "192.0.2.1:4000")];
        let needed = Needed::of(&all, &open, &HashSet::new());
        assert!(
            used.iter().all(|object| needed.includes(object)),
            "{used:?}"
        );
        assert!(
            !unused.iter().any(|object| needed.includes(object)),
            "{unused:?}"
        );
    }

    fn connection(local: &str, remote: &str) -> Connection {
        Connection {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    fn texts(objects: &[Object]) -> Vec<String> {
        let mut texts: Vec<_> = objects.iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    }

    #[test]
    fn what_no_connection_needs_goes() {
        let all = [
            (Protocol::Tcp, "10.96.0.1", 80),
            (Protocol::Udp, "10.96.0.1", 80),
            (Protocol::Tcp, "10.96.0.1", 22),
            (Protocol::Tcp, "10.96.0.2", 80),
        ];
        let before = installed(&all);
        let idle = preserved(Family::V4, before.clone(), &[], &HashSet::new());
        assert_eq!((idle.connections, idle.addresses.len()), (0, 0));

        let open = [
            connection("10.96.0.1:80", "192.0.2.1:4000"),
            connection("10.96.0.1:80", "127.0.0.1:4000"),
            // It ends at an address of the node's own, and needs no route.
            connection("192.0.2.9:22", "192.0.2.1:4000"),
        ];
        let preserved_of = preserved(Family::V4, before.clone(), &open, &HashSet::new());
        assert_eq!(preserved_of.connections, 2);
        let removed: HashSet<_> = preserved_of.remove.iter().cloned().collect();
        let mut stay = before;
        stay.retain(|object| !removed.contains(object));
        let tcp = IpProtocol::of(Protocol::Tcp).any_port;
        assert_eq!(
            texts(&stay),
            [
                "IPv4 rule 77: ipproto 6 dport 80 lookup TCP"
                    .replace("TCP", &(tcp + 80).to_string()),
                format!("IPv4 rule 79: ipproto 1 lookup {TABLE_ICMP}"),
                format!("IPv4 rule 80: lookup {TABLE_REFUSED}"),
                "address 10.96.0.1 of link lo".to_owned(),
                format!("route local 10.96.0.1/32 table {}", tcp + 80),
                format!("route local 10.96.0.1/32 table {TABLE_ICMP}"),
            ]
        );
        assert_eq!(
            texts(&preserved_of.add),
            [
                format!(
                    "IPv4 rule 75: from 127.0.0.1 ipproto 6 dport 80 lookup {}",
                    tcp + 80
                ),
                "IPv4 rule 76: iif lo goto 80".to_owned(),
            ]
        );

        stay.extend(preserved_of.add);
        assert!(stay.iter().all(Object::is_ours), "{stay:?}");
        let again = preserved(Family::V4, stay.clone(), &open, &HashSet::new());
        assert_eq!((again.add, again.remove), (vec![], vec![]));
        // The client on the node is gone, and so is its rule.
        let later = preserved(Family::V4, stay, &open[..1], &HashSet::new());
        assert_eq!(texts(&later.remove).len(), 1, "{later:?}");
    }
}

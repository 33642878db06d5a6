//! Tells our virtual servers, whether of this process, an earlier Tripod or kube-proxy, from those
//! of other programs such as keepalived.

use std::{collections::BTreeSet, net::IpAddr};

use hashbrown::HashSet;
use ipvs::{ServerId, ipset::Element};
use net::{Family, Protocol};

use super::plan::{Member, Set};

/// Criteria that tell our virtual servers from those of other programs.
#[derive(Debug, Default)]
pub struct OwnServers {
    /// Addresses of Services: those of the dummy link, and of the set that names them.
    pub services: BTreeSet<IpAddr>,
    /// The node's own addresses; `None`: any address may be one.
    pub node: Option<BTreeSet<IpAddr>>,
    /// The frontends at the node's own addresses that the sets name.
    pub named: NamedFrontends,
}

impl OwnServers {
    /// Reads the criteria; `members` returns the members of a set. `services` are the addresses of
    /// the dummy link, `node` those of other links.
    ///
    /// # Errors
    /// Those of `members`.
    pub fn read<E>(
        mut members: impl FnMut(Set, Family) -> Result<Vec<Element>, E>,
        mut services: BTreeSet<IpAddr>,
        node: BTreeSet<IpAddr>,
    ) -> Result<OwnServers, E> {
        for family in Family::ALL {
            let of_services = members(Set::ServiceIps, family)?.into_iter();
            services.extend(of_services.filter_map(|element| match element {
                Element::Ip(ip) if !node.contains(&ip) => Some(ip),
                _ => None,
            }));
        }
        Ok(OwnServers {
            services,
            node: Some(node),
            named: NamedFrontends::read(members)?,
        })
    }

    /// Returns true if the virtual server of that name is ours: at an address of
    /// a Service, or where a set names it. A node port's number alone says nothing, unless the
    /// address is one of this node.
    pub fn has(&self, id: &ServerId) -> bool {
        let ip = id.address.ip();
        self.services.contains(&ip)
            || self.named.has_exactly(id)
            || self.node.as_ref().is_none_or(|node| node.contains(&ip)) && self.named.has(id)
    }
}

/// Frontends that the sets name at addresses of the node: node ports, and
/// addresses of Services that the node has on another link than the dummy one.
#[derive(Debug, Default)]
pub struct NamedFrontends {
    /// Node ports are at the unspecified address of their family.
    frontends: HashSet<ServerId>,
}

/// The sets that name such frontends; bitmaps of ports with their protocol.
const SETS: [(Set, Protocol); 9] = [
    (Set::NodePortTcp, Protocol::Tcp),
    (Set::NodePortUdp, Protocol::Udp),
    (Set::NodePortSctp, Protocol::Sctp),
    (Set::NodePortLocalTcp, Protocol::Tcp),
    (Set::NodePortLocalUdp, Protocol::Udp),
    (Set::NodePortLocalSctp, Protocol::Sctp),
    (Set::ExternalIp, Protocol::Tcp),
    (Set::ExternalIpLocal, Protocol::Tcp),
    (Set::LoadBalancer, Protocol::Tcp),
];

impl NamedFrontends {
    /// Reads the frontends from the sets; `members` returns the members of one.
    ///
    /// # Errors
    /// Those of `members`.
    pub fn read<E>(
        mut members: impl FnMut(Set, Family) -> Result<Vec<Element>, E>,
    ) -> Result<NamedFrontends, E> {
        let mut named = NamedFrontends::default();
        for family in Family::ALL {
            for (set, protocol) in SETS {
                for element in members(set, family)? {
                    named.insert(
                        &Member {
                            set,
                            family,
                            element,
                        },
                        protocol,
                    );
                }
            }
        }
        Ok(named)
    }

    /// Adds the frontend that `member` names; `protocol` is that of a port in a bitmap.
    fn insert(&mut self, member: &Member, protocol: Protocol) {
        let any = member.family.unspecified();
        self.frontends.extend(match member.element {
            Element::Port(port) => Some(ServerId::new((any, port), protocol)),
            _ => member.frontend(),
        });
    }

    /// Returns true if a set names `frontend` with its address.
    pub fn has_exactly(&self, frontend: &ServerId) -> bool {
        self.frontends.contains(frontend)
    }

    /// Returns true if a set names `frontend`, be it as a node port, which is the same at any
    /// address.
    pub fn has(&self, frontend: &ServerId) -> bool {
        let any = Family::of(&frontend.address.ip()).unspecified();
        let node_port = ServerId::new((any, frontend.address.port()), frontend.protocol);
        self.frontends.contains(&node_port) || self.has_exactly(frontend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_server_is_ours_at_an_address_of_a_service_or_where_a_set_names_it() {
        let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let members = |set: Set, family: Family| -> Result<Vec<Element>, ()> {
            Ok(match (set, family) {
                (Set::NodePortTcp, Family::V4) => vec![Element::Port(30_001)],
                (Set::NodePortSctp, Family::V4) => {
                    vec![Element::ip_port(ip("192.0.2.10"), 132, 30_002)]
                }
                (Set::ExternalIp, Family::V4) => {
                    let left = Element::ip_port(ip("192.0.2.12"), 17, 53);
                    vec![Element::ip_port(ip("192.0.2.10"), 17, 53), left]
                }
                _ => Vec::new(),
            })
        };
        let own = OwnServers {
            services: [ip("10.96.0.1"), ip("fd00:96::1")].into(),
            node: Some([ip("192.0.2.10"), ip("192.0.2.11"), ip("2001:db8::10")].into()),
            named: NamedFrontends::read(members).expect("members"),
        };
        for (protocol, address, ours) in [
            (Protocol::Tcp, "10.96.0.1:80", true),
            (Protocol::Udp, "[fd00:96::1]:53", true),
            (Protocol::Tcp, "192.0.2.10:30001", true),
            (Protocol::Tcp, "192.0.2.11:30001", true),
            (Protocol::Udp, "192.0.2.10:30001", false),
            (Protocol::Tcp, "[2001:db8::10]:30001", false),
            (Protocol::Tcp, "192.0.2.12:30001", false),
            (Protocol::Udp, "192.0.2.12:53", true),
            (Protocol::Tcp, "192.0.2.12:53", false),
            (Protocol::Tcp, "10.96.0.2:30001", false),
            (Protocol::Sctp, "192.0.2.10:30002", true),
            (Protocol::Sctp, "192.0.2.11:30002", false),
            (Protocol::Udp, "192.0.2.10:53", true),
            (Protocol::Tcp, "192.0.2.10:53", false),
            (Protocol::Tcp, "192.0.2.10:80", false),
        ] {
            let address: std::net::SocketAddr = address.parse().expect("an address");
            let frontend = ServerId::new(address, protocol);
            assert_eq!(own.has(&frontend), ours, "{frontend}");
        }
    }
}

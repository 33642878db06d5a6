//! Removing all that ipvs mode installs, kube-proxy's too.

use std::{collections::BTreeSet, fs, net::IpAddr, path::Path};

use hashbrown::HashSet;
use ipnet::IpNet;
use nix::errno::Errno;

use super::{
    Error,
    plan::{FAMILIES, LINK, Set, number},
    tables,
};
use crate::{
    kernel::{
        addresses,
        ipset::{Element, IpSets},
        ipvs::{Change, Ipvs, RealServer, ServerId},
        links,
        netlink::{self, Protocol, Socket},
        xtables::{leftovers::Kept, rule::Table},
    },
    services,
};

/// Where the kernel shows that it has IPVS.
const IPVS: &str = "/proc/net/ip_vs";

/// Removes the dummy link, the virtual servers at its addresses and at node
/// ports that are ours and not in `exclude`, the rules and the sets: also those
/// that an earlier process or kube-proxy left. What is not there is fine, also
/// where this kernel has no IPVS or no ipset.
///
/// # Errors
/// The first thing that could not be removed, after all others were tried.
pub async fn cleanup(exclude: &[IpNet]) -> Result<(), Error> {
    cleanup_beside(exclude, &Kept::nothing()).await
}

/// Chains that iptables mode has too, by the same names.
pub const SHARED_CHAINS: [(Table, &str); 5] = [
    (Table::Filter, "KUBE-FORWARD"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    (Table::Nat, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-POSTROUTING"),
    (Table::Nat, "KUBE-MARK-MASQ"),
];

/// As [`cleanup`], but leaves the rules that are `kept` because a mode that
/// runs has them.
///
/// # Errors
/// As [`cleanup`].
pub async fn cleanup_beside(exclude: &[IpNet], kept: &Kept) -> Result<(), Error> {
    let mut outcome: Result<(), Error> = Ok(());
    let mut sets = there(IpSets::open())?;
    let mut route = Socket::open(Protocol::Route)?;
    let left = Left::read(&mut route, sets.as_mut())?;
    outcome = outcome.and(links::delete(&mut route, LINK).map_err(Error::from));
    if fs::exists(Path::new(IPVS)).unwrap_or(false) {
        let removed = remove_servers(|id| left.has(id, exclude));
        outcome = outcome.and(removed.map_err(Error::from));
    }
    outcome = outcome.and(cleanup_rules(kept).await);
    if let Some(sets) = &mut sets {
        for family in FAMILIES {
            for set in Set::ALL {
                let destroyed = sets.destroy(set.name(family));
                outcome = outcome.and(destroyed.map_err(Error::from));
            }
        }
    }
    outcome
}

/// Removes the rules only, but for what is `kept`: for another engine than the
/// one that this mode, which runs, has its rules in.
///
/// # Errors
/// The first program that failed, after all others did their part.
pub async fn cleanup_rules(kept: &Kept) -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in FAMILIES {
        let removed = tables::remove(family, kept).await;
        outcome = outcome.and(removed.map_err(|source| Error::Rules { family, source }));
    }
    outcome
}

/// Whether the dummy link is there, or rules other than what is `kept`.
pub async fn is_there(kept: &Kept) -> bool {
    for family in FAMILIES {
        if tables::is_there(family, kept).await {
            return true;
        }
    }
    links::index(LINK).is_ok()
}

/// Lets the connections of what ipvs mode left end by themselves: its virtual
/// servers take no new ones from now on, and stay for those that they have.
/// Answers how many those are.
///
/// # Errors
/// When IPVS cannot be read or changed.
pub fn retire(exclude: &[IpNet]) -> Result<u32, Error> {
    if !fs::exists(Path::new(IPVS)).unwrap_or(false) {
        return Ok(0);
    }
    let mut sets = there(IpSets::open())?;
    let left = Left::read(&mut Socket::open(Protocol::Route)?, sets.as_mut())?;
    let mut ipvs = Ipvs::open()?;
    let (mut connections, mut changes) = (0u32, Vec::new());
    for listed in ipvs.list()? {
        let id = listed.server.id;
        if !left.has(&id, exclude) {
            continue;
        }
        for real in ipvs.list_real(&id)? {
            connections = connections
                .saturating_add(real.active)
                .saturating_add(real.inactive);
            if real.server.weight > 0 {
                let weight = 0;
                changes.push(Change::EditReal(
                    id,
                    RealServer {
                        weight,
                        ..real.server
                    },
                ));
            }
        }
    }
    let outcomes = ipvs.apply(&changes)?;
    outcomes.into_iter().collect::<Result<(), _>>()?;
    Ok(connections)
}

/// By what our virtual servers are told from others'.
struct Left {
    /// Addresses of the dummy link.
    bound: BTreeSet<IpAddr>,
    node_ports: NodePorts,
}

impl Left {
    fn read(route: &mut Socket, sets: Option<&mut IpSets>) -> Result<Left, netlink::Error> {
        let bound = match links::index(LINK) {
            Ok(index) => addresses::list(route)?
                .into_iter()
                .filter(|address| address.index == index)
                .map(|address| address.address)
                .collect(),
            Err(_) => BTreeSet::new(),
        };
        let node_ports = match sets {
            Some(sets) => NodePorts::read(sets)?,
            None => NodePorts::default(),
        };
        Ok(Left { bound, node_ports })
    }

    fn has(&self, id: &ServerId, exclude: &[IpNet]) -> bool {
        let ip = id.address.ip();
        let excluded = exclude.iter().any(|net| net.contains(&ip));
        !excluded && (self.bound.contains(&ip) || self.node_ports.has(id))
    }
}

/// `None` where the kernel has no such thing.
fn there<T>(opened: Result<T, netlink::Error>) -> Result<Option<T>, netlink::Error> {
    match opened {
        Err(error)
            if matches!(
                error.errno(),
                Some(Errno::EINVAL | Errno::ENOENT | Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP)
            ) =>
        {
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn remove_servers(ours: impl Fn(&ServerId) -> bool) -> Result<(), netlink::Error> {
    let mut ipvs = Ipvs::open()?;
    let listed = ipvs.list()?;
    let mut outcome = Ok(());
    for id in listed.iter().map(|listed| &listed.server.id) {
        if ours(id) {
            outcome = outcome.and(ipvs.delete(id));
        }
    }
    outcome
}

/// Node ports that the sets name: what tells ours from others' virtual servers
/// at the node's own addresses.
#[derive(Debug, Default)]
pub(super) struct NodePorts {
    ports: HashSet<(u8, u16)>,
}

impl NodePorts {
    fn read(sets: &mut IpSets) -> Result<NodePorts, netlink::Error> {
        let mut found = NodePorts::default();
        for family in FAMILIES {
            for (set, protocol) in Self::SETS {
                match sets.members(set.name(family)) {
                    Ok(members) => found.extend(protocol, members),
                    Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    /// The sets of node ports, each with its protocol.
    pub(super) const SETS: [(Set, services::Protocol); 3] = [
        (Set::NodePortTcp, services::Protocol::Tcp),
        (Set::NodePortUdp, services::Protocol::Udp),
        (Set::NodePortSctp, services::Protocol::Sctp),
    ];

    /// Adds the members of one of those sets.
    pub(super) fn extend(&mut self, protocol: services::Protocol, members: Vec<Element>) {
        let protocol = number(protocol);
        self.ports
            .extend(members.iter().filter_map(|member| match member {
                Element::Port(port) | Element::IpPort { port, .. } => Some((protocol, *port)),
                _ => None,
            }));
    }

    /// A virtual server of that name is at a node port.
    pub(super) fn has(&self, id: &ServerId) -> bool {
        let protocol = number(super::plan::Frontend::of(id).protocol);
        self.ports.contains(&(protocol, id.address.port()))
    }
}

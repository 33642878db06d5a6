//! Who owns an address that several Services name.
//!
//! An address, a port and a protocol belong to one ServicePort. A cluster IP
//! goes before everything that the author of a Service may choose freely
//! (external and load-balancer IPs, node ports), because whoever may create a
//! Service could otherwise take over the traffic of another one
//! (CVE-2020-8554). After that the older Service goes first. Nothing of this
//! depends on the order in which objects arrive, so all nodes decide alike, and
//! decide the same after a restart.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    slice,
    sync::Arc,
};

use hashbrown::{HashMap, HashSet, hash_map::Entry};

use super::{Service, ServiceName, ServicePort, ServicePortName};
use crate::net::{Family, Protocol};

/// What an address is to the ServicePort that names it. The first goes before
/// the others, whose order only matters within one ServicePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress[].ip`.
    LoadBalancerIp,
    /// `spec.ports[].nodePort`, on the node's own addresses.
    NodePort,
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressKind::ClusterIp => "cluster IP",
            AddressKind::ExternalIp => "external IP",
            AddressKind::LoadBalancerIp => "load-balancer IP",
            AddressKind::NodePort => "node port",
        })
    }
}

/// An address that a ServicePort names and another one owns. It is not served
/// for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What the address is to the ServicePort that does not get it.
    pub kind: AddressKind,
    /// The address; `None`: the node port on every address of the node.
    pub ip: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// Who owns it.
    pub owner: ServicePortName,
    /// What it is to the owner.
    pub owner_kind: AddressKind,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { kind, ip, port, .. } = self;
        match ip {
            Some(ip) => write!(f, "{kind} {}", SocketAddr::new(*ip, *port))?,
            None => write!(f, "{kind} {port}")?,
        }
        let owner = &self.owner;
        write!(
            f,
            " ({}) is not served for this Service: Service {owner} has it as its {}, and ",
            owner.protocol, self.owner_kind
        )?;
        f.write_str(match (self.owner_kind, self.kind) {
            (AddressKind::ClusterIp, kind) if kind != AddressKind::ClusterIp => {
                "cluster IPs go first"
            }
            _ => "goes first by creation time and name",
        })
    }
}

/// What one ServicePort at a time can own. A node port has the unspecified
/// address of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Address {
    ip: IpAddr,
    port: u16,
    protocol: Protocol,
}

impl Address {
    fn node_port(family: Family, port: u16, protocol: Protocol) -> Address {
        let ip = match family {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        Address { ip, port, protocol }
    }

    fn at(self, ip: IpAddr) -> Address {
        Address { ip, ..self }
    }
}

/// That one port of a Service names an address.
#[derive(Clone, Debug)]
struct Claim {
    service: Arc<Service>,
    /// Its place in `serving.ports`.
    port: u16,
    kind: AddressKind,
}

impl Claim {
    fn is_of(&self, service: &ServiceName, port: usize) -> bool {
        self.service.name == *service && usize::from(self.port) == port
    }

    /// `Less` goes first.
    fn rank(&self, other: &Claim) -> Ordering {
        fn key(claim: &Claim) -> impl Ord + '_ {
            let service = &claim.service;
            let freely_chosen = claim.kind != AddressKind::ClusterIp;
            (freely_chosen, service.created, &service.name, claim.port)
        }
        key(self).cmp(&key(other))
    }

    /// Returns the ServicePort that it is of.
    fn name(&self, ip: &IpAddr) -> Option<ServicePortName> {
        let serving = self.service.serving.as_ref().ok()?;
        let port = serving.ports.get(usize::from(self.port))?;
        Some(ServicePortName {
            service: self.service.name.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
            family: Family::of(ip),
        })
    }
}

/// Returns every address that `service` names, in an entry for each of its
/// ports.
fn claims(service: &Arc<Service>) -> Vec<(Address, Claim)> {
    let Ok(serving) = &service.serving else {
        return Vec::new();
    };
    let mut claims = Vec::new();
    for (port, number) in serving.ports.iter().zip(0..) {
        let mut add = |address, kind| {
            let claim = Claim {
                service: Arc::clone(service),
                port: number,
                kind,
            };
            claims.push((address, claim));
        };
        for (ips, kind) in [
            (&serving.cluster_ips, AddressKind::ClusterIp),
            (&serving.external_ips, AddressKind::ExternalIp),
            (&serving.load_balancer_ips, AddressKind::LoadBalancerIp),
        ] {
            for ip in ips {
                let address = Address {
                    ip: *ip,
                    port: port.port,
                    protocol: port.protocol,
                };
                add(address, kind);
            }
        }
        if let Some(node_port) = port.node_port {
            for family in serving.cluster_ips.iter().map(Family::of) {
                let address = Address::node_port(family, node_port, port.protocol);
                add(address, AddressKind::NodePort);
            }
        }
    }
    claims
}

/// The claims to one address: the owner's first. Nearly all addresses have one,
/// for which a vector would be a waste.
#[derive(Debug)]
enum Claims {
    One(Claim),
    More(Vec<Claim>),
}

impl Claims {
    fn all(&self) -> &[Claim] {
        match self {
            Claims::One(claim) => slice::from_ref(claim),
            Claims::More(claims) => claims,
        }
    }

    fn first(&self) -> Option<&Claim> {
        self.all().first()
    }

    /// Adds a claim; true if it is the first now. A ServicePort that names an
    /// address twice has the better claim of the two.
    fn add(&mut self, claim: Claim) -> bool {
        let mut claims = match std::mem::replace(self, Claims::More(Vec::new())) {
            Claims::One(one) => vec![one],
            Claims::More(claims) => claims,
        };
        let own = |other: &Claim| other.is_of(&claim.service.name, claim.port.into());
        let changed = match claims.iter().position(own) {
            Some(at) if claims.get(at).is_some_and(|own| own.kind <= claim.kind) => false,
            twice => {
                if let Some(at) = twice {
                    claims.remove(at);
                }
                let at = claims.partition_point(|other| other.rank(&claim) == Ordering::Less);
                claims.insert(at, claim);
                at == 0
            }
        };
        *self = match <[Claim; 1]>::try_from(claims) {
            Ok([one]) => Claims::One(one),
            Err(claims) => Claims::More(claims),
        };
        changed
    }

    /// Takes a claim back; true if it was the first.
    fn remove(&mut self, claim: &Claim) -> bool {
        let own = |other: &Claim| other.is_of(&claim.service.name, claim.port.into());
        let place = self.all().iter().position(own);
        match (&mut *self, place) {
            (Claims::One(_), Some(_)) => *self = Claims::More(Vec::new()),
            (Claims::More(claims), Some(at)) => drop(claims.remove(at)),
            (_, None) => {}
        }
        place == Some(0)
    }
}

/// Who claims which address, of all Services.
#[derive(Debug, Default)]
pub(super) struct Owners {
    claims: HashMap<Address, Claims>,
    /// The node's own addresses, as far as they serve node ports.
    node: BTreeSet<IpAddr>,
}

impl Owners {
    /// `old` became `new`, each `None` where there is no Service of that name.
    /// Notes in `dirty` the other Services that may own more or less by that.
    pub(super) fn replace(
        &mut self,
        old: Option<&Arc<Service>>,
        new: Option<&Arc<Service>>,
        dirty: &mut HashSet<ServiceName>,
    ) {
        for (address, claim) in old.into_iter().flat_map(claims) {
            let Entry::Occupied(mut place) = self.claims.entry(address) else {
                continue;
            };
            let was_first = place.get_mut().remove(&claim);
            if place.get().all().is_empty() {
                place.remove();
            }
            if was_first {
                self.mark(address, dirty);
            }
        }
        for (address, claim) in new.into_iter().flat_map(claims) {
            let is_first = match self.claims.entry(address) {
                Entry::Occupied(mut place) => place.get_mut().add(claim),
                Entry::Vacant(place) => {
                    place.insert(Claims::One(claim));
                    true
                }
            };
            if is_first {
                self.mark(address, dirty);
            }
        }
    }

    /// The node has these addresses that serve node ports. Notes in `dirty` the
    /// Services that may own more or less by that.
    pub(super) fn set_node(
        &mut self,
        addresses: BTreeSet<IpAddr>,
        dirty: &mut HashSet<ServiceName>,
    ) {
        if addresses == self.node {
            return;
        }
        let before = std::mem::replace(&mut self.node, addresses);
        let differing: BTreeSet<&IpAddr> = before.symmetric_difference(&self.node).collect();
        // Walks through all, for what is rare.
        for (address, claims) in &self.claims {
            if !differing.contains(&address.ip) {
                continue;
            }
            if let Some(node_port) = self.claims.get(&node_port(address)) {
                let both = claims.all().iter().chain(node_port.all());
                dirty.extend(both.map(|claim| claim.service.name.clone()));
            }
        }
    }

    /// Returns the node's addresses that serve node ports.
    #[cfg(test)]
    pub(super) fn node(&self) -> &BTreeSet<IpAddr> {
        &self.node
    }

    /// Takes from `port`, the ServicePort of port `number` of `service` with
    /// all addresses that it names, those that others own.
    pub(super) fn settle(&self, service: &ServiceName, number: usize, port: &mut ServicePort) {
        let mut conflicts = Vec::new();
        let protocol = port.name.protocol;
        let mut owns = |kind, ip: IpAddr, at: u16| {
            let address = Address {
                ip,
                port: at,
                protocol,
            };
            match self.owner(&address).filter(|c| !c.is_of(service, number)) {
                None => true,
                Some(claim) => {
                    conflicts.extend(claim.name(&ip).map(|owner| Conflict {
                        kind,
                        ip: Some(ip).filter(|ip| !ip.is_unspecified()),
                        port: at,
                        owner,
                        owner_kind: claim.kind,
                    }));
                    false
                }
            }
        };
        let at = port.port;
        port.cluster_ip = port
            .cluster_ip
            .filter(|ip| owns(AddressKind::ClusterIp, *ip, at));
        for (ips, kind) in [
            (&mut port.external_ips, AddressKind::ExternalIp),
            (&mut port.load_balancer_ips, AddressKind::LoadBalancerIp),
        ] {
            if !ips.is_empty() {
                let owned = ips.iter().filter(|ip| owns(kind, **ip, at));
                *ips = owned.copied().collect();
            }
        }
        let family = port.name.family;
        port.node_port = port.node_port.filter(|at| {
            let everywhere = Address::node_port(family, *at, protocol).ip;
            let owned = owns(AddressKind::NodePort, everywhere, *at);
            if owned {
                for ip in self.node.iter().filter(|ip| Family::of(ip) == family) {
                    owns(AddressKind::NodePort, *ip, *at);
                }
            }
            owned
        });
        port.conflicts = conflicts.into();
    }

    /// Returns the owner of `address`: ServicePorts that name an address of the
    /// node and those that have the port on all of them are compared.
    fn owner(&self, address: &Address) -> Option<&Claim> {
        let first = |address: &Address| self.claims.get(address).and_then(Claims::first);
        let named = first(address);
        let node_port = first(&node_port(address)).filter(|_| self.node.contains(&address.ip));
        named
            .into_iter()
            .chain(node_port)
            .min_by(|one, other| one.rank(other))
    }

    /// Who is first in line for `address` changed: notes everyone who claims
    /// it, also as a node port.
    fn mark(&self, address: Address, dirty: &mut HashSet<ServiceName>) {
        let mut mark = |address: &Address| {
            let claims = self.claims.get(address).into_iter();
            let claims = claims.flat_map(Claims::all);
            dirty.extend(claims.map(|claim| claim.service.name.clone()));
        };
        mark(&address);
        if address.ip.is_unspecified() {
            let family = Family::of(&address.ip);
            let of_family = self.node.iter().filter(|ip| Family::of(ip) == family);
            of_family.for_each(|ip| mark(&address.at(*ip)));
        } else if self.node.contains(&address.ip) {
            mark(&node_port(&address));
        }
    }
}

/// Returns the node port that `address` would be if its IP were the node's.
fn node_port(address: &Address) -> Address {
    Address::node_port(Family::of(&address.ip), address.port, address.protocol)
}

#[cfg(test)]
mod tests;

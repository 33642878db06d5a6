//! Ownership of addresses: decides which Service is served if several name the same address.
//!
//! An address, a port and a protocol belong to one ServicePort. A cluster IP takes precedence over
//! everything that the author of a Service may choose freely (external IPs, node ports), because
//! otherwise every user who may create a Service could take over the traffic of another one
//! (CVE-2020-8554). So does a load-balancer IP, which ranks after cluster IPs: it is in the status,
//! which few may write. After that the older Service takes precedence. None of this depends on the
//! order in which objects arrive, so all nodes decide alike, also after a restart. Only among
//! Services without a time of creation, as in a folder of manifests, the Service that is already
//! served keeps the address.
//!
//! A range of ports (`tripod.proxy/ports`) is owned as a whole, and only by the Service that takes
//! precedence over all others at its address (`ranges`). Exact ports of others with a role of the same
//! precedence are exceptions within it.

mod ranges;

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::Arc,
};

use hashbrown::{HashMap, HashSet, hash_map::Entry};
use net::{Family, Frontend, Protocol};
use smallvec::SmallVec;

use self::ranges::Ranges;
use super::{Created, Service, ServiceName, ServicePort, ServicePortName};

/// The role of an address for the ServicePort that names it. The first two take precedence over
/// the others, in this order; the order of the others matters only within one ServicePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// An address of `spec.clusterIPs`.
    ClusterIp,
    /// An address of `status.loadBalancer.ingress[].ip`.
    LoadBalancerIp,
    /// An address of `spec.externalIPs`.
    ExternalIp,
    /// A port of `spec.ports[].nodePort`, on the node's own addresses.
    NodePort,
    /// `spec.healthCheckNodePort`, on the node's own addresses.
    HealthCheckNodePort,
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressKind::ClusterIp => "cluster IP",
            AddressKind::ExternalIp => "external IP",
            AddressKind::LoadBalancerIp => "load-balancer IP",
            AddressKind::NodePort => "node port",
            AddressKind::HealthCheckNodePort => "health-check node port",
        })
    }
}

/// An address that a ServicePort names but another one owns. It is not served for the former.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Role of the address for the ServicePort that does not get it.
    pub kind: AddressKind,
    /// The address; `None`: the node port on every address of the node.
    pub ip: Option<IpAddr>,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// The port at that address, or the first one of a range.
    pub port: u16,
    /// The last port of a range; `None`: it is no range.
    pub last_port: Option<NonZeroU16>,
    /// The ServicePort that owns it; of a range, its address.
    pub owner: ServicePortName,
    /// Role of the address for its owner.
    pub owner_kind: AddressKind,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { kind, ip, port, .. } = self;
        match ip {
            Some(ip) => write!(f, "{kind} {}", SocketAddr::new(*ip, *port))?,
            None => write!(f, "{kind} {port}")?,
        }
        if let Some(last) = self.last_port {
            write!(f, "-{last}")?;
        }
        let (protocol, owner) = (self.protocol, &self.owner);
        match ip {
            Some(_) => write!(f, " ({protocol})")?,
            None => write!(f, " ({protocol}, {})", owner.family)?,
        }
        f.write_str(" is not served for this Service: Service ")?;
        match self.last_port {
            Some(_) => write!(f, "{} has this address", owner.service)?,
            None => write!(f, "{owner} has it")?,
        }
        write!(f, " as its {}, and ", self.owner_kind)?;
        f.write_str(match (self.owner_kind, self.kind) {
            (AddressKind::ClusterIp, kind) if kind != AddressKind::ClusterIp => {
                "cluster IPs take precedence"
            }
            (AddressKind::NodePort, AddressKind::HealthCheckNodePort) => {
                "node ports take precedence over health checks"
            }
            (_, AddressKind::HealthCheckNodePort) => {
                "addresses of Services take precedence over health checks"
            }
            (AddressKind::LoadBalancerIp, kind) if kind != AddressKind::LoadBalancerIp => {
                "load-balancer IPs take precedence over external IPs and node ports"
            }
            _ => "takes precedence by creation time (by arrival if there is none) and name",
        })
    }
}

/// A port of a Service that names an address, and may own it.
#[derive(Clone, Debug)]
struct Contender {
    service: Arc<Service>,
    /// Index of the port in `serving.ports`.
    port: u16,
    kind: AddressKind,
    /// The batch from which on its Service has named the address; 0 if the Service has a time of
    /// creation.
    since: u32,
}

impl Contender {
    fn is_port_of(&self, service: &ServiceName, port: usize) -> bool {
        self.service.name == *service && usize::from(self.port) == port
    }

    /// The precedence of its role; the least takes precedence. Health checks are last: a process
    /// answers them, and packets to node ports are translated before they reach it.
    fn class(&self) -> u8 {
        match self.kind {
            AddressKind::ClusterIp => 0,
            AddressKind::LoadBalancerIp => 1,
            AddressKind::ExternalIp | AddressKind::NodePort => 2,
            AddressKind::HealthCheckNodePort => 3,
        }
    }

    /// Orders contenders: the first of them owns the address.
    fn rank(&self, other: &Contender) -> Ordering {
        fn key(contender: &Contender) -> impl Ord + '_ {
            let service = &contender.service;
            (
                contender.class(),
                service.created,
                contender.since,
                &service.name,
                contender.port,
            )
        }
        key(self).cmp(&key(other))
    }

    /// The name of its ServicePort in `family`.
    fn name(&self, family: Family) -> Option<ServicePortName> {
        let serving = self.service.serving.as_ref().ok()?;
        let port = serving.ports.get(usize::from(self.port))?;
        Some(ServicePortName::new(&self.service.name, port, family))
    }
}

/// Returns every address that `service` names, in an entry for each of its
/// ports.
fn named_addresses(service: &Arc<Service>) -> Vec<(Frontend, Contender)> {
    let Ok(serving) = &service.serving else {
        return Vec::new();
    };
    let mut named = Vec::new();
    for (port, number) in serving.ports.iter().zip(0..) {
        let mut add = |address, kind| {
            let contender = Contender {
                service: Arc::clone(service),
                port: number,
                kind,
                since: 0,
            };
            named.push((address, contender));
        };
        for (ips, kind) in [
            (&serving.cluster_ips, AddressKind::ClusterIp),
            (&serving.external_ips, AddressKind::ExternalIp),
            (&serving.load_balancer_ips, AddressKind::LoadBalancerIp),
        ] {
            for ip in ips {
                let exact = Frontend::service(port.protocol, *ip, port.port);
                let last_port = port.last_port;
                add(Frontend { last_port, ..exact }, kind);
            }
        }
        let node_port = port
            .node_port
            .map(|at| (at, port.protocol, AddressKind::NodePort));
        // It belongs to the Service as a whole, which its first port represents here.
        let check = serving.health_check_node_port.filter(|_| number == 0);
        let check = check.map(|at| (at, Protocol::Tcp, AddressKind::HealthCheckNodePort));
        for (at, protocol, kind) in node_port.into_iter().chain(check) {
            for family in serving.cluster_ips.iter().map(Family::of) {
                add(Frontend::node_port(protocol, family, at), kind);
            }
        }
    }
    named
}

/// The contenders for one address, its owner first. Nearly all addresses have only one.
type Contenders = SmallVec<[Contender; 1]>;

/// Finds the contender of the same port.
fn position(contenders: &Contenders, of: &Contender) -> Option<usize> {
    let mut all = contenders.iter();
    all.position(|other| other.is_port_of(&of.service.name, of.port.into()))
}

/// Adds a contender. Returns true if it is the owner now. If a ServicePort names an address twice,
/// the role with precedence counts.
fn add(contenders: &mut Contenders, new: Contender) -> bool {
    if let Some(at) = position(contenders, &new) {
        if contenders[at].kind <= new.kind {
            return false;
        }
        contenders.remove(at);
    }
    let at = contenders.partition_point(|other| other.rank(&new) == Ordering::Less);
    contenders.insert(at, new);
    at == 0
}

/// The ServicePorts of all Services that name each address, and thereby its owner.
#[derive(Debug, Default)]
pub(super) struct AddressOwnership {
    contenders: HashMap<Frontend, Contenders>,
    /// Where Services name ranges of ports, which are not among those above.
    ranges: Ranges,
    /// The node's own addresses that serve node ports.
    node: BTreeSet<IpAddr>,
    /// Number of the current batch.
    batch: u32,
}

impl AddressOwnership {
    /// Begins a batch: Services without a time of creation keep the addresses that they got in
    /// earlier batches.
    pub(super) fn begin_batch(&mut self) {
        self.batch = self.batch.saturating_add(1);
    }

    /// Replaces `old` by `new`; `None` if there is no Service of that name. Adds to `dirty` the
    /// other Services that may own more or fewer addresses as a result.
    pub(super) fn replace(
        &mut self,
        old: Option<&Arc<Service>>,
        new: Option<&Arc<Service>>,
        dirty: &mut HashSet<ServiceName>,
    ) {
        let undated = new.is_some_and(|new| new.created == Created::UNKNOWN);
        let mut since = HashMap::new();
        let mut of_ranges = HashMap::new();
        for (address, contender) in old.into_iter().flat_map(named_addresses) {
            if let Some(ip) = address.address
                && let Some(before) = self.ranges.remove(ip, &contender.service.name)
            {
                of_ranges.insert(ip, before);
            }
            let Entry::Occupied(mut place) = self.contenders.entry(address) else {
                continue;
            };
            let Some(at) = position(place.get(), &contender) else {
                continue;
            };
            let contender = place.get_mut().remove(at);
            if place.get().is_empty() {
                place.remove();
            }
            if undated && contender.since != 0 {
                since.insert(address, contender.since);
            }
            if at == 0 {
                self.mark_dirty(address, dirty);
            }
        }
        for (address, mut contender) in new.into_iter().flat_map(named_addresses) {
            let ip = address.address;
            if undated {
                let before = match address.last_port {
                    Some(_) => ip.and_then(|ip| of_ranges.get(&ip)),
                    None => since.get(&address),
                };
                let before = before.filter(|before| **before != 0);
                contender.since = before.copied().unwrap_or(self.batch);
            }
            if let Some(ip) = ip {
                self.ranges.add(ip, &contender);
            }
            if address.last_port.is_some() {
                continue;
            }
            let contenders = self.contenders.entry(address).or_default();
            if add(contenders, contender) {
                self.mark_dirty(address, dirty);
            }
        }
    }

    /// Decides who owns the ranges that changed in this batch. Adds to `dirty` the Services that may
    /// own more or fewer addresses as a result.
    pub(super) fn settle_ranges(&mut self, dirty: &mut HashSet<ServiceName>) {
        self.ranges.settle(&self.contenders, dirty);
    }

    /// Sets the addresses of the node that serve node ports. Adds to `dirty` the Services that may
    /// own more or fewer addresses as a result.
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
        // This walks through all addresses; it rarely happens.
        for (address, contenders) in &self.contenders {
            if !address.address.is_some_and(|ip| differing.contains(&ip)) {
                continue;
            }
            if let Some(node_port) = self.contenders.get(&node_port(address)) {
                let both = contenders.iter().chain(node_port);
                dirty.extend(both.map(|contender| contender.service.name.clone()));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn node(&self) -> &BTreeSet<IpAddr> {
        &self.node
    }

    /// Removes from `port`, the ServicePort of port `index` of `service` with all addresses that it
    /// names, those that other ServicePorts own, and records them as its conflicts.
    pub(super) fn leave_owned(&self, service: &ServiceName, index: usize, port: &mut ServicePort) {
        let mut conflicts = Vec::new();
        let protocol = port.name.protocol;
        let mut owns = |kind, address: Frontend| match self.owner_instead(&address, service, index)
        {
            None => true,
            Some(contender) => {
                conflicts.extend(contender.name(address.family).map(|owner| Conflict {
                    kind,
                    ip: address.address,
                    protocol,
                    port: address.port,
                    last_port: address.last_port,
                    owner,
                    owner_kind: contender.kind,
                }));
                false
            }
        };
        let (number, last_port) = (port.port, port.last_port);
        let at = |ip: &IpAddr| Frontend {
            last_port,
            ..Frontend::service(protocol, *ip, number)
        };
        port.cluster_ip = port
            .cluster_ip
            .filter(|ip| owns(AddressKind::ClusterIp, at(ip)));
        for (ips, kind) in [
            (&mut port.external_ips, AddressKind::ExternalIp),
            (&mut port.load_balancer_ips, AddressKind::LoadBalancerIp),
        ] {
            if !ips.is_empty() {
                let owned = ips.iter().filter(|ip| owns(kind, at(ip)));
                *ips = owned.copied().collect();
            }
        }
        let family = port.name.family;
        port.node_port = port.node_port.filter(|number| {
            let everywhere = Frontend::node_port(protocol, family, *number);
            let owned = owns(AddressKind::NodePort, everywhere);
            if owned {
                for address in self.on_the_node(everywhere) {
                    owns(AddressKind::NodePort, address);
                }
            }
            owned
        });
        port.health_check_node_port = port.health_check_node_port.filter(|at| {
            let (is_answered, lost) = self.health_check(*at, family);
            // Ports of a Service have the same one.
            conflicts.extend(lost.into_iter().filter(|_| index == 0));
            is_answered
        });
        port.conflicts = conflicts.into();
    }

    /// Returns whether the health-check node port `at` is answered, and the addresses at which it is
    /// not. Conflicts between health checks on the same port are handled where these are served.
    fn health_check(&self, at: u16, family: Family) -> (bool, Vec<Conflict>) {
        let lost = |ip, owner: &Contender| {
            Some(Conflict {
                kind: AddressKind::HealthCheckNodePort,
                ip,
                protocol: Protocol::Tcp,
                port: at,
                last_port: None,
                owner: owner.name(family)?,
                owner_kind: owner.kind,
            })
        };
        let everywhere = Frontend::node_port(Protocol::Tcp, family, at);
        let owner = self.owner(&everywhere);
        if let Some(owner) = owner.filter(|owner| owner.kind == AddressKind::NodePort) {
            return (false, lost(None, owner).into_iter().collect());
        }
        let taken = self.on_the_node(everywhere);
        let taken = taken.filter_map(|at| lost(at.address, self.contenders.get(&at)?.first()?));
        (true, taken.collect())
    }

    /// Finds the owner of `address` if that is not port `index` of `service`. Ranges of Services whose
    /// role has precedence over that of the owner come before it, except node ports: ranges are not
    /// served at addresses of the node.
    fn owner_instead(
        &self,
        address: &Frontend,
        service: &ServiceName,
        index: usize,
    ) -> Option<Cow<'_, Contender>> {
        if address.last_port.is_some() {
            let owner = self.ranges.owner_instead(address.address?, service);
            return owner.map(Cow::Borrowed);
        }
        let exact = self.owner(address);
        let range = self.ranges.owner_of(address).filter(|range| {
            exact.is_none_or(|exact| {
                exact.kind != AddressKind::NodePort && range.class() < exact.class()
            })
        });
        let owner = range.map(Cow::Owned).or(exact.map(Cow::Borrowed));
        owner.filter(|owner| !owner.is_port_of(service, index))
    }

    /// Finds the owner of `address`, among ServicePorts that name an address of the node and those
    /// that have the port on all of them.
    fn owner(&self, address: &Frontend) -> Option<&Contender> {
        let first = |address: &Frontend| self.contenders.get(address)?.first();
        let node_port = self.is_of_node(address).then(|| node_port(address));
        let node_port = node_port.and_then(|address| first(&address));
        first(address)
            .into_iter()
            .chain(node_port.filter(|owner| owner.kind == AddressKind::NodePort))
            .min_by(|one, other| one.rank(other))
    }

    /// Adds every Service that names `address`, also as a node port, to `dirty`: its owner changed.
    fn mark_dirty(&self, address: Frontend, dirty: &mut HashSet<ServiceName>) {
        let mut mark_all = |address: &Frontend| {
            let contenders = self.contenders.get(address).into_iter().flatten();
            dirty.extend(contenders.map(|contender| contender.service.name.clone()));
        };
        mark_all(&address);
        if address.address.is_none() {
            self.on_the_node(address).for_each(|at| mark_all(&at));
        }
        if self.is_of_node(&address) {
            mark_all(&node_port(&address));
        }
    }

    /// The addresses of the node at which `node_port` is served.
    fn on_the_node(&self, node_port: Frontend) -> impl Iterator<Item = Frontend> + '_ {
        let Frontend {
            protocol,
            family,
            port,
            ..
        } = node_port;
        let ips = self.node.iter().filter(move |ip| Family::of(ip) == family);
        ips.map(move |ip| Frontend::service(protocol, *ip, port))
    }

    /// Returns whether `address` names an address of the node that serves node ports.
    fn is_of_node(&self, address: &Frontend) -> bool {
        address.address.is_some_and(|ip| self.node.contains(&ip))
    }
}

/// Returns the node port that `address` would be if its IP were the node's.
fn node_port(address: &Frontend) -> Frontend {
    Frontend::node_port(address.protocol, address.family, address.port)
}

#[cfg(test)]
mod tests;

//! Applies events to the service map. The work depends on the size of the change: only Services
//! that an event concerns are rebuilt.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;
use tracing::{info, warn};

use super::{
    Changes, Ejected, EndpointSlice, Event, Node, NotServed, Object, ObjectName, Oddity, Service,
    ServiceCidr, ServiceMap, ServiceName, ServicePort, SliceName,
    assemble::{Changing, service_ports},
    deadlines::Deadlines,
    last_ready::LastReady,
    oddity::Why,
    owners::AddressOwnership,
    passing::{LASTING, Passing},
    select::{NodeWeights, ThisNode},
    slice::Owner,
    slow_start::SlowStarts,
};

/// Holds the objects and the [`ServiceMap`] that follows from them.
#[derive(Debug)]
pub struct Tracker {
    this: ThisNode,
    services: HashMap<ServiceName, Entry>,
    /// All slices, whether their Service exists or not.
    slices: HashMap<SliceName, Arc<EndpointSlice>>,
    /// Weights of the nodes that have one.
    weights: NodeWeights,
    /// Endpoints to which connections are not answered, including those of Services that do not
    /// exist: a Service may be deleted and created again before the watcher of connections notices.
    ejected: HashMap<ServiceName, BTreeSet<SocketAddr>>,
    slow_starts: SlowStarts,
    last_ready: LastReady,
    /// When Services change although no object does.
    deadlines: Deadlines,
    service_cidrs: BTreeMap<Arc<str>, Arc<ServiceCidr>>,
    /// Oddities that are logged if they last.
    passing: Passing,
    ownership: AddressOwnership,
    map: ServiceMap,
    /// Whether the Node object of this node was known, and has been deleted.
    is_node_deleted: bool,
}

/// The objects of one Service name, and their ServicePorts.
#[derive(Debug, Default)]
struct Entry {
    /// The object; slices may arrive before it and stay after it.
    service: Option<Arc<Service>>,
    /// Sorted by name; most Services have one, for which a map would take ten times the memory.
    slices: Vec<Arc<EndpointSlice>>,
    ports: Box<[Arc<ServicePort>]>,
    /// Oddities that were logged.
    oddities: Vec<Oddity>,
}

impl Tracker {
    /// Returns a tracker without objects for the node of that name: its name in the API, which
    /// decides which endpoints are local.
    pub fn new(node_name: &str) -> Tracker {
        Tracker {
            this: ThisNode {
                name: Arc::from(node_name),
                zone: None,
            },
            services: HashMap::new(),
            slices: HashMap::new(),
            weights: NodeWeights::new(),
            ejected: HashMap::new(),
            slow_starts: SlowStarts::default(),
            last_ready: LastReady::default(),
            deadlines: Deadlines::default(),
            service_cidrs: BTreeMap::new(),
            passing: Passing::default(),
            ownership: AddressOwnership::default(),
            map: ServiceMap::default(),
            is_node_deleted: false,
        }
    }

    /// Returns the ServicePorts that this node should serve.
    pub fn map(&self) -> &ServiceMap {
        &self.map
    }

    /// Returns the Node object of this node; `None` until it is known.
    pub fn node(&self) -> Option<&Node> {
        self.map.this_node()
    }

    /// Returns whether the Node object of this node was known, and has been deleted.
    pub fn is_node_deleted(&self) -> bool {
        self.is_node_deleted
    }

    /// Applies events to the map. Returns the changes, which are empty if the events cancel out or
    /// concern nothing that this node serves. Objects that became odd are logged once: at once, or
    /// by [`Tracker::log_lasting`] if the oddity usually passes.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Changes {
        let (changes, oddities) = self.fold(events);
        self.passing.log(oddities);
        changes
    }

    /// Waits until [`Tracker::log_lasting`] should be called.
    pub async fn oddities_last(&self) {
        self.passing.due().await;
    }

    /// Logs the oddities that have lasted for some seconds.
    pub fn log_lasting(&mut self) {
        self.log_oddities(Some(LASTING));
    }

    /// Logs all oddities that were not logged yet, for objects that will not change.
    pub fn log_all(&mut self) {
        self.log_oddities(None);
    }

    fn log_oddities(&mut self, lasting: Option<std::time::Duration>) {
        let services = &self.services;
        self.passing.log_those(lasting, |service, oddity| {
            let entry = services.get(service);
            entry.is_some_and(|entry| entry.oddities.contains(oddity))
        });
    }

    /// Sets the addresses of the node that serve node ports. Returns the resulting changes: another
    /// ServicePort may own a node port there, if other Services name the same address.
    pub fn set_node_addresses(&mut self, addresses: BTreeSet<IpAddr>) -> Changes {
        let mut dirty = HashSet::new();
        self.ownership.set_node(addresses, &mut dirty);
        self.rebuild_all(dirty)
    }

    fn rebuild_all(&mut self, services: impl IntoIterator<Item = ServiceName>) -> Changes {
        let (mut changes, mut odd) = (Changes::default(), Vec::new());
        for name in services {
            self.rebuild(&name, &mut changes, &mut odd);
        }
        self.passing.log(odd);
        changes
    }

    /// Waits until [`Tracker::time_passed`] should be called.
    pub async fn time_passes(&self) {
        self.deadlines.due().await;
    }

    /// Returns the changes that follow from the time alone: shares of endpoints that became ready
    /// grow, and those that are not ready are used only for a while.
    pub fn time_passed(&mut self) -> Changes {
        let due = self.deadlines.take_due();
        self.rebuild_all(due)
    }

    fn fold(&mut self, events: impl IntoIterator<Item = Event>) -> (Changes, Vec<Oddity>) {
        let mut dirty = HashSet::new();
        let mut odd = Vec::new();
        let zone = self.this.zone.clone();
        let mut reweighed = HashSet::new();
        let mut node_changed = false;
        self.ownership.begin_batch();
        for event in events {
            match event {
                Event::Changed(Object::Service(service)) => self.put_service(service, &mut dirty),
                Event::Gone(ObjectName::Service(name)) => self.remove_service(name, &mut dirty),
                Event::Changed(Object::EndpointSlice(slice)) => {
                    self.put_slice(slice, &mut dirty, &mut odd)
                }
                Event::Gone(ObjectName::EndpointSlice(name)) => {
                    self.remove_slice(&name, &mut dirty)
                }
                Event::Changed(Object::Node(node)) => {
                    self.set_weight(&node.name, node.weight, &mut reweighed);
                    if node.name == self.this.name {
                        node_changed |= self.set_node(node);
                    }
                }
                // The last known state stays, as in kube-proxy 1.36 (`NodeManager` and
                // `NodeTopologyConfig` of its `pkg/proxy`): pods continue to run here when the
                // object is deleted.
                Event::Gone(ObjectName::Node(name)) if name == self.this.name => {
                    self.set_node_deleted(true)
                }
                Event::Gone(ObjectName::Node(name)) => self.set_weight(&name, None, &mut reweighed),
                Event::Changed(Object::ServiceCidr(cidr)) => {
                    self.service_cidrs.insert(Arc::clone(&cidr.name), cidr);
                }
                Event::Gone(ObjectName::ServiceCidr(name)) => {
                    self.service_cidrs.remove(&name);
                }
                Event::Ejected(ejected) => self.set_ejected(ejected, &mut dirty),
            }
        }
        self.ownership.settle_ranges(&mut dirty);
        let networks_changed = self.set_service_networks();
        if zone != self.this.zone {
            dirty.extend(self.services_where(EndpointSlice::has_zone_hints));
        }
        if !reweighed.is_empty() {
            dirty.extend(self.services_where(|slice| slice.weighs_by(&reweighed)));
        }
        let mut changes = Changes {
            // The Node decides which endpoints are local and where node ports are served, for all
            // Services. kube-proxy restarts for this. Networks of cluster IPs belong to no single
            // Service.
            full: node_changed || networks_changed,
            ..Changes::default()
        };
        for name in dirty {
            self.rebuild(&name, &mut changes, &mut odd);
        }
        (changes, odd)
    }

    /// Returns true if the ServiceCIDRs name other networks than before.
    fn set_service_networks(&mut self) -> bool {
        let cidrs = self.service_cidrs.values();
        let networks: Vec<IpNet> = cidrs.flat_map(|cidr| cidr.networks.to_vec()).collect();
        let networks = IpNet::aggregate(&networks);
        let changed = networks != self.map.service_networks;
        self.map.service_networks = networks;
        changed
    }

    /// Finds the Services that have such a slice. Walks through all slices, for rare events.
    fn services_where(
        &self,
        is: impl Fn(&EndpointSlice) -> bool,
    ) -> impl Iterator<Item = ServiceName> {
        let having = self.services.iter().filter(move |(_, entry)| {
            let mut slices = entry.slices.iter();
            slices.any(|slice| is(slice))
        });
        having.map(|(name, _)| name.clone())
    }

    fn put_service(&mut self, service: Arc<Service>, dirty: &mut HashSet<ServiceName>) {
        let entry = self.services.entry(service.name.clone()).or_default();
        if entry.service.as_ref() != Some(&service) {
            let before = entry.service.as_ref();
            self.ownership.replace(before, Some(&service), dirty);
            dirty.insert(service.name.clone());
            entry.service = Some(service);
        }
    }

    fn remove_service(&mut self, name: ServiceName, dirty: &mut HashSet<ServiceName>) {
        if let Some(entry) = self.services.get_mut(&name) {
            let before = entry.service.take();
            self.ownership.replace(before.as_ref(), None, dirty);
            dirty.insert(name);
        }
    }

    fn put_slice(
        &mut self,
        slice: Arc<EndpointSlice>,
        dirty: &mut HashSet<ServiceName>,
        odd: &mut Vec<Oddity>,
    ) {
        let before = self.slices.get(&slice.name);
        if before.is_some_and(|before| before.owner != slice.owner) {
            self.remove_slice(&slice.name, dirty);
        }
        if let Owner::Service(service) = &slice.owner {
            let entry = self.services.entry(service.clone()).or_default();
            if entry.put_slice(&slice) {
                dirty.insert(service.clone());
            }
        }
        let before = self.slices.insert(slice.name.clone(), Arc::clone(&slice));
        if slice.owner == Owner::Unlabelled && before.is_none() {
            odd.push(Oddity::NoServiceLabel(slice.name.clone()));
        }
    }

    fn remove_slice(&mut self, name: &SliceName, dirty: &mut HashSet<ServiceName>) {
        let Some(slice) = self.slices.remove(name) else {
            return;
        };
        if let Owner::Service(service) = &slice.owner
            && let Some(entry) = self.services.get_mut(service)
        {
            entry.slices.retain(|slice| slice.name != *name);
            dirty.insert(service.clone());
        }
    }

    fn set_ejected(&mut self, ejected: Ejected, dirty: &mut HashSet<ServiceName>) {
        let Ejected { service, endpoints } = ejected;
        let before = if endpoints.is_empty() {
            self.ejected.remove(&service)
        } else {
            self.ejected.insert(service.clone(), endpoints.clone())
        };
        if before.unwrap_or_default() != endpoints {
            dirty.insert(service);
        }
    }

    /// Sets the weight of a node, which is added to `reweighed` if it had another one.
    fn set_weight(
        &mut self,
        node: &Arc<str>,
        weight: Option<u16>,
        reweighed: &mut HashSet<Arc<str>>,
    ) {
        let before = match weight {
            Some(weight) => self.weights.insert(Arc::clone(node), weight),
            None => self.weights.remove(node),
        };
        if before != weight {
            reweighed.insert(Arc::clone(node));
        }
    }

    /// Sets the object of this node. Returns whether the node's own addresses
    /// or those of its pods changed.
    fn set_node(&mut self, mut node: Arc<Node>) -> bool {
        self.set_node_deleted(false);
        self.this.zone = node.zone.clone();
        if let Some(before) = &self.map.node {
            node = Node::with_addresses_of(node, before);
        }
        let before = self.map.node.replace(Arc::clone(&node));
        before.is_none_or(|before| {
            before.addresses != node.addresses || before.pod_cidrs != node.pod_cidrs
        })
    }

    fn set_node_deleted(&mut self, is_deleted: bool) {
        let name = &self.this.name;
        match (self.map.node.is_some(), self.is_node_deleted, is_deleted) {
            (true, false, true) => warn!(
                "this node's Node object {name} was deleted: /healthz answers 503, so that load \
                 balancers do not send to this node; its last known addresses and podCIDRs stay \
                 in use"
            ),
            (true, true, false) => info!("this node's Node object {name} exists again"),
            _ => return,
        }
        self.is_node_deleted = is_deleted;
    }

    /// Rebuilds the ServicePorts of one Service and records the differences.
    fn rebuild(&mut self, name: &ServiceName, changes: &mut Changes, odd: &mut Vec<Oddity>) {
        let Some(entry) = self.services.get_mut(name) else {
            return;
        };
        let slices = entry.slices.iter().map(|slice| &**slice);
        let preferences = entry.service.as_ref().and_then(|s| s.preferences.as_ref());
        let duration = preferences.and_then(|preferences| preferences.slow_start);
        let wanted = preferences.is_some_and(|preferences| preferences.keeps_last_ready);
        let changing = Changing {
            starts: self.slow_starts.observe(name, duration, slices.clone()),
            last_ready: self.last_ready.observe(name, wanted, slices.clone()),
        };
        self.deadlines.set(name, changing.next());
        let made = entry.service.as_ref().map_or_else(Vec::new, |service| {
            let (this, weights) = (&self.this, &self.weights);
            let none = BTreeSet::new();
            let ejected = self.ejected.get(name).unwrap_or(&none);
            let ownership = &self.ownership;
            service_ports(
                service, slices, this, weights, ownership, ejected, &changing,
            )
        });

        let mut ports = Vec::with_capacity(made.len());
        for mut new in made {
            let old = entry.ports.iter().find(|old| old.name == new.name);
            if let Some(old) = old {
                if **old == new {
                    ports.push(Arc::clone(old));
                    continue;
                }
                // The tables of the modes have the old name as a key; the new port shares its
                // memory.
                new.name = old.name.clone();
                if old.endpoints == new.endpoints {
                    new.endpoints = Arc::clone(&old.endpoints);
                }
            }
            let new = Arc::new(new);
            changes.record(old, Some(&new));
            self.map.insert(Arc::clone(&new));
            ports.push(new);
        }
        for old in &entry.ports {
            if !ports.iter().any(|new| new.name == old.name) {
                changes.record(Some(old), None);
                self.map.remove(&old.name);
            }
        }
        entry.ports = ports.into();

        let oddities = entry.find_oddities(name);
        let new = oddities
            .iter()
            .filter(|oddity| !entry.oddities.contains(oddity));
        odd.extend(new.cloned());
        entry.oddities = oddities;
        if entry.service.is_none() && entry.slices.is_empty() {
            self.services.remove(name);
        }
    }
}

impl Entry {
    /// Adds or replaces a slice. Returns whether that changes anything.
    fn put_slice(&mut self, slice: &Arc<EndpointSlice>) -> bool {
        let place = self
            .slices
            .binary_search_by(|other| other.name.cmp(&slice.name));
        match place {
            Ok(at) if self.slices[at] == *slice => return false,
            Ok(at) => self.slices[at] = Arc::clone(slice),
            Err(at) => {
                self.slices.reserve_exact(1);
                self.slices.insert(at, Arc::clone(slice));
            }
        }
        true
    }

    fn find_oddities(&self, name: &ServiceName) -> Vec<Oddity> {
        let Some(service) = &self.service else {
            let orphans = self.slices.iter().filter(|slice| !slice.for_another_proxy);
            return orphans
                .map(|slice| Oddity::NoService(slice.name.clone(), name.clone()))
                .collect();
        };
        match &service.serving {
            Err(NotServed::NoClusterIp) => return vec![Oddity::NoClusterIp(name.clone())],
            Err(_) => return Vec::new(),
            Ok(_) if self.ports.is_empty() => return vec![Oddity::NoPorts(name.clone())],
            Ok(_) => {}
        }
        let without_endpoints: Vec<_> = self
            .ports
            .iter()
            .filter(|port| port.endpoints.all.is_empty())
            .collect();
        let why = |port: &ServicePort| Why(port.endpoints.absence.clone());
        if let [first, others @ ..] = &*without_endpoints
            && without_endpoints.len() == self.ports.len()
        {
            let first = why(first);
            // If the reasons of its ports differ, each port is named.
            if others.iter().all(|port| why(port) == first) {
                return vec![Oddity::NoEndpoints(name.clone(), first)];
            }
        }
        without_endpoints
            .iter()
            .map(|port| Oddity::NoEndpointsForPort(port.name.clone(), why(port)))
            .collect()
    }
}

#[cfg(test)]
mod tests;

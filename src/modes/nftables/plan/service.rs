//! The elements of one ServicePort.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::Frontend;
use nftables::{Datum, Element, Value, Verdict, concat};

use super::{
    Options,
    affinity::ClientMap,
    chains::{Pick, SharedChain},
    counting::counting,
    draws::{Masquerade, Scheduler},
    elements::{ServiceElements, SharedElement, allowed, hairpin},
    fixed::{BY_CALLER, NODE_PORTS_BY_CALLER},
    frontend::{Called, Role, key, with_network},
    limits::Limits,
    ranges,
    sets::SetId,
    slots::{Endpoints, LOCAL, Slots, Taken},
    unsupported,
};
use crate::services::{ServicePort, TrafficPolicy};

/// Plans the elements of a ServicePort of the options' family, whose endpoints have these slots
/// unless they are chosen by a hash.
pub fn plan(port: &ServicePort, slots: &Slots, options: &Options) -> ServiceElements {
    let all = &port.endpoints;
    let scheduler = unsupported::scheduler(port, &options.features);
    let hashed;
    let slots = match scheduler {
        Scheduler::Hash(_) => {
            hashed = Slots::hashed(port);
            &hashed
        }
        Scheduler::Random | Scheduler::RoundRobin(_) => slots,
    };
    if port.is_range() {
        return ranges::plan(port, slots, scheduler, options);
    }
    let mut plan = Plan {
        port,
        slots,
        options,
        comment: port.name.to_string(),
        scheduler,
        any: all.any_takes_connections(),
        seen: Vec::new(),
        remembered: BTreeSet::new(),
        needs: ServiceElements::default(),
    };
    plan.cluster_ip();
    for ip in &port.external_ips {
        plan.external(port.at(*ip));
    }
    plan.source_ranges();
    for ip in &port.load_balancer_ips {
        plan.external(port.at(*ip));
    }
    if let Some(node_port) = port.node_port {
        let (protocol, family) = (port.name.protocol, port.name.family);
        let frontend = Frontend::node_port(protocol, family, node_port);
        plan.external(frontend);
        if options.refused_on_loopback.contains(&protocol) {
            let element = Element::new(key(&frontend, &[])).commented(&plan.comment);
            plan.needs.own.push((SetId::LoopbackNodePorts, element));
        }
    }
    plan.needs.shared.extend(hairpin(port, slots));
    plan.limit();
    plan.count();
    plan.clients();
    plan.needs.chains.sort();
    plan.needs.chains.dedup();
    plan.needs
}

struct Plan<'a> {
    port: &'a ServicePort,
    slots: &'a Slots,
    options: &'a Options,
    /// The ServicePort as kube-proxy calls it.
    comment: String,
    scheduler: Scheduler,
    /// Whether some endpoint in the cluster takes connections, even if not from here.
    any: bool,
    /// The frontends that have their elements already; a Service may name an address twice.
    seen: Vec<Frontend>,
    /// The maps of clients that its chains write.
    remembered: BTreeSet<Endpoints>,
    needs: ServiceElements,
}

/// Callers of a frontend that are served in the same way.
struct Traffic<'a> {
    from: Endpoints,
    /// The map in which these clients are remembered.
    clients: Endpoints,
    masquerade: Masquerade,
    slots: &'a Taken,
}

impl Plan<'_> {
    /// Returns false if the frontend was served already.
    fn begin(&mut self, frontend: Frontend) -> bool {
        let first = !self.seen.contains(&frontend);
        if first {
            self.seen.push(frontend);
        }
        first
    }

    fn cluster_ip(&mut self) {
        let Some(ip) = self.port.cluster_ip else {
            return;
        };
        self.needs.shared.push(SharedElement::ClusterIp(ip));
        let frontend = self.port.at(ip);
        self.begin(frontend);
        if !self.any {
            return self.refuse(frontend);
        }
        let (slots, clients) = match self.port.internal_traffic_policy {
            TrafficPolicy::Cluster => (&self.slots.cluster, Endpoints::All),
            TrafficPolicy::Local => (&self.slots.local, Endpoints::Local),
        };
        let traffic = Traffic {
            from: Endpoints::All,
            clients,
            masquerade: Masquerade::of_cluster_ip(self.options),
            slots,
        };
        self.serve(frontend, Role::All, traffic);
        self.fill(frontend, slots, 0);
        self.remember(frontend, Some(clients));
    }

    fn external(&mut self, frontend: Frontend) {
        if !self.begin(frontend) {
            return;
        }
        if !self.any {
            return self.refuse(frontend);
        }
        let Slots { cluster, local } = self.slots;
        self.fill(frontend, cluster, 0);
        let mut traffic = Traffic {
            from: Endpoints::All,
            clients: Endpoints::All,
            masquerade: Masquerade::All,
            slots: cluster,
        };
        if self.port.external_traffic_policy == TrafficPolicy::Cluster {
            self.remember(frontend, Some(Endpoints::All));
            return self.serve(frontend, Role::All, traffic);
        }
        self.remember(frontend, None);
        let chain = match frontend.address {
            Some(_) => BY_CALLER,
            None => NODE_PORTS_BY_CALLER,
        };
        self.verdict(frontend, Role::All, Verdict::Goto(chain.into()));
        self.fill(frontend, local, LOCAL);
        let from_outside = Traffic {
            from: Endpoints::Local,
            clients: Endpoints::Local,
            masquerade: Masquerade::None,
            slots: local,
        };
        self.serve(frontend, Role::FromOutside, from_outside);
        traffic.masquerade = Masquerade::None;
        if cluster.endpoints.is_empty() {
            (traffic.from, traffic.slots) = (Endpoints::Local, local);
        }
        self.serve(frontend, Role::FromCluster, traffic);
    }

    /// Only a Service that no client could reach is refused: where other nodes have
    /// endpoints, a client that tries again may get there.
    fn refuse(&mut self, frontend: Frontend) {
        let element = Element::new(key(&frontend, &[])).commented(&self.comment);
        self.needs
            .own
            .push((SetId::Of(Role::Refused, Called::of(&frontend)), element));
        if frontend.address.is_some() {
            // Then it is not looked up as a node port.
            self.verdict(frontend, Role::All, Verdict::Return);
        }
    }

    fn serve(&mut self, frontend: Frontend, role: Role, traffic: Traffic<'_>) {
        let slots = traffic.slots;
        if slots.endpoints.is_empty() {
            return self.verdict(frontend, role, Verdict::Drop);
        }
        let pick = Pick {
            slots: self.scheduler.slots(slots),
            from: traffic.from,
            called: Called::of(&frontend),
            masquerade: traffic.masquerade,
            affinity: self.affinity().map(|_| self.client_map(traffic.clients)),
            scheduler: self.scheduler.clone(),
        };
        if pick.affinity.is_some() {
            let draw = SharedChain::Pick(pick.without_affinity());
            self.needs.chains.push(draw);
        }
        let pick = SharedChain::Pick(pick);
        self.verdict(frontend, role, pick.goto());
        self.needs.chains.push(pick);
    }

    fn verdict(&mut self, frontend: Frontend, role: Role, verdict: Verdict) {
        let element = Element::with(key(&frontend, &[]), Datum::Verdict(verdict));
        let element = element.commented(&self.comment);
        self.needs
            .own
            .push((SetId::Of(role, Called::of(&frontend)), element));
    }

    /// Adds the elements that lead translated packets to a chain (see `by_service_port`).
    fn lead(&mut self, frontend: Frontend, role: Role, verdict: &Verdict) {
        let set = SetId::Of(role, Called::of(&frontend));
        let Slots { cluster, local } = self.slots;
        let keys: BTreeSet<Vec<u8>> = match frontend.address {
            Some(_) => [key(&frontend, &[])].into(),
            None => {
                let endpoints = cluster.endpoints.iter().chain(&local.endpoints);
                let of =
                    |to: &SocketAddr| key(&frontend, &[Value::Ip(to.ip()), Value::Port(to.port())]);
                endpoints.map(of).collect()
            }
        };
        let elements = keys.into_iter().map(|key| {
            let element = Element::with(key, Datum::Verdict(verdict.clone()));
            (set, element.commented(&self.comment))
        });
        self.needs.own.extend(elements);
    }

    fn fill(&mut self, frontend: Frontend, slots: &Taken, first: u32) {
        let set = SetId::Of(Role::Endpoints, Called::of(&frontend));
        let elements = (first..).zip(&*slots.endpoints).map(|(slot, endpoint)| {
            let key = key(&frontend, &[Value::Number(slot)]);
            (set, Element::with(key, Datum::Value(octets(endpoint))))
        });
        self.needs.own.extend(elements);
    }

    /// Returns how long clients stay on their endpoint, if rules remember them.
    fn affinity(&self) -> Option<Duration> {
        let timeout = self.port.session_affinity;
        timeout.filter(|_| unsupported::remembers(self.port, &self.options.features))
    }

    fn client_map(&self, to: Endpoints) -> ClientMap {
        let port = self.port.name.clone();
        ClientMap { port, to }
    }

    /// Makes the table remember clients of a frontend that may be sent `to` these endpoints;
    /// `None`: they depend on the caller.
    fn remember(&mut self, frontend: Frontend, to: Option<Endpoints>) {
        let Some(timeout) = self.affinity() else {
            return;
        };
        let maps = to.map_or(vec![Endpoints::All, Endpoints::Local], |to| vec![to]);
        let chains = maps.iter();
        let chains = chains.map(|to| SharedChain::Remember(self.client_map(*to), timeout));
        let mut chains: Vec<SharedChain> = chains.collect();
        if to.is_none() {
            let name = self.port.name.clone();
            chains.push(SharedChain::RememberByCaller(name, timeout));
        }
        if let Some(first) = chains.last() {
            self.lead(frontend, Role::Affinity, &first.goto());
        }
        self.remembered.extend(maps);
        self.needs.chains.extend(chains);
        self.needs.chains.push(SharedChain::RememberHooks);
    }

    fn clients(&mut self) {
        let Slots { cluster, local } = self.slots;
        for to in std::mem::take(&mut self.remembered) {
            let taken = match to {
                Endpoints::All if !cluster.endpoints.is_empty() => cluster,
                Endpoints::All | Endpoints::Local => local,
            };
            let endpoints = taken.endpoints.iter().map(octets).collect();
            self.needs.clients.push((self.client_map(to), endpoints));
        }
    }

    /// Without endpoints no client is served anyway.
    fn source_ranges(&mut self) {
        let ranges = &self.port.load_balancer_source_ranges;
        if ranges.is_empty() || !self.any {
            return;
        }
        let mut ips = self.port.load_balancer_ips.to_vec();
        ips.sort_unstable();
        ips.dedup();
        for ip in ips {
            self.source_ranges_of(ip);
        }
    }

    fn source_ranges_of(&mut self, ip: IpAddr) {
        let frontend = self.port.at(ip);
        let element = Element::new(key(&frontend, &[])).commented(&self.comment);
        self.needs.own.push((SetId::Filtered, element));
        for network in allowed(self.port, self.options, ip) {
            let element = with_network(&frontend, &network).commented(&self.comment);
            self.needs.own.push((SetId::SourceRanges, element));
        }
    }

    fn limit(&mut self) {
        let Some(limits) = Limits::of(self.port, self.options.features) else {
            return;
        };
        // The chain stays if no endpoint takes connections, because others may be open.
        let limit = SharedChain::Limit(limits);
        for frontend in self.seen.clone() {
            self.lead(frontend, Role::Limits, &limit.goto());
        }
        self.needs.chains.extend([limit, SharedChain::LimitHooks]);
    }

    fn count(&mut self) {
        if self
            .options
            .counted
            .contain(&self.port.name.service.namespace)
        {
            let elements = counting(self.port).into_iter();
            let elements = elements.map(|counting| (counting.set, Element::new(counting.key)));
            self.needs.own.extend(elements);
        }
    }
}

/// Returns an endpoint as the data of maps.
fn octets(endpoint: &SocketAddr) -> Box<[u8]> {
    concat(&[Value::Ip(endpoint.ip()), Value::Port(endpoint.port())]).into()
}

//! Userspace mode: accept a connection, pick an endpoint, splice the bytes;
//! when a backend does not answer, retry on another.
//!
//! A plan says which portals a ServicePort needs; a gate holds a portal's
//! listening sockets; [`capture`] brings the packets to them. What runs on the
//! workers (`tcp`, `udp`) sees portals only, and reads them without locks.

mod admission;
mod affinity;
mod backends;
pub mod capture;
mod capturing;
mod counters;
mod descriptors;
mod failing;
mod gate;
mod handover;
mod insiders;
mod listen;
mod open;
mod plan;
mod portal;
mod ports;
mod preferences;
mod proxy_protocol;
mod steer;
mod tcp;
#[cfg(test)]
mod tests;
mod transparent;
mod udp;
mod watch;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;

use self::{
    affinity::Affinity,
    capture::{Frontend, Method, Scope, Scopes, Target, Want},
    gate::{Gate, InUse},
    handover::Standing,
    insiders::Insiders,
    plan::{Kind, PortalName, PortalPlan},
    ports::Ports,
    transparent::{Steering, Transparent},
    workers::Workers,
};
pub use self::{
    capturing::{Capture, cleanup, cleanup_except, is_there},
    counters::Counters,
    descriptors::Descriptors,
    handover::{Handover, Predecessor, Successor},
    insiders::{DetectLocal, Links},
    tcp::Limits as DialLimits,
};
use super::{Asked, Mode, Outcomes, SyncReport, both_failed};
use crate::{
    kernel::{probe::Kernel, xtables::Engine},
    net::{Family, ModeName, PerFamily},
    node::NodePorts,
    sched::SchedulerName,
    services::{ServiceMap, ServicePort, ServicePortName},
};

/// How the mode is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's name.
    pub node: Arc<str>,
    /// `--proxy-port-range`: local ports for redirect capture.
    pub port_range: Option<RangeInclusive<u16>>,
    /// `--udp-timeout`: how long an idle UDP client keeps its backend.
    pub udp_timeout: Duration,
    /// `--ipvs-scheduler`: the scheduler of Services that name none.
    pub scheduler: SchedulerName,
    /// `--nodeport-addresses`: where node ports are served.
    pub node_ports: Arc<NodePorts>,
    /// How pods are told from others.
    pub detect_local: DetectLocal,
    /// Threads of the data path.
    pub workers: usize,
    /// `--userspace-transparent`: endpoints see the client's address.
    pub transparent: bool,
    /// `--userspace-dial-attempts` and `--userspace-dial-timeout`.
    pub dial: DialLimits,
    /// `--userspace-tcp-user-timeout`: how long a peer may acknowledge nothing
    /// of what is under way to it; zero: as long as the kernel allows.
    pub tcp_user_timeout: Duration,
}

/// Threads of the data path when none are asked for, at most: more would
/// multiply listening sockets for little.
const MOST_WORKERS: usize = 8;

/// How many threads `--userspace-workers=asked` stands for.
pub fn workers(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_WORKERS)),
        n => n,
    }
}

/// What all connections and associations share.
#[derive(Debug)]
pub struct Shared {
    node: Arc<str>,
    descriptors: Descriptors,
    counters: Counters,
    udp: udp::Resources,
    udp_timeout: Duration,
    dial: DialLimits,
    tcp_user_timeout: Duration,
    insiders: Arc<Insiders>,
    transparent: Arc<Transparent>,
    next_worker: AtomicUsize,
    /// It was said that local ports run out.
    told_of_ports: AtomicBool,
}

impl Shared {
    /// The worker where the next listener's `sockets` begin.
    fn next_worker(&self, sockets: usize) -> usize {
        self.next_worker.fetch_add(sockets, Relaxed)
    }
}

/// Userspace mode.
pub struct Userspace {
    options: Options,
    shared: Arc<Shared>,
    workers: Workers,
    capture: Capture,
    steering: Steering,
    ports: Ports,
    /// The portal of each frontend.
    owners: HashMap<Frontend, PortalName>,
    gates: HashMap<PortalName, Box<Gate>>,
    affinities: HashMap<ServicePortName, Weak<Affinity>>,
    /// What capture should bring to us, each with its local port.
    want: Want,
    /// Changes of `want` that capture has not confirmed yet.
    unconfirmed: BTreeSet<Frontend>,
    /// Listeners to close.
    closing: BTreeSet<(PortalName, SocketAddr)>,
    /// Portals to drop once their listeners are closed.
    gone: BTreeSet<PortalName>,
    /// ServicePorts whose gates could not be made as asked, with the reason.
    failed: BTreeMap<ServicePortName, String>,
    /// Frontends that are not captured, with the reason.
    uncaptured: BTreeMap<Frontend, String>,
    /// Families of which everything is due, because node ports are served
    /// elsewhere.
    full: PerFamily<bool>,
    /// Gone frontends that stay captured while connections use them.
    retiring: BTreeMap<Frontend, Vec<InUse>>,
    node_addresses: Vec<IpAddr>,
    /// Of this and other processes, what the current sync acts on.
    standing: Standing,
    /// What a sync was asked for about.
    noticed: Standing,
    /// It was logged that a filter does not fit.
    filter_logged: bool,
    handover: Handover,
}

impl Userspace {
    /// The mode on a `kernel` that was examined, not serving anything yet.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn new(
        options: Options,
        kernel: &Kernel,
        capture: Capture,
        counters: Counters,
    ) -> io::Result<Self> {
        let insiders = Arc::new(Insiders::new(options.detect_local.clone()));
        let transparent = Arc::new(Transparent::new(Arc::clone(&insiders)));
        let descriptors = Descriptors::of_this_process();
        let ports = udp::LocalPorts::of_this_node();
        let shared = Arc::new(Shared {
            node: Arc::clone(&options.node),
            udp: udp::Resources::new(&descriptors, ports, options.udp_timeout),
            descriptors,
            counters,
            udp_timeout: options.udp_timeout,
            dial: options.dial,
            tcp_user_timeout: options.tcp_user_timeout,
            insiders,
            transparent: Arc::clone(&transparent),
            next_worker: AtomicUsize::new(0),
            told_of_ports: AtomicBool::new(false),
        });
        let handover = Handover::new(shared.counters.connections.clone());
        let workers = Workers::start(options.workers, &shared)?;
        shared.descriptors.count(true);
        Ok(Userspace {
            workers,
            ports: Ports::new(options.port_range.clone(), shared.descriptors.clone()),
            steering: Steering::new(options.transparent, transparent, kernel),
            options,
            shared,
            capture,
            owners: HashMap::new(),
            gates: HashMap::new(),
            affinities: HashMap::new(),
            want: Want::new(),
            unconfirmed: BTreeSet::new(),
            closing: BTreeSet::new(),
            gone: BTreeSet::new(),
            failed: BTreeMap::new(),
            uncaptured: BTreeMap::new(),
            full: PerFamily::default(),
            retiring: BTreeMap::new(),
            node_addresses: Vec::new(),
            standing: Standing::default(),
            noticed: Standing::default(),
            filter_logged: false,
            handover,
        })
    }

    /// For who talks to processes that take over, or from which this one does.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// The portals of `name` that exist now.
    fn portals_of(&self, name: &ServicePortName) -> Vec<PortalName> {
        [Kind::Internal, Kind::External, Kind::LoadBalancer]
            .into_iter()
            .map(|kind| PortalName {
                port: name.clone(),
                kind,
            })
            .filter(|portal| self.gates.contains_key(portal))
            .collect()
    }

    /// The pins of a ServicePort's clients, one table for all its portals.
    fn affinity(&mut self, plan: &PortalPlan) -> Option<Arc<Affinity>> {
        let timeout = plan.affinity?;
        let known = self.affinities.get(&plan.name.port).and_then(Weak::upgrade);
        Some(known.filter(|a| a.timeout() == timeout).unwrap_or_else(|| {
            let fresh = Arc::new(Affinity::new(timeout));
            self.affinities
                .insert(plan.name.port.clone(), Arc::downgrade(&fresh));
            fresh
        }))
    }

    /// Whether another process captures the service addresses.
    fn yields(&self) -> bool {
        self.standing.yields_to().is_some()
    }

    /// Has new connections of addresses that other processes share go where
    /// they should.
    fn steer(&self) {
        // Those of a predecessor are its own to steer.
        if !self.yields() && self.standing.has_predecessor() {
            return;
        }
        // A successor is as short of descriptors as this process is: where some
        // addresses have one socket, it has no second one to be named.
        let short = self
            .gates
            .values()
            .any(|g| g.is_short(self.workers.count()));
        let theirs = self.standing.yields_to();
        let theirs = theirs.map(|sockets| if short { 1 } else { sockets });
        let steered = self.gates.values().map(|gate| gate.steer(theirs));
        if let Err(error) = steered.fold(Ok(()), Result::and) {
            tracing::warn!(
                "new connections are shared with the process that takes over, for as long as both \
                 run: {error}"
            );
        }
    }

    /// Brings one ServicePort's gates to what `port` needs.
    fn update(
        &mut self,
        name: &ServicePortName,
        port: Option<&ServicePort>,
        failed: &mut Failures,
    ) {
        let plans = port.map_or_else(Vec::new, |port| plan::plan(port, self.options.scheduler));
        let wanted: BTreeSet<&Frontend> = plans.iter().flat_map(|p| &p.frontends).collect();
        let mut given_up = Vec::new();
        for portal in self.portals_of(name) {
            let still = plans.iter().find(|p| p.name == portal);
            for frontend in &self.gates[&portal].frontends {
                if still.is_some_and(|p| p.frontends.contains(frontend)) {
                    continue;
                }
                // Another ServicePort may have it already.
                if self.owners.get(frontend) != Some(&portal) {
                    continue;
                }
                self.owners.remove(frontend);
                if !wanted.contains(frontend) {
                    given_up.push(*frontend);
                }
            }
            if still.is_none() {
                let listens = self.gates[&portal].listens_on();
                self.closing.extend(listens.map(|a| (portal.clone(), a)));
                self.gone.insert(portal);
            }
        }
        for plan in plans {
            self.open(plan, failed);
        }
        for frontend in given_up {
            match self.capture.method(frontend.family) {
                Method::Redirect => self.capture_as(&frontend, None),
                // Established connections need the route; see `retire`.
                Method::Local => {
                    if self.want.contains_key(&frontend) {
                        self.retiring.entry(frontend).or_default();
                    }
                }
            }
        }
        if port.is_none() {
            self.affinities.remove(name);
        }
    }

    /// Closes listeners that are no longer wanted, of those `families` whose
    /// capture goes `way`.
    fn close_listeners(&mut self, way: Method, families: PerFamily<bool>) {
        let choice = PerFamily::each(|f| *families.get(f) && self.capture.method(f) == way);
        let concerned = |portal: &PortalName| *choice.get(portal.port.family);
        let closing = std::mem::take(&mut self.closing);
        for (portal, address) in closing {
            if !concerned(&portal) {
                self.closing.insert((portal, address));
                continue;
            }
            let Some(in_use) = self.gates.get_mut(&portal).and_then(|g| g.close(address)) else {
                continue;
            };
            let frontend = Frontend {
                protocol: portal.port.protocol,
                family: portal.port.family,
                address: Some(address.ip()),
                port: address.port(),
            };
            if let Some(uses) = self.retiring.get_mut(&frontend) {
                uses.push(in_use);
            }
        }
        let gates = &mut self.gates;
        let ports = &mut self.ports;
        self.gone.retain(|portal| {
            if !concerned(portal) {
                return true;
            }
            if let Some(held) = gates.remove(portal).and_then(|mut gate| gate.held.take()) {
                ports.release(&held);
            }
            false
        });
    }

    /// Gives up the routes of gone frontends of `families` that no connection uses
    /// any more.
    fn retire(&mut self, families: PerFamily<bool>) {
        let unused: Vec<Frontend> = self
            .retiring
            .iter()
            .filter(|(frontend, _)| *families.get(frontend.family))
            .filter(|(_, uses)| uses.iter().all(|u| u.strong_count() == 0))
            .map(|(frontend, _)| *frontend)
            .collect();
        for frontend in unused {
            self.retiring.remove(&frontend);
            self.capture_as(&frontend, None);
        }
    }

    /// Brings the gates of the ServicePorts that are due to what `map` has.
    fn update_all(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
        full: PerFamily<bool>,
        retry: PerFamily<bool>,
        reports: &mut PerFamily<SyncReport>,
    ) {
        let mut names = BTreeSet::new();
        for (_, changes) in asked {
            names.extend(changes.iter().flat_map(|changes| &changes.ports).cloned());
        }
        let again = self.failed.keys();
        names.extend(again.filter(|name| *retry.get(name.family)).cloned());
        let all = map.iter().map(|port| &port.name);
        let all = all.chain(self.gates.keys().map(|portal| &portal.port));
        names.extend(all.filter(|name| *full.get(name.family)).cloned());

        let mut failures = Failures::default();
        // Removals first: another Service may have what one gives up.
        let (there, gone): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| map.get(name).is_some());
        for name in gone.into_iter().chain(there) {
            let port = map.get(&name).map(|port| &**port);
            let report = reports.get_mut(name.family);
            report.examined += 1;
            if let Some(port) = port {
                let unsupported = preferences::unsupported(port, self.options.scheduler);
                report.unsupported.extend(unsupported);
            }
            self.failed.remove(&name);
            self.update(&name, port, &mut failures);
        }
        for (name, why) in failures.0 {
            self.failed
                .entry(name)
                .and_modify(|all| *all = format!("{all}; {why}"))
                .or_insert(why);
        }
    }

    /// What capture is to look at.
    fn scopes(&mut self, full: PerFamily<bool>, retry: PerFamily<bool>) -> Scopes {
        let again = self.uncaptured.keys();
        let again = again.filter(|frontend| *retry.get(frontend.family));
        self.unconfirmed.extend(again);
        PerFamily::each(|family| {
            let changed = self.unconfirmed.iter();
            let changed = changed.filter(|frontend| frontend.family == family);
            let scope = Scope {
                full: *full.get(family),
                retry: *retry.get(family),
                changed: changed.copied().collect(),
            };
            let needed = scope.full || scope.retry || !scope.changed.is_empty();
            needed.then_some(scope)
        })
    }

    /// Takes in what capture of `family` did, if it was `captured`, and completes
    /// the report of its sync.
    fn settle(
        &mut self,
        family: Family,
        captured: Option<capture::Report>,
        mut report: SyncReport,
    ) -> SyncReport {
        *self.full.get_mut(family) = false;
        if let Some(captured) = captured {
            let unconfirmed = std::mem::take(&mut self.unconfirmed);
            for frontend in unconfirmed {
                if frontend.family == family {
                    self.uncaptured.remove(&frontend);
                } else {
                    self.unconfirmed.insert(frontend);
                }
            }
            self.uncaptured.extend(captured.failed);
            report.unfinished.extend(captured.unfinished);
            for note in captured.notes {
                tracing::warn!("{note}");
            }
        }
        let families = PerFamily::each(|one| one == family);
        self.close_listeners(Method::Redirect, families);

        let of_family = |name: &ServicePortName| name.family == family;
        let failed = self.failed.iter().filter(|(name, _)| of_family(name));
        report
            .failed
            .extend(failed.map(|(name, why)| (name.clone(), why.clone())));
        for (frontend, why) in &self.uncaptured {
            if frontend.family != family {
                continue;
            }
            let why = format!("{frontend} is not captured: {why}");
            match self.owners.get(frontend) {
                Some(owner) => report.failed.push((owner.port.clone(), why)),
                None => report.unfinished.push(why),
            }
        }
        let unsteered = self.steering.unfinished(family);
        report.unfinished.extend(unsteered.cloned());
        let lingering = self.retiring.keys();
        report.lingering = lingering.filter(|f| f.family == family).count();
        report
    }

    fn capture_as(&mut self, frontend: &Frontend, target: Option<Target>) {
        if self.want.get(frontend) == target.as_ref() {
            return;
        }
        match target {
            Some(target) => self.want.insert(*frontend, target),
            None => self.want.remove(frontend),
        };
        self.unconfirmed.insert(*frontend);
    }
}

impl Drop for Userspace {
    /// While sockets close one after the other, those of a successor change their
    /// numbers, by which connections are steered.
    fn drop(&mut self) {
        if self.yields() {
            self.gates.values().for_each(|gate| gate.fall_silent());
        }
    }
}

/// What could not be done for single portals.
#[derive(Debug, Default)]
struct Failures(Vec<(ServicePortName, String)>);

impl Failures {
    fn add(&mut self, portal: &PortalName, why: String) {
        self.0.push((portal.port.clone(), why));
    }
}

impl Mode for Userspace {
    fn name(&self) -> ModeName {
        ModeName::Userspace
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let node = map.this_node().map(|node| &**node);
        let standing = self.handover.standing();
        let handed_over = self.handover.differs(&standing);
        self.standing = standing;
        if self.options.node_ports.learn(node) || handed_over {
            self.full = PerFamily::each(|_| true);
        }
        let due = asked.map(|_, changes| changes.is_some());
        let full = asked.map(|family, changes| {
            changes.is_some_and(|changes| changes.full || *self.full.get(family))
        });
        let retry = asked.map(|family, changes| {
            *full.get(family) || changes.is_some_and(|changes| changes.retry)
        });
        let any_full = full.v4 || full.v6;
        self.shared.descriptors.count(any_full);
        if any_full || self.node_addresses.is_empty() {
            match self.capture.node_addresses() {
                Ok(addresses) => self.node_addresses = addresses,
                Err(error) => return both_failed(asked, error),
            }
            self.capture
                .serve_node_ports(&self.options.node_ports.served());
        }
        let steered = PerFamily::each(|family| {
            let failed = self.steering.unfinished(family).is_some();
            *full.get(family) || failed && *retry.get(family)
        });
        for note in self.steering.sync(steered).await {
            match note {
                Ok(note) => tracing::info!("{note}"),
                Err(note) => tracing::warn!("{note}"),
            }
        }
        if self.shared.insiders.update(node, &self.node_addresses) {
            let gates = std::mem::take(&mut self.gates);
            for (name, mut gate) in gates {
                let filtered = gate.filter(name.port.family, &self.shared.insiders);
                self.log_filter(filtered, gate.label());
                self.gates.insert(name, gate);
            }
        }

        let mut reports = due.map(|_, _| SyncReport::default());
        self.update_all(map, asked, full, retry, &mut reports);
        self.close_listeners(Method::Local, due);
        self.retire(due);
        let scopes = self.scopes(full, retry);
        if handed_over {
            self.steer();
        }
        let capturing = self.handover.capturing().await;
        let mut captured = if capturing.is_some() && !self.yields() {
            self.capture.sync(&self.want, &scopes).await
        } else {
            capture::Outcomes::default()
        };
        drop(capturing);
        // A family that was not asked for has its turn later.
        if due.v4 && due.v6 {
            self.handover.acted_on(standing);
            self.noticed = standing;
        }

        due.map(|family, due| {
            due.then(|| {
                let report = std::mem::take(reports.get_mut(family));
                match captured.get_mut(family).take() {
                    Some(Err(error)) => Err(error.into()),
                    done => Ok(self.settle(family, done.and_then(Result::ok), report)),
                }
            })
        })
    }

    async fn externally_modified(&mut self) {
        self.noticed = self.handover.changed(self.noticed).await;
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.capture.engines()
    }
}

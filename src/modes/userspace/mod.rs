//! Userspace mode: accept a connection, pick an endpoint, splice the bytes;
//! when a backend does not answer, retry on another.
//!
//! A plan says which portals a ServicePort needs; a gate holds a portal's
//! listening sockets; [`capture`] brings the packets to them. What runs on the
//! workers (`tcp`, `udp`) sees portals only, and reads them without locks.

mod affinity;
mod backends;
pub mod capture;
mod capturing;
mod counters;
mod descriptors;
mod failing;
mod gate;
mod insiders;
mod listen;
mod open;
mod plan;
mod portal;
mod ports;
mod preferences;
mod proxy_protocol;
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
    capture::{Frontend, Method, Target, Want},
    gate::{Gate, InUse},
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
    insiders::{DetectLocal, Links},
    tcp::Limits as DialLimits,
};
use super::{Mode, ModeName, SyncError, SyncReport};
use crate::{
    kernel::{Family, probe::Kernel, xtables::Engine},
    node::NodePorts,
    sched::SchedulerName,
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
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
    /// ServicePorts that failed and are tried again with the next sync.
    retry: BTreeSet<ServicePortName>,
    /// Gone frontends that stay captured while connections use them.
    retiring: BTreeMap<Frontend, Vec<InUse>>,
    node_addresses: Vec<IpAddr>,
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
            retry: BTreeSet::new(),
            retiring: BTreeMap::new(),
            node_addresses: Vec::new(),
        })
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

    /// Closes listeners that are no longer wanted, of families whose capture
    /// goes `way`.
    fn close_listeners(&mut self, way: Method) {
        let closing = std::mem::take(&mut self.closing);
        for (portal, address) in closing {
            if self.capture.method(portal.port.family) != way {
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
        let capture = &self.capture;
        let gates = &mut self.gates;
        let ports = &mut self.ports;
        self.gone.retain(|portal| {
            if capture.method(portal.port.family) != way {
                return true;
            }
            if let Some(held) = gates.remove(portal).and_then(|mut gate| gate.held.take()) {
                ports.release(&held);
            }
            false
        });
    }

    /// Gives up the routes of gone frontends that no connection uses any more.
    fn retire(&mut self) {
        let unused: Vec<Frontend> = self
            .retiring
            .iter()
            .filter(|(_, uses)| uses.iter().all(|u| u.strong_count() == 0))
            .map(|(frontend, _)| *frontend)
            .collect();
        for frontend in unused {
            self.retiring.remove(&frontend);
            self.capture_as(&frontend, None);
        }
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

    async fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Result<SyncReport, SyncError> {
        let node = map.this_node().map(|node| &**node);
        let full = self.options.node_ports.learn(node) || changes.full;
        self.shared.descriptors.count(full);
        if full || self.node_addresses.is_empty() {
            self.node_addresses = self.capture.node_addresses()?;
            self.capture
                .serve_node_ports(&self.options.node_ports.served());
        }
        if full {
            for note in self.steering.sync().await {
                match note {
                    Ok(note) => tracing::info!("{note}"),
                    Err(note) => tracing::warn!("{note}"),
                }
            }
        }
        self.shared.insiders.update(node, &self.node_addresses);
        let mut names: BTreeSet<ServicePortName> = changes.ports.iter().cloned().collect();
        names.append(&mut self.retry);
        if full {
            names.extend(map.iter().map(|port| port.name.clone()));
            names.extend(self.gates.keys().map(|portal| portal.port.clone()));
        }

        let mut failed = Failures::default();
        let examined = names.len();
        let mut unhonoured = Vec::new();
        // Removals first: another Service may have what one gives up.
        let (there, gone): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| map.get(name).is_some());
        for name in gone.into_iter().chain(there) {
            let port = map.get(&name).map(|port| &**port);
            if let Some(port) = port {
                unhonoured.extend(preferences::unhonoured(port, self.options.scheduler));
            }
            self.update(&name, port, &mut failed);
        }

        self.close_listeners(Method::Local);
        self.retire();
        let changed: Vec<Frontend> = self.unconfirmed.iter().copied().collect();
        let captured = self
            .capture
            .sync(&self.want, (!full).then_some(&changed))
            .await?;
        self.unconfirmed.clear();
        self.close_listeners(Method::Redirect);
        for note in captured.notes {
            tracing::warn!("{note}");
        }
        for (frontend, why) in captured.failed {
            self.unconfirmed.insert(frontend);
            match self.owners.get(&frontend) {
                Some(owner) => failed.add(owner, format!("{frontend} is not captured: {why}")),
                None => tracing::error!("{frontend} is not captured: {why}"),
            }
        }

        self.retry = failed.0.iter().map(|(name, _)| name.clone()).collect();
        Ok(SyncReport {
            examined,
            failed: failed.0,
            lingering: self.retiring.len(),
            look_again: None,
            unhonoured,
        })
    }

    fn carried(&self) -> usize {
        usize::try_from(self.shared.counters.connections.get()).unwrap_or(0)
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.capture.engines()
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        Ok(cleanup().await?)
    }
}

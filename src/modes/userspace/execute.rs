//! Runs the steps of a difference: opens and closes listeners, swaps routing, and maintains the
//! desired state of capture.

mod close;
mod compare;
mod expected;
mod frame;
mod inherited;
mod previous_ports;
mod scarce;
#[cfg(test)]
pub mod tests;
mod unfiltered;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::Arc,
};

use hashbrown::{HashMap, hash_map::Entry};
use net::{Family, Frontend, PerFamily, Protocol};

use self::{expected::Expected, previous_ports::PreviousPorts, unfiltered::Unfiltered};
use super::{
    assignments::Assignments,
    capture::{Desired, Extent, OtherPorts, Scopes, Target},
    diff::{self, Applied, AppliedGroup, Closing, Place, Step, Steps, diff},
    listeners::{InUse, ListenerSet, inherited::InheritedSockets, redirect_ports::RedirectPorts},
    loads::Loads,
    options::{Options, Role},
    plan::{GroupKind, GroupName, GroupPlan, listen::NodeContext},
    proxy::{Shared, counters::Counters, workers::Workers},
};
use crate::{
    kernel::socket::{bound::BoundAddress, listening::Bind, owner::Sockets},
    modes::{handover::OtherProcesses, progress::SyncProgress},
    services::{ServiceMap, ServicePort, ServicePortName},
};

/// The existing service groups and the desired state of capture.
pub struct Executor {
    shared: Arc<Shared>,
    ports: RedirectPorts,
    groups: HashMap<GroupName, Box<ListenerSet>>,
    expected: Expected,
    loads: Loads,
    assignments: Arc<Assignments>,
    /// Frontends to capture, each with its local port.
    desired: Desired,
    /// Changes of `desired` since the last successful capture.
    changed: PerFamily<BTreeSet<Frontend>>,
    /// Steps that wait for the end of a sync.
    closing: BTreeMap<ServicePortName, Vec<Closing>>,
    /// Released frontends that stay captured while connections use them.
    lingering: BTreeSet<Frontend>,
    /// Connections to frontends that arrived through listeners that have been closed.
    used: BTreeMap<Frontend, Vec<InUse>>,
    /// Sockets of an ended process that no group has taken.
    inherited: InheritedSockets,
    /// Local ports to which rules of an ended process redirect.
    previous: PreviousPorts,
    unfiltered: Unfiltered,
    /// The other processes that the current sync acts on.
    others: OtherProcesses,
    /// The other processes that the last whole sync acted on.
    acted_on: OtherProcesses,
    /// The other processes for which a sync was requested.
    reported: OtherProcesses,
    progress: PerFamily<SyncProgress>,
    /// The sockets of other programs, if an update found an address in use.
    present: Option<Sockets>,
    /// Declared last, so that all listeners on the workers are dropped first.
    workers: Workers,
}

/// Places of a ServicePort that could not be bound or captured, each with the reason.
type Failed = BTreeMap<(GroupKind, Place), String>;

impl Executor {
    /// Starts an executor with its own workers and no groups yet.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn start(options: Options, counters: Counters) -> io::Result<Executor> {
        let shared = Shared::new(options, counters);
        let options = &shared.options;
        let workers = Workers::start(options.workers, &shared)?;
        let descriptors = shared.descriptors.clone();
        descriptors.count(0);
        let assignments = Arc::clone(options.handover.assignments());
        options.handover.count(shared.counters.connections.clone());
        Ok(Executor {
            loads: Loads::new(&shared.dials, &shared.captured),
            ports: RedirectPorts::new(options.port_range.clone(), descriptors),
            shared,
            groups: HashMap::new(),
            expected: Expected::default(),
            assignments,
            desired: Desired::new(),
            changed: PerFamily::default(),
            closing: BTreeMap::new(),
            lingering: BTreeSet::new(),
            used: BTreeMap::new(),
            inherited: InheritedSockets::default(),
            previous: PreviousPorts::default(),
            unfiltered: Unfiltered::default(),
            others: OtherProcesses::default(),
            acted_on: OtherProcesses::default(),
            reported: OtherProcesses::default(),
            progress: PerFamily::default(),
            present: None,
            workers,
        })
    }

    /// State shared by all connections of its groups.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Counts the open descriptors, in a sync that compares `extent`.
    pub fn count_descriptors(&self, extent: Extent) {
        let descriptors = &self.shared.descriptors;
        let given = self.inherited.len() + self.assignments.passed_flows();
        match extent {
            Extent::Full => descriptors.count(given),
            Extent::Retry | Extent::Changed => descriptors.count_if_cheap(given),
        }
    }

    /// Brings the service groups of the ServicePorts `names` to the state that `plan` returns for
    /// those in `map`. `done` is called with the reasons for everything that is not applied.
    pub fn update(
        &mut self,
        names: BTreeSet<ServicePortName>,
        map: &ServiceMap,
        node: &NodeContext,
        plan: impl Fn(&ServicePort) -> Option<Vec<GroupPlan>>,
        mut done: impl FnMut(ServicePortName, Result<(), String>),
    ) {
        self.shared.captured.serve_node_ports(node);
        // Must be known before the first listener is opened, as it decides how many workers listen.
        let mut claims = Vec::new();
        for name in &names {
            let plans = map
                .get(name)
                .and_then(|port| plan(port))
                .unwrap_or_default();
            self.expected.update(name, &plans, node);
            claims.extend(self.claim(name, &plans, node));
        }
        self.shared.descriptors.expect(self.expected.addresses());
        let scarce = self.share_out(claims, node);
        for (family, progress) in self.progress.iter() {
            let of_family = names.iter().filter(|name| name.family == family);
            progress.begin("ServicePorts", of_family.count());
        }
        // Removals first: another Service may get a released address.
        let (present, gone): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| map.get(name).is_some());
        for name in gone.into_iter().chain(present) {
            let plans = map.get(&name).and_then(|port| plan(port));
            if plans.is_none() && self.shared.options.role != Role::LoopbackNodePorts {
                // The assignments of its clients do not matter any more, either.
                self.assignments.remove(&name);
            }
            let mut plans = plans.unwrap_or_default();
            let applied = self.applied(&name);
            let limited = scarce.get(&name).map(|limited| {
                scarce::limit(&mut plans, &applied, node, *limited);
                Err(limited.why.to_owned())
            });
            let mut opened = self.open(&name, diff(plans, &applied, node));
            opened = opened.and(limited.unwrap_or(Ok(())));
            self.drop_expired_flows(&name);
            if node.opens_listeners {
                opened = opened.and(self.reopen_ended(&name));
            }
            let progress = self.progress.get(name.family);
            progress.send(1);
            progress.confirm();
            done(name, opened);
        }
        self.present = None;
        self.shared.udp.fit(&self.shared.descriptors);
        if self.shared.pins.is_reached() {
            self.assignments.drop_expired();
        }
    }

    /// Progress of each family's sync.
    pub fn progress(&self) -> &PerFamily<SyncProgress> {
        &self.progress
    }

    /// Starts counting the frontends of `scopes` that are being captured.
    pub fn count_captured(&self, scopes: &Scopes) {
        for (family, scope) in scopes.iter() {
            let Some(scope) = scope else { continue };
            let count = match scope.extent {
                Extent::Full => self.desired.keys().filter(|f| f.family == family).count(),
                Extent::Changed | Extent::Retry => scope.changed.len(),
            };
            let progress = self.progress.get(family);
            progress.begin("captured addresses", count);
            progress.send(count);
        }
    }

    /// The loads of all service groups, which can be read at any time.
    pub fn loads(&self) -> Loads {
        self.loads.clone()
    }

    /// The existing groups of `port`.
    fn applied(&self, port: &ServicePortName) -> Applied {
        let mut applied = Applied::new();
        for (name, group) in self.groups_of(port) {
            let frontends = group.frontends.iter().copied();
            let captured = &self.shared.captured;
            let (frontends, lost) =
                frontends.partition(|frontend| captured.belongs_to(frontend, &name));
            let group = AppliedGroup {
                frontends,
                lost,
                listens_on: group.listens_on().collect(),
                reserved: group.reserved().collect(),
                local_port: group.local_port.as_ref().map(|port| port.bound.address),
                has_flows: group.associations().is_some_and(|flows| flows.are_any()),
            };
            applied.insert(name.kind, group);
        }
        applied
    }

    /// The existing groups of `port`, with their names.
    fn groups_of(&self, port: &ServicePortName) -> impl Iterator<Item = (GroupName, &ListenerSet)> {
        let names = GroupKind::ALL.map(|kind| GroupName::of(port, kind));
        let groups = names.into_iter();
        groups.filter_map(|name| Some((name.clone(), &**self.groups.get(&name)?)))
    }

    /// The ServicePorts that have groups.
    pub fn ports(&self) -> impl Iterator<Item = &ServicePortName> {
        self.groups.keys().map(|name| &name.port)
    }

    /// Number of service groups of `family` that have a listener.
    pub fn listening(&self, family: Family) -> usize {
        let groups = self.groups.iter();
        let groups = groups.filter(|(name, _)| name.port.family == family);
        groups
            .filter(|(_, group)| group.listens_on().next().is_some())
            .count()
    }

    /// The ServicePort that owns `frontend`.
    pub fn owner(&self, frontend: &Frontend) -> Option<ServicePortName> {
        self.shared.captured.owner(frontend).map(|name| name.port)
    }

    /// The frontends to capture.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The frontends of `family` to capture again: those that changed since the last successful
    /// capture.
    pub fn changed(&mut self, family: Family) -> &mut BTreeSet<Frontend> {
        self.changed.get_mut(family)
    }

    /// Runs the immediate steps of a difference, and keeps the others for [`Executor::close`]. The
    /// error names everything that is not applied, with the reasons.
    fn open(&mut self, port: &ServicePortName, steps: Steps) -> Result<(), String> {
        let mut failed = Failed::new();
        for step in steps.open {
            self.run(port, step, &mut failed);
        }
        if steps.close.is_empty() {
            self.closing.remove(port);
        } else {
            self.closing.insert(port.clone(), steps.close);
        }
        if failed.is_empty() {
            return Ok(());
        }
        let reasons: Vec<_> = failed.into_values().collect();
        Err(reasons.join("; "))
    }

    fn run(&mut self, port: &ServicePortName, step: Step, failed: &mut Failed) {
        let name = |kind| GroupName::of(port, kind);
        match step {
            Step::Route(plan) => {
                self.own(&plan.name, &plan.frontends);
                self.reroute(&plan);
            }
            Step::Own(kind, frontends) => self.own(&name(kind), &frontends),
            Step::TakeLocalPort(kind) => {
                if let Err(error) = self.take_local_port(&name(kind)) {
                    let why = format!("no local port for it: {error}");
                    failed.insert((kind, Place::LocalPort), why);
                }
            }
            Step::Listen(kind, place) => {
                if failed.contains_key(&(kind, place)) {
                    return;
                }
                let listening = match place {
                    Place::LocalPort => self.listen_on_local_port(&name(kind)),
                    Place::Address(bind) => {
                        let listening = self.listen(&name(kind), bind);
                        listening
                            .map_err(|error| self.cannot_bind(port.protocol, bind.address, &error))
                    }
                };
                if let Err(why) = listening {
                    failed.insert((kind, place), why);
                }
            }
            Step::Reserve(kind, bind) => {
                let group = self.groups.get_mut(&name(kind));
                let reserved = group.map(|group| group.reserve(&self.shared, bind));
                if let Some(Err(error)) = reserved {
                    let why = self.cannot_bind(port.protocol, bind.address, &error);
                    failed.insert((kind, Place::Address(bind)), why);
                }
            }
            Step::Unreserve(kind, address) => {
                if let Some(group) = self.groups.get_mut(&name(kind)) {
                    group.unreserve(address);
                }
            }
            Step::Capture {
                kind,
                frontend,
                place,
                other_ports,
            } => {
                let passes = diff::marked_passes(&frontend, place, other_ports);
                self.let_marked_pass(&frontend, passes);
                let bound = !failed.contains_key(&(kind, place));
                let group = self.groups.get(&name(kind)).filter(|_| bound);
                let target = group.map(|group| Target {
                    port: match (place, &group.local_port) {
                        (Place::LocalPort, Some(port)) => port.bound.address.port(),
                        _ => 0,
                    },
                    name: Arc::clone(&group.group().label),
                    other_ports: match self.shared.options.role {
                        Role::Chosen { .. } => OtherPorts::PassOn,
                        Role::Mode | Role::LoopbackNodePorts => other_ports,
                    },
                });
                self.capture(&frontend, target);
            }
            Step::Release(frontend) => {
                self.shared.captured.remove(&frontend);
                self.capture(&frontend, None);
            }
            Step::Linger(frontend) => {
                self.shared.captured.remove(&frontend);
                if self.desired.contains_key(&frontend) {
                    self.lingering.insert(frontend);
                }
            }
        }
    }

    /// Records whether our calls to `frontend` pass capture if they are marked.
    fn let_marked_pass(&self, frontend: &Frontend, passes: bool) {
        let is_new = self.shared.captured.set_passing(frontend, passes);
        if let Some(ip) = frontend.address.filter(|_| is_new && passes)
            && frontend.protocol == Protocol::Udp
        {
            // Datagrams of existing flows do not have the mark.
            let endpoint = SocketAddr::new(ip, frontend.port);
            self.shared.udp.end_flows_to(endpoint);
        }
    }

    /// Records that the group `name` owns `frontends`.
    fn own(&mut self, name: &GroupName, frontends: &[Frontend]) {
        for frontend in frontends {
            self.shared.captured.insert(*frontend, name);
            self.lingering.remove(frontend);
        }
    }

    /// Routes the traffic of the group as in `plan`; creates the group if needed.
    fn reroute(&mut self, plan: &GroupPlan) {
        let affinity = plan.affinity;
        let shared = &self.shared;
        let assigned = |timeout| {
            let limit = &shared.pins;
            self.assignments.affinity(&plan.name.port, timeout, limit)
        };
        let affinity = affinity.map(assigned);
        let group = match self.groups.entry(plan.name.clone()) {
            Entry::Occupied(entry) => {
                let group = entry.into_mut();
                group.reroute(plan, affinity);
                group
            }
            Entry::Vacant(entry) => {
                let group = entry.insert(Box::new(ListenerSet::new(shared, plan, affinity)));
                self.loads.add(&plan.name, group.group());
                if let Some(flows) = group.associations() {
                    self.assignments.add_flows(&plan.name, flows);
                }
                group
            }
        };
        let filtered = group.filter(plan.name.port.family, &shared.cluster_local);
        self.unfiltered.set(&plan.name, filtered);
    }

    fn take_local_port(&mut self, name: &GroupName) -> io::Result<()> {
        let Some(group) = self.groups.get_mut(name) else {
            return Ok(());
        };
        let mut unfit: Vec<_> = group.local_port.take().into_iter().collect();
        if unfit.is_empty()
            && let Some(port) = inherited::local_port(&self.inherited, &mut self.ports, name, group)
                .or_else(|| self.previous.local_port(&mut self.ports, group))
        {
            group.local_port = Some(port);
            return Ok(());
        }
        let taken = loop {
            match self.ports.take(name.port.protocol, name.port.family) {
                Ok(port) if group.is_called_at(port.bound.address.port()) => unfit.push(port),
                taken => break taken,
            }
        };
        for port in &unfit {
            self.ports.give_up(port.bound);
        }
        group.local_port = Some(taken?);
        Ok(())
    }

    /// Listens on the local port of a group. If another program took that port while nothing
    /// listened on it, another port is used.
    fn listen_on_local_port(&mut self, name: &GroupName) -> Result<(), String> {
        loop {
            let port = self.groups.get(name).and_then(|g| g.local_port.as_ref());
            let Some(address) = port.map(|port| port.bound.address) else {
                return Ok(());
            };
            match self.listen(name, Bind::redirected(address)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    let taken = self.take_local_port(name);
                    taken.map_err(|error| format!("no local port for it: {error}"))?;
                }
                done => {
                    return done.map_err(|error| format!("cannot listen on {address}: {error}"));
                }
            }
        }
    }

    fn listen(&mut self, name: &GroupName, bind: Bind) -> io::Result<()> {
        let Some(group) = self.groups.get_mut(name) else {
            return Ok(());
        };
        let mut inherited = self.inherited.take(name.port.protocol, bind.address);
        let opened = group.open(&self.shared, &self.workers, bind, &mut inherited);
        inherited.into_iter().for_each(|left| self.inherit(left));
        opened
    }

    fn cannot_bind(
        &mut self,
        protocol: Protocol,
        address: SocketAddr,
        error: &io::Error,
    ) -> String {
        if error.kind() != io::ErrorKind::AddrInUse {
            return format!("cannot listen on {address}: {error}");
        }
        if self.present.is_none() {
            self.present = Sockets::list().ok();
        }
        let present = self.present.as_ref();
        let who = present.and_then(|all| all.who_has(BoundAddress { protocol, address }));
        let who = who.map_or(String::new(), |who| format!(": {who}"));
        let helps = self.shared.options.role.if_taken();
        format!(
            "cannot listen on {address}: another program on this node has that port on this \
             address or on all addresses{who}; {helps}"
        )
    }

    fn capture(&mut self, frontend: &Frontend, target: Option<Target>) {
        if self.desired.get(frontend) == target.as_ref() {
            return;
        }
        match target {
            Some(target) => self.desired.insert(*frontend, target),
            None => self.desired.remove(frontend),
        };
        self.changed.get_mut(frontend.family).insert(*frontend);
    }

    /// Sets the filters of all listeners again, because the set of cluster-local clients changed.
    pub fn filter_all(&mut self) {
        for (name, group) in &mut self.groups {
            let filtered = group.filter(name.port.family, &self.shared.cluster_local);
            self.unfiltered.set(name, filtered);
        }
    }
}

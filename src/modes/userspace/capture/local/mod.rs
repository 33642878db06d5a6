//! Capture without netfilter: routing delivers packets for service addresses to this node, port by
//! port. [`plan`] shows how.
//!
//! Verified with namespaces on Linux 6.18 and, with neither netfilter nor
//! dummy links, on 6.1 (User-Mode Linux), both families, from a pod's
//! namespace and from the node itself, with strict `rp_filter`:
//! - TCP and UDP arrive at a listener on `address:port`, UDP fragments too;
//!   other ports are refused (the node's own programs get EACCES, pods
//!   EHOSTUNREACH in IPv4 and EACCES in IPv6), and the node's wildcard
//!   listeners are not reached;
//! - a captured port without a listener is *refused* (reset, port unreachable). In IPv4 that
//!   requires [`addresses::assign`]: without it the kernel does not consider the source address of
//!   its own answer local, and stays silent;
//! - ARP requests for a service address stay unanswered;
//! - the kernel limits refusals of other ports in IPv4 to a burst of a few for each client
//!   (`net.ipv4.route.error_burst`); an IPv6 TCP client on the same machine may see a refusal only
//!   on its second attempt, a second later, because the first arrives while its socket is locked.

mod diff;
mod execute;
mod observe;
mod plan;
mod preserved;
mod retire;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};

use net::{Family, Frontend};
use netlink::{
    Protocol, Socket,
    addresses::{self, Address},
    links,
    route_deletions::RouteDeletions,
};

pub use self::retire::Prepared;
use self::{
    diff::Applied,
    execute::Refused,
    plan::{Environment, Object},
    preserved::Needed,
};
use super::{Desired, Differing, Error, Extent, Report, Scope, addresses_stay};
use crate::{
    kernel::probe::{Ability, Kernel},
    modes::{Difference, Found, render::Choices},
};

/// Captures a family by routes. Owns all routes and rules with our mark in its tables.
pub struct Local {
    socket: Socket,
    family: Family,
    applied: Applied,
    /// The environment of the last full sync; `None` if the next sync must be full.
    environment: Option<Environment>,
    /// Whether a full sync could not compare because the node's addresses could not be listed.
    is_uncompared: bool,
    /// Whether routing rules of this kernel can match ports; an error says why not.
    ports: Result<(), String>,
    /// Whether the kernel refused the rule for our mark.
    refuses_mark: bool,
    /// Whether the kernel had no objects of ours when last observed, and none was added since.
    empty: bool,
    deletions: RouteDeletions,
    /// Whether a mode of the kernel serves other Services.
    next_to_kernel: bool,
}

impl Local {
    /// Capture of this `family` on `kernel`.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn new(family: Family, kernel: &Kernel) -> Result<Local, Error> {
        Ok(Local {
            socket: Socket::open(Protocol::Route)?,
            family,
            applied: Applied::default(),
            environment: None,
            is_uncompared: false,
            ports: match kernel.why_unusable(&Ability::PortRules(family)) {
                Some(why) => Err(why.to_owned()),
                None => Ok(()),
            },
            refuses_mark: false,
            empty: false,
            deletions: RouteDeletions::open(family)?,
            next_to_kernel: false,
        })
    }

    /// Captures next to a mode of the kernel, which serves other Services.
    pub fn next_to_kernel(&mut self) {
        self.next_to_kernel = true;
    }

    /// Why this node does not have `family`, as far as can be determined; `None` if it does.
    pub fn why_unavailable(family: Family) -> Option<String> {
        observe::why_unavailable(family)
    }

    /// Removes everything that this method of capture ever installs in these families, including
    /// leftovers of an earlier process. Idempotent; objects of other programs stay.
    ///
    /// # Errors
    /// The first object that could not be removed; the others are removed all the same.
    pub fn cleanup(families: &[Family]) -> Result<(), Error> {
        let mut socket = Socket::open(Protocol::Route)?;
        let mut outcome = Ok(());
        for family in families {
            let observed = observe::installed(&mut socket, *family);
            let removed = observed.and_then(|observed| remove_all(&mut socket, observed));
            outcome = outcome.and(removed).and(retire::cleanup(*family));
        }
        outcome
    }

    /// Keeps open connections of `family` working under nat rules that are about to be written for
    /// another mode or capture method (`retire::prepare`).
    ///
    /// # Errors
    /// When the kernel lacks what is needed for that, or refuses.
    pub fn prepare_successor(family: Family) -> Result<Option<Prepared>, Error> {
        retire::prepare(family)
    }

    /// Keeps the objects that open connections of these families need, and refuses new connections
    /// to their addresses (`retire::retire`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn retire(families: &[Family]) -> Result<usize, Error> {
        retire::retire(families)
    }

    /// Frontends that routes capture in `family`, whichever process added the routes.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn captured(family: Family) -> Result<Vec<Frontend>, Error> {
        let installed = observe::installed(&mut Socket::open(Protocol::Route)?, family)?;
        let of = |protocol| {
            let captured = installed.iter();
            let captured = captured.filter_map(move |object| preserved::captured(protocol, object));
            captured.map(move |at| Frontend::service(protocol, at.ip(), at.port()))
        };
        let protocols = [net::Protocol::Tcp, net::Protocol::Udp];
        Ok(protocols.into_iter().flat_map(of).collect())
    }

    /// Returns whether any of its objects exist in these families.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn is_there(families: &[Family]) -> Result<bool, Error> {
        let mut socket = Socket::open(Protocol::Route)?;
        for family in families {
            if !observe::installed(&mut socket, *family)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether packets with our mark pass.
    pub fn matches_marks(&self) -> bool {
        plan::passing(self.family).is_some() && self.ports.is_ok() && !self.refuses_mark
    }

    /// Returns false if another process deleted applied routes or rules.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn is_unmodified(&mut self) -> Result<bool, Error> {
        let deleted = self.deletions.happened().unwrap_or(true);
        let Some(environment) = self.environment.as_ref().filter(|_| deleted) else {
            return Ok(true);
        };
        // The deletion may have been one of our own.
        let installed = observe::installed(&mut self.socket, self.family)?;
        let installed: HashSet<Object> = installed.into_iter().collect();
        let mut frontends = self.applied.frontends();
        Ok(frontends.all(|frontend| {
            let mut objects = self.applied.objects(frontend, environment).into_iter();
            objects.all(|object| installed.contains(&object))
        }))
    }

    /// Makes the kernel capture the desired frontends; those of other families are ignored.
    ///
    /// Blocks for about 10 µs for each object that changes. Listeners may be bound before or after.
    /// A frontend whose Service is gone must stay desired until its last connection has ended:
    /// routing decides for every packet, and there is no conntrack entry that would remember the
    /// connection. Meanwhile new clients are refused, as nothing listens.
    ///
    /// # Errors
    /// When the kernel could not be queried or refused the whole sync.
    pub fn sync(
        &mut self,
        desired: &Desired,
        scope: &Scope,
        report: &mut Report,
    ) -> Result<(), Error> {
        let full = scope.extent == Extent::Full || self.is_uncompared;
        // Until everything is applied, the recorded state differs from the kernel's.
        let environment = self.environment.take();
        let (mut own, mut compares) = (None, full);
        if full && (environment.is_some() || self.empty) {
            match addresses::list(&mut self.socket) {
                Ok(listed) => own = Some(listed),
                // The previous addresses stay in use.
                Err(error) => {
                    report.unfinished.push(addresses_stay(&error));
                    compares = false;
                }
            }
        }
        self.is_uncompared = full && !compares;
        if let Some(environment) = environment.filter(|_| !compares) {
            let changed = scope.changed.iter().filter(|f| f.family == self.family);
            let changed: BTreeSet<_> = changed.copied().collect();
            let steps = self.applied.update(desired, &changed, &environment, report);
            let refused = execute::run(&mut self.socket, environment.loopback, steps)?;
            self.finish(&refused, changed.iter(), environment, report);
            return Ok(());
        }
        if desired.keys().any(|f| f.family == self.family) {
            return self.reconcile(desired, own, scope.has_predecessor, report);
        }
        if compares || !self.empty {
            // This does not need the environment, which may not be known.
            let mut observed = observe::installed(&mut self.socket, self.family)?;
            let installed = observed.len();
            self.leave_to_predecessor(scope.has_predecessor, &mut observed);
            self.applied = Applied::default();
            self.empty = observed.len() == installed;
            remove_all(&mut self.socket, observed)?;
        }
        Ok(())
    }

    /// Removes from `surplus`, which nothing desires, the objects that connections of a predecessor
    /// need: routing decides for every packet of theirs.
    fn leave_to_predecessor(&self, has_predecessor: bool, surplus: &mut Vec<Object>) {
        if !has_predecessor || surplus.is_empty() {
            return;
        }
        match retire::open(self.family) {
            Ok(open) => {
                let needed = Needed::of(surplus, &open, &HashSet::new());
                surplus.retain(|object| !needed.includes(object));
            }
            // It is not known which objects they need. After that process has ended, everything is
            // compared.
            Err(error) => {
                tracing::debug!("{}: nothing is removed: {error}", self.family);
                surplus.clear();
            }
        }
    }

    /// Differences between the routes and rules in the kernel and the desired ones. Changes
    /// nothing.
    ///
    /// # Errors
    /// When the kernel cannot be queried.
    pub fn differences(&mut self, desired: &Desired) -> Result<Differing, Error> {
        let family = self.family;
        let ports = self.ports.is_ok();
        if observe::why_unavailable(family).is_some() {
            return Ok(Differing::new());
        }
        let own = addresses::list(&mut self.socket)?;
        let environment = observe::environment(own, family, ports, self.next_to_kernel)?;
        let applied = Applied::of(desired, &environment, &mut Report::default());
        let mut observed: HashSet<Object> = HashSet::new();
        observed.extend(observe::installed(&mut self.socket, family)?);
        let mut differing = Differing::new();
        let mut seen = HashSet::new();
        for frontend in applied.frontends() {
            for object in applied.objects(frontend, &environment) {
                if !observed.remove(&object) && seen.insert(object.clone()) {
                    let found = Found::Missing;
                    let difference = Difference::new(None, object.to_string(), found);
                    differing.push((Some(*frontend), difference));
                }
                seen.insert(object);
            }
        }
        let unneeded = observed.into_iter();
        differing.extend(unneeded.map(|object| {
            let difference = Difference::new(None, object.to_string(), Found::Unneeded);
            (None, difference)
        }));
        Ok(differing)
    }

    /// The objects that capture `frontend`, in the notation of [`Local::differences`].
    pub fn objects(&mut self, frontend: &Frontend) -> Vec<String> {
        let objects = self.environment.as_ref();
        let objects = objects.map(|environment| self.applied.objects(frontend, environment));
        objects
            .into_iter()
            .flatten()
            .map(|object| object.to_string())
            .collect()
    }

    /// Compares the whole desired state with the kernel. `own` are the node's addresses, if they
    /// were listed.
    fn reconcile(
        &mut self,
        desired: &Desired,
        own: Option<Vec<Address>>,
        has_predecessor: bool,
        report: &mut Report,
    ) -> Result<(), Error> {
        let family = self.family;
        let ports = self.ports.is_ok();
        if let Some(why) = observe::why_unavailable(family) {
            let ours = desired.keys().filter(|f| f.family == family);
            report.failed.extend(ours.map(|f| (*f, why.clone())));
            return Ok(());
        }
        let own = own.map_or_else(|| addresses::list(&mut self.socket), Ok)?;
        let environment = observe::environment(own, family, ports, self.next_to_kernel)?;
        links::set_up(&mut self.socket, environment.loopback)?;
        if let Err(why) = &self.ports {
            let ability = Ability::PortRules(family);
            report.messages.push(format!(
                "{family}: service addresses become plain local routes, so that each of their \
                 ports reaches any program that listens on all addresses of this node, because \
                 this kernel lacks {ability} ({why}; {})",
                ability.remedy()
            ));
        }
        // An earlier process may have started to retire in favour of another mode or method.
        retire::cleanup(family)?;
        self.empty = false;
        self.applied = Applied::of(desired, &environment, report);
        let observed = observe::installed(&mut self.socket, family)?;
        let mut steps = self.applied.reconcile(observed, &environment);
        self.leave_to_predecessor(has_predecessor, &mut steps.remove);
        let refused = execute::run(&mut self.socket, environment.loopback, steps)?;
        let all: Vec<_> = self.applied.frontends().copied().collect();
        report.is_of_all = true;
        self.finish(&refused, all.iter(), environment, report);
        Ok(())
    }

    /// Reports the frontends among `candidates` for which an object was refused, and makes the next
    /// sync full in that case.
    fn finish<'a>(
        &mut self,
        refused: &Refused,
        candidates: impl Iterator<Item = &'a Frontend>,
        environment: Environment,
        report: &mut Report,
    ) {
        let passing = plan::passing(self.family).map(Object::Rule);
        self.refuses_mark = passing.is_some_and(|rule| refused.contains_key(&rule));
        if refused.is_empty() {
            self.environment = Some(environment);
            return;
        }
        for frontend in candidates {
            let objects = self.applied.objects(frontend, &environment);
            if let Some(error) = objects.iter().find_map(|o| refused.get(o)) {
                report.failed.push((*frontend, error.clone()));
            }
        }
    }
}

fn remove_all(socket: &mut Socket, objects: Vec<Object>) -> Result<(), Error> {
    if objects.is_empty() {
        return Ok(());
    }
    execute::remove(socket, links::index("lo")?, objects)
}

/// Objects in the kernel for `desired`, all of this `family`, on a node with the addresses of
/// `choices`.
pub(super) fn objects(
    desired: &Desired,
    family: Family,
    choices: &Choices<'_>,
    report: &mut Report,
) -> BTreeSet<Object> {
    let environment = Environment {
        family,
        matches_ports: true,
        // The index of link lo in every network namespace.
        loopback: 1,
        source: Some(family.localhost()),
        own: choices.addresses.iter().copied().collect(),
    };
    let applied = Applied::of(desired, &environment, report);
    let frontends = applied.frontends();
    frontends
        .flat_map(|frontend| applied.objects(frontend, &environment))
        .collect()
}

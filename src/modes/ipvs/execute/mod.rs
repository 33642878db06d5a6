//! Runs the steps of one family in an order that never lets in callers that must be kept out, and
//! reports every part of a ServicePort that could not be applied.
//!
//! Members of sets that close and masquerade are added first; then virtual servers that are open
//! follow their endpoints; then rules are written, and then new virtual servers and addresses are
//! added. Removal is in the reverse order. Nothing is flushed: correct objects stay untouched, even
//! those of other programs. A guard that is not applied blocks only the frontends that it guards,
//! and only while they are closed: see `blocked`.

mod servers;

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};
use ipvs::ipset::Element;
use net::Family;
use netlink::addresses;
use nix::errno::Errno;
use tokio::time::Instant;

use super::{
    Error,
    blocked::{Blocked, keeps_out},
    clients::{Clients, RefusedMember},
    desired::{Desired, Dirty, Serving},
    diff,
    drain::Drains,
    observe::{RealServers, Servers},
    plan::{LINK, Member, NonEmptySets, Options, ServerId, Set},
    rules::FamilyRules,
    steps::{Action, MemberStep},
};
use crate::{
    modes::{FailedPorts, progress::SyncProgress, repairs::Repairs, state::FamilyState},
    services::ServicePortName,
};

/// The objects that are counted while steps are run.
const COUNTED: &str = "virtual servers, addresses and members of sets";

/// Facts from observing the kernel, which only a full sync has.
#[derive(Debug)]
pub struct Full {
    /// Real servers that the kernel has.
    pub real_servers: Arc<RealServers>,
    /// Sets that have members in the kernel.
    pub non_empty: NonEmptySets,
    /// Addresses of the dummy link that the kernel may choose as a source.
    pub eligible: Vec<IpAddr>,
    /// Changes known from ServicePorts: any other difference was caused by another program. `None`
    /// if nothing was observed before.
    pub known: Option<Dirty>,
}

/// One sync of one family.
pub struct Execution<'a> {
    /// The family that everything else is of.
    pub family: Family,
    /// The interfaces of the kernel.
    pub clients: &'a mut Clients,
    /// The desired state.
    pub desired: &'a Desired,
    /// How long connections may continue, and which virtual servers are not ours.
    pub options: &'a Options,
    /// Virtual servers that the kernel has, which the sync changes.
    pub servers: &'a mut Servers,
    /// Real servers that are drained.
    pub drains: &'a mut Drains,
    /// The rules around the virtual servers.
    pub rules: &'a mut FamilyRules,
    /// Observations of a full sync; `None`: the sync is partial.
    pub full: Option<&'a Full>,
    /// Records the parts of each ServicePort that are not applied, and pending work.
    pub state: &'a mut FamilyState<Dirty>,
    /// Records repairs.
    pub repairs: &'a mut Repairs,
    /// When the sync of this family began.
    pub now: Instant,
    /// Results of the steps that were run.
    pub results: Results,
    /// Counts the steps.
    pub progress: &'a SyncProgress,
}

/// Whether virtual servers or addresses that nothing was known to have changed were not as they
/// should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repaired {
    /// None was, as far as known.
    #[default]
    Nothing,
    /// Some were added or changed.
    Some,
}

/// Results of the steps that were run so far.
#[derive(Debug, Default)]
pub struct Results {
    /// Frontends that are not opened.
    blocked: Blocked,
    /// Sets that cannot hold their members, each with the reason.
    too_small: BTreeMap<Set, String>,
    /// Changes that must be applied again.
    again: Dirty,
    /// Virtual servers that still send to real servers which should have been removed.
    not_followed: BTreeSet<ServerId>,
    /// Virtual servers whose source ranges could not be removed.
    still_guarded: BTreeSet<ServerId>,
    /// An answer of the kernel shows that it holds something else than was known.
    found_unexpected: bool,
    /// Whether clients may have bypassed virtual servers.
    has_repaired: Repaired,
    /// Virtual servers that another program had changed.
    repaired: Vec<String>,
}

impl Execution<'_> {
    /// Applies the desired state where the kernel is `dirty`. Refused changes stay pending.
    ///
    /// # Errors
    /// When a socket fails, or traffic could not be taken over from iptables mode; then all pending
    /// changes stay pending.
    pub async fn run(mut self, dirty: &Dirty) -> Result<Repaired, Error> {
        self.state.clear_failures();
        self.run_steps(dirty).await?;
        *self.state.pending() = self.results.again;
        self.state.applied();
        if self.results.found_unexpected {
            self.state.suspect();
        }
        Ok(self.results.has_repaired)
    }

    async fn run_steps(&mut self, dirty: &Dirty) -> Result<(), Error> {
        let needed = self.desired.needs();
        let steps = diff::steps(dirty, needed, self.servers, &self.options.exclude);
        self.progress.begin(COUNTED, steps.count());
        self.make_room(&steps.room)?;
        self.change_members(&steps.members.before, dirty)?;
        // These wait for no program.
        let closed = self.follow(&steps.follow, dirty)?;
        let followed = self.members_of_those_that_followed(&steps.members.followed);
        self.change_members(&followed, dirty)?;
        let observed = self.full.map(|full| full.non_empty);
        self.rules
            .ask(self.desired.node(), needed.non_empty(self.family), observed);
        self.rules.wait().await;
        self.open(&(&steps.open | &closed))?;
        self.add_addresses(&steps.add_addresses)?;
        self.report_unguarded();
        if let Some(full) = self.full {
            self.retire_addresses(&full.eligible)?;
        }
        let taken_over = self.rules.take_over().await;
        self.change_members(&steps.members.opened, dirty)?;

        self.remove_addresses(&steps.remove_addresses)?;
        self.close(&steps.close)?;
        for frontend in &steps.gone {
            self.drains.remove(frontend);
        }
        let after = self.members_to_change(&steps.close, &steps.members.after);
        let waiting = steps.members.followed.len() - followed.len();
        if waiting == 0 && after.len() == steps.members.after.len() {
            self.rules
                .remove_unneeded(self.desired.node(), needed.non_empty(self.family))
                .await;
        }
        self.change_members(&after, dirty)?;
        if let Some(unwritten) = self.rules.unwritten() {
            self.state.leave_unfinished(unwritten);
        }
        taken_over
    }

    /// Returns `steps` without the removal of members that virtual servers still need: members that
    /// guard and masquerade the callers of a server that could not be closed stay until it is
    /// closed, and callers that source ranges let in are let in as long as the ranges could not be
    /// removed. For a virtual server that lacks a member, because the policy of its Service
    /// changed, the members by which it was served before stay: if it were in none of the sets, its
    /// callers would be refused.
    fn members_to_change(&mut self, close: &[ServerId], steps: &[MemberStep]) -> Vec<MemberStep> {
        let left = close.iter().filter(|one| self.servers.contains_key(*one));
        let left: Vec<ServerId> = left.copied().collect();
        let guarded = &self.results.still_guarded | &self.results.not_followed;
        let lacking = self.results.blocked.lacking().clone();
        self.without(steps, |member| {
            let is_about = |one: &ServerId| member.is_about(one);
            // A process that starts finds it again by the set of addresses.
            let is_at = |one: &ServerId| member.element == Element::Ip(one.address.ip());
            left.iter().any(|one| is_about(one) || is_at(one))
                || member.set.admits() && guarded.iter().any(is_about)
                || !keeps_out(member.set) && lacking.iter().any(is_about)
        })
    }

    /// Returns `steps` without those of virtual servers that did not follow: callers that they let
    /// in would reach endpoints that should be gone.
    fn members_of_those_that_followed(&mut self, steps: &[MemberStep]) -> Vec<MemberStep> {
        let not_followed = self.results.not_followed.clone();
        self.without(steps, |member| {
            member
                .frontend()
                .is_some_and(|one| not_followed.contains(&one))
        })
    }

    /// Returns `steps` without those of members that wait: these are tried again.
    fn without(
        &mut self,
        steps: &[MemberStep],
        waits: impl Fn(&Member) -> bool,
    ) -> Vec<MemberStep> {
        let (waiting, rest): (Vec<MemberStep>, Vec<MemberStep>) =
            steps.iter().partition(|step| waits(&step.member));
        let again = waiting.iter();
        let again = again.map(|step| (step.member, Serving::BeginsOrEnds));
        self.results.again.members.extend(again);
        rest
    }

    /// Makes room in the sets for new members. If a set cannot be enlarged, members are refused.
    fn make_room(&mut self, room: &BTreeMap<(Set, Family), u32>) -> Result<(), netlink::Error> {
        for (&(set, family), members) in room {
            match self.clients.make_room(set, family, *members) {
                Err(error) if error.is_refused() => {
                    self.results.too_small.insert(set, error.to_string());
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn change_members(
        &mut self,
        steps: &[MemberStep],
        dirty: &Dirty,
    ) -> Result<(), netlink::Error> {
        self.progress.send(steps.len());
        let refused = self.clients.change_members(steps)?;
        self.progress.confirm();
        if refused.is_empty() {
            return Ok(());
        }
        let mut reasons: HashMap<Member, Arc<netlink::Error>> = HashMap::new();
        let mut left = Vec::new();
        for RefusedMember { member, error } in refused {
            let serving = dirty.members.get(&member).copied();
            let serving = serving.unwrap_or(Serving::BeginsOrEnds);
            self.results.again.members.insert(member, serving);
            self.results.found_unexpected |= is_unexpected(&error);
            if self.desired.needs().has_member(&member) {
                self.block(&member);
                reasons.insert(member, error);
                continue;
            }
            if keeps_out(member.set) && !member.set.admits() {
                self.results.still_guarded.extend(member.frontend());
            }
            left.push(RefusedMember { member, error });
        }
        self.report_members(&reasons);
        self.report_left(&left);
        Ok(())
    }

    /// Reports members that could not be removed: for each ServicePort at whose frontends
    /// they still decide which callers are let in or masqueraded; if there is none, for no
    /// single ServicePort.
    fn report_left(&mut self, left: &[RefusedMember]) {
        let desired = self.desired;
        let mut reported = HashSet::new();
        for RefusedMember { member, error } in left {
            let frontends = desired.node().frontends(member);
            let owners = frontends.iter();
            let owners = owners.filter_map(|frontend| desired.needs().owner(frontend));
            let mut owners: Vec<Option<&ServicePortName>> = owners.map(Some).collect();
            if owners.is_empty() {
                owners.push(None);
            }
            // Several members may share the reason.
            owners.retain(|owner| reported.insert((*owner, Arc::as_ptr(error))));
            for owner in owners {
                match owner {
                    Some(owner) => self.state.fail(owner.clone(), error.to_string()),
                    None => self.state.leave_unfinished(error.to_string()),
                }
            }
        }
    }

    /// Reports members that were refused, for each ServicePort that needs some.
    fn report_members(&mut self, reasons: &HashMap<Member, Arc<netlink::Error>>) {
        for port in self.desired.ports(self.family) {
            let plan = self.desired.plan(port);
            let of_port = |member| Some((member, reasons.get(member)?));
            let mut of_port = plan.members.iter().filter_map(of_port);
            let Some((member, error)) = of_port.next() else {
                continue;
            };
            let mut why = error.to_string();
            if let Some(too_small) = self.results.too_small.get(&member.set) {
                why += &format!("; it cannot be enlarged: {too_small}");
            }
            match of_port.count() {
                0 => {}
                more => why += &format!("; {more} more members were refused"),
            }
            self.state.fail(port.name.clone(), why);
        }
    }

    /// Keeps the frontends that `member` guards or serves closed.
    fn block(&mut self, member: &Member) {
        match (member.set, member.element) {
            // Without it, an endpoint here that calls itself gets no answer, and
            // a load balancer hears of no endpoint here.
            (Set::LoopBack | Set::HealthCheckNodePort, _) => {}
            (_, Element::Ip(ip)) => self.results.blocked.lacks_address(ip),
            _ => {
                let frontends = self.desired.node().frontends(member);
                self.results.blocked.lacks_member(frontends);
            }
        }
    }

    /// Makes the kernel choose none of the addresses that are `eligible` as a source.
    fn retire_addresses(&mut self, eligible: &[IpAddr]) -> Result<(), netlink::Error> {
        if eligible.is_empty() {
            return Ok(());
        }
        let mut done = 0;
        let Clients { route, link, .. } = &mut *self.clients;
        for outcome in addresses::retire(route, *link, eligible)? {
            match outcome {
                Ok(()) => done += 1,
                Err(error) => {
                    self.state.leave_unfinished(error.to_string());
                    self.results.found_unexpected = true;
                }
            }
        }
        tracing::info!(
            "{done} {} addresses of {LINK} are no longer eligible as a source",
            self.family
        );
        Ok(())
    }

    /// Adds addresses to the dummy link, except those that are blocked.
    fn add_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), netlink::Error> {
        // From all virtual servers, so it is computed only if something is blocked.
        let serving = LazyCell::new(|| -> HashSet<IpAddr> {
            self.servers.keys().map(|f| f.address.ip()).collect()
        });
        let rules = self.rules.in_force();
        let (blocked, coming): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|ip| {
            self.results
                .blocked
                .blocks_address(ip, rules, || serving.contains(*ip))
        });
        let why = |ip: IpAddr| {
            let family = self.family;
            let why = format!("{ip} is not on {LINK} yet: the {family} rules are not applied");
            (ip, why)
        };
        let waiting = blocked.iter().copied().map(why).collect();
        self.results.again.addresses.extend(blocked);
        // ServicePorts that are not open for the same reason were reported already.
        let closed = self.state.failed().clone();
        self.report_addresses(&waiting, &closed);
        let is_repaired = |full: &Full, ip| match &full.known {
            Some(known) => !known.addresses.contains(ip),
            None => true,
        };
        let full = self.full;
        if full.is_some_and(|full| coming.iter().any(|ip| is_repaired(full, ip))) {
            self.results.has_repaired = Repaired::Some;
        }
        let refused = self.change_addresses(&coming, Action::Add)?;
        self.report_addresses(&refused, &FailedPorts::default());
        Ok(())
    }

    /// Reports addresses that the dummy link does not get, for each ServicePort that needs one of
    /// them, except those in `except`.
    fn report_addresses(&mut self, reasons: &BTreeMap<IpAddr, String>, except: &FailedPorts) {
        if reasons.is_empty() {
            return;
        }
        for port in self.desired.ports(self.family) {
            if except.contains_key(&port.name) {
                continue;
            }
            for ip in self.desired.plan(port).addresses {
                if let Some(reason) = reasons.get(&ip) {
                    self.state.fail(port.name.clone(), reason.clone());
                }
            }
        }
    }

    /// Removes addresses from the dummy link.
    fn remove_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), netlink::Error> {
        let reasons = self.change_addresses(addresses, Action::Remove)?;
        for reason in reasons.into_values() {
            self.state.leave_unfinished(reason);
        }
        Ok(())
    }

    /// Returns the addresses that were refused, each with the reason.
    fn change_addresses(
        &mut self,
        addresses: &[IpAddr],
        action: Action,
    ) -> Result<BTreeMap<IpAddr, String>, netlink::Error> {
        let mut reasons = BTreeMap::new();
        if addresses.is_empty() {
            return Ok(reasons);
        }
        self.progress.send(addresses.len());
        let outcomes = self.clients.change_addresses(addresses, action)?;
        self.progress.confirm();
        for (ip, outcome) in addresses.iter().zip(outcomes) {
            if let Err(error) = outcome {
                self.results.again.addresses.insert(*ip);
                self.results.found_unexpected |= is_unexpected(&error);
                reasons.insert(*ip, error.to_string());
            }
        }
        Ok(reasons)
    }
}

/// Returns true if the kernel holds something else than was expected.
fn is_unexpected(error: &netlink::Error) -> bool {
    matches!(
        error.errno(),
        Some(Errno::EEXIST | Errno::ESRCH | Errno::ENOENT | Errno::ENODEV)
    )
}

//! Putting a difference into the kernel, in the order that keeps it closed to
//! whom it is closed: see the module above.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use hashbrown::{HashMap, HashSet};
use nix::errno::Errno;

use super::{
    Belief, Error, Ipvs,
    diff::{MemberStep, Present, member_steps, room_needed, server_changes},
    held::guarding,
    look::{Look, digest},
    plan::{self, Filled, Frontend, LINK, Member, Set},
    report::{Report, log_repairs},
    rule_writer::{Outcome, RuleWriter},
    wanted::Touched,
};
use crate::{
    kernel::{ipset::Element, ipvs::Change, netlink},
    net::Family,
    services::{ServicePort, ServicePortName},
};

/// Changes of virtual servers that are made at a time.
const BATCH: usize = 2000;

/// What a full sync found, and which frontends were known to differ.
pub type Found<'a> = (&'a Look, &'a BTreeSet<Frontend>);

impl Ipvs {
    /// Makes the kernel as wanted, where it is `touched`, all of which is of
    /// `family`; `found` on a full sync.
    pub(super) async fn apply(
        &mut self,
        family: Family,
        touched: &Touched,
        found: Option<Found<'_>>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let steps = member_steps(touched, &self.wanted);
        self.held.get_mut(family).begin();
        self.make_room(touched, report)?;
        self.change_members(&steps.before, touched, report)?;
        let look = found.map(|(look, _)| look);
        self.ask_for_rules(family, look);
        // These wait for no program.
        self.serve(family, touched, found, true, report)?;
        self.await_rules(family).await;
        self.serve(family, touched, found, false, report)?;
        self.change_addresses(touched, true, report)?;
        if let Some(look) = look {
            self.retire_addresses(&look.eligible, report)?;
        }
        let taken_over = self.take_over(family).await;
        self.change_members(&steps.opened, touched, report)?;

        self.change_addresses(touched, false, report)?;
        self.remove_servers(touched, report)?;
        self.drop_rules(family).await;
        self.change_members(&steps.after, touched, report)?;
        taken_over
    }

    /// Asks for the rules, before anything is opened: for what has members, or had
    /// some until now.
    fn ask_for_rules(&mut self, family: Family, look: Option<&Look>) {
        self.take_answer(family);
        let wanted = self.wanted.filled(family);
        let before = self.held.get(family).rules().unwrap_or_default();
        let there = look.map_or_else(Filled::default, |look| look.filled);
        let filled = wanted.or(before).or(there);
        let held = self.held.get_mut(family);
        match self.rules.get_mut(family) {
            Some(writer) => {
                if writer.ask(&self.site, filled, look.is_some()) {
                    held.rules_change(filled);
                }
            }
            None => held.rules_failed("no ip6tables works here".to_owned(), true),
        }
    }

    fn take_answer(&mut self, family: Family) {
        let writer = self.rules.get_mut(family).as_mut();
        if let Some(outcome) = writer.and_then(RuleWriter::poll) {
            self.rules_answered(family, outcome);
        }
    }

    async fn await_rules(&mut self, family: Family) {
        let is_needed = self.held.get(family).rules().is_none();
        let Some(writer) = self.rules.get_mut(family) else {
            return;
        };
        match writer.wait(is_needed).await {
            Some(outcome) => self.rules_answered(family, outcome),
            None => self.name_overdue(family),
        }
    }

    fn name_overdue(&mut self, family: Family) {
        let writer = self.rules.get(family).as_ref();
        if writer.is_some_and(RuleWriter::is_overdue) {
            let why = "the program that writes them does not end".to_owned();
            self.rules_failed(family, why, false);
        }
    }

    fn rules_answered(&mut self, family: Family, outcome: Outcome) {
        match outcome {
            Outcome::InForce(filled, repaired) => {
                let held = self.held.get_mut(family);
                if held.trouble().is_some() {
                    tracing::info!("{family} rules are in force again");
                }
                held.rules_in_force(filled);
                if *self.belief.get(family) != Belief::None {
                    let named = repaired.iter().map(|what| format!("{what} ({family})"));
                    log_repairs(&named.collect::<Vec<_>>());
                }
            }
            Outcome::Failed { error, lost } => self.rules_failed(family, error.to_string(), lost),
        }
    }

    fn rules_failed(&mut self, family: Family, why: String, lost: bool) {
        let held = self.held.get_mut(family);
        if held.trouble() != Some(&why) {
            tracing::error!(
                "{family} rules: {why}; what needs them and is not open waits, and they are tried \
                 again; the rest goes on"
            );
        }
        held.rules_failed(why, lost);
    }

    /// The last step of taking over from iptables mode.
    async fn take_over(&mut self, family: Family) -> Result<(), Error> {
        let Some(filled) = self.held.get(family).rules() else {
            return Ok(());
        };
        let Some(writer) = self.rules.get_mut(family) else {
            return Ok(());
        };
        if !writer.ask_to_take_over(filled) {
            return Ok(());
        }
        let source = match writer.wait(true).await {
            Some(Outcome::InForce(..)) => return Ok(()),
            Some(Outcome::Failed { error, .. }) => error,
            None => writer.unanswered(),
        };
        self.rules_failed(family, source.to_string(), true);
        Err(Error::Rules { family, source })
    }

    /// The rules, when all that goes is gone: for what has members. What is left
    /// over when this fails matches nothing.
    async fn drop_rules(&mut self, family: Family) {
        let filled = self.wanted.filled(family);
        let held = self.held.get_mut(family);
        let Some(writer) = self.rules.get_mut(family) else {
            return;
        };
        if held.rules().is_none_or(|rules| filled.covers(rules)) {
            return;
        }
        if writer.ask(&self.site, filled, false) {
            held.rules_change(filled);
            if let Some(outcome) = writer.wait(false).await {
                self.rules_answered(family, outcome);
            }
        }
    }

    /// Has the sets take what comes to them. Where one cannot, members are
    /// refused.
    fn make_room(&mut self, touched: &Touched, report: &mut Report) -> Result<(), netlink::Error> {
        for ((set, family), members) in room_needed(touched, &self.wanted) {
            match self.doors.make_room(set, family, members) {
                Err(error @ netlink::Error::Refused { .. }) => {
                    report.too_small.insert((set, family), error.to_string());
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn change_members(
        &mut self,
        steps: &[MemberStep],
        touched: &Touched,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let refused = self.doors.change_members(steps)?;
        if refused.is_empty() {
            return Ok(());
        }
        let mut reasons: HashMap<Member, Arc<netlink::Error>> = HashMap::new();
        let mut left: Option<Arc<netlink::Error>> = None;
        for (member, error) in refused {
            let continuing = touched.members.get(&member).copied().unwrap_or(false);
            report.unsettled.members.insert(member, continuing);
            report.doubt |= is_surprising(&error);
            if self.wanted.has_member(&member) {
                self.hold(&member);
                reasons.insert(member, error);
            } else if left.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &error)) {
                report.unfinished.push(error.to_string());
                left = Some(error);
            }
        }
        for port in self.ports.values() {
            let plan = plan::plan(port, &self.site);
            let of_port = |member| Some((member, reasons.get(member)?));
            let mut of_port = plan.members.iter().filter_map(of_port);
            let Some((member, error)) = of_port.next() else {
                continue;
            };
            let mut why = error.to_string();
            if let Some(too_small) = report.too_small.get(&(member.set, member.family)) {
                why += &format!("; it cannot be enlarged: {too_small}");
            }
            match of_port.count() {
                0 => {}
                more => why += &format!("; {more} more members were refused"),
            }
            report.failed(&port.name, why);
        }
        Ok(())
    }

    /// Has what `member` guards or serves not be opened.
    fn hold(&mut self, member: &Member) {
        let frontends = self.frontends(member);
        let held = self.held.get_mut(member.family);
        match (member.set, member.element) {
            // Without it, an endpoint here that calls itself gets no answer, and
            // a load balancer hears of no endpoint here.
            (Set::LoopBack | Set::HealthCheckNodePort, _) => {}
            (_, Element::Ip(ip)) => held.lacks_address(ip),
            _ => held.lacks_member(frontends),
        }
    }

    /// Virtual and real servers that come and change: of what is `open`, or of what
    /// is not yet.
    fn serve(
        &mut self,
        family: Family,
        touched: &Touched,
        found: Option<Found<'_>>,
        open: bool,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let concerned = |frontend: &Frontend| {
            self.servers.contains_key(frontend) == open && self.wanted.owner(frontend).is_some()
        };
        let concerned: HashSet<Frontend> = touched
            .frontends
            .iter()
            .copied()
            .filter(concerned)
            .collect();
        if concerned.is_empty() {
            return Ok(());
        }
        let ports: Vec<Arc<ServicePort>> = match found {
            Some(_) => {
                let ports = self.ports.values();
                let of_family = ports.filter(|port| port.name.family == family);
                of_family.cloned().collect()
            }
            None => {
                let owners = concerned.iter().filter_map(|f| self.wanted.owner(f));
                let owners: BTreeSet<&ServicePortName> = owners.collect();
                let ports = owners.into_iter().filter_map(|name| self.ports.get(name));
                ports.cloned().collect()
            }
        };
        let now = Instant::now();
        let mut changes = Vec::new();
        let mut repaired = Vec::new();
        for port in ports {
            let limit = port.preferences().drain_timeout;
            let limit = limit.or(self.options.drain_timeout);
            let mut waiting = Waiting::default();
            let plan = plan::plan(&port, &self.site);
            for server in plan.servers {
                let frontend = server.frontend;
                if !concerned.contains(&frontend)
                    || self.wanted.owner(&frontend) != Some(&port.name)
                {
                    continue;
                }
                if !open {
                    let guarding = guarding(&frontend, &plan.members, self.site.masquerade_all);
                    let held = self.held.get_mut(port.name.family);
                    if held.blocks(&frontend, guarding) {
                        report.unsettled.frontends.insert(frontend);
                        waiting.add(frontend);
                        continue;
                    }
                }
                let present = self.servers.get(&frontend);
                let present = present.map(|p| *p == digest(&server.to_kernel()));
                if present == Some(true) && found.is_some_and(|(l, _)| l.has_reals_of(&server)) {
                    self.drains.forget_all(&frontend);
                    continue;
                }
                let reals = match present {
                    Some(_) => self.doors.reals(&frontend.id())?,
                    None => Vec::new(),
                };
                let present = present.map(|is_same| Present {
                    is_same,
                    reals: &reals,
                });
                let before = changes.len();
                let drains = &mut self.drains;
                server_changes(&server, present, limit, drains, now, &mut changes);
                if changes.len() > before && found.is_some_and(|(_, k)| !k.contains(&frontend)) {
                    repaired.push(format!("virtual server {frontend}"));
                }
            }
            let held = self.held.get(port.name.family);
            if let Some(frontends) = waiting.name().filter(|_| held.trouble().is_some()) {
                let family = port.name.family;
                // Why not is said once for all, and may be another reason each time.
                let why = format!(
                    "{frontends} not open yet: the {family} rules that guard this are not in force"
                );
                report.failed(&port.name, why);
            }
            if changes.len() >= BATCH {
                self.change_servers(&std::mem::take(&mut changes), report)?;
            }
        }
        self.change_servers(&changes, report)?;
        if *self.belief.get(family) != Belief::None {
            log_repairs(&repaired);
        }
        Ok(())
    }

    /// Virtual servers that go.
    fn remove_servers(
        &mut self,
        touched: &Touched,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let excluded = |ip: &IpAddr| self.options.exclude.iter().any(|net| net.contains(ip));
        let gone: Vec<Change> = touched
            .frontends
            .iter()
            .filter(|frontend| self.wanted.owner(frontend).is_none())
            .filter(|frontend| self.servers.contains_key(*frontend))
            .filter(|frontend| !excluded(&frontend.address))
            .map(|frontend| Change::Delete(frontend.id()))
            .collect();
        self.change_servers(&gone, report)?;
        for frontend in &touched.frontends {
            if self.wanted.owner(frontend).is_none() {
                self.drains.forget_all(frontend);
            }
        }
        Ok(())
    }

    fn change_servers(
        &mut self,
        changes: &[Change],
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let outcomes = self.doors.change_servers(changes)?;
        // What is asked for a virtual server that was refused is refused too.
        let mut refused: Option<Frontend> = None;
        for (change, outcome) in changes.iter().zip(outcomes) {
            let frontend = frontend_of(change);
            let Err(error) = outcome else {
                match change {
                    Change::Add(server) | Change::Edit(server) => {
                        self.servers.insert(frontend, digest(server));
                    }
                    Change::Delete(_) => drop(self.servers.remove(&frontend)),
                    _ => {}
                }
                continue;
            };
            if refused == Some(frontend) {
                continue;
            }
            refused = matches!(change, Change::Add(_)).then_some(frontend);
            report.doubt |= is_surprising(&error);
            report.unsettled.frontends.insert(frontend);
            match self.wanted.owner(&frontend) {
                Some(owner) => report.failed(owner, error.to_string()),
                None => report.unfinished.push(error.to_string()),
            }
        }
        Ok(())
    }

    /// Addresses of the dummy link that are there, but not as ours are.
    fn retire_addresses(
        &mut self,
        eligible: &[IpAddr],
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let Some(first) = eligible.first() else {
            return Ok(());
        };
        let family = Family::of(first);
        let mut done = 0;
        for outcome in self.doors.retire_addresses(eligible)? {
            match outcome {
                Ok(()) => done += 1,
                Err(error) => {
                    report.unfinished.push(error.to_string());
                    report.doubt = true;
                }
            }
        }
        tracing::info!("{done} {family} addresses of {LINK} are no longer eligible as a source");
        Ok(())
    }

    /// Addresses of the dummy link that come, or those that go.
    fn change_addresses(
        &mut self,
        touched: &Touched,
        add: bool,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let mut concerned = Vec::new();
        // Of all virtual servers, so for what is held back only.
        let serving = LazyCell::new(|| -> HashSet<IpAddr> {
            self.servers.keys().map(|f| f.address).collect()
        });
        for ip in &touched.addresses {
            if self.wanted.has_address(ip) != add {
                continue;
            }
            let held = self.held.get(Family::of(ip));
            if add && held.blocks_address(ip, || serving.contains(ip)) {
                report.unsettled.addresses.insert(*ip);
            } else {
                concerned.push(*ip);
            }
        }
        if concerned.is_empty() {
            return Ok(());
        }
        let outcomes = self.doors.change_addresses(&concerned, add)?;
        let mut reasons: BTreeMap<IpAddr, String> = BTreeMap::new();
        for (ip, outcome) in concerned.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                report.unsettled.addresses.insert(ip);
                report.doubt |= is_surprising(&error);
                match add {
                    true => drop(reasons.insert(ip, error.to_string())),
                    false => report.unfinished.push(error.to_string()),
                }
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        for port in self.ports.values() {
            for ip in plan::plan(port, &self.site).addresses {
                if let Some(reason) = reasons.get(&ip) {
                    report.failed(&port.name, reason.clone());
                }
            }
        }
        Ok(())
    }
}

/// Frontends of a ServicePort that wait for rules.
#[derive(Debug, Default)]
struct Waiting {
    first: Option<Frontend>,
    more: usize,
}

impl Waiting {
    fn add(&mut self, frontend: Frontend) {
        match self.first {
            Some(_) => self.more += 1,
            None => self.first = Some(frontend),
        }
    }

    fn name(&self) -> Option<String> {
        let first = self.first?;
        Some(match self.more {
            0 => format!("{first} is"),
            more => format!("{first} and {more} more are"),
        })
    }
}

fn frontend_of(change: &Change) -> Frontend {
    match change {
        Change::Add(server) | Change::Edit(server) => Frontend::of(&server.id),
        Change::Delete(id)
        | Change::AddReal(id, _)
        | Change::EditReal(id, _)
        | Change::DeleteReal(id, _)
        | Change::Zero(id) => Frontend::of(id),
    }
}

/// The kernel holds something else than we believed.
fn is_surprising(error: &netlink::Error) -> bool {
    matches!(
        error.errno(),
        Some(Errno::EEXIST | Errno::ESRCH | Errno::ENOENT | Errno::ENODEV)
    )
}

//! Putting a difference into the kernel, in the order that keeps it closed to
//! whom it is closed: see the module above.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use hashbrown::HashMap;
use nix::errno::Errno;

use super::{
    Belief, Error, Ipvs,
    diff::{MemberStep, Present, member_steps, room_needed, server_changes},
    look::{Look, digest},
    plan::{self, FAMILIES, Filled, Frontend, LINK, Member, Set},
    report::{Report, log_repairs},
    wanted::Touched,
};
use crate::{
    kernel::{ipset::Element, ipvs::Change, netlink, xtables},
    net::Family,
    services::{ServicePort, ServicePortName},
};

/// Changes of virtual servers that are made at a time.
const BATCH: usize = 2000;

/// What a full sync found, and which frontends were known to differ.
pub type Found<'a> = (&'a Look, &'a BTreeSet<Frontend>);

/// What is not opened, because what should close it is not in force.
#[derive(Debug, Default)]
struct Held {
    families: BTreeSet<Family>,
    frontends: BTreeSet<Frontend>,
    /// With all frontends there.
    addresses: BTreeSet<IpAddr>,
}

impl Held {
    /// `frontend` is not to be opened, or, where it `is_open`, not to change. What
    /// a member that is missing guards was open before it was asked for, and
    /// follows its endpoints.
    fn holds(&self, frontend: &Frontend, is_open: bool) -> bool {
        let lacks_member =
            self.frontends.contains(frontend) || self.addresses.contains(&frontend.address);
        self.families.contains(&Family::of(&frontend.address)) || lacks_member && !is_open
    }
}

impl Ipvs {
    /// Makes the kernel as wanted, where it is `touched`; `found` on a full
    /// sync.
    pub(super) async fn apply(
        &mut self,
        touched: &Touched,
        found: Option<Found<'_>>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let steps = member_steps(touched, &self.wanted);
        let mut held = Held::default();
        self.make_room(touched, report)?;
        self.change_members(&steps.before, touched, &mut held, report)?;
        let rules = self.close(found.map(|(look, _)| look), &mut held, report);
        let rules = rules.await;
        self.serve(touched, found, &held, report)?;
        self.change_addresses(touched, true, &held, report)?;
        if let Some((look, _)) = found {
            self.retire_addresses(&look.eligible, report)?;
        }
        let taken_over = self.take_over().await;
        self.change_members(&steps.opened, touched, &mut Held::default(), report)?;

        self.change_addresses(touched, false, &held, report)?;
        self.remove_servers(touched, report)?;
        self.open(report).await;
        self.change_members(&steps.after, touched, &mut Held::default(), report)?;
        rules.and(taken_over)
    }

    /// The last step of taking over from iptables mode.
    async fn take_over(&mut self) -> Result<(), Error> {
        for family in FAMILIES {
            if let Some(tables) = self.tables.of_mut(family) {
                let taken = tables.take_over().await;
                taken.map_err(|source| Error::Rules { family, source })?;
            }
        }
        Ok(())
    }

    /// The rules, before anything is opened: what has members, or had some
    /// until now.
    async fn close(
        &mut self,
        look: Option<&Look>,
        held: &mut Held,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for family in FAMILIES {
            let wanted = self.wanted.filled(family);
            let there = look.map_or_else(Filled::default, |look| *look.filled.of(family));
            let filled = wanted.or(*self.filled.of(family)).or(there);
            let Some(tables) = self.tables.of_mut(family) else {
                held.families.insert(family);
                for name in self.ports.keys().filter(|name| name.family == family) {
                    report.failed(name, "it is not served: no ip6tables works here".to_owned());
                }
                continue;
            };
            let applied = match look {
                Some(_) => tables.repair(&self.site, filled).await.map(|repaired| {
                    if self.belief != Belief::None {
                        let family = format!(" ({family})");
                        let named: Vec<_> = repaired.iter().map(|r| r.clone() + &family).collect();
                        log_repairs(&named);
                    }
                }),
                None => tables.apply(&self.site, filled).await,
            };
            match applied {
                Ok(()) => *self.filled.of_mut(family) = filled,
                Err(source) => {
                    held.families.insert(family);
                    outcome = outcome.and(Err(Error::Rules { family, source }));
                }
            }
        }
        outcome
    }

    /// The rules, when all that goes is gone.
    async fn open(&mut self, report: &mut Report) {
        for family in FAMILIES {
            let filled = self.wanted.filled(family);
            let Some(tables) = self.tables.of_mut(family) else {
                continue;
            };
            if *self.filled.of(family) == filled {
                continue;
            }
            match tables.apply(&self.site, filled).await {
                Ok(()) => *self.filled.of_mut(family) = filled,
                Err(error) => {
                    let error: xtables::Error = error;
                    // What is left over matches nothing.
                    tracing::error!("{family} rules for sets without members stay: {error}");
                    report.doubt = true;
                }
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
        held: &mut Held,
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
                self.hold(&member, held);
                reasons.insert(member, error);
            } else if left.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &error)) {
                tracing::error!("{error}");
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
    fn hold(&self, member: &Member, held: &mut Held) {
        match (member.set, member.element) {
            // Without it, an endpoint here that calls itself gets no answer, and
            // a load balancer hears of no endpoint here.
            (Set::LoopBack | Set::HealthCheckNodePort, _) => {}
            (_, Element::Ip(ip)) => drop(held.addresses.insert(ip)),
            _ => held.frontends.extend(self.frontends(member)),
        }
    }

    /// Virtual and real servers that come and change.
    fn serve(
        &mut self,
        touched: &Touched,
        found: Option<Found<'_>>,
        held: &Held,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let ports: Vec<Arc<ServicePort>> = match found {
            Some(_) => self.ports.values().cloned().collect(),
            None => {
                let owners = touched
                    .frontends
                    .iter()
                    .filter_map(|f| self.wanted.owner(f));
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
            for server in plan::plan(&port, &self.site).servers {
                let frontend = server.frontend;
                if !touched.frontends.contains(&frontend)
                    || self.wanted.owner(&frontend) != Some(&port.name)
                {
                    continue;
                }
                let present = self.servers.get(&frontend);
                if held.holds(&frontend, present.is_some()) {
                    report.unsettled.frontends.insert(frontend);
                    continue;
                }
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
            if changes.len() >= BATCH {
                self.change_servers(&std::mem::take(&mut changes), report)?;
            }
        }
        self.change_servers(&changes, report)?;
        if self.belief != Belief::None {
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
                None => tracing::error!("{error}"),
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
        if eligible.is_empty() {
            return Ok(());
        }
        let mut done = 0;
        for outcome in self.doors.retire_addresses(eligible)? {
            match outcome {
                Ok(()) => done += 1,
                Err(error) => {
                    tracing::error!("{error}");
                    report.doubt = true;
                }
            }
        }
        tracing::info!("{done} addresses of {LINK} are no longer eligible as a source");
        Ok(())
    }

    /// Nothing is served at `ip`, since what should close it is not in force.
    fn is_held(&self, ip: &IpAddr, held: &Held) -> bool {
        let mut there = held.frontends.iter().map(|frontend| &frontend.address);
        held.families.contains(&Family::of(ip))
            || held.addresses.contains(ip)
            || there.any(|held| held == ip) && self.servers.keys().all(|f| f.address != *ip)
    }

    /// Addresses of the dummy link that come, or those that go.
    fn change_addresses(
        &mut self,
        touched: &Touched,
        add: bool,
        held: &Held,
        report: &mut Report,
    ) -> Result<(), netlink::Error> {
        let mut concerned = Vec::new();
        for ip in &touched.addresses {
            if self.wanted.has_address(ip) != add {
                continue;
            }
            if add && self.is_held(ip, held) {
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
                    false => tracing::error!("{error}"),
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

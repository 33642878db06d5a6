//! Capture without netfilter: routing delivers packets for service addresses
//! to this node, port by port. [`plan`] has the picture.
//!
//! Verified with namespaces on Linux 6.18 and, with neither netfilter nor
//! dummy links, on 6.1 (User-Mode Linux), both families, from a pod's
//! namespace and from the node itself, with strict `rp_filter`:
//! - TCP and UDP arrive at a listener on `address:port`, UDP fragments too;
//!   other ports are refused (the node's own programs get EACCES, pods
//!   EHOSTUNREACH in IPv4 and EACCES in IPv6), and the node's wildcard
//!   listeners are not reached;
//! - a captured port on which nothing listens is *refused* (reset, port
//!   unreachable). In IPv4 that takes [`addresses::assign`]: without it the
//!   kernel finds its own answer's source address not local and stays silent;
//! - ARP requests for a service address stay unanswered;
//! - the kernel limits refusals of other ports in IPv4 to a burst of a few for
//!   each client (`net.ipv4.route.error_burst`); an IPv6 TCP client on the
//!   same machine may see one only on its second attempt, a second later,
//!   because the first arrives while its socket is locked.

mod apply;
mod plan;
#[cfg(test)]
mod tests;
mod uses;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use nix::errno::Errno;
use socket2::{Domain, Type};

use self::{
    apply::{insert, installed, remove},
    plan::{Ground, Object, Shape},
    uses::Uses,
};
use super::{Error, Frontend, Outcomes, Report, Scopes, Want};
use crate::{
    kernel::{
        addresses, links,
        netlink::{self, Protocol, Socket},
        probe::{Ability, Kernel},
    },
    net::Family,
};

/// Captures by routes. Owns every route and rule of our mark in its tables.
pub struct Local {
    socket: Socket,
    families: Vec<FamilyState>,
    noted: HashSet<String>,
}

/// What one family has in the kernel.
struct FamilyState {
    family: Family,
    /// How each frontend is carried.
    shapes: BTreeMap<Frontend, Shape>,
    /// What is in the kernel, and for how many frontends.
    held: Uses,
    /// The ground at the last full sync; `None`: the next sync must be full.
    ground: Option<Ground>,
    /// Rules can match ports here.
    ports: Result<(), String>,
    /// Nothing of ours was in the kernel when last we looked, and we added
    /// nothing since.
    clean: bool,
    /// The node's own addresses at the last full sync.
    own: HashSet<IpAddr>,
}

impl Local {
    /// For these families of `kernel`.
    ///
    /// # Errors
    /// When no netlink socket can be had.
    pub fn new(families: &[Family], kernel: &Kernel) -> Result<Local, Error> {
        let families = families.iter().map(|family| FamilyState {
            family: *family,
            shapes: BTreeMap::new(),
            held: Uses::default(),
            ground: None,
            ports: match kernel.lack(&Ability::PortRules(*family)) {
                Some(why) => Err(why.to_owned()),
                None => Ok(()),
            },
            clean: false,
            own: HashSet::new(),
        });
        Ok(Local {
            socket: Socket::open(Protocol::Route)?,
            families: families.collect(),
            noted: HashSet::new(),
        })
    }

    /// Makes the kernel capture what is wanted; frontends of other families are
    /// left out.
    ///
    /// Blocks, about 10 µs for each object that changes. Listeners may be bound
    /// before or after. A frontend whose Service is gone must stay wanted until
    /// its last connection has ended: routing carries every packet, and there is
    /// no conntrack that would remember. New clients are refused meanwhile, as
    /// nothing listens.
    pub fn sync(&mut self, want: &Want, scopes: &Scopes) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for state in &mut self.families {
            let Some(scope) = scopes.get(state.family) else {
                continue;
            };
            let changed = (!scope.full).then_some(&*scope.changed);
            let mut report = Report::default();
            let synced = state.sync(&mut self.socket, want, changed, &mut report);
            if synced.is_err() {
                state.ground = None;
            }
            report.notes.retain(|note| self.noted.insert(note.clone()));
            *outcomes.get_mut(state.family) = Some(synced.map(|()| report));
        }
        outcomes
    }

    /// Removes everything that this way of capture ever installs in these
    /// families, also what an earlier process left. Twice is harmless; nothing
    /// of others is touched.
    ///
    /// # Errors
    /// When something of it could not be removed.
    pub fn cleanup(families: &[Family]) -> Result<(), Error> {
        let mut socket = Socket::open(Protocol::Route)?;
        for family in families {
            let present = installed(&mut socket, *family)?;
            if !present.is_empty() {
                remove(&mut socket, links::index("lo")?, present)?;
            }
        }
        Ok(())
    }

    /// Whether anything of it is there in these families; what cannot be asked
    /// has nothing.
    pub fn is_there(families: &[Family]) -> bool {
        let found = Socket::open(Protocol::Route).map(|mut socket| {
            families.iter().any(|family| {
                let present = installed(&mut socket, *family);
                present.is_ok_and(|present| !present.is_empty())
            })
        });
        found.unwrap_or(false)
    }
}

impl FamilyState {
    fn sync(
        &mut self,
        socket: &mut Socket,
        want: &Want,
        changed: Option<&[Frontend]>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let theirs = |f: &&Frontend| f.family == self.family;
        match (changed, self.ground) {
            (Some(changed), Some(ground)) => {
                let changed: BTreeSet<_> = changed.iter().filter(theirs).copied().collect();
                self.update(socket, want, &changed, &ground, report)
            }
            _ if want.keys().any(|f| f.family == self.family) => {
                let Some(ground) = self.survey(socket, want, report)? else {
                    return Ok(());
                };
                self.reconcile(socket, want, ground, report)
            }
            (Some(_), None) if self.clean => Ok(()),
            _ => {
                // Nothing wanted: no need of a ground that may not be there.
                let present = installed(socket, self.family)?;
                self.shapes.clear();
                self.held.clear();
                if !present.is_empty() {
                    remove(socket, links::index("lo")?, present)?;
                }
                self.clean = true;
                Ok(())
            }
        }
    }

    /// Finds out what the kernel and the node offer; `None` if the family is
    /// missing, which fails its frontends.
    fn survey(
        &mut self,
        socket: &mut Socket,
        want: &Want,
        report: &mut Report,
    ) -> Result<Option<Ground>, Error> {
        let family = self.family;
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        if let Err(error) = socket2::Socket::new(domain, Type::DGRAM, None)
            && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
        {
            let mine = want.keys().filter(|f| f.family == self.family);
            let reason = format!("this kernel has no {family}");
            report.failed.extend(mine.map(|f| (*f, reason.clone())));
            return Ok(None);
        }
        let loopback = links::index("lo")?;
        links::set_up(socket, loopback)?;
        if let Err(why) = &self.ports {
            let ability = Ability::PortRules(family);
            report.notes.push(format!(
                "{family}: service addresses become plain local routes, so that each of their \
                 ports reaches whatever listens on all addresses of this node, for lack of \
                 {ability} ({why}; {})",
                ability.remedy()
            ));
        }
        let own = addresses::list(socket)?;
        self.own = own.iter().map(|a| a.address).collect();
        Ok(Some(Ground {
            family,
            ports: self.ports.is_ok(),
            loopback,
            has_loopback_address: own
                .iter()
                .any(|a| a.address.is_loopback() && Family::of(&a.address) == family),
        }))
    }

    fn shape(
        &self,
        frontend: &Frontend,
        want: &Want,
        ground: &Ground,
        report: &mut Report,
    ) -> Option<Shape> {
        let target = want.get(frontend)?;
        match plan::shape(frontend, target, ground, |a| self.own.contains(a)) {
            Ok(shape) => {
                if shape == Shape::Plain && ground.ports {
                    report.notes.push(format!(
                        "{frontend}: all ports of the address reach what listens on all \
                         addresses of this node, because routing rules cannot match port 65535"
                    ));
                }
                Some(shape)
            }
            Err(reason) => {
                report.failed.push((*frontend, reason));
                None
            }
        }
    }

    /// Applies what differs in `changed` from what we hold.
    fn update(
        &mut self,
        socket: &mut Socket,
        want: &Want,
        changed: &BTreeSet<Frontend>,
        ground: &Ground,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut touched = BTreeMap::<Object, u32>::new();
        for frontend in changed {
            let shape = self.shape(frontend, want, ground, report);
            let before = self.shapes.remove(frontend);
            if let Some(shape) = shape {
                self.shapes.insert(*frontend, shape);
                for object in plan::objects(frontend, shape, ground) {
                    let before = self.held.of(&object);
                    self.held.add(&object);
                    touched.entry(object).or_insert(before);
                }
            }
            for object in before.map_or_else(Vec::new, |s| plan::objects(frontend, s, ground)) {
                let before = self.held.of(&object);
                self.held.release(&object);
                touched.entry(object).or_insert(before);
            }
        }
        let (mut coming, mut going) = (Vec::new(), Vec::new());
        for (object, before) in touched {
            match (before, self.held.of(&object)) {
                (0, 1..) => coming.push(object),
                (1.., 0) => going.push(object),
                _ => {}
            }
        }
        // Until all is applied, what we hold is not what the kernel has.
        self.ground = None;
        let refused = insert(socket, ground.loopback, coming)?;
        remove(socket, ground.loopback, going)?;
        self.settle(refused, changed.iter(), *ground, report);
        Ok(())
    }

    /// Compares all that is wanted with all that the kernel has.
    fn reconcile(
        &mut self,
        socket: &mut Socket,
        want: &Want,
        ground: Ground,
        report: &mut Report,
    ) -> Result<(), Error> {
        self.ground = None;
        self.clean = false;
        self.shapes.clear();
        self.held.clear();
        for frontend in want.keys().filter(|f| f.family == self.family) {
            if let Some(shape) = self.shape(frontend, want, &ground, report) {
                self.shapes.insert(*frontend, shape);
                for object in plan::objects(frontend, shape, &ground) {
                    self.held.add(&object);
                }
            }
        }
        let present = installed(socket, ground.family)?;
        let (kept, surplus): (HashSet<_>, Vec<_>) = {
            let (kept, surplus): (Vec<_>, Vec<_>) = present
                .into_iter()
                .partition(|object| self.held.of(object) > 0);
            (kept.into_iter().collect(), surplus)
        };
        // Addresses are assigned again: the kernel may have made anew the
        // route that was withdrawn.
        let wanted = self.shapes.iter();
        let wanted = wanted.flat_map(|(f, shape)| plan::objects(f, *shape, &ground));
        let missing: HashSet<_> = wanted
            .filter(|o| matches!(o, Object::Address(_)) || !kept.contains(o))
            .collect();
        // A route that differs in its source only is in the way of the right one.
        let place = |object: &Object| match object {
            Object::Route(route) => Some((route.table, route.destination)),
            _ => None,
        };
        let places: HashSet<_> = missing.iter().filter_map(place).collect();
        let (blocking, surplus): (Vec<_>, Vec<_>) = surplus
            .into_iter()
            .partition(|o| place(o).is_some_and(|p| places.contains(&p)));
        remove(socket, ground.loopback, blocking)?;
        let refused = insert(socket, ground.loopback, missing.into_iter().collect())?;
        remove(socket, ground.loopback, surplus)?;
        let all: Vec<_> = self.shapes.keys().copied().collect();
        self.settle(refused, all.iter(), ground, report);
        Ok(())
    }

    /// Reports the frontends among `candidates` for which something was
    /// refused, and makes the next sync full in that case.
    fn settle<'a>(
        &mut self,
        refused: HashMap<Object, netlink::Error>,
        candidates: impl Iterator<Item = &'a Frontend>,
        ground: Ground,
        report: &mut Report,
    ) {
        if refused.is_empty() {
            self.ground = Some(ground);
            return;
        }
        for frontend in candidates {
            let Some(shape) = self.shapes.get(frontend) else {
                continue;
            };
            let objects = plan::objects(frontend, *shape, &ground);
            if let Some(error) = objects.iter().find_map(|o| refused.get(o)) {
                report.failed.push((*frontend, error.to_string()));
            }
        }
    }
}

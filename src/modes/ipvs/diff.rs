//! Computes steps from the present to the desired state, in a safe order: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;
use ipvs::{Change, ListedReal, ipset::Element};
use net::Family;
use tokio::time::Instant;

use super::{
    blocked::keeps_out,
    desired::{Desired, Dirty, Needs, Serving},
    drain::{DrainAction, Drained, Drains, Leaving},
    objects,
    observe::{Observed, Servers},
    plan::{self, Member, ServerId, Set, is_excluded},
    steps::{Action, MemberStep, MemberSteps, Steps},
};

/// Plans the steps that bring the `dirty` objects in line with the `needed` ones; `servers` are the
/// virtual servers that the kernel has. Those at addresses that are `excluded` belong to another
/// program and are never removed.
pub fn steps(dirty: &Dirty, needed: &Needs, servers: &Servers, excluded: &[IpNet]) -> Steps {
    let (add_addresses, remove_addresses) = dirty
        .addresses
        .iter()
        .partition(|ip| needed.has_address(ip));
    let (desired, gone): (Vec<ServerId>, Vec<ServerId>) = dirty
        .frontends
        .iter()
        .partition(|frontend| needed.owner(frontend).is_some());
    let (follow, open): (HashSet<ServerId>, HashSet<ServerId>) = desired
        .into_iter()
        .partition(|frontend| servers.contains_key(frontend));
    let close = gone.iter().copied();
    let close = close.filter(|f| servers.contains_key(f) && !is_excluded(excluded, f.address.ip()));
    Steps {
        room: room_needed(dirty, needed),
        members: member_steps(dirty, needed, &follow),
        follow,
        open,
        add_addresses,
        remove_addresses,
        close: close.collect(),
        gone,
    }
}

/// A virtual server as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    /// Whether it spreads connections as desired.
    pub is_same: bool,
    /// The real servers that it sends to.
    pub reals: &'a [ListedReal],
}

/// How a virtual server becomes the desired one.
#[derive(Debug, Default, PartialEq)]
pub struct ServerDifference {
    /// The changes to make: new real servers first, removals last.
    pub changes: Vec<Change>,
    /// The real servers that are drained on.
    pub drained: Vec<Drained>,
}

/// Changes that turn the virtual server that is `present` into the `desired` one, where `drains`
/// are under way. `limit` is how long the connections of a removed real server may continue,
/// `None`: as long as they last.
pub fn server_difference(
    desired: &plan::VirtualServer,
    present: Option<Present<'_>>,
    limit: Option<Duration>,
    drains: &Drains,
    now: Instant,
) -> ServerDifference {
    let frontend = &desired.frontend;
    let id = *frontend;
    let limit = desired.drain_limit(limit);
    let mut changes = Vec::new();
    let mut there: Vec<&ListedReal> = Vec::new();
    match present {
        None => changes.push(Change::Add(desired.to_kernel())),
        Some(present) => {
            if !present.is_same {
                changes.push(Change::Edit(desired.to_kernel()));
            }
            there.extend(present.reals);
            there.sort_unstable_by_key(|real| real.server.address);
        }
    }
    // Not taken out one by one: each would move all that come after it.
    let mut stays = vec![false; there.len()];
    for real in &desired.reals {
        match there.binary_search_by_key(&real.address, |there| there.server.address) {
            Ok(at) if !stays[at] => {
                stays[at] = true;
                if there[at].server != *real {
                    changes.push(Change::EditReal(id, *real));
                }
            }
            _ => changes.push(Change::AddReal(id, *real)),
        }
    }
    let mut drained = Vec::new();
    let gone = there.iter().zip(stays).filter(|(_, stays)| !stays);
    for (gone, _) in gone {
        let mut real = gone.server;
        let leaving = Leaving {
            address: real.address,
            weight: real.weight,
            connections: gone.active.saturating_add(gone.inactive),
            limit,
        };
        match drains.decide(frontend, &leaving, now) {
            DrainAction::Delete => changes.push(Change::DeleteReal(id, real.address)),
            DrainAction::Drain(on) => {
                drained.push(on);
                if real.weight > 0 {
                    real.weight = 0;
                    changes.push(Change::EditReal(id, real));
                }
            }
        }
    }
    ServerDifference { changes, drained }
}

/// Orders the changes of sets. A member that closes or masquerades is added before the virtual
/// server that needs it, and removed after it. A member that spares a source from being masqueraded
/// is added after the endpoints elsewhere were removed, and removed before they are added. A member
/// that keeps callers out of a virtual server that stays is removed when the server sends only to
/// its new endpoints, but before rules are written: rules for a member that an earlier process
/// could not remove would keep callers out again. Nor are more callers let in before that, where
/// virtual servers have to `follow` their endpoints.
fn member_steps(dirty: &Dirty, needed: &Needs, follow: &HashSet<ServerId>) -> MemberSteps {
    let mut steps = MemberSteps::default();
    let shut_out = shut_out(dirty, needed);
    let waits = |member: &Member| {
        let (Some(network), Some(frontend)) = (admitted(member), member.frontend()) else {
            return false;
        };
        let guard = guard(&frontend, member.family);
        // A caller that both the old network and the new one let in is never kept out.
        let mut replaced = shut_out.get(&frontend).into_iter().flatten();
        follow.contains(&frontend)
            && needed.has_member(&guard)
            && !dirty.members.contains_key(&guard)
            && !replaced.any(|old| overlap(old, &network))
    };
    // A virtual server that another ServicePort owns now stays open as well.
    let is_followed = |member: &Member| match member.frontend() {
        Some(frontend) => follow.contains(&frontend),
        None => follow.iter().any(|frontend| member.is_about(frontend)),
    };
    for (member, serving) in &dirty.members {
        let set = member.set;
        let spares = set.spares_source() && (*serving == Serving::Continues || is_followed(member));
        let (action, when) = if needed.has_member(member) {
            let when = if spares {
                &mut steps.opened
            } else if waits(member) {
                &mut steps.followed
            } else {
                &mut steps.before
            };
            (Action::Add, when)
        } else {
            let stays = |frontend: ServerId| needed.owner(&frontend).is_some();
            let ends_guard =
                keeps_out(set) && !set.admits() && member.frontend().is_some_and(stays);
            let when = if ends_guard {
                &mut steps.followed
            } else if spares || set.admits() && is_guarded(member, needed) {
                &mut steps.before
            } else {
                &mut steps.after
            };
            (Action::Remove, when)
        };
        when.push(MemberStep {
            member: *member,
            action,
        });
    }
    // Callers that the firewall lets in are added before it takes effect, and removed after it
    // ends.
    steps
        .before
        .sort_by_key(|step| (step.action == Action::Remove, !step.member.set.admits()));
    steps.after.sort_by_key(|step| step.member.set.admits());
    steps
}

/// Returns the most members that each set has while the `dirty` objects change, for sets that a
/// member is added to.
fn room_needed(dirty: &Dirty, needed: &Needs) -> BTreeMap<(Set, Family), u32> {
    let mut room: BTreeMap<(Set, Family), u32> = BTreeMap::new();
    let (coming, going): (Vec<_>, Vec<_>) = dirty
        .members
        .keys()
        .partition(|member| needed.has_member(member));
    for Member { set, family, .. } in coming {
        room.entry((set, family))
            .or_insert_with(|| needed.size(set, family));
    }
    for Member { set, family, .. } in going {
        if let Some(members) = room.get_mut(&(set, family)) {
            *members = members.saturating_add(1);
        }
    }
    room
}

/// Returns the networks from which callers of each frontend are no longer let in.
fn shut_out(dirty: &Dirty, needed: &Needs) -> HashMap<ServerId, Vec<IpNet>> {
    let mut networks: HashMap<ServerId, Vec<IpNet>> = HashMap::new();
    let members = dirty.members.keys();
    for member in members.filter(|member| !needed.has_member(member)) {
        if let (Some(network), Some(frontend)) = (admitted(member), member.frontend()) {
            networks.entry(frontend).or_default().push(network);
        }
    }
    networks
}

/// Returns the network from which `member` lets callers in.
fn admitted(member: &Member) -> Option<IpNet> {
    match member.element {
        Element::IpPortNet { net, .. } if member.set.admits() => Some(net),
        Element::IpPortIp { other, .. } if member.set.admits() => Some(other.into()),
        _ => None,
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Returns the member that says that `frontend` has source ranges.
fn guard(frontend: &ServerId, family: Family) -> Member {
    Member {
        set: Set::Firewall,
        family,
        element: Element::ip_port(
            frontend.address.ip(),
            frontend.protocol.number(),
            frontend.address.port(),
        ),
    }
}

/// Returns true if the frontend that `member` names still has source ranges.
fn is_guarded(member: &Member, needed: &Needs) -> bool {
    let frontend = member.frontend();
    frontend.is_some_and(|frontend| needed.has_member(&guard(&frontend, member.family)))
}

/// Returns which of the observed addresses are not as desired, and all virtual servers
/// of `family`, whose real servers are compared one by one.
pub fn dirty(family: Family, observed: &Observed, needed: &Needs) -> Dirty {
    let desired = needed.addresses().filter(|ip| Family::of(ip) == family);
    let missing = desired.filter(|ip| !observed.addresses.contains(*ip));
    let there = observed.addresses.iter();
    let left = there.filter(|ip| !needed.has_address(ip));
    let frontends = needed.frontends();
    let desired = frontends.filter(|frontend| Family::of(&frontend.address.ip()) == family);
    Dirty {
        members: BTreeMap::new(),
        addresses: missing.chain(left).copied().collect(),
        frontends: observed.servers.keys().chain(desired).copied().collect(),
    }
}

/// Finds the members of `set` that are not as desired; `observed` are those that the kernel has,
/// and `servers` its virtual servers.
pub fn dirty_members(
    set: Set,
    family: Family,
    observed: HashSet<Element>,
    servers: &Servers,
    desired: &Desired,
) -> BTreeMap<Member, Serving> {
    let (needed, node) = (desired.needs(), desired.node());
    let serving = |member: &Member, is_served: &dyn Fn(&ServerId) -> bool| {
        if node.frontends(member).iter().any(is_served) {
            Serving::Continues
        } else {
            Serving::BeginsOrEnds
        }
    };
    let of_set = |member: &&Member| member.set == set && member.family == family;
    let desired = needed.members().filter(of_set);
    let missing = desired.filter(|member| !observed.contains(&member.element));
    let mut dirty: BTreeMap<Member, Serving> = missing
        .map(|member| (*member, serving(member, &|f| servers.contains_key(f))))
        .collect();
    for element in observed {
        let member = Member {
            set,
            family,
            element,
        };
        if !needed.has_member(&member) {
            let serving = serving(&member, &|f| needed.owner(f).is_some());
            dirty.insert(member, serving);
        }
    }
    dirty
}

/// Names the parts of `dirty` that are not `known` to have changed, and so were changed
/// by another program.
pub fn repairs(dirty: &Dirty, known: &Dirty) -> Vec<String> {
    let members = dirty.members.keys();
    let members = members.filter(|member| !known.members.contains_key(*member));
    let members = members.map(objects::member);
    let addresses: BTreeSet<_> = dirty.addresses.difference(&known.addresses).collect();
    let addresses = addresses.into_iter();
    let addresses = addresses.map(objects::address);
    members.chain(addresses).collect()
}

#[cfg(test)]
mod tests;

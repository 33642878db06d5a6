//! From what is wanted and what is there to changes, in a safe order: pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    drain::{Drains, Fate},
    plan::{self, Frontend, Member, Method, Set},
    wanted::{Touched, Wanted},
};
use crate::{
    kernel::{
        ipset::Element,
        ipvs::{
            Change, Forwarding, HASH_PORTS, ListedReal, Protocol, RealServer, ServerId,
            VirtualServer,
        },
    },
    net::{self, Family},
};

impl Frontend {
    /// What names it to the kernel.
    pub(super) fn id(&self) -> ServerId {
        ServerId {
            protocol: match self.protocol {
                net::Protocol::Tcp => Protocol::Tcp,
                net::Protocol::Udp => Protocol::Udp,
                net::Protocol::Sctp => Protocol::Sctp,
            },
            address: (self.address, self.port).into(),
        }
    }

    /// The frontend of that name.
    pub(super) fn of(id: &ServerId) -> Frontend {
        Frontend {
            address: id.address.ip(),
            port: id.address.port(),
            protocol: match id.protocol {
                Protocol::Tcp => net::Protocol::Tcp,
                Protocol::Udp => net::Protocol::Udp,
                Protocol::Sctp => net::Protocol::Sctp,
            },
        }
    }
}

impl plan::VirtualServer {
    /// Without its real servers, as the kernel takes it.
    pub(super) fn to_kernel(&self) -> VirtualServer {
        let mut server = VirtualServer::new(self.frontend.id(), self.scheduler.to_string());
        server.persistence = self.persistence.map(|s| Duration::from_secs(s.into()));
        if self.hashes_ports() {
            server.flags |= HASH_PORTS;
        }
        server
    }
}

impl plan::RealServer {
    /// As the kernel takes it.
    pub(super) fn to_kernel(self) -> RealServer {
        let forwarding = match self.method {
            Method::Nat => Forwarding::Masquerade,
            Method::Dr => Forwarding::DirectRoute,
            Method::Tunnel => Forwarding::Tunnel,
        };
        RealServer::new(self.address, self.weight.into(), forwarding)
    }
}

/// A virtual server as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    /// It is as wanted, apart from its real servers.
    pub is_same: bool,
    /// Its real servers.
    pub reals: &'a [ListedReal],
}

/// Appends what makes a virtual server that is `present` the `wanted` one: new
/// real servers first, those that go last. `limit` is how long the connections
/// of one that goes may go on, `None`: as long as they last.
pub fn server_changes(
    wanted: &plan::VirtualServer,
    present: Option<Present<'_>>,
    limit: Option<Duration>,
    drains: &mut Drains,
    now: Instant,
    changes: &mut Vec<Change>,
) {
    let frontend = &wanted.frontend;
    let id = frontend.id();
    let mut there: Vec<&ListedReal> = Vec::new();
    match present {
        None => changes.push(Change::Add(wanted.to_kernel())),
        Some(present) => {
            if !present.is_same {
                changes.push(Change::Edit(wanted.to_kernel()));
            }
            there.extend(present.reals);
            there.sort_unstable_by_key(|real| real.server.address);
        }
    }
    for real in &wanted.reals {
        drains.forget(frontend, real.address);
        let real = real.to_kernel();
        match there.binary_search_by_key(&real.address, |there| there.server.address) {
            Err(_) => changes.push(Change::AddReal(id, real)),
            Ok(at) => {
                if there.remove(at).server != real {
                    changes.push(Change::EditReal(id, real));
                }
            }
        }
    }
    let mut drained = Vec::new();
    for gone in there {
        let mut real = gone.server;
        let connections = gone.active.saturating_add(gone.inactive);
        let fate = drains.decide(frontend, real.address, limit, real.weight, connections, now);
        if fate == Fate::Drain {
            drained.push(real.address);
        }
        match fate {
            Fate::Delete => changes.push(Change::DeleteReal(id, real.address)),
            Fate::Drain if real.weight == 0 => {}
            Fate::Drain => {
                real.weight = 0;
                changes.push(Change::EditReal(id, real));
            }
        }
    }
    drains.counted(frontend, &drained, now);
}

/// A member that comes (true) or goes.
pub type MemberStep = (Member, bool);

/// Changes of sets, by when they are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSteps {
    /// Before anything is opened.
    pub before: Vec<MemberStep>,
    /// When virtual servers and addresses are as wanted, before any goes.
    pub opened: Vec<MemberStep>,
    /// When all that goes is gone.
    pub after: Vec<MemberStep>,
}

/// Orders the changes of sets. What closes or masquerades comes before the
/// virtual server that needs it and goes after it; what spares a source from
/// being masqueraded comes after the endpoints elsewhere went, and goes before
/// they come.
pub fn member_steps(touched: &Touched, wanted: &Wanted) -> MemberSteps {
    let mut steps = MemberSteps::default();
    for (member, continuing) in &touched.members {
        let comes = wanted.has_member(member);
        let set = member.set;
        let when = match comes {
            true if set.spares_source() && *continuing => &mut steps.opened,
            true => &mut steps.before,
            false if set.spares_source() && *continuing => &mut steps.before,
            false if set.admits() && is_guarded(member, wanted) => &mut steps.before,
            false => &mut steps.after,
        };
        when.push((*member, comes));
    }
    // Who may pass is in before the firewall asks, and stays until it does not.
    steps
        .before
        .sort_by_key(|(member, comes)| (!comes, !member.set.admits()));
    steps.after.sort_by_key(|(member, _)| member.set.admits());
    steps
}

/// How many members each set has at most while what is `touched` changes; of sets
/// that some member comes to.
pub fn room_needed(touched: &Touched, wanted: &Wanted) -> BTreeMap<(Set, Family), u32> {
    let mut needed: BTreeMap<(Set, Family), u32> = BTreeMap::new();
    let (coming, going): (Vec<_>, Vec<_>) = touched
        .members
        .keys()
        .partition(|member| wanted.has_member(member));
    for Member { set, family, .. } in coming {
        needed
            .entry((set, family))
            .or_insert_with(|| wanted.count(set, family));
    }
    for Member { set, family, .. } in going {
        if let Some(members) = needed.get_mut(&(set, family)) {
            *members = members.saturating_add(1);
        }
    }
    needed
}

/// The frontend that `member` speaks of has source ranges still.
fn is_guarded(member: &Member, wanted: &Wanted) -> bool {
    let guard = |(ip, protocol, port)| Member {
        set: Set::Firewall,
        family: member.family,
        element: Element::ip_port(ip, protocol, port),
    };
    let frontend = member.frontend();
    frontend.is_some_and(|frontend| wanted.has_member(&guard(frontend)))
}

#[cfg(test)]
mod tests;

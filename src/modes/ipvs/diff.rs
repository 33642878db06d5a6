//! From what is wanted and what is there to steps, in a safe order: pure.

use std::{net::SocketAddr, sync::Arc, time::Duration, time::Instant};

use super::{
    drain::{Drains, Fate},
    plan::{Frontend, Member, Method, RealServer, Set, VirtualServer},
    wanted::{Touched, Wanted},
};

/// A virtual server as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Without its real servers.
    pub manner: Manner,
    /// Its real servers.
    pub reals: Vec<PresentReal>,
}

/// How a virtual server spreads connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Its scheduler.
    pub scheduler: Arc<str>,
    /// Seconds for which a client stays.
    pub persistence: Option<u32>,
    /// See [`VirtualServer::hashes_ports`].
    pub hashes_ports: bool,
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentReal {
    /// Where it is.
    pub address: SocketAddr,
    /// Share of new connections.
    pub weight: u32,
    /// How packets get there; `None`: in a way that is never ours.
    pub method: Option<Method>,
    /// Active and inactive ones.
    pub connections: u32,
}

/// One change of virtual or real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// A new virtual server.
    Add(Frontend, Manner),
    /// Another manner for one.
    Edit(Frontend, Manner),
    /// One goes, with its real servers.
    Remove(Frontend),
    /// A new real server.
    AddReal(Frontend, RealServer),
    /// Another weight or method for one.
    EditReal(Frontend, RealServer),
    /// One goes.
    RemoveReal(Frontend, SocketAddr),
}

impl ServerStep {
    /// The virtual server that it concerns.
    pub fn frontend(&self) -> &Frontend {
        match self {
            ServerStep::Add(frontend, _)
            | ServerStep::Edit(frontend, _)
            | ServerStep::Remove(frontend)
            | ServerStep::AddReal(frontend, _)
            | ServerStep::EditReal(frontend, _)
            | ServerStep::RemoveReal(frontend, _) => frontend,
        }
    }
}

impl From<&VirtualServer> for Manner {
    fn from(server: &VirtualServer) -> Manner {
        Manner {
            scheduler: Arc::clone(&server.scheduler),
            persistence: server.persistence,
            hashes_ports: server.hashes_ports(),
        }
    }
}

/// What makes a virtual server that is `present` the `wanted` one: new real
/// servers first, those that go last. `limit` is how long the connections of
/// one that goes may go on.
pub fn server_steps(
    wanted: &VirtualServer,
    present: Option<&Present>,
    limit: Option<Duration>,
    drains: &mut Drains,
    now: Instant,
) -> Vec<ServerStep> {
    let frontend = wanted.frontend;
    let manner = Manner::from(wanted);
    let mut steps = Vec::new();
    let mut there: Vec<PresentReal> = Vec::new();
    match present {
        None => steps.push(ServerStep::Add(frontend, manner)),
        Some(present) => {
            if present.manner != manner {
                steps.push(ServerStep::Edit(frontend, manner));
            }
            there.extend(&present.reals);
            there.sort_unstable_by_key(|real| real.address);
        }
    }
    for real in &wanted.reals {
        drains.forget(&frontend, real.address);
        match there.binary_search_by_key(&real.address, |there| there.address) {
            Err(_) => steps.push(ServerStep::AddReal(frontend, *real)),
            Ok(at) => {
                let PresentReal { weight, method, .. } = there.remove(at);
                if weight != u32::from(real.weight) || method != Some(real.method) {
                    steps.push(ServerStep::EditReal(frontend, *real));
                }
            }
        }
    }
    for gone in there {
        let PresentReal {
            address,
            weight,
            connections,
            ..
        } = gone;
        match drains.decide(&frontend, address, limit, weight, connections, now) {
            Fate::Delete => steps.push(ServerStep::RemoveReal(frontend, address)),
            Fate::Drain if weight == 0 => {}
            Fate::Drain => steps.push(ServerStep::EditReal(
                frontend,
                RealServer {
                    address,
                    weight: 0,
                    method: gone.method.unwrap_or(Method::Nat),
                },
            )),
        }
    }
    steps
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

/// The frontend that `member` speaks of has source ranges still.
fn is_guarded(member: &Member, wanted: &Wanted) -> bool {
    member
        .element
        .frontend()
        .is_some_and(|(ip, protocol, port)| {
            wanted.has_member(&Member {
                set: Set::Firewall,
                family: member.family,
                element: super::plan::Element::IpPort(ip, protocol, port),
            })
        })
}

#![doc = include_str!("../README.md")]

pub mod accounts;
mod conntrack;
pub mod ipset;
pub mod ipvs;
mod machine;
mod message;
pub mod model;
pub mod nftables;
pub mod packet;
mod programs;
#[cfg(test)]
mod random_steps;
pub mod route;
mod socket;
pub mod xtables;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, OnceLock},
};

use ::xtables::Engine;
use net::Family;
use netlink::system::{self, Entered};
use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};

pub use self::conntrack::Conntrack;
use self::{
    accounts::Accounts,
    ipset::Sets,
    ipvs::Ipvs,
    nftables::Ruleset,
    packet::{Outcomes, Packet},
    route::Links,
    socket::Listener,
    xtables::{Around, Edit, Scheduling, Xtables},
};

/// State of the kernel.
#[derive(Clone, Default)]
pub struct State {
    /// The rules of nf_tables.
    pub nftables: Ruleset,
    /// The rules of iptables.
    pub xtables: Xtables,
    /// The entries of connection tracking.
    pub conntrack: Conntrack,
    /// Virtual servers and their connections.
    pub ipvs: Ipvs,
    /// Sets that rules match against.
    pub sets: Sets,
    /// Links and their addresses.
    pub links: Links,
    /// Counters by name.
    pub accounts: Accounts,
    /// Settings that were written, by name.
    pub settings: BTreeMap<String, String>,
}

impl State {
    /// Returns all that may become of a packet of `family` on a node that has the addresses
    /// `own`, where rules of iptables and IPVS forward it.
    pub fn outcomes_by_ipvs(&self, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        let expires = self.settings.get("net.ipv4.vs.expire_quiescent_template");
        let around = Around {
            own,
            sets: &self.sets,
            ipvs: Some(Scheduling {
                ipvs: &self.ipvs,
                links: &self.links,
                expires_templates: expires.is_some_and(|value| value == "1"),
            }),
        };
        self.xtables.outcomes(family, packet, around)
    }

    /// Returns the same where rules of iptables alone forward it.
    pub fn outcomes_by_rules(&self, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        let around = Around {
            own,
            sets: &self.sets,
            ipvs: None,
        };
        self.xtables.outcomes(family, packet, around)
    }

    /// Changes a table of iptables as another process would. Returns whether it is
    /// different now.
    pub fn edit(&mut self, family: Family, table: &str, edit: Edit) -> bool {
        let changed = self.xtables.edit(family, table, edit);
        if changed {
            self.count();
        }
        changed
    }

    /// Notes that a table of iptables changed, which nf_tables counts if it holds the table.
    fn count(&mut self) {
        let references = self.xtables.references_to_sets();
        self.sets
            .refer(|name| references.get(name).copied().unwrap_or_default());
        let changes = self.xtables.take_changes();
        if self.xtables.engine == Engine::NfTables && !changes.is_empty() {
            self.nftables.count(changes);
        }
    }
}

/// A call of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A transaction of this many messages.
    Transaction(usize),
    /// A list, by the type of the message that asks for it.
    Dump(u16),
    /// A list of the members of a set, which is of that family.
    Members(Family),
    /// A list of the routes or rules of a family, by the type of the message that asks for it.
    Policy(Family, u16),
    /// Requests that are carried out one by one: the type of the first, and how many.
    Requests(u16, usize),
    /// A request that changes nothing, by the type of its message.
    Question(u16),
    /// Reading notifications from the socket of a multicast group.
    Notifications,
    /// A run of iptables-restore, for that family.
    Restore(Family),
    /// A run of iptables-save, for that family.
    Save(Family),
    /// Reading the size of a table of iptables.
    Size,
    /// Writing a setting.
    Setting,
}

impl Call {
    /// Returns whether it can change anything.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Call::Requests(..) | Call::Transaction(_) | Call::Restore(_)
        )
    }
}

/// Fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out.
    None,
    /// The system refuses to take it: nothing is carried out.
    Unsent(Errno),
    /// The kernel refuses: of several messages the one with this number, modulo how many
    /// there are.
    Refused(Errno, usize),
    /// It is carried out, and the answer is lost (ENOBUFS).
    Unanswered,
    /// A list breaks off because something changed meanwhile.
    Interrupted,
    /// A program does not get the lock that all share.
    Locked,
    /// A program reads a line that it refuses: of several the one with this number, modulo
    /// how many there are.
    Line(usize),
    /// A program is ended from outside, after this many of its tables have taken effect.
    Ended(usize),
    /// A program does not end by itself, and does nothing.
    Hangs,
    /// The process ends before the kernel sees it.
    KilledBefore,
    /// The process ends before it gets the answer.
    KilledAfter,
}

/// Decides about calls, and watches them.
pub trait Observer: Send {
    /// Is called before each call; returns its fate.
    fn before(&mut self, call: Call, state: &mut State) -> Fault;
    /// Is called after each call that was carried out.
    fn after(&mut self, call: Call, state: &mut State);
}

/// Lets every call through.
pub struct Faultless;

impl Observer for Faultless {
    fn before(&mut self, _: Call, _: &mut State) -> Fault {
        Fault::None
    }

    fn after(&mut self, _: Call, _: &mut State) {}
}

/// A simulated kernel.
#[derive(Clone)]
pub struct Kernel(Arc<Mutex<Inner>>);

struct Inner {
    state: State,
    observer: Box<dyn Observer>,
    listeners: Vec<Listener>,
    /// The number of the last socket (`nl_pid`).
    ports: u32,
    /// The process that uses it was killed: no call reaches it any more.
    dead: bool,
}

impl Kernel {
    /// Returns a kernel without any rules.
    pub fn new(observer: impl Observer + 'static) -> Kernel {
        Kernel(Arc::new(Mutex::new(Inner {
            state: State::default(),
            observer: Box::new(observer),
            listeners: Vec::new(),
            ports: 0,
            dead: false,
        })))
    }

    /// Enters this kernel with the calling thread, until the returned value is dropped.
    pub fn enter(&self) -> Entered {
        system::enter(Rc::new(self.clone()))
    }

    /// Returns whether the process that uses it was killed.
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Starts again for another process: sockets of the last one are closed.
    pub fn revive(&self) {
        let mut inner = self.lock();
        inner.dead = false;
        inner.listeners.clear();
    }

    /// Changes the state as another process would; notifications are sent of tables of
    /// nf_tables that it changes.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        let mut inner = self.lock();
        change(&mut inner.state);
        inner.notify();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

/// Returns whether a run is printed as a whole, for someone who looks into a failure or compares
/// runs: `TRIPOD_SIMULATE_PRINT` is set.
pub fn prints() -> bool {
    static PRINTS: OnceLock<bool> = OnceLock::new();
    *PRINTS.get_or_init(|| std::env::var_os("TRIPOD_SIMULATE_PRINT").is_some())
}

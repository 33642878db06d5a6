//! A kernel in memory, for tests of one thread: the parts of it that the modes change, as
//! state machines that answer the messages which the real clients send.
//!
//! [`Kernel::install`] connects sockets to it. An [`Observer`] decides at each call whether it
//! fails, and how ([`Fault`]), and sees and may change the state before and after it.

pub(crate) mod accounts;
mod conntrack;
pub(crate) mod ipset;
pub(crate) mod ipvs;
mod message;
pub(crate) mod nftables;
pub(crate) mod packet;
mod programs;
mod random_steps;
pub(crate) mod route;
mod socket;
pub(crate) mod xtables;

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::conntrack::Conntrack;
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
use crate::{
    kernel::{
        ipvs::table,
        netlink, sysctl,
        xtables::{self as real, Engine},
    },
    net::Family,
};

/// What the kernel holds.
#[derive(Clone, Default)]
pub(crate) struct State {
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
    pub(crate) fn outcomes_by_ipvs(
        &self,
        family: Family,
        packet: &Packet,
        own: &[IpAddr],
    ) -> Outcomes {
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
    pub(crate) fn outcomes_by_rules(
        &self,
        family: Family,
        packet: &Packet,
        own: &[IpAddr],
    ) -> Outcomes {
        let around = Around {
            own,
            sets: &self.sets,
            ipvs: None,
        };
        self.xtables.outcomes(family, packet, around)
    }

    /// Changes a table of iptables as another process would. Returns whether it is
    /// different now.
    pub(crate) fn edit(&mut self, family: Family, table: &str, edit: Edit) -> bool {
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
pub(crate) enum Call {
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
    pub(crate) fn changes(self) -> bool {
        matches!(
            self,
            Call::Requests(..) | Call::Transaction(_) | Call::Restore(_)
        )
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
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
    /// A program is ended from outside, after this many of its tables are in force.
    Ended(usize),
    /// A program does not end by itself, and does nothing.
    Hangs,
    /// The process ends before the kernel sees it.
    KilledBefore,
    /// The process ends before it gets the answer.
    KilledAfter,
}

/// What decides about calls, and watches them.
pub(crate) trait Observer: Send {
    /// Is called before each call; returns what becomes of it.
    fn before(&mut self, call: Call, state: &mut State) -> Fault;
    /// Is called after each call that was carried out.
    fn after(&mut self, call: Call, state: &mut State);
}

/// Lets every call through.
pub(crate) struct Faultless;

impl Observer for Faultless {
    fn before(&mut self, _: Call, _: &mut State) -> Fault {
        Fault::None
    }

    fn after(&mut self, _: Call, _: &mut State) {}
}

/// A simulated kernel.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Mutex<Inner>>);

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
    pub(crate) fn new(observer: impl Observer + 'static) -> Kernel {
        Kernel(Arc::new(Mutex::new(Inner {
            state: State::default(),
            observer: Box::new(observer),
            listeners: Vec::new(),
            ports: 0,
            dead: false,
        })))
    }

    /// Has this kernel answer the sockets that this thread opens, the programs that it
    /// runs and its settings, until what is returned is dropped.
    pub(crate) fn install(&self) -> Installed {
        let kernel = self.clone();
        netlink::simulated::replace(Some(Box::new(move |protocol, groups| {
            kernel.open(protocol, groups)
        })));
        let kernel = self.clone();
        table::simulated::replace(Some(Box::new(move || kernel.ipvs_table())));
        let kernel = self.clone();
        let run = move |command| kernel.run(command);
        real::program::simulated::replace(Some(Box::new(run)));
        let kernel = self.clone();
        let size = move |family, table: &str| kernel.size(family, table);
        real::info::simulated::replace(Some(Box::new(size)));
        let kernel = self.clone();
        let access = move |name: &str, value: Option<&str>| kernel.setting(name, value);
        sysctl::simulated::replace(Some(Box::new(access)));
        Installed(())
    }

    /// Returns whether the process that uses it was killed.
    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Begins anew for another process: sockets of the last one are closed.
    pub(crate) fn revive(&self) {
        let mut inner = self.lock();
        inner.dead = false;
        inner.listeners.clear();
    }

    /// Changes the state as another process would; notifications are sent of tables of
    /// nf_tables that it changes.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut inner = self.lock();
        change(&mut inner.state);
        inner.notify();
    }

    /// Returns the text of `/proc/net/ip_vs`.
    fn ipvs_table(&self) -> io::Result<String> {
        let inner = self.lock();
        if inner.dead {
            return Err(Errno::EIO.into());
        }
        Ok(inner.state.ipvs.table())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

/// Returns whether a simulated kernel stands in for the real one in this thread.
pub(crate) fn is_installed() -> bool {
    netlink::simulated::is_replaced()
}

/// Returns whether a run is printed as a whole, for someone who looks into a failure or compares
/// runs: `TRIPOD_SIMULATE_PRINT` is set.
pub(crate) fn prints() -> bool {
    static PRINTS: OnceLock<bool> = OnceLock::new();
    *PRINTS.get_or_init(|| std::env::var_os("TRIPOD_SIMULATE_PRINT").is_some())
}

/// The simulated kernel stands in for the real one.
#[must_use]
pub(crate) struct Installed(());

impl Drop for Installed {
    fn drop(&mut self) {
        netlink::simulated::replace(None);
        table::simulated::replace(None);
        real::program::simulated::replace(None);
        real::info::simulated::replace(None);
        sysctl::simulated::replace(None);
    }
}

//! How packets for service addresses reach our listeners.
//!
//! Two ways, chosen per IP family ([`choose()`]):
//! - [`Redirect`]: nat rules send them to a listener's own local port, which
//!   is bound to the wildcard address of its family;
//! - [`Local`]: no netfilter at all; routing delivers them here, and listeners
//!   bind `address:port` themselves, with `IP_TRANSPARENT` (`IPV6_…`), because the
//!   kernel does not count these addresses among its local ones. Node ports bind
//!   the node's addresses.
//!
//! Both take the same map of what is desired and leave other families alone.

mod choose;
mod local;
mod per_family;
mod redirect;
mod render;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub use choose::{Choice, Method, Requested, choose};
pub use local::{Local, Prepared};
use net::{Frontend, PerFamily};
pub use per_family::Capture;
pub use redirect::Redirect;
pub use render::render;

use crate::{
    modes::{Difference, state::FamilyState},
    services::Changes,
};

/// What becomes of packets to the other ports of a frontend's address. Matters to
/// [`Local`] only; nat rules name single ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPorts {
    /// Refused at once: the address is a cluster IP, which no other machine has.
    Refuse,
    /// Routed as if Tripod were not there: an external or load-balancer IP may
    /// belong to another machine, whose other ports must stay reachable.
    PassOn,
}

/// What a frontend is captured for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The local port that our listener is bound to on the wildcard address of
    /// the family. [`Local`] has no use for it.
    pub port: u16,
    /// The ServicePort, for comments on rules.
    pub name: Arc<str>,
    /// What becomes of other ports of the address.
    pub other_ports: OtherPorts,
}

/// Everything that is to be captured.
pub type Desired = BTreeMap<Frontend, Target>;

/// How much a sync compares, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// What changed since the last sync.
    Changed,
    /// What changed, and what failed.
    Retry,
    /// Everything, with the kernel, which adopts or removes what an earlier process
    /// left; also due when the node's own addresses changed. After a failure, the next
    /// sync of capture does so by itself.
    Full,
}

impl Extent {
    /// Returns how much a sync of `changes` compares of a family that is in this `state`.
    pub fn of<P>(state: &FamilyState<P>, changes: &Changes) -> Extent {
        match (state.must_observe(changes), changes.retry) {
            (true, _) => Extent::Full,
            (false, true) => Extent::Retry,
            (false, false) => Extent::Changed,
        }
    }
}

/// Whether a process that gave way to this one still runs, with connections of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlierProcess {
    /// There is none, or it has ended.
    #[default]
    Ended,
    /// It gave way to this one.
    Runs,
}

/// What a sync of a family is to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// How much of the kernel's state the sync compares.
    pub extent: Extent,
    /// The frontends that were added, changed or removed since the last sync.
    pub changed: Vec<Frontend>,
    /// Whether connections of another process may need what nothing desires here.
    pub earlier: EarlierProcess,
}

/// The scope of each family's sync; `None`: it is left as it is.
pub type Scopes = PerFamily<Option<Scope>>;

/// What became of each family that a sync was asked for and that is captured this
/// way. An error: the kernel could not be asked or refused as a whole, and what
/// was in force still is.
pub type Outcomes = PerFamily<Option<Result<Report, Error>>>;

/// What a sync did not do as asked. Everything else is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether all frontends of the family were compared with the kernel, whatever the sync was
    /// asked for: those that were not captured before are captured now, except those in `failed`.
    pub is_of_all: bool,
    /// Frontends that are not captured, each with the reason.
    pub failed: Vec<(Frontend, String)>,
    /// What else failed for now, with the reason.
    pub unfinished: Vec<String>,
    /// What this kernel cannot do and an operator should know. Each is logged
    /// once in the life of a [`Capture`].
    pub messages: Vec<String>,
}

/// Returns what is not done while the node's addresses cannot be listed, for this reason.
pub(super) fn addresses_stay(error: &impl fmt::Display) -> String {
    format!(
        "cannot list the addresses of this node; node ports stay at the last known ones: {error}"
    )
}

/// What is not as it should be, with the frontend that it is for alone, if any.
pub type Differing = Vec<(Option<Frontend>, Difference)>;

#[cfg(test)]
impl Target {
    /// Returns a target for a cluster IP that our listener on `port` serves.
    fn at(port: u16) -> Target {
        Target {
            port,
            name: Arc::from("default/web:http"),
            other_ports: OtherPorts::Refuse,
        }
    }
}

#[cfg(test)]
impl Capture {
    /// Returns capture of both families by `method`.
    fn of_both(method: Method) -> Capture {
        let choice = Choice {
            methods: PerFamily::each(|_| method),
            reasons: Vec::new(),
        };
        let kernel = crate::kernel::probe::Kernel::examine(&[]);
        Capture::new(choice, &kernel).expect("the kernel's way of capture")
    }

    /// Syncs both families: what `changed`, or everything. Returns what became of
    /// both together.
    async fn sync_both(
        &mut self,
        desired: &Desired,
        changed: Option<&[Frontend]>,
    ) -> Result<Report, Error> {
        let scopes = PerFamily::each(|_| {
            Some(Scope {
                extent: changed.map_or(Extent::Full, |_| Extent::Changed),
                changed: changed.unwrap_or_default().to_vec(),
                earlier: EarlierProcess::Ended,
            })
        });
        let mut all = Report::default();
        for (_, outcome) in self.sync(desired, &scopes).await {
            let report = outcome.unwrap_or_else(|| Ok(Report::default()))?;
            all.failed.extend(report.failed);
            all.unfinished.extend(report.unfinished);
            all.messages.extend(report.messages);
        }
        Ok(all)
    }
}

/// Why a sync or a clean-up did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Routes, rules or addresses.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// nat or filter rules.
    #[error(transparent)]
    Xtables(#[from] xtables::Error),
    /// The way of capture that was asked for cannot work here.
    #[error("userspace capture {method} cannot work here: {reason}")]
    Unsupported {
        /// The method that was asked for.
        method: Method,
        /// Why, and what to do.
        reason: String,
    },
}

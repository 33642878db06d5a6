//! How packets for service addresses reach our listeners.
//!
//! There are two methods, chosen per IP family ([`choose()`]):
//! - [`Redirect`]: nat rules send them to a listener's own local port, which is bound to the
//!   wildcard address of its family;
//! - [`Local`]: no netfilter at all; routing delivers them to this node, and listeners bind
//!   `address:port` themselves, with `IP_TRANSPARENT` (`IPV6_…`), because the kernel does not count
//!   these addresses among its local ones. Node ports bind the node's addresses.
//!
//! Both take the same map of desired frontends and ignore other families.

mod choose;
mod local;
mod per_family;
mod redirect;
mod render;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc};

pub use choose::{Choice, Method, Requested, choose, next_to};
pub use local::{Local, Prepared};
use net::{Frontend, PerFamily};
pub use per_family::Capture;
pub use redirect::Redirect;
pub use render::render;

use crate::{
    modes::{Difference, state::FamilyState},
    services::Changes,
};

/// The mark of this process's own packets that must not be captured, because they go to an endpoint
/// whose address is an external or load-balancer IP of another Service. All bits are ours. None of
/// them is one by itself to kube-proxy (0x4000, 0x8000), Calico (0xf0000), Cilium (0xf00), the AWS
/// CNI (0x80) or Podman (0x2000).
pub const MARK: u32 = 0x5450_0050;

/// Treatment of packets to the other ports of a frontend's address. Matters to [`Local`] only; nat
/// rules match single ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPorts {
    /// Refused at once: the address is a cluster IP, which no other machine has.
    Refuse,
    /// Routed as if Tripod were not there: an external or load-balancer IP may
    /// belong to another machine, whose other ports must stay reachable.
    PassOn,
}

/// Where packets for a captured frontend go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The local port to which our listener is bound on the wildcard address of the family.
    /// [`Local`] does not use it.
    pub port: u16,
    /// The ServicePort, for comments on rules.
    pub name: Arc<str>,
    /// Treatment of packets to other ports of the address.
    pub other_ports: OtherPorts,
}

/// All frontends to capture.
pub type Desired = BTreeMap<Frontend, Target>;

/// How much a sync compares, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Changes since the last sync.
    Changed,
    /// Changes, and frontends that failed.
    Retry,
    /// Everything in the kernel, adopting or removing leftovers of an earlier process; also due
    /// when the node's own addresses changed. After a failure, the next sync of capture is full by
    /// itself.
    Full,
}

impl Extent {
    /// The extent of a sync of `changes` for a family in this `state`.
    pub fn of<P>(state: &FamilyState<P>, changes: &Changes) -> Extent {
        match (state.must_observe(changes), changes.retry) {
            (true, _) => Extent::Full,
            (false, true) => Extent::Retry,
            (false, false) => Extent::Changed,
        }
    }
}

/// Scope of the sync of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Part of the kernel's state that the sync compares.
    pub extent: Extent,
    /// The frontends that were added, changed or removed since the last sync.
    pub changed: Vec<Frontend>,
    /// Whether a process that gave way to this one still runs: its connections may need objects
    /// that nothing desires here.
    pub has_predecessor: bool,
}

/// The scope of each family's sync; `None` for a family that is left as it is.
pub type Scopes = PerFamily<Option<Scope>>;

/// Results for each family that a sync was asked for and that is captured by this method. An error
/// means that the kernel could not be queried or refused the whole sync, and the previous state
/// still applies.
pub type Outcomes = PerFamily<Option<Result<Report, Error>>>;

/// Parts of a sync that were not applied. Everything else was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether all frontends of the family were compared with the kernel, whatever scope was
    /// requested: all of them are captured now, except those in `failed`.
    pub is_of_all: bool,
    /// Frontends that are not captured, each with the reason.
    pub failed: Vec<(Frontend, String)>,
    /// Other temporary failures, each with the reason.
    pub unfinished: Vec<String>,
    /// Limits of this kernel that an operator should know. Each is logged once in the life of a
    /// [`Capture`].
    pub messages: Vec<String>,
}

/// Message about the consequences of not being able to list the node's addresses.
pub(super) fn addresses_stay(error: &impl fmt::Display) -> String {
    format!(
        "cannot list the addresses of this node; node ports stay at the last known ones: {error}"
    )
}

/// Differences from the desired state. The frontend is given if the object belongs to a single one.
pub type Differing = Vec<(Option<Frontend>, Difference)>;

/// Why a sync or a clean-up did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on routes, rules or addresses failed.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// An operation on nat or filter rules failed.
    #[error(transparent)]
    Xtables(#[from] xtables::Error),
    /// The requested method of capture cannot work here.
    #[error("userspace capture {method} cannot work here: {reason}")]
    Unsupported {
        /// The requested method.
        method: Method,
        /// The reason and the remedy.
        reason: String,
    },
}

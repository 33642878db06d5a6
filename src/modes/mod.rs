//! Ways to forward a Service's traffic to its endpoints: the [`Mode`] trait and its
//! implementations.

mod checks;
pub mod cleanup;
pub mod comparison;
mod detect_local;
pub mod explain;
mod failed;
pub mod handover;
pub mod iptables;
pub mod ipvs;
pub mod localhost;
mod masquerade;
mod metrics;
pub mod nftables;
pub mod offloaded;
pub mod progress;
pub mod references;
pub mod render;
mod repairs;
mod stale;
pub mod state;
mod unsupported;
pub mod userspace;
pub mod verdict;
pub mod yielding;

use std::{net::SocketAddr, sync::Arc, time::Duration};

pub use comparison::{Compared, Difference, Found};
pub use explain::{Explanation, Packet};
pub use failed::FailedPorts;
pub use metrics::{Metrics, Unwritten, UnwrittenCounter};
use net::{Family, PerFamily};
use netlink::conntrack;
pub use unsupported::{Done, Reason, Unsupported, unsupported_mode};

use self::progress::SyncProgress;
use crate::{
    config::ModeName,
    services::{Changes, ServiceMap},
};

/// The families that a sync is asked for, each with its changes; `None`: that family is left as it
/// is.
pub type Asked<'a> = PerFamily<Option<&'a Changes>>;

/// Outcome for each family that a sync was asked for. A failure of one concerns the other only if
/// something failed that both need, such as a socket that cannot be opened.
pub type Outcomes = PerFamily<Option<Result<SyncReport, SyncError>>>;

/// The explanation of a packet, or why it cannot be explained.
pub type ExplainResult = Result<Explanation, SyncError>;

/// Returns the same failure for each family that was `asked` for.
pub fn both_failed(asked: Asked<'_>, error: impl Into<SyncError>) -> Outcomes {
    let error = Arc::new(error.into());
    asked.map(|_, changes| changes.map(|_| Err(SyncError::OfBoth(Arc::clone(&error)))))
}

/// Returns whether the kernel considers packets outside the TCP window valid, as far as known: its
/// setting counts, not the `configured` one, because an administrator may have set it, or it could
/// not be set. It is read again in full syncs; until then the `applied` value counts.
fn tcp_be_liberal(configured: bool, applied: Option<bool>, changes: &Changes) -> bool {
    let observed = match applied {
        Some(_) if !changes.full => None,
        _ => conntrack::is_tcp_liberal(),
    };
    observed.or(applied).unwrap_or(configured)
}

/// How many draining addresses and real servers a report names.
pub const MOST_DRAINS: usize = 100;

/// An address or an endpoint that stays only for the connections that it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drain {
    /// The address that clients called, with port and protocol.
    pub address: String,
    /// The endpoint that left; `None`: the address itself is no longer served.
    pub endpoint: Option<SocketAddr>,
}

/// Report on one sync of one family.
#[derive(Clone, Debug, Default)]
pub struct SyncReport {
    /// ServicePorts that the mode compared.
    pub examined: usize,
    /// ServicePorts that could not be applied, each with the reason; everything else is applied,
    /// and these are tried again when the next [retry](Changes::retry) is due, which is soon.
    pub failed: FailedPorts,
    /// Other work that could not be done, such as a removal, named with the reason; it is tried
    /// again as failed ServicePorts are.
    pub unfinished: Vec<String>,
    /// Addresses that stay only until their last connection ends; another
    /// sync is due then.
    pub lingering: usize,
    /// Real servers that stay only for the connections that they have.
    pub draining: usize,
    /// The first [`MOST_DRAINS`] of those addresses and real servers.
    pub drains: Vec<Drain>,
    /// Why ServicePorts of the family are not served, which counts as no failure: this node does
    /// not have the family, or its kernel cannot serve it. `None`: they are served.
    pub not_served: Option<String>,
    /// Time after which another sync is due even if nothing changes; `None`: none is due before the
    /// next full sync.
    pub next_check: Option<Duration>,
    /// Preferences of Services that this mode does not support, for the ServicePorts that this sync
    /// had to apply: those of `changes.ports`, or all if `changes.full`. Everything else of each is
    /// applied, and nothing is tried again.
    pub unsupported: Vec<Unsupported>,
}

/// Returns `why` this node does not serve `family`. `None`: `map` has no ServicePorts of it, so that
/// nothing is missing.
fn why_missed(family: Family, map: &ServiceMap, why: &impl ToString) -> Option<String> {
    map.of_family(family).next().map(|_| why.to_string())
}

/// Returns the reports on the families that this node cannot serve, of those that are `asked` for.
fn not_served<F, E: ToString>(
    families: &PerFamily<Result<F, E>>,
    map: &ServiceMap,
    asked: Asked<'_>,
) -> Outcomes {
    asked.map(|family, changes| {
        changes?;
        let why = families.get(family).as_ref().err()?;
        Some(Ok(SyncReport {
            not_served: why_missed(family, map, why),
            ..SyncReport::default()
        }))
    })
}

/// Why the sync of a family as a whole did not take effect. The next one tries
/// again.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Service addresses could not be captured for userspace mode.
    #[error("capture of service addresses: {0}")]
    Capture(#[from] userspace::capture::Error),
    /// Objects of ipvs mode could not be put into the kernel.
    #[error(transparent)]
    Ipvs(#[from] ipvs::Error),
    /// Rules of iptables mode could not be put into the kernel.
    #[error(transparent)]
    Iptables(#[from] iptables::Error),
    /// The table of nftables mode could not be put into the kernel.
    #[error(transparent)]
    Nftables(#[from] nftables::Error),
    /// The kernel refused, or could not be asked, as for the node's addresses.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// Something failed that both families need.
    #[error(transparent)]
    OfBoth(Arc<SyncError>),
    /// The kernel's state was not read in time.
    #[error(
        "the kernel could not be compared within {0:?}, while syncs waited: an iptables program or \
         the kernel does not answer, or another process holds the xtables lock; try again"
    )]
    ComparisonTooLong(Duration),
    /// The thread of a large sync could not begin.
    #[error("cannot start a runtime for a sync: {0}")]
    Runtime(#[source] std::io::Error),
}

/// One way to forward a Service's traffic to its endpoints.
pub trait Mode: Send {
    /// The name of the mode, as users configure it.
    fn name(&self) -> ModeName;
    /// Makes the kernel (or our listeners) match `map` for the families that are `asked` for; their
    /// changes say what differs since the last success. Returns, for each family, an error if
    /// nothing could be applied; failures of single ServicePorts are in the report.
    fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>)
    -> impl Future<Output = Outcomes> + Send;
    /// Returns true if a sync that is `asked` for reads all that the kernel holds, as far as that is
    /// known before: it takes as long as a full one then.
    fn observes(&self, asked: Asked<'_>) -> bool {
        let _ = asked;
        false
    }
    /// Compares the kernel's state with the desired one for `map`. Changes nothing.
    fn compare(&mut self, map: &ServiceMap) -> impl Future<Output = Compared> + Send;
    /// Explains the way of `packet`, with the desired objects for its ServicePort. Changes nothing.
    ///
    /// # Errors
    /// When the node's addresses cannot be listed.
    fn explain(
        &mut self,
        map: &ServiceMap,
        packet: &Packet,
    ) -> impl Future<Output = ExplainResult> + Send;
    /// Waits until another process changes an object that this mode installed, if it can notice:
    /// then a full sync is due. May be dropped while it waits.
    fn externally_modified(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
    /// Returns the progress that the mode counts while a sync is under way. Does not change.
    fn progress(&self) -> PerFamily<SyncProgress>;
}

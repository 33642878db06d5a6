//! From one mode to another: what the old one left goes when the new one
//! carries traffic, and not before.
//!
//! Left by whom does not matter: by Tripod or kube-proxy, in the engine of the
//! kernel that this mode has its rules in or in the other one. What the mode
//! that runs would install itself it takes over; that is its own work.

use ipnet::IpNet;
use nix::errno::Errno;
use tokio::time::{Duration, Instant};

use super::Done;
use crate::{
    kernel::{
        Family,
        netlink::Error,
        nftables,
        xtables::{Engine, leftovers::Kept},
    },
    modes::{Mode, ModeName, SyncError, SyncReport, iptables, ipvs, userspace},
    services::{Changes, ServiceMap},
};

/// How long connections that IPVS carries may keep it from being removed; as
/// long as a real server with connections is kept.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long ServicePorts that fail may keep what is left in force: they may
/// need it, but it does not follow their endpoints.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// Counting connections means listing all virtual servers: not more often than
/// this.
const PAUSE: Duration = Duration::from_secs(1);
/// What kube-proxy calls its tables in the mode that Tripod has not, nftables:
/// one of each family.
const NFTABLES: &str = "kube-proxy";

/// Something that an earlier proxy may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    /// What this mode installs; of the mode that runs, in the other engine.
    Of(ModeName),
    /// The tables of kube-proxy's nftables mode.
    Nftables,
}

impl Leftover {
    const ALL: [Leftover; 4] = [
        Leftover::Of(ModeName::Ipvs),
        Leftover::Of(ModeName::Iptables),
        Leftover::Of(ModeName::Userspace),
        Leftover::Nftables,
    ];

    fn whose(self) -> String {
        match self {
            Leftover::Of(mode) => format!("{mode} mode"),
            Leftover::Nftables => "nftables mode".to_owned(),
        }
    }
}

/// A mode that clears up behind the others once it is in force itself.
pub(super) struct TakeOver<M> {
    mode: M,
    /// Virtual servers with addresses in these are somebody else's.
    exclude: Vec<IpNet>,
    /// What may still be there.
    left: Vec<Leftover>,
    /// When this mode first synced.
    synced: Option<Instant>,
    /// When this mode came in force.
    since: Option<Instant>,
    /// Connections that a mode that was left still carries, when last counted.
    connections: usize,
    /// When to count again.
    due: Instant,
}

impl<M: Mode> TakeOver<M> {
    pub(super) fn new(mode: M, exclude: Vec<IpNet>) -> TakeOver<M> {
        TakeOver {
            mode,
            exclude,
            left: Leftover::ALL.into(),
            synced: None,
            since: None,
            connections: 0,
            due: Instant::now(),
        }
    }

    /// All that is wanted is carried by this mode now, or never will be.
    fn is_in_force(&mut self, report: &SyncReport) -> bool {
        let now = Instant::now();
        let waited = now - *self.synced.get_or_insert(now);
        if report.failed.is_empty() || waited >= GRACE {
            self.since.get_or_insert(now);
        }
        self.since.is_some()
    }

    /// Removes what was left; what cannot be removed is tried again with the
    /// next full sync.
    async fn clear_up(&mut self) {
        let running = Running {
            mode: self.mode.name(),
            engines: self.mode.engines(),
        };
        let waited = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let (mut remaining, mut connections) = (Vec::new(), 0);
        for &leftover in &self.left {
            let retiring = leftover == Leftover::Of(ModeName::Ipvs) && !running.is(ModeName::Ipvs);
            if retiring && waited < PATIENCE {
                match ipvs::retire(&self.exclude) {
                    Ok(0) => {}
                    Ok(open) => {
                        connections = open as usize;
                        remaining.push(leftover);
                        continue;
                    }
                    Err(error) => tracing::debug!("connections of ipvs mode: {error}"),
                }
            }
            if let Err(error) = clean(leftover, Some(&running), &self.exclude).await {
                let whose = leftover.whose();
                tracing::warn!("what {whose} left is not all gone: {error}");
                remaining.push(leftover);
            }
        }
        if remaining.is_empty() {
            tracing::debug!("nothing is left of other modes");
        }
        self.left = remaining;
        self.connections = connections;
        self.due = Instant::now() + PAUSE;
    }
}

impl<M: Mode> Mode for TakeOver<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Result<SyncReport, SyncError> {
        let mut report = self.mode.sync(map, changes).await?;
        let due = changes.full || self.connections > 0 && self.due <= Instant::now();
        if !self.left.is_empty() && self.is_in_force(&report) && due {
            self.clear_up().await;
        }
        report.lingering += self.connections;
        Ok(report)
    }

    async fn disturbed(&mut self) {
        self.mode.disturbed().await;
    }

    fn carried(&self) -> usize {
        self.mode.carried()
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.mode.engines()
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        self.mode.cleanup().await
    }
}

/// The mode beside which others' leftovers are removed.
struct Running {
    mode: ModeName,
    engines: Vec<(Family, Engine)>,
}

impl Running {
    fn is(&self, mode: ModeName) -> bool {
        self.mode == mode
    }

    /// Which of the rules that `mode` installs are its own, too.
    fn kept(&self, mode: ModeName) -> Kept {
        let engines = self.engines.clone();
        match (mode, self.mode) {
            (mode, running) if mode == running => Kept::all(engines),
            (ModeName::Iptables, ModeName::Ipvs) | (ModeName::Ipvs, ModeName::Iptables) => {
                Kept::chains(engines, &ipvs::SHARED_CHAINS)
            }
            _ => Kept::nothing(),
        }
    }
}

/// Removes a leftover, but for what `running` uses too; the error in words.
async fn clean(
    leftover: Leftover,
    running: Option<&Running>,
    exclude: &[IpNet],
) -> Result<(), String> {
    match leftover {
        Leftover::Of(mode) => {
            let cleaned = clean_mode(mode, running, exclude).await;
            cleaned.map_err(|error| error.to_string())
        }
        Leftover::Nftables => clean_nftables().map_err(|error| error.to_string()),
    }
}

async fn clean_mode(
    mode: ModeName,
    running: Option<&Running>,
    exclude: &[IpNet],
) -> Result<(), SyncError> {
    let kept = running.map_or_else(Kept::nothing, |running| running.kept(mode));
    let runs = running.is_some_and(|running| running.is(mode));
    match mode {
        ModeName::Userspace if runs => Ok(userspace::cleanup_rules(&kept).await?),
        ModeName::Userspace => Ok(userspace::cleanup().await?),
        ModeName::Iptables => Ok(iptables::cleanup_beside(&kept).await?),
        ModeName::Ipvs if runs => Ok(ipvs::cleanup_rules(&kept).await?),
        ModeName::Ipvs => Ok(ipvs::cleanup_beside(exclude, &kept).await?),
    }
}

/// Removes the tables of kube-proxy's nftables mode.
fn clean_nftables() -> Result<(), Error> {
    let found = |mut rules: nftables::Rules| {
        let mut found = Vec::new();
        for family in Family::ALL {
            if rules.tables(family)?.iter().any(|name| name == NFTABLES) {
                found.push(family);
            }
        }
        Ok((rules, found))
    };
    let (mut rules, found) = match nftables::Rules::open().and_then(found) {
        Ok(found) => found,
        Err(error) if error.errno() == Some(Errno::EPERM) => return Err(error),
        // A kernel that does not know nf_tables holds none.
        Err(_) => return Ok(()),
    };
    let mut outcome = Ok(());
    for family in found {
        match rules.delete_table(family, NFTABLES) {
            Ok(_) => {
                tracing::info!("removed {family} table {NFTABLES} of kube-proxy's nftables mode")
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// Removes what any mode ever installed. All are tried, even if one fails.
///
/// # Errors
/// What could not be removed.
pub(super) async fn cleanup_all(exclude: &[IpNet]) -> Done {
    let mut failed = Vec::new();
    for leftover in Leftover::ALL {
        if let Err(error) = clean(leftover, None, exclude).await {
            failed.push(format!("{}: {error}", leftover.whose()));
        }
    }
    if failed.is_empty() {
        tracing::info!("removed what Tripod and kube-proxy had installed");
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

#[cfg(test)]
mod tests;

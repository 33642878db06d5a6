//! From one mode to another: what the old one left goes when the new one
//! carries traffic, and not before.

use ipnet::IpNet;
use tokio::time::{Duration, Instant};

use super::Done;
use crate::{
    modes::{Mode, ModeName, SyncError, SyncReport, iptables, ipvs, userspace},
    services::{Changes, ServiceMap},
};

/// How long connections that IPVS carries may keep it from being removed; as
/// long as a real server with connections is kept.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// A mode that clears up behind the others once it is in force itself.
pub(super) struct TakeOver<M> {
    mode: M,
    /// Virtual servers with addresses in these are somebody else's.
    exclude: Vec<IpNet>,
    /// Modes that may have left something.
    others: Vec<ModeName>,
    /// When this mode came in force.
    since: Option<Instant>,
    /// Connections that a mode that was left still carries, when last counted.
    connections: usize,
    /// When to count again.
    due: Instant,
}

/// Counting means listing all virtual servers: not more often than this.
const PAUSE: Duration = Duration::from_secs(1);

impl<M: Mode> TakeOver<M> {
    pub(super) fn new(mode: M, exclude: Vec<IpNet>) -> TakeOver<M> {
        let running = mode.name();
        TakeOver {
            mode,
            exclude,
            others: ModeName::ALL
                .into_iter()
                .filter(|other| *other != running)
                .collect(),
            since: None,
            connections: 0,
            due: Instant::now(),
        }
    }

    /// Removes what the other modes left; what cannot be removed is tried again
    /// with the next full sync.
    async fn clear_up(&mut self) {
        let since = *self.since.get_or_insert_with(Instant::now);
        let (mut remaining, mut connections) = (Vec::new(), 0);
        for other in std::mem::take(&mut self.others) {
            if other == ModeName::Ipvs && since.elapsed() < PATIENCE {
                match ipvs::retire(&self.exclude) {
                    Ok(0) => {}
                    Ok(open) => {
                        connections = open as usize;
                        remaining.push(other);
                        continue;
                    }
                    Err(error) => tracing::debug!("connections of ipvs mode: {error}"),
                }
            }
            let running = Some(self.mode.name());
            if let Err(error) = clean(other, running, &self.exclude).await {
                tracing::warn!("what {other} mode left is not all gone: {error}");
                remaining.push(other);
            }
        }
        self.others = remaining;
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
        // What failed may need what is still there.
        let complete = report.failed.is_empty() || self.since.is_some();
        let due = changes.full || self.connections > 0 && self.due <= Instant::now();
        if complete && due && !self.others.is_empty() {
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

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        self.mode.cleanup().await
    }
}

/// Removes what `mode` ever installed, but for what `running` uses too.
async fn clean(
    mode: ModeName,
    running: Option<ModeName>,
    exclude: &[IpNet],
) -> Result<(), SyncError> {
    match (mode, running) {
        (ModeName::Userspace, _) => Ok(userspace::cleanup().await?),
        (ModeName::Iptables, Some(ModeName::Ipvs)) => {
            Ok(iptables::cleanup_beside(&ipvs::SHARED_CHAINS).await?)
        }
        (ModeName::Iptables, _) => Ok(iptables::cleanup().await?),
        (ModeName::Ipvs, Some(ModeName::Iptables)) => {
            Ok(ipvs::cleanup_beside(exclude, &ipvs::SHARED_CHAINS).await?)
        }
        (ModeName::Ipvs, _) => Ok(ipvs::cleanup(exclude).await?),
    }
}

/// Removes what any mode ever installed. All are tried, even if one fails.
///
/// # Errors
/// What could not be removed.
pub(super) async fn cleanup_all(exclude: &[IpNet]) -> Done {
    let mut failed = Vec::new();
    for mode in ModeName::ALL {
        if let Err(error) = clean(mode, None, exclude).await {
            failed.push(format!("{mode} mode: {error}"));
        }
    }
    if failed.is_empty() {
        tracing::info!("removed what Tripod and kube-proxy had installed");
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

//! From one mode to another: the old one's rules go when the new one carries
//! traffic, and not before.

use super::Done;
use crate::{
    modes::{Mode, ModeName, SyncError, SyncReport, iptables, userspace},
    services::{Changes, ServiceMap},
};

/// A mode that clears up behind the others once it is in force itself.
pub(super) struct TakeOver<M> {
    mode: M,
    /// Modes that may have left something.
    others: Vec<ModeName>,
}

impl<M: Mode> TakeOver<M> {
    pub(super) fn new(mode: M) -> TakeOver<M> {
        let running = mode.name();
        TakeOver {
            mode,
            others: ModeName::ALL
                .into_iter()
                .filter(|other| *other != running)
                .collect(),
        }
    }

    /// Removes what the other modes left; what cannot be removed is tried again
    /// with the next full sync.
    async fn clear_up(&mut self) {
        let mut remaining = Vec::new();
        for other in std::mem::take(&mut self.others) {
            if let Err(error) = clean(other, Some(self.mode.name())).await {
                tracing::warn!("what {other} mode left is not all gone: {error}");
                remaining.push(other);
            }
        }
        self.others = remaining;
    }
}

impl<M: Mode> Mode for TakeOver<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Result<SyncReport, SyncError> {
        let report = self.mode.sync(map, changes).await?;
        if changes.full && !self.others.is_empty() {
            self.clear_up().await;
        }
        Ok(report)
    }

    async fn disturbed(&mut self) {
        self.mode.disturbed().await;
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        self.mode.cleanup().await
    }
}

/// Removes what `mode` ever installed, but for what `running` uses too.
async fn clean(mode: ModeName, _running: Option<ModeName>) -> Result<(), SyncError> {
    match mode {
        ModeName::Userspace => Ok(userspace::cleanup().await?),
        ModeName::Iptables => Ok(iptables::cleanup().await?),
        ModeName::Ipvs => Ok(()),
    }
}

/// Removes what any mode ever installed. All are tried, even if one fails.
///
/// # Errors
/// What could not be removed.
pub(super) async fn cleanup_all() -> Done {
    let mut failed = Vec::new();
    for mode in ModeName::ALL {
        if let Err(error) = clean(mode, None).await {
            failed.push(format!("{mode} mode: {error}"));
        }
    }
    if failed.is_empty() {
        tracing::info!("removed what Tripod and kube-proxy had installed");
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

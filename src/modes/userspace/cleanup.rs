//! Removes everything that this mode ever installs.

use net::{Family, PerFamily};

use super::{
    capture::{Error, Local, Prepared, Redirect},
    return_path,
};
use crate::{
    config::ModeName,
    modes::{
        SyncError,
        cleanup::{Cleanup, Running, translated},
    },
};

/// Everything that userspace mode installs.
pub struct Installed;

/// The families in which capture by routes is stale.
fn routed(running: &Running) -> Vec<Family> {
    if running.captures() {
        running.captured_by_rules()
    } else {
        Family::ALL.to_vec()
    }
}

impl Cleanup for Installed {
    async fn is_there(&self, running: &Running) -> Result<bool, SyncError> {
        let preserved = running.preserved(ModeName::Userspace);
        Ok(Local::is_there(&routed(running))? || Redirect::is_there(&preserved).await?)
    }

    async fn retire(&self, running: &Running) -> Result<usize, SyncError> {
        let _removing = running.captures.removing().await;
        // A failure of one capture method does not prevent retiring the other.
        let open = Local::retire(&running.without_local_capture());
        let redirected = Redirect::retire(&running.without_captured_rules()).await?;
        Ok(open? + translated(&redirected)?)
    }

    async fn cleanup(&self, running: &Running) -> Result<(), SyncError> {
        let _removing = running.captures.removing().await;
        let preserved = running.preserved(ModeName::Userspace);
        let rules = Redirect::cleanup(&Family::ALL, &preserved).await;
        let mut removed = rules.and(Local::cleanup(&routed(running)));
        if !running.captures() {
            removed = removed.and(return_path::cleanup().await);
        }
        Ok(removed?)
    }

    fn may_need_programs(&self) -> bool {
        Redirect::may_be_there() || return_path::rules_may_be_there()
    }
}

/// Keeps open connections that are captured by routes working under the nat rules of `running`,
/// which would otherwise send them elsewhere. Must be called before these rules exist. Returns the
/// result for each family; `None` if it has no such capture.
///
/// # Errors
/// When the kernel lacks what is needed for that, or refuses.
pub fn prepare_successor(running: &Running) -> PerFamily<Result<Option<Prepared>, Error>> {
    let families = running.without_local_capture();
    PerFamily::each(|family| {
        if families.contains(&family) {
            Local::prepare_successor(family)
        } else {
            Ok(None)
        }
    })
}

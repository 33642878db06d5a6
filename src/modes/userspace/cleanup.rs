//! Removes what this mode ever installs.

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

/// What userspace mode installs.
pub struct Installed;

/// Returns the families in which capture by routes is stale.
fn routed(running: &Running) -> Vec<Family> {
    if running.is(ModeName::Userspace) {
        running.with_rules()
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
        // What fails for one kind of capture is no reason to leave the other.
        let open = Local::retire(&running.without_local_capture());
        let redirected = Redirect::retire(&running.without_rules()).await?;
        Ok(open? + translated(&redirected)?)
    }

    async fn cleanup(&self, running: &Running) -> Result<(), SyncError> {
        let preserved = running.preserved(ModeName::Userspace);
        let rules = Redirect::cleanup(&Family::ALL, &preserved).await;
        let mut removed = rules.and(Local::cleanup(&routed(running)));
        if !running.is(ModeName::Userspace) {
            removed = removed.and(return_path::cleanup().await);
        }
        Ok(removed?)
    }

    fn may_need_programs(&self) -> bool {
        Redirect::may_be_there() || return_path::rules_may_be_there()
    }
}

/// Makes open connections that are captured by routes survive the rules of nat of `running`, which
/// would otherwise send them elsewhere: to be called before there are such rules. Returns what was
/// done in each family; `None`: there is no such capture.
///
/// # Errors
/// When the kernel lacks what that takes, or refuses.
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

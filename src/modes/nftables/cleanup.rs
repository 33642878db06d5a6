//! The tables that this mode, or kube-proxy's nftables mode, ever installed.

use net::Family;
use netlink::Error;
use nftables::Rules;

use super::TABLE;
use crate::{
    config::ModeName,
    modes::{
        SyncError,
        cleanup::{Cleanup, Running, translated},
    },
};

/// Name of kube-proxy's tables, one of each family.
pub const KUBE_PROXY: &str = "kube-proxy";

/// The tables of this name, one of each family.
#[derive(Clone, Copy)]
pub struct Installed(pub &'static str);

impl Installed {
    /// Returns the rules, and those of `families` that have a table that `running` does not have.
    fn find(
        self,
        running: &Running,
        families: &[Family],
    ) -> Result<Option<(Rules, Vec<Family>)>, Error> {
        let is_of_running = self.0 == TABLE && running.is(ModeName::Nftables);
        if is_of_running || families.is_empty() {
            return Ok(None);
        }
        Rules::with_table(self.0, families)
    }
}

impl Cleanup for Installed {
    async fn is_there(&self, running: &Running) -> Result<bool, SyncError> {
        let found = self.find(running, &Family::ALL)?;
        Ok(found.is_some_and(|(_, families)| !families.is_empty()))
    }

    /// Deletes the rules of the base chains, so that no packet reaches the others, and leaves the
    /// tables: without rules that ask for it, the kernel would track no connections.
    async fn retire(&self, running: &Running) -> Result<usize, SyncError> {
        let Some((mut rules, families)) = self.find(running, &running.without_rules())? else {
            return Ok(0);
        };
        for &family in &families {
            rules.unlink_table(family, self.0)?;
        }
        Ok(translated(&families)?)
    }

    async fn cleanup(&self, running: &Running) -> Result<(), SyncError> {
        let Some((mut rules, families)) = self.find(running, &Family::ALL)? else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for family in families {
            match rules.delete_table(family, self.0) {
                Ok(_) => tracing::info!("removed the {family} table {} of nf_tables", self.0),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        Ok(outcome?)
    }

    fn may_need_programs(&self) -> bool {
        false
    }
}

/// Returns whether packets come to rules of a table of that name, or may: that is not known. A
/// table that was [retired](Cleanup::retire) has none in its base chains.
pub fn may_serve(table: &str) -> bool {
    let Ok(found) = Rules::with_table(table, &Family::ALL) else {
        return true;
    };
    let Some((mut rules, families)) = found else {
        return false;
    };
    families.into_iter().any(|family| {
        let mut serves = false;
        let listed = rules.chains(family, |listed| {
            serves |= listed.base && listed.table == table && listed.uses > 0;
        });
        serves || listed.is_err()
    })
}

#[cfg(test)]
mod tests {
    use testing::{block_on, in_namespace, sh, without_net_admin};

    use super::*;

    #[test]
    fn a_table_that_may_not_be_listed_may_be_there() {
        in_namespace(|| {
            let (installed, nothing) = (Installed(KUBE_PROXY), Running::default());
            let may_be_there = || block_on(installed.is_there(&nothing)).unwrap_or(true);
            assert!(!may_be_there());
            assert!(without_net_admin(may_be_there));
            sh("nft add table ip6 kube-proxy");
            assert!(may_be_there() && !may_serve(KUBE_PROXY));
            sh(
                "nft add chain ip6 kube-proxy services '{ type nat hook prerouting priority -100; }'",
            );
            assert!(!may_serve(KUBE_PROXY));
            sh("nft add rule ip6 kube-proxy services counter");
            assert!(may_serve(KUBE_PROXY) && without_net_admin(|| may_serve(KUBE_PROXY)));
            block_on(installed.retire(&nothing)).unwrap();
            assert!(may_be_there() && !may_serve(KUBE_PROXY));
        });
    }
}

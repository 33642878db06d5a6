//! Whether kube-proxy already serves in Tripod's place.

use crate::modes::{iptables, nftables};

/// The error if it does not.
pub(super) const TOO_EARLY: &str = "kube-proxy has no rules on this node (nothing leads to chain KUBE-SERVICES of table nat or to \
     a table kube-proxy), so only those of Tripod serve Services: nothing was removed; see the log \
     of kube-proxy, and run this again once it has synced; without --keep-kube-proxy everything is \
     removed";

/// Returns whether Tripod's nf_tables table serves, which it also does while no process runs, and
/// nothing of kube-proxy does. A table that was retired when Tripod started does not serve; one
/// that cannot be read may.
pub(super) async fn serves_alone() -> bool {
    nftables::may_serve(nftables::TABLE)
        && !nftables::may_serve(nftables::KUBE_PROXY)
        && !iptables::may_serve().await
}

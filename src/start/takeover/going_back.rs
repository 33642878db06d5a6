//! Whether kube-proxy serves in Tripod's place already.

use crate::{
    kernel::xtables::{remove::OwnedChain, rule::Table},
    modes::{iptables, nftables},
};

/// What is said where it does not.
pub(super) const TOO_EARLY: &str = "kube-proxy has no rules on this node (no chain KUBE-SERVICES in table nat, no table \
     kube-proxy), so only those of Tripod serve Services: nothing was removed; see the log of \
     kube-proxy, and run this again once it has synced; without --keep-kube-proxy everything is \
     removed";

/// Returns whether Tripod's table of nf_tables is there, which serves Services also when no
/// process runs, and nothing of kube-proxy. What cannot be read may be there.
pub(super) async fn serves_alone() -> bool {
    nftables::may_be_there(nftables::TABLE)
        && !nftables::may_be_there(nftables::KUBE_PROXY)
        && !has_chain_of_services().await
}

/// Returns whether there is the chain of kube-proxy's iptables and ipvs modes.
async fn has_chain_of_services() -> bool {
    let is_it = |one: &OwnedChain| one.table == Table::Nat && one.name == "KUBE-SERVICES";
    let chains = iptables::chains().await;
    chains.map_or(true, |chains| chains.iter().any(is_it))
}

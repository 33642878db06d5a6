//! nftables mode beside what others do.

mod repair;

use crate::lab::{Lab, Tripod, tripod_binary};

/// Starts Tripod in nftables mode on the lab's node.
fn start(lab: &Lab) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(["--proxy-mode=nftables", "--hostname-override=node", "--v=4"])
        .args(["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"])
        .arg("--manifests")
        .arg(lab.manifests());
    Tripod::start_on(&lab.node, command)
}

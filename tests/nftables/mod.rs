//! nftables mode beside what others do.

mod cluster_ips;
mod localhost;
mod programs;
mod repair;

use std::process::Command;

use crate::lab::{Lab, Tripod, tripod_binary};

/// Starts Tripod in nftables mode on the lab's node.
fn start(lab: &Lab) -> Tripod {
    start_with(lab, &[])
}

/// The same with further flags.
fn start_with(lab: &Lab, flags: &[&str]) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command.args(flags);
    start_as(lab, command)
}

/// Starts what runs Tripod, to which the arguments are added.
fn start_as(lab: &Lab, mut command: Command) -> Tripod {
    command
        .args(["--proxy-mode=nftables", "--hostname-override=node", "--v=4"])
        .args(["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"])
        .arg("--manifests")
        .arg(lab.manifests());
    Tripod::start_on(&lab.node, command)
}

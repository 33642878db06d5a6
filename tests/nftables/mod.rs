//! nftables mode together with other programs on the node.

mod affinity;
mod cluster_ips;
mod counters;
mod limits;
mod localhost;
mod order;
mod programs;
mod ranges;
mod repair;

use std::process::Command;

use crate::lab::{Lab, Tripod, tripod_binary};

/// Starts Tripod in nftables mode on the lab's node.
fn start(lab: &Lab) -> Tripod {
    start_with(lab, &[])
}

/// Like [`start`], with further flags.
fn start_with(lab: &Lab, flags: &[&str]) -> Tripod {
    let mut command = command(lab);
    command.args(flags);
    Tripod::start_on(&lab.node, command)
}

fn command(lab: &Lab) -> Command {
    with_flags(lab, lab.node.command(tripod_binary()))
}

/// Adds the usual flags to a command that runs Tripod.
fn with_flags(lab: &Lab, mut command: Command) -> Command {
    command
        .args(["--proxy-mode=nftables", "--hostname-override=node", "--v=4"])
        .args(["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"])
        .arg("--manifests")
        .arg(lab.manifests());
    command
}

//! The mode that a kernel gets, and switching from one mode to another.

mod begun;
mod changes;
mod choosing;
mod chosen;
mod confined;
mod convergence;
mod crowd;
mod ejection;
mod example;
mod families;
mod first_answer;
mod guest;
mod hostile;
mod links;
mod migrate;
mod none_ready;
pub mod probe;
mod refusals;
mod reset;
mod sctp;
mod slow_start;
mod stale_state;
mod surge;
mod switching;
mod unanswered;

use crate::lab::{Lab, Tripod, tripod_binary};

/// Starts a proxy of `lab` in this mode alone, with its metrics at 127.0.0.1:10249.
fn started(lab: &Lab, mode: &str) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args([&format!("--proxy-mode={mode}"), "--strict-proxy-mode"])
        .arg("--manifests")
        .arg(lab.manifests())
        .arg("--hostname-override=node")
        // Pods are on one bridge: their answers have to come through the node.
        .arg("--masquerade-all")
        .arg("--metrics-bind-address=127.0.0.1:10249");
    Tripod::start_on(&lab.node, command)
}

//! A node that runs Tripod in ipvs mode, and the state of its kernel.

use std::process::Command;

use super::recorded::{State, addresses, servers, sets};
use crate::lab::{Host, Lab, Tripod, recorded::Ruleset, tripod_binary};

/// Starts Tripod in ipvs mode on the laboratory's node, and waits until everything is applied.
pub fn start(lab: &Lab, more: &[&str]) -> Tripod {
    Tripod::start_on(&lab.node, command(lab, more))
}

/// Starts it without waiting.
pub fn spawn(lab: &Lab, more: &[&str]) -> Tripod {
    Tripod::spawn(command(lab, more))
}

/// Returns the command that starts it, with all its arguments.
pub fn command(lab: &Lab, more: &[&str]) -> Command {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(["--proxy-mode=ipvs", "--strict-proxy-mode", "--manifests"])
        .arg(lab.manifests())
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .args(["--ipvs-min-sync-period=10ms", "--v=4"])
        .args(more);
    command
}

impl State {
    /// Returns the present state of the kernel of `host`.
    pub fn of(host: &Host) -> State {
        State {
            servers: servers(&host.show("ipvsadm -Sn")),
            sets: sets(&host.show("ipset save")),
            addresses: addresses(&link_addresses(host)),
            rules: ["iptables-save", "ip6tables-save"]
                .map(|program| Ruleset::parse(&host.show(program))),
        }
    }
}

fn link_addresses(host: &Host) -> String {
    let listed = host.show("ip -o addr show");
    let of_link = listed.lines().filter(|line| line.contains(" kube-ipvs0 "));
    let lines = of_link.filter_map(|line| {
        let mut words = line
            .split_whitespace()
            .skip_while(|word| !word.starts_with("inet"));
        Some(format!("{} {}\n", words.next()?, words.next()?))
    });
    lines.filter(|line| !line.contains("fe80")).collect()
}

/// Returns the real servers of the virtual server at `address` in `ipvsadm -Sn`, each as
/// `address weight`.
pub fn reals(host: &Host, address: std::net::SocketAddr) -> Vec<String> {
    let of = format!("-a -t {address} -r ");
    let text = host.show("ipvsadm -Sn");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&of));
    let mut found: Vec<String> = lines
        .filter_map(|line| {
            let (real, rest) = line.split_once(' ')?;
            let weight = rest.rsplit(' ').next()?;
            Some(format!("{real} {weight}"))
        })
        .collect();
    found.sort();
    found
}

/// Counts the virtual servers.
pub fn servers_there(host: &Host) -> usize {
    let text = host.show("ipvsadm -Sn");
    text.lines().filter(|line| line.starts_with("-A ")).count()
}

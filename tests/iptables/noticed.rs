//! Changes by others between two syncs that read nothing are noticed afterwards.

use std::time::Duration;

use tripod::{modes::Mode, services::ServiceMap};

use super::rig::{Rig, hint, service, sh};
use crate::lab::{self};

const SOON: Duration = Duration::from_secs(10);
/// Time in which several checks are made.
const CHECKS: Duration = Duration::from_millis(3500);

fn web(endpoint: u8) -> ServiceMap {
    let at = ([10, 244, 0, endpoint], 80);
    [service("web", [10, 96, 0, 1], 80, &[at])]
        .into_iter()
        .collect()
}

/// Returns whether the mode reports a change by another process before `limit`.
fn notices(rig: &mut Rig, limit: Duration) -> bool {
    let Rig { runtime, mode, .. } = rig;
    runtime.block_on(async {
        let modified = mode.externally_modified();
        tokio::time::timeout(limit, modified).await.is_ok()
    })
}

#[test]
fn changes_between_two_syncs_are_noticed() {
    lab::run(|| {
        hint("nft");
        sh("iptables-nft -w -t nat -N FOREIGN");
        let mut rig = Rig::new(&["--cluster-cidr=10.244.0.0/16"]);
        rig.sync(None, &web(1));
        for change in [
            "-t nat -F KUBE-SERVICES",
            "-t nat -D OUTPUT 1",
            "-t filter -F",
            // Including the kubelet's: its rule keeps neighbours from the node's loopback.
            "-t filter -F KUBE-FIREWALL",
            "-t filter -D INPUT -j KUBE-FIREWALL",
        ] {
            rig.sync(Some(&web(1)), &web(2));
            sh(&format!("iptables-nft -w {change}"));
            rig.sync(Some(&web(2)), &web(1));
            assert!(notices(&mut rig, SOON), "{change}");
            // As the runner does in that case.
            rig.sync(None, &web(1));
            assert!(rig.written() > 0.0, "{change}");
        }
    });
}

#[test]
fn own_changes_and_those_of_other_chains_are_not() {
    lab::run(|| {
        hint("nft");
        sh("iptables-nft -w -t nat -N FOREIGN");
        let mut rig = Rig::new(&["--cluster-cidr=10.244.0.0/16"]);
        rig.sync(None, &web(1));
        rig.sync(Some(&web(1)), &web(2));
        sh("iptables-nft -w -t nat -A FOREIGN -s 192.0.2.1 -j RETURN");
        rig.sync(Some(&web(2)), &web(1));
        sh("iptables-nft -w -t nat -A PREROUTING -s 192.0.2.1 -j FOREIGN");
        assert!(!notices(&mut rig, CHECKS));
    });
}

//! Links and addresses are added to the node and removed.

use std::time::Duration;

use super::probe::default_mode;
use crate::lab::{Capture, Lab, Service, Tripod, eventually, run, tripod_binary};

/// Number of pods that start.
const PODS: usize = 6;
const FULL_SYNCS: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds_count";

#[test]
fn the_link_of_a_pod_causes_no_full_sync_and_an_address_of_the_node_does() {
    run(|| {
        // The modes of this kernel.
        let modes: &[&str] = match default_mode() {
            "ipvs" => &["ipvs", "iptables", "userspace"],
            "nftables" => &["nftables", "iptables", "userspace"],
            _ => &["userspace"],
        };
        for mode in modes {
            let mut lab = Lab::new(Capture::Local);
            lab.add_backends(&["a"]);
            lab.publish_all(&Service::new("web", 1).with_node_port());
            full_syncs(&lab, mode);
        }
    });
}

fn full_syncs(lab: &Lab, mode: &str) {
    let node = &lab.node;
    let mut command = node.command(tripod_binary());
    command
        .args([&format!("--proxy-mode={mode}"), "--strict-proxy-mode"])
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--hostname-override=node", "--cluster-cidr=10.244.0.0/24"])
        .args(["--iptables-sync-period=1h", "--ipvs-sync-period=1h"])
        .arg("--metrics-bind-address=127.0.0.1:10249");
    let tripod = Tripod::start_on(node, command);
    // Each full sync counts once per family.
    let count = || tripod.metric(node, FULL_SYNCS).unwrap_or_default() as usize / 2;
    let one_more = |what: &str, step: &str| {
        let before = count();
        node.ip(&[step]);
        eventually(what, Duration::from_secs(20), || match count() {
            now if now > before => Ok(()),
            now => Err(format!("{now} full syncs, as before")),
        });
        count()
    };
    // Everything that a start causes is over when this was counted.
    let mut before = one_more(mode, "addr add 192.0.2.30/32 dev eth0");
    for pod in 0..PODS {
        node.ip(&[
            &format!("link add veth{pod} type veth peer name pod{pod} netns client"),
            &format!("link set veth{pod} up"),
        ]);
        lab.client.ip(&[&format!("link set pod{pod} up")]);
    }
    eventually("link-local addresses", Duration::from_secs(20), || {
        let listed = node.show("ip -6 -o addr show scope link");
        let there = |pod: &usize| listed.contains(&format!(" veth{pod} "));
        if (0..PODS).all(|pod| there(&pod)) && !listed.contains("tentative") {
            Ok(())
        } else {
            Err(listed)
        }
    });
    for step in [
        "addr add 192.0.2.31/32 dev eth0",
        "addr add 2001:db8::31/128 dev eth0 nodad",
    ] {
        let after = one_more(mode, step);
        assert_eq!(after, before + 1, "{mode}: {step}");
        before = after;
    }
}

//! External IPs and load balancers that `tripod test` makes.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Cluster, NFTABLES, SOON, kubelet::Fault};
use crate::lab::{eventually, run, tripod_binary};

/// Features that the cluster refuses are not tested, and the row says why.
#[test]
fn external_addresses_that_are_refused_are_skipped() {
    run(|| {
        let cluster = Cluster::start(&NFTABLES, Fault::None);
        cluster.tcp.server.script().refuse = vec![
            ("*/load-balancer/status", 403, None),
            ("*/source-ranges/status", 403, None),
        ];
        let tested = cluster.test(&["--external-networks=198.18.7.0/24,2001:db8:77::/48"]);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        let skipped = ["load-balancer IP", "loadBalancerSourceRanges"];
        let skipped: BTreeSet<String> = skipped.map(str::to_owned).into();
        assert_eq!(tested.with("skipped"), skipped, "{tested:?}");
        let words = "the API server refuses to patch services/status in namespace";
        assert!(tested.text.contains(words), "{tested:?}");
        // A test of health checks needs no load-balancer address.
        let passed = tested.with("passed");
        for name in ["external IP", "health-check node port"] {
            assert!(passed.contains(name), "{name}: {tested:?}");
        }
        assert!(tested.text.contains("198.18.7."), "{tested:?}");
        cluster.is_clean();
    });
}

/// A rule of another program keeps pods from external addresses.
#[test]
fn load_balancers_that_do_not_do_as_promised_are_found() {
    run(|| {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::None);
        let rule = "iptables -t raw -I PREROUTING -d 203.0.113.0/24 -p tcp -j DROP";
        cluster.network.node.show(rule);
        let tested = cluster.test(&[]);
        assert_eq!(tested.status, Some(1), "{tested:?}");
        let failed = [
            "external IP",
            "load-balancer IP",
            "loadBalancerSourceRanges",
        ];
        let failed: BTreeSet<String> = failed.map(str::to_owned).into();
        assert_eq!(tested.with("failed"), failed, "{tested:?}");
        cluster.is_clean();
    });
}

/// The addresses of existing Services are not taken; where none is left, the report says so and
/// nothing waits.
#[test]
fn networks_that_services_have_used_up_are_named() {
    run(|| {
        let cluster = Cluster::start(&NFTABLES, Fault::None);
        let other = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "other", "namespace": "default"},
            "spec": {
                "clusterIP": "10.96.0.99", "clusterIPs": ["10.96.0.99"],
                "externalIPs": ["198.18.7.9", "198.18.7.14"], "selector": {"app": "other"},
                "ports": [{"port": 80, "protocol": "TCP"}],
            },
        });
        let server = &cluster.tcp.server;
        server.change(|cluster| cluster.put(other.clone()));
        eventually("the Service is served", SOON, || {
            let mut asked = cluster.network.node.command(tripod_binary());
            let asked = asked.args(["services", "default/other"]).output();
            let asked = asked.expect("tripod runs");
            let text = String::from_utf8_lossy(&asked.stdout).into_owned();
            text.contains("198.18.7.14").then_some(()).ok_or(text)
        });
        let networks = "--external-networks=198.18.7.8/29,2001:db8:77::/48";
        let tested = cluster.test(&[networks]);
        assert_eq!(tested.status, Some(0), "{tested:?}");
        let external = [
            "external IP",
            "load-balancer IP",
            "loadBalancerSourceRanges",
        ];
        let external: BTreeSet<String> = external.map(str::to_owned).into();
        assert_eq!(tested.with("skipped"), external, "{tested:?}");
        let words = "all addresses of 198.18.7.8/29 are in use";
        assert!(tested.text.contains(words), "{tested:?}");
        assert!(
            external.is_subset(&tested.with("passed")),
            "by IPv6: {tested:?}"
        );
        server.change(|cluster| cluster.delete(&other));
        cluster.is_clean();
    });
}

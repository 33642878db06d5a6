//! External IPs and load balancers that `tripod test` makes.

use std::collections::BTreeSet;

use super::{Cluster, kubelet::Fault};
use crate::lab::{Share, run};

/// What a cluster refuses is not tried, and the row says why.
#[test]
fn external_addresses_that_are_refused_are_skipped() {
    run(Share::Beside, || {
        let cluster = Cluster::start(&["--proxy-mode=nftables"], Fault::None);
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
        // Who asks for health checks needs no address of a load balancer.
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
    run(Share::Beside, || {
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

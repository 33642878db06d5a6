//! Objects that stay, are recognised and are counted, in addition to the applied Services.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use ipvs::ipset::Element;
use net::{Family, Protocol};
use netlink::conntrack::flows::{Tuple, UDP};
use simulated::{Kernel, State};

use super::{LOAD_BALANCER, OF_IPVS, SUBJECT, WITHIN, load_balancer, reads_rules, serving, to};
use crate::{
    modes::{
        Metrics, Unwritten,
        cleanup::{Cleanup, Running},
        ipvs::Installed,
    },
    services::{
        ServiceMap, ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{ipvs::start, subject::Subject},
};

/// Counts rules that could not be written.
#[derive(Debug, Default)]
struct Counted(AtomicU32);

impl Metrics for Counted {
    fn conntrack_cleared(&self, _: Family, _: Duration, _: u64) {}

    fn unwritten(&self, _: Family, _: Unwritten, _: u64) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Reads the state of `kernel`.
fn read<T>(kernel: &Kernel, read: impl FnOnce(&State) -> T) -> T {
    let mut found = None;
    kernel.change(|state| found = Some(read(state)));
    found.expect("it was read")
}

#[test]
fn rules_that_are_not_tried_again_yet_count_once() {
    let map = load_balancer(&[1], &[]);
    serving(&map, async |node| {
        let counted = Arc::new(Counted::default());
        let metrics = Arc::clone(&counted);
        *node.mode = start(&SUBJECT.kernel(), metrics, |_| {});
        node.refusing.refuse(reads_rules, 0, 8);
        node.sync(&map, true).await;
        assert_eq!(counted.0.load(Relaxed), 1);
        for _ in 0..3 {
            node.sync(&map, false).await;
        }
        assert_eq!(counted.0.load(Relaxed), 1);
    });
}

#[test]
fn a_timeout_that_the_kernel_refuses_costs_nothing_else() {
    let map = load_balancer(&[1], &[]);
    serving(&map, async |node| {
        let metrics = Arc::new(Counted::default());
        *node.mode = start(&SUBJECT.kernel(), metrics, |options| {
            options.timeouts.tcp = Duration::from_hours(720);
            options.timeouts.udp = Duration::from_secs(77);
        });
        for is_new in [false, true] {
            if is_new {
                node.kernel.change(|state| state.ipvs.reload());
            }
            let failed = node.sync(&map, true).await;
            assert!(failed.is_empty(), "{failed:?}");
            let timeouts = read(node.kernel, |state| state.ipvs.timeouts());
            assert_eq!(timeouts, [900, 120, 77]);
            assert_eq!(node.call(WITHIN, LOAD_BALANCER), [to(1)]);
        }
    });
}

/// All that a full sync changes was known to have changed.
#[test]
fn udp_flows_of_others_stay_unless_something_was_missing() {
    let map = |dns, other| -> ServiceMap {
        let mut ports = ["dns", "other"].map(|name| service_port(name, [10, 96, 0, 1]));
        ports[0].name = ports[0].name.over(Protocol::Udp);
        ports[0].node_port = Some(30_053);
        ports[0].endpoints = endpoints([endpoint(([10, 244, 0, dns], 80))]);
        ports[1].cluster_ip = Some([10, 96, 0, 2].into());
        ports[1].external_ips = [IpAddr::from([10, 113, 0, other])].into();
        ports[1].endpoints = endpoints([endpoint(([10, 244, 0, other], 80))]);
        ports.into_iter().collect()
    };
    serving(&map(1, 1), async |node| {
        let enter = |state: &mut State| {
            let client: SocketAddr = (WITHIN, 40_000).into();
            let elsewhere = ([198, 51, 100, 9], 30_053).into();
            let tuple = |source, destination| Tuple {
                source,
                destination,
            };
            let conntrack = &mut state.conntrack;
            conntrack.enter(UDP, tuple(client, elsewhere), tuple(elsewhere, client));
        };
        let flows = |kernel| read(kernel, |state| state.conntrack.flows().count());
        node.kernel.change(enter);
        node.sync(&map(2, 2), true).await;
        assert_eq!(flows(node.kernel), 1);
        // Any flow to the number of the node port may have bypassed it, whether or not it changes.
        for (dns, other) in [(2, 2), (3, 3)] {
            node.kernel.change(|state| state.ipvs.clear());
            node.kernel.change(enter);
            node.sync(&map(dns, other), true).await;
            assert_eq!(flows(node.kernel), 0, "{dns}");
        }
    });
}

#[test]
fn a_cleanup_leaves_what_guards_virtual_servers_that_it_cannot_remove() {
    let map = load_balancer(&[1], &["10.9.0.0/16"]);
    serving(&map, async |node| {
        let is_there = |kernel| {
            read(kernel, |state| {
                let server = (LOAD_BALANCER, 80).into();
                let server = state.ipvs.served_by(Protocol::Tcp.number(), server);
                let link = state.links.is_local(&LOAD_BALANCER.into());
                let set = state.sets.has("KUBE-LOAD-BALANCER-FW");
                [server.is_some(), link, set]
            })
        };
        assert_eq!(is_there(node.kernel), [true; 3]);
        node.refuse(OF_IPVS, 8);
        let cleaned = Installed.cleanup(&Running::default()).await;
        cleaned.expect_err("virtual servers cannot be removed");
        assert_eq!(is_there(node.kernel), [true; 3]);
        node.refusing.stop();
        let cleaned = Installed.cleanup(&Running::default()).await;
        cleaned.expect("everything is removed");
        assert_eq!(is_there(node.kernel), [false; 3]);
    });
}

/// The address is not on the dummy link, as the node has it.
#[test]
fn a_virtual_server_goes_whose_external_ip_left_the_node() {
    let own = IpAddr::from([10, 7, 9, 9]);
    let port = ServicePort {
        external_ips: [own].into(),
        endpoints: endpoints([endpoint(([10, 244, 0, 1], 80))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map: ServiceMap = [port].into_iter().collect();
    serving(&ServiceMap::default(), async |node| {
        node.kernel
            .change(|state| state.links.add("eth1", &[(own, 24)]));
        node.restart();
        node.sync(&map, true).await;
        let served = |kernel| {
            let server = (own, 80).into();
            read(kernel, |state| {
                assert!(!state.sets.contains("KUBE-IPVS-IPS", &Element::Ip(own)));
                state.ipvs.served_by(Protocol::Tcp.number(), server)
            })
        };
        assert!(served(node.kernel).is_some());
        node.kernel.change(|state| {
            state.links.delete("eth1");
        });
        node.restart();
        node.sync(&ServiceMap::default(), true).await;
        assert_eq!(served(node.kernel), None);
    });
}

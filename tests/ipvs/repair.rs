//! Other programs change objects of ipvs mode in the kernel.

use std::time::Duration;

use super::{node, recorded::State};
use crate::lab::{Capture, Lab, Service, eventually, run, tripod_binary};

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_others_change_is_repaired_and_named() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let service = Service::new("web", 1).with_node_port();
        lab.publish_all(&service);
        let tripod = node::start(&lab, &["--ipvs-sync-period=2s"]);
        let expected = State::of(&lab.node);
        assert_eq!(expected.addresses.len(), 2, "{expected:?}");
        let cluster = service.cluster();
        let cases = [
            (
                "ip link del kube-ipvs0".to_owned(),
                "repaired link kube-ipvs0",
            ),
            (
                format!("ipvsadm -D -t {}", cluster[0]),
                "repaired virtual server 10.96.0.1:80/TCP",
            ),
            (
                format!("ipvsadm -d -t {} -r [fd00:244::11]:8080", cluster[1]),
                "repaired virtual server [fd00:96::1]:80/TCP",
            ),
            (
                format!("ipvsadm -E -u {} -s wlc", cluster[0]),
                "repaired virtual server 10.96.0.1:80/UDP",
            ),
            (
                format!("ipset del KUBE-CLUSTER-IP {},tcp:80", cluster[0].ip()),
                "repaired member 10.96.0.1,tcp:80 of set KUBE-CLUSTER-IP",
            ),
            (
                "ipset add KUBE-LOAD-BALANCER 203.0.113.7,tcp:80".to_owned(),
                "repaired member 203.0.113.7,tcp:80 of set KUBE-LOAD-BALANCER",
            ),
            (
                "ip addr add 10.96.9.9/32 dev kube-ipvs0".to_owned(),
                "repaired address 10.96.9.9 of link kube-ipvs0",
            ),
            (
                "iptables -t nat -F KUBE-POSTROUTING".to_owned(),
                "repaired chain KUBE-POSTROUTING of nat (IPv4)",
            ),
            (
                "ip6tables -D INPUT 1".to_owned(),
                "repaired jump from INPUT of filter (IPv6)",
            ),
        ];
        for (change, named) in cases {
            lab.node.show(&change);
            eventually(&change, Duration::from_secs(20), || {
                let found = expected.differences(&State::of(&lab.node));
                match tripod.logged(&[named]) {
                    _ if !found.is_empty() => Err(found.join("\n")),
                    0 => Err(format!("nothing logged of {named:?}")),
                    _ => Ok(()),
                }
            });
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_link_of_another_kind_gets_no_addresses() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        let node = &lab.node;
        let addresses = || node.show("ip -4 -o addr show dev kube-ipvs0");
        let named = "a link of kind bridge has that name: rename or delete it";
        // At the start, and at a later sync.
        node.show("ip link add kube-ipvs0 type bridge");
        let tripod = node::spawn(&lab, &["--ipvs-sync-period=2s"]);
        let mut expected = None;
        for _ in 0..2 {
            let before = tripod.logged(&[named]);
            eventually("it is named", Duration::from_secs(20), || {
                match tripod.logged(&[named]) {
                    now if now > before => Ok(()),
                    _ => Err(tripod.log()),
                }
            });
            assert_eq!(addresses(), "");
            node.show("ip link del kube-ipvs0");
            eventually("all is there", Duration::from_secs(20), || {
                let now = State::of(node);
                match &expected {
                    None if now.addresses.is_empty() => Err(tripod.log()),
                    Some(expected) if now.differences(expected) != [""; 0] => Err(tripod.log()),
                    _ => Ok(()),
                }
            });
            expected = Some(State::of(node));
            node.ip(&[
                "link add other type bridge",
                "link set kube-ipvs0 name old",
                "link set other name kube-ipvs0",
                "link del old",
            ]);
        }
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn cleanup_leaves_what_is_not_ours() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let node = &lab.node;
        node.show("ipvsadm -A -t 198.18.0.1:80 -s wrr");
        node.show("ipvsadm -A -t 192.0.2.10:4000 -s rr");
        // The number of a node port, at an address that the node does not have.
        let service = Service::new("web", 1).with_node_port().with_load_balancer();
        let port = service.node_port();
        node.show(&format!("ipvsadm -A -t 198.18.0.2:{port} -s rr"));
        node.show("ipvsadm -A -f 7 -s rr");
        node.show("ipset create OTHERS hash:ip");
        node.show("iptables -A INPUT -s 198.51.100.9 -j DROP");
        let before = State::of(node);
        lab.publish_all(&service);
        let mut tripod = node::start(&lab, &[]);
        assert_eq!(
            before.servers.difference(&State::of(node).servers).count(),
            0
        );
        tripod.terminate();
        for _ in 0..2 {
            // The leftover of a killed trial of a scheduler.
            node.show("ipvsadm -A -t 192.0.2.1:1 -s rr");
            node.show(&format!("{} cleanup", tripod_binary().display()));
            let found = before.differences(&State::of(node));
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
        assert!(!node.show("ip link").contains("kube-ipvs0"));
    });
}

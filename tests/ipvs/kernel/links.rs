//! Dummy links and their addresses, and a place in a set for each.

use ipvs::ipset::{Element, IpSets, Kind, Set};
use net::Family;
use netlink::{Protocol, Socket, addresses, links};

use super::{ip, lines, show};
use crate::lab::run;

const LINK: &str = "kube-ipvs0";

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_dummy_link_holds_addresses_and_gives_none_away() {
    run(|| {
        let mut socket = Socket::open(Protocol::Route).expect("a socket");
        links::add_dummy(&mut socket, LINK).expect("adding the link");
        links::add_dummy(&mut socket, LINK).expect("once more");
        let shown = show("ip -o link show dev kube-ipvs0");
        assert!(shown.contains("<BROADCAST,NOARP>"), "{shown}");

        let index = links::index(LINK).expect("its index");
        let expected = [ip("10.96.0.1"), ip("10.96.0.10"), ip("fd00::a")];
        for _ in 0..2 {
            for outcome in addresses::add(&mut socket, index, &expected).expect("adding") {
                outcome.expect("an address");
            }
        }
        // Labelled with the link's name, like kube-proxy's; unlike those, never chosen as the
        // source of other packets.
        let shown = lines("ip -o -4 addr show dev kube-ipvs0").join("\n");
        for address in ["10.96.0.1/32", "10.96.0.10/32"] {
            let line = format!("inet {address} scope host kube-ipvs0");
            assert!(shown.contains(&line), "{shown}");
        }
        let shown = show("ip -o -6 addr show dev kube-ipvs0");
        let is_there = shown.contains("inet6 fd00::a/128 scope global");
        assert!(is_there && shown.contains(" deprecated "), "{shown}");
        let listed = || {
            let mut socket = Socket::open(Protocol::Route).expect("a socket");
            let all = addresses::list(&mut socket).expect("listing");
            let mut here: Vec<_> = all.iter().filter(|a| a.index == index).collect();
            here.retain(|a| !a.address.to_string().starts_with("fe80"));
            here.iter().map(|a| a.address).collect::<Vec<_>>()
        };
        let mut found = listed();
        found.sort();
        assert_eq!(found, expected);

        for _ in 0..2 {
            for outcome in addresses::remove(&mut socket, index, &expected[..2]).expect("removing")
            {
                outcome.expect("an address");
            }
        }
        assert_eq!(listed(), expected[2..]);
        links::delete(&mut socket, LINK).expect("deleting");
        links::delete(&mut socket, LINK).expect("gone is fine");
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn sets_of_a_kernel_of_modules_come_when_asked_for() {
    run(|| {
        let mut sets = IpSets::open().expect("ipset");
        for kind in Kind::ALL {
            let set = Set::new("KUBE-TEST", kind, Family::V4);
            sets.create(&set)
                .unwrap_or_else(|error| panic!("{kind}: {error}"));
            sets.destroy("KUBE-TEST").expect("destroying it");
        }
        let set = Set::new("KUBE-CLUSTER-IP", Kind::IpPort, Family::V6);
        sets.create(&set).expect("creating it");
        let member = Element::ip_port(ip("fd00::a"), 17, 53);
        assert!(sets.add(&set, &[member]).expect("adding").is_empty());
        let saved = show("ipset save KUBE-CLUSTER-IP");
        let line = "add KUBE-CLUSTER-IP fd00::a,udp:53";
        assert!(saved.lines().any(|found| found == line), "{saved}");
    });
}

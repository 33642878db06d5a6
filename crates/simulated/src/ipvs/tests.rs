//! The model of IPVS, links and addresses against the record of a guest's kernel, which
//! `ipvs::kernel::model` of the suite makes and compares.

mod programs;

use ipvs::{
    Change, Forwarding, Ipvs, RealServer, ServerId, VirtualServer,
    ipset::{Element, IpSets, Kind, Set},
};
use net::{Family, Protocol};
use netlink::{Protocol as Netlink, Socket, addresses, links};

use super::Connection;
use crate::{Faultless, Kernel};

#[test]
fn random_programs_do_the_same_as_in_the_kernel_of_a_guest() {
    let model = Kernel::new(Faultless);
    let _entered = model.enter();
    let recorded = include_str!("tests/transcript.txt");
    let found = programs::transcript();
    for (at, (found, recorded)) in found.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(found, recorded, "line {}", at + 1);
    }
    assert_eq!(found.lines().count(), recorded.lines().count());
}

#[test]
fn a_real_server_counts_its_connections_until_it_is_deleted() {
    let model = Kernel::new(Faultless);
    let _entered = model.enter();
    let mut ipvs = Ipvs::open().unwrap();
    let id = ServerId {
        protocol: Protocol::Tcp,
        address: "10.96.0.1:80".parse().unwrap(),
    };
    let reals = ["10.244.0.1:8080", "10.244.0.2:8080"].map(|at| at.parse().unwrap());
    let real = |at, weight| RealServer::new(at, weight, Forwarding::Masquerade);
    let changes = [
        Change::Add(VirtualServer::new(id, "rr")),
        Change::AddReal(id, real(reals[0], 1)),
        Change::AddReal(id, real(reals[1], 0)),
    ];
    for outcome in ipvs.apply(&changes).unwrap() {
        outcome.unwrap();
    }
    let connection = |port| Connection {
        protocol: Protocol::Tcp.number(),
        client: ([10, 9, 0, 1], port).into(),
        server: id.address,
        real: reals[1],
    };
    model.change(|state| {
        let served = state.ipvs.served_by(Protocol::Tcp.number(), id.address);
        assert_eq!(
            served,
            Some(vec![reals[0]]),
            "none new where the weight is 0"
        );
        (1..=3).for_each(|port| state.ipvs.connect(connection(port)));
        state.ipvs.disconnect(&connection(1));
    });
    let active = |ipvs: &mut Ipvs| -> Vec<u32> {
        let listed = ipvs.list_real(&id).unwrap();
        listed.iter().map(|listed| listed.active).collect()
    };
    assert_eq!(active(&mut ipvs), [0, 2]);
    for change in [
        Change::DeleteReal(id, reals[1]),
        Change::AddReal(id, real(reals[1], 1)),
    ] {
        ipvs.apply(&[change]).unwrap().remove(0).unwrap();
    }
    assert_eq!(active(&mut ipvs), [0, 0]);

    assert!(!ipvs.was_loaded_again().unwrap());
    model.change(|state| state.ipvs.reload());
    assert!(ipvs.was_loaded_again().unwrap());
    assert_eq!(ipvs.list().unwrap(), []);
}

#[test]
fn rules_keep_a_set_and_the_link_has_its_addresses() {
    let model = Kernel::new(Faultless);
    let _entered = model.enter();
    let mut sets = IpSets::open().unwrap();
    let set = Set::new("RANGES", Kind::IpPortNet, Family::V4);
    sets.create(&set).unwrap();
    let within = |net: &str| Element::IpPortNet {
        ip: [10, 113, 0, 1].into(),
        protocol: Protocol::Tcp.number(),
        port: 80,
        net: net.parse().unwrap(),
    };
    assert!(sets.add(&set, &[within("10.9.0.0/16")]).unwrap().is_empty());
    model.change(|state| {
        assert!(state.sets.contains("RANGES", &within("10.9.1.1/32")));
        assert!(!state.sets.contains("RANGES", &within("10.8.1.1/32")));
        state.sets.refer(|name| u32::from(name == "RANGES"));
    });
    assert!(sets.destroy("RANGES").is_err());
    model.change(|state| state.sets.refer(|_| 0));
    sets.destroy("RANGES").unwrap();

    let mut route = Socket::open(Netlink::Route).unwrap();
    links::add_dummy(&mut route, "kube-ipvs0").unwrap();
    let index = links::find(&mut route, "kube-ipvs0").unwrap();
    let ip = [10, 96, 0, 1].into();
    addresses::add(&mut route, index, &[ip])
        .unwrap()
        .remove(0)
        .unwrap();
    model.change(|state| {
        assert!(state.links.is_local(&ip));
        assert!(state.links.delete("kube-ipvs0"));
        assert!(!state.links.is_local(&ip));
    });
}

//! Against the real kernel, in a network namespace of the test's own thread.

use std::{
    collections::{BTreeSet, HashSet},
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use netlink::{addresses, routes, rules};
use proptest::{prelude::*, test_runner::TestRunner};
use socket2::{Domain, Type};
use testing::{block_on, cases, in_namespace, ip, sh, without_net_admin};

use super::{
    plan::{Environment, Object},
    *,
};
use crate::modes::userspace::capture::{Capture, Method, OtherPorts, Target};

fn target(other_ports: OtherPorts) -> Target {
    let target = Target::at(0);
    Target {
        other_ports,
        ..target
    }
}

fn frontend(protocol: net::Protocol, address: &str, port: u16) -> Frontend {
    Frontend::service(protocol, address.parse().unwrap(), port)
}

fn present(family: Family) -> BTreeSet<Object> {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    observe::installed(&mut socket, family)
        .unwrap()
        .into_iter()
        .collect()
}

/// The objects that should be in the kernel for `desired`.
fn expected(desired: &Desired, family: Family) -> BTreeSet<Object> {
    let environment = Environment {
        family,
        matches_ports: true,
        loopback: 1,
        source: Some(family.localhost()),
        own: HashSet::new(),
    };
    desired
        .iter()
        .filter(|(f, _)| f.family == family)
        .flat_map(|(f, t)| {
            let delivery = plan::delivery(f, t, &environment);
            plan::objects(f, delivery, &environment)
        })
        .collect()
}

fn sync(
    local: &mut Capture,
    desired: &Desired,
    changed: Option<&[Frontend]>,
) -> Result<Report, Error> {
    block_on(local.sync_both(desired, changed))
}

#[test]
fn the_kernel_follows_step_by_step_and_a_new_process_takes_over() {
    in_namespace(|| {
        let frontend =
            (any::<bool>(), any::<bool>(), 1u8..4, 0usize..3).prop_map(|(tcp, v4, last, port)| {
                let address = if v4 {
                    format!("10.96.0.{last}")
                } else {
                    format!("fd96::{last}")
                };
                let protocol = if tcp {
                    net::Protocol::Tcp
                } else {
                    net::Protocol::Udp
                };
                frontend(protocol, &address, [80, 65_534, 65_535][port])
            });
        let refuse = any::<bool>().prop_map(|refuse| {
            target(if refuse {
                OtherPorts::Refuse
            } else {
                OtherPorts::PassOn
            })
        });
        let step = prop::collection::vec((frontend, prop::option::of(refuse)), 1..5);
        let steps = prop::collection::vec((step, any::<bool>()), 1..8);
        let mut runner = TestRunner::new(ProptestConfig {
            cases: cases(48),
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        runner
            .run(&steps, |steps| {
                let mut local = Capture::of_both(Method::Local);
                let mut desired = Desired::new();
                for (step, restart) in steps {
                    let changed: Vec<_> = step.iter().map(|(f, _)| *f).collect();
                    for (frontend, target) in step {
                        match target {
                            Some(target) => desired.insert(frontend, target),
                            None => desired.remove(&frontend),
                        };
                    }
                    if restart {
                        local = Capture::of_both(Method::Local);
                    }
                    let report = sync(&mut local, &desired, Some(&changed)).unwrap();
                    prop_assert_eq!(report.failed, vec![]);
                    for family in Family::ALL {
                        prop_assert_eq!(present(family), expected(&desired, family));
                    }
                }
                Ok(())
            })
            .unwrap();
        Local::cleanup(&[Family::V4, Family::V6]).unwrap();
        Local::cleanup(&[Family::V4, Family::V6]).unwrap();
        assert!(present(Family::V4).is_empty() && present(Family::V6).is_empty());
    });
}

#[test]
fn a_full_sync_repairs_what_others_broke() {
    in_namespace(|| {
        let web = frontend(net::Protocol::Tcp, "10.96.0.1", 80);
        let desired = Desired::from([(web, target(OtherPorts::Refuse))]);
        let mut local = Capture::of_both(Method::Local);
        sync(&mut local, &desired, None).unwrap();
        let right = present(Family::V4);
        let mut socket = Socket::open(Protocol::Route).unwrap();
        for object in &right {
            execute::remove(&mut socket, 1, vec![object.clone()]).unwrap();
            assert_eq!(present(Family::V4).len(), right.len() - 1);
            sync(&mut local, &desired, None).unwrap();
            assert_eq!(present(Family::V4), right, "after {object:?} went");
        }
        // A route in place of ours that differs only in its source.
        for object in &right {
            if let Object::Route(route) = object {
                let other = routes::Route {
                    source: None,
                    ..route.clone()
                };
                routes::delete(&mut socket, std::slice::from_ref(route)).unwrap();
                routes::add(&mut socket, &[other])
                    .unwrap()
                    .remove(0)
                    .unwrap();
                sync(&mut local, &desired, None).unwrap();
                assert_eq!(
                    present(Family::V4),
                    right,
                    "after {object:?} lost its source"
                );
            }
        }
    });
}

#[test]
fn an_address_of_the_node_is_left_alone() {
    in_namespace(|| {
        ip("addr add 192.0.2.1/32 dev lo");
        let mut local = Capture::of_both(Method::Local);
        let own = frontend(net::Protocol::Tcp, "192.0.2.1", 80);
        let desired = Desired::from([(own, target(OtherPorts::Refuse))]);
        let report = sync(&mut local, &desired, None).unwrap();
        assert_eq!(report, Report::default());
        assert!(present(Family::V4).is_empty());
        Local::cleanup(&[Family::V4]).unwrap();
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let left = addresses::list(&mut socket).unwrap();
        assert!(left.iter().any(|a| Some(a.address) == own.address));
    });
}

/// A connected socket keeps its route, and if another Service has the same port, only routes are
/// added.
#[test]
fn a_connected_socket_takes_a_route_that_came_later() {
    in_namespace(|| {
        // The other end receives what is sent too early.
        ip("link add out type veth peer name away");
        ip("link set away up");
        ip("link set out up");
        ip("addr add 192.0.2.1/24 dev out");
        ip("addr add fd00::1/64 dev out nodad");
        ip("route add 10.96.0.0/24 dev out");
        ip("route add fd96::/64 dev out");
        let mut socket = Socket::open(Protocol::Route).unwrap();
        for (first, second) in [("10.96.0.1", "10.96.0.2"), ("fd96::1", "fd96::2")] {
            let [first, second] = [first, second].map(|a| frontend(net::Protocol::Udp, a, 5353));
            let refuse = target(OtherPorts::Refuse);
            let mut desired = Desired::from([(first, refuse.clone())]);
            let mut local = Capture::of_both(Method::Local);
            sync(&mut local, &desired, None).unwrap();

            let to = SocketAddr::new(second.address.unwrap(), second.port);
            let listener = socket2::Socket::new(Domain::for_address(to), Type::DGRAM, None);
            let listener = listener.unwrap();
            match second.family {
                Family::V4 => listener.set_freebind_v4(true).unwrap(),
                Family::V6 => listener.set_freebind_v6(true).unwrap(),
            }
            listener.bind(&to.into()).unwrap();
            let listener = UdpSocket::from(listener);
            let patience = Some(Duration::from_secs(1));
            listener.set_read_timeout(patience).unwrap();
            let client = UdpSocket::bind((["0.0.0.0", "::"][usize::from(to.is_ipv6())], 0));
            let client = client.unwrap();
            client.connect(to).unwrap();
            client.send(b"early").unwrap();

            desired.insert(second, refuse);
            let rules = rules::list(&mut socket, second.family).unwrap();
            sync(&mut local, &desired, Some(&[second])).unwrap();
            let after = rules::list(&mut socket, second.family).unwrap();
            assert_eq!(rules, after, "no rule came or stayed");
            client.send(b"late").unwrap();
            let mut buffer = [0; 16];
            let (length, _) = listener.recv_from(&mut buffer).expect("the datagram");
            assert_eq!(&buffer[..length], b"late", "{to}");
        }
    });
}

#[test]
fn a_table_that_may_not_be_listed_is_not_taken_for_removed() {
    in_namespace(|| {
        sh("nft add table ip tripod-draining");
        let removed = without_net_admin(|| retire::cleanup(Family::V4));
        assert!(removed.is_err(), "{removed:?}");
        retire::cleanup(Family::V4).expect("removed");
        assert_eq!(sh("nft list tables"), "");
    });
}

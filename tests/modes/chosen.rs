//! A Service that chooses userspace mode on a node in a mode of the kernel.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::{hostile::start_with, probe::default_mode};
use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, run, say, tcp, udp_ask};

const SOON: Duration = Duration::from_secs(20);
const CALLS: usize = 20;

/// The modes of the kernel, each with the capture of the Services that choose userspace mode.
fn ways() -> &'static [(&'static str, Capture)] {
    match default_mode() {
        "ipvs" => &[("ipvs", Capture::Redirect)],
        "nftables" => &[
            ("nftables", Capture::Local),
            ("iptables", Capture::Redirect),
        ],
        _ => &[],
    }
}

fn in_each_way(test: impl Fn(&str, &mut Lab)) {
    run(|| {
        for (mode, capture) in ways() {
            let mut lab = Lab::new(*capture);
            lab.add_backends(&["a", "b"]);
            test(&format!("{mode} {}", capture.name()), &mut lab);
        }
    });
}

fn start(lab: &Lab, way: &str) -> Tripod {
    let mode = way.split(' ').next().expect("a mode");
    start_with(lab, mode, &["--nodeport-addresses=all"])
}

fn web() -> Service {
    Service::new("web", 10).with_node_port().with_external_ip()
}

fn relayed() -> Service {
    web().annotated("tripod.proxy/mode", "userspace")
}

/// How many connections were relayed.
fn count(lab: &Lab, tripod: &Tripod) -> f64 {
    let name = "tripod_userspace_connections_total";
    tripod.metric(&lab.node, name).unwrap_or_default()
}

fn node_ports(lab: &Lab, service: &Service) -> [SocketAddr; 2] {
    let port = service.node_port();
    lab.node.addresses.map(|ip| SocketAddr::new(ip, port))
}

/// Calls each address from a pod, from the node and from outside.
fn calls(lab: &Lab, service: &Service, way: &str) -> usize {
    let mut made = 0;
    for _ in 0..CALLS {
        for to in service.cluster() {
            for from in [&lab.client, &lab.node] {
                ask(from, to)
                    .unwrap_or_else(|error| panic!("{way}: {} {to}: {error}", from.name()));
                made += 1;
            }
        }
        for to in service
            .external()
            .into_iter()
            .chain(node_ports(lab, service))
        {
            ask(&lab.outside, to).unwrap_or_else(|error| panic!("{way}: outside {to}: {error}"));
            made += 1;
        }
    }
    made
}

#[test]
fn a_service_that_chooses_userspace_mode_is_relayed() {
    in_each_way(|way, lab| {
        let other = Service::new("other", 11);
        lab.publish_all(&relayed());
        lab.publish_all(&other);
        let tripod = start(lab, way);
        let made = calls(lab, &relayed(), way);
        for to in relayed()
            .cluster()
            .into_iter()
            .chain(node_ports(lab, &relayed()))
        {
            let from = if to.port() == 80 {
                &lab.client
            } else {
                &lab.outside
            };
            udp_ask(from, to).unwrap_or_else(|error| panic!("{way}: udp {to}: {error}"));
        }
        assert_eq!(count(lab, &tripod), made as f64, "{way}");
        for to in other.cluster() {
            ask(&lab.client, to).unwrap_or_else(|error| panic!("{way}: {to}: {error}"));
        }
        assert_eq!(
            count(lab, &tripod),
            made as f64,
            "{way}: the others are not"
        );
        // Another endpoint is tried.
        lab.backend("a").kill();
        calls(lab, &relayed(), way);
        for to in other.cluster().map(|to| SocketAddr::new(to.ip(), 81)) {
            assert!(tcp(&lab.client, to).is_err(), "{way}: {to} is not served");
        }
    });
}

/// An open connection, and who answers it.
fn open(lab: &Lab, to: SocketAddr) -> (TcpStream, String) {
    let mut stream = tcp(&lab.client, to).unwrap_or_else(|error| panic!("{to}: {error}"));
    let name = say(&mut stream, "name").expect("an answer");
    (stream, name)
}

#[test]
fn a_service_may_change_its_mode_under_open_connections() {
    in_each_way(|way, lab| {
        lab.publish_all(&web());
        let tripod = start(lab, way);
        let mut connections: Vec<_> = web().cluster().map(|to| open(lab, to)).into();
        calls(lab, &web(), way);
        let mut before = count(lab, &tripod);
        assert_eq!(before as usize, 0, "{way}");
        for (service, is_relayed) in [(relayed(), true), (web(), false), (relayed(), true)] {
            lab.publish_all(&service);
            eventually("the other mode", SOON, || {
                let made = calls(lab, &service, way) as f64;
                let after = count(lab, &tripod);
                let counted = after - std::mem::replace(&mut before, after);
                let expected = if is_relayed { made } else { 0.0 };
                (counted == expected)
                    .then_some(())
                    .ok_or(format!("{way}: {counted} of {made}"))
            });
            for to in service.cluster() {
                udp_ask(&lab.client, to).unwrap_or_else(|error| panic!("{way}: {to}: {error}"));
            }
            for (stream, name) in &mut connections {
                assert_eq!(say(stream, "name").expect("still open"), *name, "{way}");
            }
            connections.extend(service.cluster().map(|to| open(lab, to)));
            before = count(lab, &tripod);
        }
    });
}

#[test]
fn the_next_process_relays_it_too() {
    in_each_way(|way, lab| {
        lab.publish_all(&relayed());
        let mut first = start(lab, way);
        calls(lab, &relayed(), way);
        first.kill();
        let next = start(lab, way);
        let made = calls(lab, &relayed(), way);
        assert_eq!(count(lab, &next), made as f64, "{way}");
        lab.publish_all(&web());
        eventually("the kernel serves it", SOON, || {
            let before = count(lab, &next);
            calls(lab, &relayed(), way);
            (count(lab, &next) == before)
                .then_some(())
                .ok_or(way.to_owned())
        });
    });
}

#[test]
fn a_service_whose_listener_cannot_be_opened_stays_with_the_kernel() {
    run(|| {
        if default_mode() != "nftables" {
            return;
        }
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a", "b"]);
        let taken = node_ports(&lab, &relayed())[0];
        let _taken = lab
            .node
            .enter(|| TcpListener::bind(taken))
            .expect("a listener");
        lab.publish_all(&relayed());
        let tripod = start(&lab, "nftables local");
        calls(&lab, &relayed(), "with a port that is taken");
        tripod.logs(&["tripod.proxy/mode is not supported", "cannot listen on"]);
        // IPv6 is relayed.
        assert!(count(&lab, &tripod) > 0.0);
    });
}

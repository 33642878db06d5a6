//! Node ports on localhost, when one process replaces another.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

use super::{Long, SOON, under_load};
use crate::lab::{self, Capture, Lab, Service, Tripod, eventually, say};

fn start(lab: &Lab, mode: &str, number: u16) -> Tripod {
    let flags = [
        "--nodeport-addresses=primary,localhost",
        "--userspace-capture=local",
        "--userspace-workers=2",
        "--userspace-drain-timeout=5s",
    ];
    Tripod::start_beside(lab, mode, number, &flags)
}

/// Runs a process in each of `modes`, each started before the previous one ends, while
/// the node calls a node port at the `loopback` addresses.
fn from_one_to_the_next(lab: &Lab, loopback: &[SocketAddr], modes: &[&str]) {
    let call = |number: usize| {
        lab.node.enter(|| {
            let to = loopback[number % loopback.len()];
            let mut stream = TcpStream::connect_timeout(&to, SOON)?;
            stream.set_read_timeout(Some(SOON))?;
            say(&mut stream, "name")
        })
    };
    let mut running = start(lab, modes[0], 0);
    for number in 0..loopback.len() {
        eventually("it is served", SOON, || {
            call(number).map_err(|error| error.to_string())
        });
    }
    under_load(call, |calls| {
        for (number, mode) in (1..).zip(&modes[1..]) {
            calls.wait(50);
            let open = loopback.iter().map(|to| Long::open(&lab.node, *to));
            let mut open: Vec<_> = open.collect();
            let new = start(lab, mode, number);
            calls.wait(50);
            open.iter_mut().for_each(|open| open.is_served(mode));
            drop(open);
            let mut former = std::mem::replace(&mut running, new);
            former.ask_to_end();
            assert!(former.ended().success(), "before {mode}");
            calls.wait(50);
        }
    });
}

fn with_service(body: impl FnOnce(&Lab, [SocketAddr; 2])) {
    lab::run(|| {
        let mut lab = Lab::new(Capture::Local);
        let web = Service::new("web", 1).with_node_port();
        lab.three_backends().publish_all(&web);
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, web.node_port()));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, web.node_port()));
        body(&lab, [v4, v6]);
    });
}

#[test]
fn node_ports_on_localhost_are_handed_over() {
    with_service(|lab, both| {
        let modes = ["nftables", "nftables", "userspace", "nftables"];
        from_one_to_the_next(lab, &both, &modes);
    });
}

#[test]
fn node_ports_on_localhost_outlive_the_rules_of_iptables_mode() {
    with_service(|lab, [v4, _]| {
        let modes = ["iptables", "nftables", "iptables"];
        from_one_to_the_next(lab, &[v4], &modes);
    });
}

//! Tripod's additions to the node's network, and their removal.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use super::{comes_to_fail, reaches};
use crate::lab::{Host, Lab, Service, Tripod, ask, tcp, tripod_binary, udp_ask};

on_each_capture!(
    nothing_is_left_after_cleanup,
    a_restart_finds_its_rules,
    a_service_removed_while_tripod_was_down_is_gone,
);
on_local_capture!(foreign_ports_of_a_service_address_do_not_reach_the_node);

const ALL: [&str; 3] = ["a", "b", "c"];

/// Lists the rules, routes and addresses of a host, one per line.
pub fn traces(host: &Host) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut commands = vec![
        "ip rule",
        "ip -6 rule",
        "ip route show table all",
        "ip -6 route show table all",
        "ip -o addr",
        "ip -o link",
    ];
    // A kernel without netfilter has no rules, and no program to list them.
    if host
        .command("iptables-save")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        commands.extend(["iptables-save", "ip6tables-save"]);
    }
    for command in commands {
        for line in host.show(command).lines() {
            // Empty tables of the firewall are created by reading them.
            let built_in = line.starts_with(':') && !line.contains(" - ");
            if !(line.starts_with(['#', '*']) || line == "COMMIT" || built_in) {
                lines.insert(format!("{command}: {}", line.trim_end()));
            }
        }
    }
    lines
}

fn everything(name: &str, number: u8) -> Service {
    Service::new(name, number)
        .with_node_port()
        .with_external_ip()
        .with_load_balancer()
}

fn nothing_is_left_after_cleanup(lab: &mut Lab) {
    let web = everything("web", 10);
    lab.three_backends().publish_all(&web);
    lab.publish(&everything("empty", 11), &[]);
    let before = traces(&lab.node);
    let mut tripod = lab.tripod();
    for to in web.cluster() {
        reaches("TCP", &ALL, || ask(&lab.client, to));
    }
    let status = tripod.terminate();
    assert!(status.success(), "after SIGTERM: {status}");
    assert_ne!(traces(&lab.node), before, "something was there to clean up");
    // The second time there is nothing left to do.
    for _ in 0..2 {
        let mut cleanup = lab.node.command(tripod_binary());
        let output = cleanup.arg("cleanup").output().expect("tripod cleanup");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(traces(&lab.node), before);
    }
}

fn a_restart_finds_its_rules(lab: &mut Lab) {
    let web = everything("web", 10);
    lab.three_backends().publish_all(&web);
    let mut tripod = lab.tripod();
    let first = traces(&lab.node);
    let terminate = |tripod: &mut Tripod| assert!(tripod.terminate().success());
    for end in [Tripod::kill, terminate] {
        end(&mut tripod);
        tripod = lab.tripod();
        for to in web.cluster() {
            for from in lab.cluster_clients() {
                reaches("TCP", &ALL, || ask(from, to));
                reaches("UDP", &ALL, || udp_ask(from, to));
            }
        }
        let count = |lines: &BTreeSet<String>| lines.len();
        assert_eq!(
            count(&traces(&lab.node)),
            count(&first),
            "as many rules as the first time"
        );
    }
}

fn a_service_removed_while_tripod_was_down_is_gone(lab: &mut Lab) {
    let (web, old) = (everything("web", 10), everything("old", 11));
    lab.three_backends().publish_all(&web);
    let mut tripod = lab.tripod();
    let only_web = traces(&lab.node).len();
    lab.publish_all(&old);
    for to in old.cluster() {
        super::comes_to_reach("the second Service", &ALL, || ask(&lab.client, to));
    }
    tripod.kill();
    lab.withdraw(&old);
    let _tripod = lab.tripod();
    for to in old.cluster().into_iter().chain(old.external()) {
        comes_to_fail("a Service that went unseen", || ask(&lab.client, to));
    }
    for to in web.cluster() {
        reaches("the one that stayed", &ALL, || ask(&lab.client, to));
    }
    assert_eq!(traces(&lab.node).len(), only_web);
}

fn foreign_ports_of_a_service_address_do_not_reach_the_node(lab: &mut Lab) {
    let web = everything("web", 10);
    lab.three_backends().publish_all(&web);
    // As a node may have: a daemon on all of its addresses.
    let daemon = lab
        .node
        .enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 2222)))
        .expect("a daemon on the node");
    let _tripod = lab.tripod();
    tcp(&lab.client, SocketAddr::new(lab.node.addresses[0], 2222)).expect("the node's own address");
    daemon.accept().expect("that was it");
    daemon.set_nonblocking(true).expect("a listener of ours");
    for to in [web.cluster(), web.external(), web.ingress()].concat() {
        reaches("the Service's own port", &ALL, || ask(&lab.client, to));
        let foreign = SocketAddr::new(to.ip(), 2222);
        // At the same time, since some callers get no answer and wait.
        std::thread::scope(|scope| {
            for from in [&lab.client, &lab.outside, &lab.node] {
                scope.spawn(move || {
                    let name = from.name();
                    let reached = tcp(from, foreign);
                    assert!(reached.is_err(), "{foreign} from {name} reached the daemon");
                });
            }
        });
        assert!(daemon.accept().is_err());
    }
}

//! A firewall that drops unknown packets in INPUT keeps out callers of Services, and the
//! commands of docs/userspace.md let them in.

use std::time::Duration;

use super::{comes_to_fail, reaches};
use crate::lab::{Capture, Lab, Service, Tripod, ask, ask_within, udp_ask};

on_each_capture!(commands_of_the_document_open_a_firewall);

const ALL: [&str; 3] = ["a", "b", "c"];
/// How long a caller waits for an answer that must be dropped. An answer that must arrive has more
/// time.
const PATIENCE: Duration = Duration::from_millis(500);

/// The iptables commands in docs/userspace.md, each with the capture that it is for.
pub fn commands() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../docs/userspace.md").lines();
    let commands = lines.filter(|line| line.starts_with("iptables -"));
    let commands = commands.map(|line| {
        let (command, remark) = line.split_once('#').expect("the capture");
        let capture = remark.split(';').next().unwrap_or_default();
        (command.trim_end(), capture.trim())
    });
    commands.collect()
}

fn commands_of_the_document_open_a_firewall(lab: &mut Lab) {
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let _tripod = Tripod::start(lab);
    // Any firewall lets in answers of endpoints to the node itself.
    for rule in [
        "-A INPUT -i lo -j ACCEPT",
        "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        "-P INPUT DROP",
    ] {
        lab.node.show(&format!("iptables {rule}"));
    }
    let (cluster, port) = (web.cluster()[0], web.node_port());
    let node_port = (lab.node.addresses[0], port).into();
    let pod = |lab: &Lab| ask_within(&lab.client, cluster, PATIENCE);
    let outside = |lab: &Lab| ask_within(&lab.outside, node_port, PATIENCE);
    let outside_udp = |lab: &Lab| udp_ask(&lab.outside, node_port);
    comes_to_fail("the firewall drops calls of pods", || pod(lab));
    comes_to_fail("and of other hosts", || outside(lab));

    let all = commands();
    let name = lab.capture.name();
    let of_capture: Vec<&str> = (all.iter())
        .filter(|(_, capture)| *capture == name)
        .map(|(command, _)| *command)
        .collect();
    let (first, rest) = of_capture.split_first().expect("a command");
    lab.node.show(first);
    reaches("a cluster IP", &ALL, || ask(&lab.client, cluster));
    if lab.capture == Capture::Local {
        comes_to_fail("node ports are another rule", || outside(lab));
        for command in rest {
            lab.node.show(command);
            lab.node.show(&command.replace("-p tcp", "-p udp"));
        }
    } else {
        assert!(rest.is_empty(), "{rest:?}");
    }
    reaches("a node port", &ALL, || ask(&lab.outside, node_port));
    reaches("a node port over UDP", &ALL, || outside_udp(lab));
}

//! Every address of a Service, from everywhere it may be called.

use std::net::SocketAddr;

use super::reaches;
use crate::lab::{Host, Lab, Service, ask, udp_ask};

on_each_capture!(
    cluster_ips_answer,
    node_ports_answer,
    external_and_load_balancer_ips_answer,
);

const ALL: [&str; 3] = ["a", "b", "c"];

fn answers(from: &Host, to: SocketAddr) {
    let what = |protocol| format!("{protocol} from {} to {to}", from.name());
    reaches(&what("TCP"), &ALL, || ask(from, to));
    reaches(&what("UDP"), &ALL, || udp_ask(from, to));
}

fn cluster_ips_answer(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        for from in lab.cluster_clients() {
            answers(from, to);
        }
    }
}

fn node_ports_answer(lab: &mut Lab) {
    let web = Service::new("web", 10).with_node_port();
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for ip in lab.node.addresses {
        let to = SocketAddr::new(ip, web.node_port());
        for from in [&lab.outside, &lab.client, &lab.node] {
            answers(from, to);
        }
    }
}

fn external_and_load_balancer_ips_answer(lab: &mut Lab) {
    let web = Service::new("web", 10)
        .with_external_ip()
        .with_load_balancer();
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in [web.external(), web.ingress()].concat() {
        for from in [&lab.outside, &lab.client, &lab.node] {
            answers(from, to);
        }
    }
}

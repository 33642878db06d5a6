//! Every address of a Service, from everywhere it may be called.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::reaches;
use crate::lab::{Host, Lab, Service, ask, say, udp_ask};

on_each_capture!(
    cluster_ips_answer,
    node_ports_answer,
    external_and_load_balancer_ips_answer,
    a_client_may_call_all_addresses_from_one_source_port,
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

/// Connects from an address and port that other connections may also have.
fn connect_from(host: &Host, from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let patience = Duration::from_secs(10);
    host.enter(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), patience)?;
        socket.set_read_timeout(Some(patience))?;
        Ok(socket.into())
    })
}

/// Clients choose source ports for each destination. All of these are redirected to one local port,
/// where only the source port distinguishes connections.
fn a_client_may_call_all_addresses_from_one_source_port(lab: &mut Lab) {
    let web = Service::new("web", 10).with_node_port().with_external_ip();
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for (family, own) in lab.outside.addresses.into_iter().enumerate() {
        let from = SocketAddr::new(own, 45_678);
        let node_port = SocketAddr::new(lab.node.addresses[family], web.node_port());
        let mut open = Vec::new();
        for to in [node_port, web.external()[family]] {
            let called = connect_from(&lab.outside, from, to);
            open.push(called.unwrap_or_else(|error| panic!("{to}: {error}")));
            for stream in &mut open {
                let answer = say(stream, "name").unwrap_or_else(|error| panic!("{to}: {error}"));
                assert!(ALL.contains(&&*answer), "{to}: {answer}");
            }
        }
    }
}

//! ServicePorts and options made by hand.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use net::Family;
use xtables::features::Features;

use crate::{
    modes::iptables::plan::{DetectLocal, Dispatch, Options, UNDIVIDED},
    node::Served,
    services::{Endpoint, Endpoints, ServicePort, service_ports},
};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

/// The node of the recordings.
pub(super) const NODE_IP: &str = "192.168.77.2";

/// Nothing but the pods' network is configured.
pub(in crate::modes::iptables) fn options() -> Options {
    Options {
        family: Family::V4,
        detect_local: DetectLocal::Within(net("10.244.0.0/16")),
        node_ip: Some(ip(NODE_IP)),
        node_addresses: vec![ip(NODE_IP)],
        masquerade_all: false,
        masquerade_mark: 0x4000,
        node_ports: Served::All,
        localhost_node_ports: true,
        tcp_be_liberal: false,
        features: Features::all(),
        large_cluster: false,
        dispatch: Dispatch::Linear,
        undivided: UNDIVIDED,
    }
}

/// Address, whether it is on this node, weight. All are ready.
pub(super) fn endpoints(of: &[(&str, bool, u16)]) -> Arc<Endpoints> {
    let all = of.iter().map(|(address, local, weight)| Endpoint {
        local: *local,
        weight: *weight,
        ..service_ports::endpoint(address.parse::<SocketAddr>().expect("an endpoint"))
    });
    service_ports::endpoints(all)
}

/// A Service of a cluster IP alone, TCP port 80, on 10.96.0.1.
pub(super) fn service(name: &str) -> ServicePort {
    service_ports::service_port(name, [10, 96, 0, 1])
}

/// As `service`, with everything that can be called from outside: external IP
/// 198.51.100.1, load balancer 203.0.113.1, node port 30080.
pub(super) fn exposed(name: &str) -> ServicePort {
    ServicePort {
        node_port: Some(30080),
        external_ips: [ip("198.51.100.1")].into(),
        load_balancer_ips: [ip("203.0.113.1")].into(),
        ..service(name)
    }
}

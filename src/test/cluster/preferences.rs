//! Test cases for Services that request a choice of endpoints, and for others whose results depend
//! on the features of the cluster and the mode; pure.

use std::net::{IpAddr, SocketAddr};

use net::{Family, Protocol};

use super::{
    objects::{Kind, SCHEDULER, SERVICE_PORT},
    promise::Promise,
    stage::{Reach, Stage, TestService},
    tried::{Try, by_each, callers, every, this_node},
};
use crate::{config::ModeName, status_api::ServicePort};

/// Returns the test cases for `service` at its cluster IP.
pub fn tries(stage: &Stage, service: &TestService, ip: IpAddr) -> Vec<Try> {
    let promise = match service.kind {
        Kind::SameNode => every(stage, service, ip, Reach::Node),
        Kind::SourceHash => Promise::SameOne(stage.servers(service.kind, ip, Reach::Cluster)),
        _ => return Vec::new(),
    };
    let to = SocketAddr::new(ip, SERVICE_PORT);
    by_each(service, to, &callers(stage), &promise)
}

/// Returns the test cases for the node ports of `service` at the loopback address of the family of
/// `ip`, which only this node can call. In ipvs and nftables mode sockets of Tripod relay
/// connections to it, TCP only; in iptables mode rules translate it.
pub fn at_localhost(stage: &Stage, service: &TestService, ip: IpAddr) -> Vec<Try> {
    if service.kind != Kind::NodePort {
        return Vec::new();
    }
    let all = matches!(stage.mode, ModeName::Iptables | ModeName::Userspace);
    let ports = service.node_ports.iter();
    let ports = ports.filter(|(protocol, _)| all || *protocol == Protocol::Tcp);
    let promise = every(stage, service, ip, Reach::Cluster);
    let each = ports.map(|(protocol, port)| {
        let to = SocketAddr::new(Family::of(&ip).localhost(), *port);
        Try {
            name: "node port on localhost".to_owned(),
            at_node: true,
            ..Try::new(service, (to, *protocol), &this_node(), promise.clone())
        }
    });
    each.collect()
}

/// Explains why `kind` is skipped, if the running Tripod, which has these `ports` of its Service,
/// does not support the Service's request.
pub fn why_not(stage: &Stage, kind: Kind, ports: &[&ServicePort]) -> Option<String> {
    match kind {
        Kind::SameNode => {
            let alone = stage.alone.as_ref();
            let is_meant_for_others = |port: &&ServicePort| {
                let mut why = port.endpoints.iter().filter_map(|one| one.why.as_deref());
                why.any(|why| why.contains("topology hints"))
            };
            alone.cloned().or_else(|| {
                (!ports.iter().all(is_meant_for_others)).then(|| {
                    "the cluster writes no hints for nodes into EndpointSlices (Kubernetes 1.34)"
                        .to_owned()
                })
            })
        }
        Kind::SourceHash => {
            let other = ports.iter().find(|port| port.scheduler != SCHEDULER)?;
            let (mode, scheduler) = (stage.mode, &other.scheduler);
            Some(format!(
                "in {mode} mode on this node its scheduler is {scheduler}"
            ))
        }
        _ => None,
    }
}

//! Test cases for external IPs and load-balancer IPs; pure.

use std::net::{IpAddr, SocketAddr};

use net::Protocol;

use super::{
    objects::{Kind, SERVICE_PORT, SINGLE},
    promise::{ClientPromise, Promise},
    stage::{Reach, Stage, TestService},
    tried::{Caller, ITSELF, Try, by_each, callers, every, pod, this_node},
};
use crate::config::ModeName;

/// Returns the test cases for `service` at `ip`, which is not an address of a node.
pub fn tries(stage: &Stage, service: &TestService, ip: IpAddr) -> Vec<Try> {
    let to = SocketAddr::new(ip, SERVICE_PORT);
    match service.kind {
        Kind::ExternalIp => {
            let promise = every(stage, service, ip, Reach::Cluster);
            by_each(service, to, &callers(stage), &promise)
        }
        Kind::LoadBalancer => of_balancer(stage, service, to),
        Kind::SourceRanges => guarded(stage, service, to),
        _ => Vec::new(),
    }
}

/// Returns calls of a load balancer. Its policy of Local applies to callers outside the cluster; in
/// ipvs mode one virtual server serves all callers.
fn of_balancer(stage: &Stage, service: &TestService, to: SocketAddr) -> Vec<Try> {
    let reach = match stage.mode {
        ModeName::Ipvs => Reach::Node,
        _ => Reach::Cluster,
    };
    let promise = every(stage, service, to.ip(), reach);
    let mut tries = by_each(service, to, &callers(stage), &promise);
    for tried in &mut tries {
        let keeps = tried.caller.agent.is_some() && stage.mode != ModeName::Userspace;
        tried.client = keeps.then(|| ClientPromise {
            addresses: tried.caller.of_family(to.ip()),
            may_be_masqueraded: false,
        });
    }
    tries
}

/// Returns calls of a load balancer with source ranges, which contain the addresses of the
/// pod that is no endpoint. Waiting in vain for an answer takes seconds, so for each protocol only
/// one of the excluded callers tries it.
fn guarded(stage: &Stage, service: &TestService, to: SocketAddr) -> Vec<Try> {
    let pods = callers(stage).into_iter();
    let let_in: Vec<Caller> = pods.filter(|caller| caller.agent.is_some()).collect();
    let promise = every(stage, service, to.ip(), Reach::Cluster);
    let mut tries = by_each(service, to, &let_in, &promise);
    let silent =
        |protocol, caller: &Caller| Try::new(service, (to, protocol), caller, Promise::Silent);
    tries.push(silent(Protocol::Tcp, &this_node()));
    let shut_out = pod(stage, SINGLE, ITSELF);
    tries.extend(shut_out.map(|caller| silent(Protocol::Udp, &caller)));
    tries
}

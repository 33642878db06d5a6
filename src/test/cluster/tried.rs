//! Test cases: the caller, the address, and the promise.

use std::net::{IpAddr, SocketAddr};

use net::Protocol;

use super::{
    super::{agent::Agent, many::Calls},
    objects::PROTOCOLS,
    promise::{ClientPromise, Promise},
    stage::{Reach, Stage, TestPod, TestService},
};

/// Number of simultaneous calls whose order does not matter.
const AT_ONCE: usize = 16;

/// Schedulers that give each endpoint a share of consecutive calls; others may choose one endpoint
/// for all calls of a caller.
const SPREADING: [&str; 3] = ["random", "rr", "wrr"];

/// Calls of one address by one caller.
#[derive(Clone, Debug)]
pub struct Try {
    /// The name of the check.
    pub name: String,
    /// The name of the Service that is called.
    pub service: String,
    /// Address and port that are called.
    pub to: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Whether it is a node port of this node, which `--nodeport-addresses` may leave out.
    pub at_node: bool,
    /// The caller.
    pub caller: Caller,
    /// The promise.
    pub promise: Promise,
    /// The promised client address that servers see; `None` if nothing is promised about it.
    pub client: Option<ClientPromise>,
    /// How many calls are made at once.
    pub at_once: usize,
    /// Whether the promise holds only for callers outside the cluster, and not for those
    /// that the running Tripod takes for pods.
    pub from_outside: bool,
}

/// This node, or a pod that makes calls for the tester.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The caller's description in the report.
    pub words: String,
    /// The pod; `None`: this node.
    pub agent: Option<Agent>,
    /// Its addresses, as servers may see them; empty for the node, whose addresses are unknown.
    pub ips: Vec<IpAddr>,
}

impl Caller {
    /// Returns its addresses of the IP family of `ip`.
    pub fn of_family(&self, ip: IpAddr) -> Vec<IpAddr> {
        let ips = self.ips.iter().copied();
        ips.filter(|own| own.is_ipv4() == ip.is_ipv4()).collect()
    }
}

impl Try {
    /// Makes a test case that calls a Service's address, without a promise about the client
    /// address.
    pub fn new(
        service: &TestService,
        (to, protocol): (SocketAddr, Protocol),
        caller: &Caller,
        promise: Promise,
    ) -> Try {
        Try {
            name: service.kind.check().to_owned(),
            service: service.name.clone(),
            to,
            protocol,
            at_node: false,
            caller: caller.clone(),
            promise,
            client: None,
            at_once: AT_ONCE,
            from_outside: false,
        }
    }

    /// Returns the calls that it makes.
    pub fn calls(&self) -> Calls {
        Calls {
            to: self.to,
            protocol: self.protocol,
            count: self.promise.calls(),
            at_once: self.at_once,
        }
    }
}

/// Returns calls of `to` by each of the callers, over each protocol.
pub fn by_each(
    service: &TestService,
    to: SocketAddr,
    callers: &[Caller],
    promise: &Promise,
) -> Vec<Try> {
    let each = callers.iter().flat_map(|caller| {
        PROTOCOLS.map(|protocol| Try::new(service, (to, protocol), caller, promise.clone()))
    });
    each.collect()
}

/// The description of the server that is on this node.
pub const ITSELF: &str = "its endpoint here-1";
/// The description of the pod on another node.
pub const ELSEWHERE: &str = "a pod of another node";

/// Returns this node as a caller.
pub fn this_node() -> Caller {
    Caller {
        words: "this node".to_owned(),
        agent: None,
        ips: Vec::new(),
    }
}

/// Returns a pod as a caller; `None` if there is none of that name.
pub fn pod(stage: &Stage, name: &str, words: &str) -> Option<Caller> {
    let pod = stage.pod(name)?;
    Some(Caller {
        words: words.to_owned(),
        agent: Some(stage.agent(pod)?),
        ips: pod.ips.clone(),
    })
}

/// Returns this node, and a pod on it that is no endpoint, as callers.
pub fn callers(stage: &Stage) -> Vec<Caller> {
    let client = pod(stage, "client", "a pod of this node");
    [Some(this_node()), client].into_iter().flatten().collect()
}

/// Finds the pod on another node as a caller; `None` if there is none. Its node may masquerade the
/// pod's packets to this one.
pub fn elsewhere(stage: &Stage) -> Option<Caller> {
    let is_elsewhere = |pod: &&TestPod| !stage.is_here(pod);
    let found = stage.pods.iter().find(is_elsewhere)?;
    let mut caller = pod(stage, found.plan.name, ELSEWHERE)?;
    caller.ips.extend(&found.host_ips);
    Some(caller)
}

/// Promises that each endpoint within `reach` is reached, if the scheduler spreads calls.
pub fn every(stage: &Stage, service: &TestService, ip: IpAddr, reach: Reach) -> Promise {
    let servers = stage.servers(service.kind, ip, reach);
    let spreads = SPREADING.contains(&&*service.scheduler) && !lacks(stage, BY_PORT);
    if spreads || servers.len() == 1 {
        Promise::Every(servers)
    } else {
        Promise::Only(servers)
    }
}

/// Promises that callers are refused, if this kernel can refuse.
pub fn refused(stage: &Stage) -> Promise {
    if lacks(stage, NO_REFUSAL) {
        Promise::RefusedOrSilent
    } else {
        Promise::Refused
    }
}

/// In the words of `modes::verdict`: the fate of callers that cannot be refused ...
pub const NO_REFUSAL: &str = "time out";

/// ... and the choice of endpoints if no random number can be drawn: a client uses consecutive
/// ports, so many calls may reach the same endpoint.
pub const BY_PORT: &str = "hash of the client's port";

/// Returns whether the mode lacks a feature, with this effect.
fn lacks(stage: &Stage, effect: &str) -> bool {
    let mode = format!("{} mode ", stage.mode);
    let mut lost = stage.lost.iter();
    lost.any(|line| line.starts_with(&mode) && line.contains(effect))
}

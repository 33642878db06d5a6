//! What is tried, by the mode that runs: the promises of `docs/conformance.md`; pure.

use std::net::{IpAddr, SocketAddr};

use super::{
    super::{agent::Agent, many::Calls},
    objects::{Kind, PROTOCOLS, SERVICE_PORT, SINGLE},
    promise::{ClientPromise, Promise},
    stage::{Reach, Stage, TestPod, TestService},
};
use crate::net::{ModeName, Protocol};

/// Calls at once, where order means nothing.
const AT_ONCE: usize = 16;

/// Schedulers that give each endpoint a share of calls that come one by one; others may
/// choose one endpoint for all of a caller's.
const SPREADING: [&str; 3] = ["random", "rr", "wrr"];

/// Calls of one address by one caller.
#[derive(Clone, Debug)]
pub struct Try {
    /// What is tried.
    pub name: String,
    /// The name of the Service that is called.
    pub service: String,
    /// Address, port and protocol.
    pub to: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Whether it is a port of this node, which `--nodeport-addresses` may leave out.
    pub at_node: bool,
    /// Where the calls come from.
    pub caller: Caller,
    /// What is promised.
    pub promise: Promise,
    /// What servers are promised to see.
    pub client: Option<ClientPromise>,
    /// How many calls are made at once.
    pub at_once: usize,
    /// Whether the promise holds for callers outside the cluster alone, and not for those
    /// that the running Tripod takes for pods.
    pub from_outside: bool,
}

/// This node, or a pod that makes calls for the tester.
#[derive(Clone, Debug)]
pub struct Caller {
    /// How rows of the report name it.
    pub words: String,
    /// The pod; `None`: this node.
    pub agent: Option<Agent>,
    /// Its addresses, as servers may see them; those of the node are not known.
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
    /// Returns the calls that it takes.
    pub fn calls(&self) -> Calls {
        Calls {
            to: self.to,
            protocol: self.protocol,
            count: self.promise.calls(),
            at_once: self.at_once,
        }
    }
}

/// Returns all that is tried while the endpoints stay as they are.
pub fn all(stage: &Stage) -> Vec<Try> {
    let mut tries = Vec::new();
    for service in &stage.services {
        for ip in &service.cluster_ips {
            tries.extend(of_cluster_ip(stage, service, *ip));
            if let Some(node) = stage.node_ip(*ip) {
                tries.extend(of_node_port(stage, service, node));
            }
        }
    }
    tries
}

/// Returns what is tried of a Service whose endpoint was taken away.
pub fn after_change(stage: &Stage) -> Vec<Try> {
    let service = stage.service(Kind::ClusterIp);
    let each = service.into_iter().flat_map(|service| {
        let ips = service.cluster_ips.iter();
        ips.flat_map(|ip| of_cluster_ip(stage, service, *ip))
    });
    let mut tries: Vec<Try> = each.collect();
    for tried in &mut tries {
        tried.client = None;
        tried.name = "an endpoint that left is called no more".to_owned();
    }
    tries
}

const ITSELF: &str = "its endpoint here-1";
const ELSEWHERE: &str = "a pod of another node";

fn this_node() -> Caller {
    Caller {
        words: "this node".to_owned(),
        agent: None,
        ips: Vec::new(),
    }
}

/// Returns a pod as a caller; `None`: there is none of that name.
fn pod(stage: &Stage, name: &str, words: &str) -> Option<Caller> {
    let pod = stage.pod(name)?;
    Some(Caller {
        words: words.to_owned(),
        agent: Some(stage.agent(pod)?),
        ips: pod.ips.clone(),
    })
}

fn callers(stage: &Stage) -> Vec<Caller> {
    let client = pod(stage, "client", "a pod of this node");
    [Some(this_node()), client].into_iter().flatten().collect()
}

fn of_cluster_ip(stage: &Stage, service: &TestService, ip: IpAddr) -> Vec<Try> {
    let to = SocketAddr::new(ip, SERVICE_PORT);
    let (name, promise) = match service.kind {
        Kind::ClusterIp => ("cluster IP", every(stage, service, ip, Reach::Cluster)),
        Kind::Affinity => {
            let servers = stage.servers(service.kind, ip, Reach::Cluster);
            ("session affinity", Promise::SameOne(servers))
        }
        Kind::InternalLocal => (
            "internalTrafficPolicy Local",
            every(stage, service, ip, Reach::Node),
        ),
        Kind::Empty => ("no endpoints", refused(stage)),
        Kind::Single => return hairpin(stage, service, to),
        Kind::NodePort | Kind::ExternalLocal => return Vec::new(),
    };
    let mut tries = Vec::new();
    for caller in callers(stage) {
        for protocol in PROTOCOLS {
            let is_node = caller.agent.is_none();
            // A program of this node gets EPERM from its own kernel where a rule
            // refuses its datagram, and not that it was refused.
            if service.kind == Kind::Empty && is_node && protocol == Protocol::Udp {
                continue;
            }
            let keeps = matches!(service.kind, Kind::ClusterIp | Kind::InternalLocal);
            let client =
                (keeps && !is_node && stage.mode != ModeName::Userspace).then(|| ClientPromise {
                    addresses: caller.of_family(ip),
                    may_be_masqueraded: true,
                });
            tries.push(Try {
                name: name.to_owned(),
                service: service.name.clone(),
                to,
                protocol,
                at_node: false,
                caller: caller.clone(),
                promise: promise.clone(),
                client,
                // The second call is to find what the first one left.
                at_once: if service.kind == Kind::Affinity {
                    1
                } else {
                    AT_ONCE
                },
                from_outside: false,
            });
        }
    }
    tries
}

/// Returns what is tried of the Service whose only endpoint calls itself by it.
fn hairpin(stage: &Stage, service: &TestService, to: SocketAddr) -> Vec<Try> {
    let caller = pod(stage, SINGLE, ITSELF);
    let each = caller.into_iter().flat_map(|caller| {
        PROTOCOLS.map(|protocol| Try {
            name: "hairpin".to_owned(),
            service: service.name.clone(),
            to,
            protocol,
            at_node: false,
            caller: caller.clone(),
            promise: Promise::Every(stage.servers(service.kind, to.ip(), Reach::Cluster)),
            client: None,
            at_once: AT_ONCE,
            from_outside: false,
        })
    });
    each.collect()
}

fn of_node_port(stage: &Stage, service: &TestService, node: IpAddr) -> Vec<Try> {
    let callers: Vec<Caller> = match service.kind {
        Kind::Single => elsewhere(stage).into_iter().collect(),
        Kind::ExternalLocal => callers(stage).into_iter().chain(elsewhere(stage)).collect(),
        _ => callers(stage),
    };
    let mut tries = Vec::new();
    for (protocol, port) in &service.node_ports {
        for caller in &callers {
            let is_pod = caller.agent.is_some();
            let is_userspace = stage.mode == ModeName::Userspace;
            let from_outside = service.kind == Kind::ExternalLocal && caller.words == ELSEWHERE;
            // IPVS: one virtual server serves all callers, as in kube-proxy.
            let is_local = from_outside || stage.mode == ModeName::Ipvs;
            let (name, reach) = match service.kind {
                Kind::NodePort => ("node port", Reach::Cluster),
                _ if is_local => ("externalTrafficPolicy Local", Reach::Node),
                _ => ("externalTrafficPolicy Local", Reach::Cluster),
            };
            let keeps = is_pod && !is_userspace && service.kind != Kind::NodePort;
            tries.push(Try {
                name: name.to_owned(),
                service: service.name.clone(),
                to: SocketAddr::new(node, *port),
                protocol: *protocol,
                at_node: true,
                caller: caller.clone(),
                promise: every(stage, service, node, reach),
                client: keeps.then(|| ClientPromise {
                    addresses: caller.of_family(node),
                    may_be_masqueraded: false,
                }),
                at_once: AT_ONCE,
                from_outside,
            });
        }
    }
    tries
}

/// Returns the pod of another node as a caller. Its node may masquerade what it sends to
/// this one.
fn elsewhere(stage: &Stage) -> Option<Caller> {
    let is_elsewhere = |pod: &&TestPod| !stage.is_here(pod);
    let found = stage.pods.iter().find(is_elsewhere)?;
    let mut caller = pod(stage, found.plan.name, ELSEWHERE)?;
    caller.ips.extend(&found.host_ips);
    Some(caller)
}

/// Returns that each endpoint is reached that `reach` has, as far as calls are spread.
fn every(stage: &Stage, service: &TestService, ip: IpAddr, reach: Reach) -> Promise {
    let servers = stage.servers(service.kind, ip, reach);
    let spreads = SPREADING.contains(&&*service.scheduler) && !lacks(stage, BY_PORT);
    if spreads || servers.len() == 1 {
        Promise::Every(servers)
    } else {
        Promise::Only(servers)
    }
}

/// Returns that callers are refused, as far as this kernel can refuse.
fn refused(stage: &Stage) -> Promise {
    if lacks(stage, NO_REFUSAL) {
        Promise::RefusedOrSilent
    } else {
        Promise::Refused
    }
}

/// In words of `modes::verdict`, what becomes of callers that cannot be refused ...
const NO_REFUSAL: &str = "time out";

/// ... and of calls for which no random number can be drawn: ports of a client follow one
/// another, so that many may lead to the same endpoint.
const BY_PORT: &str = "hash of the client's port";

/// Returns whether the mode goes without something that has this effect.
fn lacks(stage: &Stage, effect: &str) -> bool {
    let mode = format!("{} mode ", stage.mode);
    let mut lost = stage.lost.iter();
    lost.any(|line| line.starts_with(&mode) && line.contains(effect))
}

#[cfg(test)]
mod tests {
    use super::{super::objects::PodPlan, *};

    fn stage(mode: ModeName) -> Stage {
        let pods = [
            ("client", 9),
            (SINGLE, 11),
            ("here-2", 12),
            ("elsewhere-1", 13),
        ];
        let pods = pods.map(|(name, number)| {
            let node = if name == "elsewhere-1" { "b" } else { "a" };
            TestPod {
                plan: PodPlan {
                    name,
                    node: node.to_owned(),
                    serves: name != "client",
                },
                ips: vec![[10, 0, 0, number].into()],
                host_ips: vec![[192, 0, 2, number].into()],
            }
        });
        let services = Kind::ALL.map(|kind| TestService {
            kind,
            name: kind.name().to_owned(),
            cluster_ips: vec![[10, 96, 0, 1].into()],
            node_ports: match kind {
                Kind::ClusterIp | Kind::Affinity | Kind::InternalLocal | Kind::Empty => vec![],
                _ => vec![(Protocol::Tcp, 30_000)],
            },
            scheduler: "rr".to_owned(),
        });
        Stage {
            mode,
            lost: Vec::new(),
            node: "a".to_owned(),
            pods: pods.into(),
            services: services.into(),
            alone: None,
            token: "secret".to_owned(),
        }
    }

    fn promise(stage: &Stage, kind: Kind, caller: &str) -> Promise {
        let tries = all(stage);
        let mut tries = tries.iter();
        let found = tries.find(|of| of.service == kind.name() && of.caller.words == caller);
        found.unwrap().promise.clone()
    }

    const POD: &str = "a pod of this node";

    fn each<const COUNT: usize>(names: [&str; COUNT]) -> Promise {
        Promise::Every(names.map(str::to_owned).into())
    }

    #[test]
    fn what_an_external_policy_of_local_promises_depends_on_the_mode() {
        let all = each([SINGLE, "here-2", "elsewhere-1"]);
        let here = each([SINGLE, "here-2"]);
        for (mode, promised) in [
            (ModeName::Ipvs, &here),
            (ModeName::Nftables, &all),
            (ModeName::Iptables, &all),
            (ModeName::Userspace, &all),
        ] {
            let stage = stage(mode);
            for caller in ["this node", POD] {
                assert_eq!(
                    promise(&stage, Kind::ExternalLocal, caller),
                    *promised,
                    "{mode}"
                );
            }
            assert_eq!(promise(&stage, Kind::ExternalLocal, ELSEWHERE), here);
            assert_eq!(promise(&stage, Kind::InternalLocal, POD), here);
            assert_eq!(promise(&stage, Kind::ClusterIp, POD), all);
        }
    }

    #[test]
    fn in_userspace_mode_no_client_address_is_promised() {
        for mode in ModeName::ALL {
            let promised = all(&stage(mode)).iter().any(|of| of.client.is_some());
            assert_eq!(promised, mode != ModeName::Userspace, "{mode}");
        }
    }

    #[test]
    fn what_the_mode_goes_without_is_not_promised() {
        let mut stage = stage(ModeName::Nftables);
        stage.lost = vec![format!("iptables mode goes without x: {NO_REFUSAL}")];
        assert_eq!(promise(&stage, Kind::Empty, POD), Promise::Refused);
        stage.lost = vec![
            format!("nftables mode goes without x: {NO_REFUSAL}"),
            format!("nftables mode goes without y: {BY_PORT}"),
        ];
        assert_eq!(promise(&stage, Kind::Empty, POD), Promise::RefusedOrSilent);
        let promised = promise(&stage, Kind::ClusterIp, POD);
        assert!(matches!(promised, Promise::Only(_)), "{promised:?}");
    }

    #[test]
    fn an_endpoint_that_left_is_not_promised() {
        let mut stage = stage(ModeName::Ipvs);
        stage.pods[2].plan.serves = false;
        let tries = after_change(&stage);
        assert!(!tries.is_empty());
        for tried in tries {
            assert_eq!(tried.promise, each([SINGLE, "elsewhere-1"]));
        }
    }
}

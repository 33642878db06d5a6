//! Test cases for the running mode, from the promises of `docs/conformance.md`; pure.

use std::net::{IpAddr, SocketAddr};

use net::Protocol;

use super::{
    external,
    objects::{Kind, SERVICE_PORT, SINGLE},
    preferences,
    promise::{ClientPromise, Promise},
    stage::{Reach, Stage, TestService},
    tried::{Caller, ELSEWHERE, ITSELF, Try, by_each, callers, elsewhere, every, pod, refused},
};
use crate::config::ModeName;

/// Returns all test cases for the time while the endpoints do not change.
pub fn all(stage: &Stage) -> Vec<Try> {
    let mut tries = Vec::new();
    for service in &stage.services {
        for ip in &service.cluster_ips {
            tries.extend(of_cluster_ip(stage, service, *ip));
            tries.extend(preferences::tries(stage, service, *ip));
            tries.extend(preferences::at_localhost(stage, service, *ip));
            if let Some(node) = stage.node_ip(*ip) {
                tries.extend(of_node_port(stage, service, node));
            }
        }
        for ip in &service.external {
            tries.extend(external::tries(stage, service, *ip));
        }
    }
    tries
}

/// Returns the test cases for a Service whose endpoint was removed.
pub fn after_change(stage: &Stage) -> Vec<Try> {
    let service = stage.service(Kind::ClusterIp);
    let each = service.into_iter().flat_map(|service| {
        let ips = service.cluster_ips.iter();
        ips.flat_map(|ip| of_cluster_ip(stage, service, *ip))
    });
    let mut tries: Vec<Try> = each.collect();
    for tried in &mut tries {
        tried.client = None;
        tried.name = "a removed endpoint is not called any more".to_owned();
    }
    tries
}

fn of_cluster_ip(stage: &Stage, service: &TestService, ip: IpAddr) -> Vec<Try> {
    let to = SocketAddr::new(ip, SERVICE_PORT);
    let promise = match service.kind {
        Kind::ClusterIp => every(stage, service, ip, Reach::Cluster),
        Kind::Affinity => Promise::SameOne(stage.servers(service.kind, ip, Reach::Cluster)),
        Kind::InternalLocal => every(stage, service, ip, Reach::Node),
        Kind::Empty => refused(stage),
        Kind::Single => {
            // The only endpoint calls itself through the Service.
            let caller = pod(stage, SINGLE, ITSELF);
            let servers = stage.servers(service.kind, ip, Reach::Cluster);
            return by_each(service, to, caller.as_slice(), &Promise::Every(servers));
        }
        Kind::NodePort
        | Kind::ExternalLocal
        | Kind::ExternalIp
        | Kind::LoadBalancer
        | Kind::SourceRanges
        | Kind::SameNode
        | Kind::SourceHash => return Vec::new(),
    };
    let mut tries = by_each(service, to, &callers(stage), &promise);
    // A program on this node gets EPERM from its own kernel if a rule refuses its datagram, and does
    // not learn that it was refused.
    tries.retain(|tried| {
        let is_pod = tried.caller.agent.is_some();
        service.kind != Kind::Empty || is_pod || tried.protocol != Protocol::Udp
    });
    for tried in &mut tries {
        let keeps = matches!(service.kind, Kind::ClusterIp | Kind::InternalLocal)
            && tried.caller.agent.is_some()
            && stage.mode != ModeName::Userspace;
        tried.client = keeps.then(|| ClientPromise {
            addresses: tried.caller.of_family(ip),
            may_be_masqueraded: true,
        });
        if service.kind == Kind::Affinity {
            // The second call must find the state that the first one left.
            tried.at_once = 1;
        }
    }
    tries
}

fn of_node_port(stage: &Stage, service: &TestService, node: IpAddr) -> Vec<Try> {
    let callers: Vec<Caller> = match service.kind {
        Kind::Single => elsewhere(stage).into_iter().collect(),
        Kind::ExternalLocal => callers(stage).into_iter().chain(elsewhere(stage)).collect(),
        _ => callers(stage),
    };
    let name = match service.kind {
        Kind::Single => Kind::ExternalLocal.check(),
        kind => kind.check(),
    };
    let mut tries = Vec::new();
    for (protocol, port) in &service.node_ports {
        for caller in &callers {
            let is_pod = caller.agent.is_some();
            let is_userspace = stage.mode == ModeName::Userspace;
            let from_outside = service.kind == Kind::ExternalLocal && caller.words == ELSEWHERE;
            // IPVS: one virtual server serves all callers, as in kube-proxy.
            let is_local = from_outside || stage.mode == ModeName::Ipvs;
            let reach = match is_local && service.kind != Kind::NodePort {
                true => Reach::Node,
                false => Reach::Cluster,
            };
            let keeps = is_pod && !is_userspace && service.kind != Kind::NodePort;
            let to = (SocketAddr::new(node, *port), *protocol);
            let promise = every(stage, service, node, reach);
            tries.push(Try {
                at_node: true,
                client: keeps.then(|| ClientPromise {
                    addresses: caller.of_family(node),
                    may_be_masqueraded: false,
                }),
                from_outside,
                name: name.to_owned(),
                ..Try::new(service, to, caller, promise)
            });
        }
    }
    tries
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            objects::PodPlan,
            stage::TestPod,
            tried::{BY_PORT, NO_REFUSAL},
        },
        *,
    };

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
                Kind::NodePort | Kind::ExternalLocal | Kind::Single => {
                    vec![(Protocol::Tcp, 30_000)]
                }
                _ => vec![],
            },
            external: match kind {
                Kind::ExternalIp | Kind::LoadBalancer | Kind::SourceRanges => {
                    vec![[203, 0, 113, 1].into()]
                }
                _ => vec![],
            },
            health_check: None,
            scheduler: "rr".to_owned(),
        });
        Stage {
            mode,
            lost: Vec::new(),
            node: "a".to_owned(),
            pods: pods.into(),
            services: services.into(),
            alone: None,
            not_made: Vec::new(),
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
            for caller in ["this node", POD] {
                assert_eq!(
                    promise(&stage, Kind::LoadBalancer, caller),
                    *promised,
                    "{mode}"
                );
                assert_eq!(promise(&stage, Kind::ExternalIp, caller), all, "{mode}");
            }
            assert_eq!(promise(&stage, Kind::InternalLocal, POD), here);
            assert_eq!(promise(&stage, Kind::ClusterIp, POD), all);
        }
    }

    #[test]
    fn what_services_prefer_is_promised_of_each_caller() {
        for mode in ModeName::ALL {
            let stage = stage(mode);
            for caller in ["this node", POD] {
                let here = each([SINGLE, "here-2"]);
                assert_eq!(promise(&stage, Kind::SameNode, caller), here, "{mode}");
                let one =
                    Promise::SameOne([SINGLE, "here-2", "elsewhere-1"].map(str::to_owned).into());
                assert_eq!(promise(&stage, Kind::SourceHash, caller), one, "{mode}");
            }
            let tries = all(&stage);
            let at_localhost: Vec<_> = tries.iter().filter(|of| of.to.ip().is_loopback()).collect();
            assert_eq!(at_localhost.len(), 1, "{mode}");
            assert!(at_localhost[0].at_node && at_localhost[0].caller.agent.is_none());
        }
    }

    #[test]
    fn source_ranges_let_in_the_pod_that_they_name_alone() {
        for mode in ModeName::ALL {
            let stage = stage(mode);
            let all = each([SINGLE, "here-2", "elsewhere-1"]);
            assert_eq!(promise(&stage, Kind::SourceRanges, POD), all, "{mode}");
            for caller in ["this node", ITSELF] {
                let promised = promise(&stage, Kind::SourceRanges, caller);
                assert_eq!(promised, Promise::Silent, "{mode}: {caller}");
            }
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
        stage.lost = vec![format!("iptables mode runs without x: {NO_REFUSAL}")];
        assert_eq!(promise(&stage, Kind::Empty, POD), Promise::Refused);
        stage.lost = vec![
            format!("nftables mode runs without x: {NO_REFUSAL}"),
            format!("nftables mode runs without y: {BY_PORT}"),
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

//! The objects that a test creates: a namespace, pods and Services.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, Namespace, Pod, PodSecurityContext, PodSpec, Probe,
        ResourceRequirements, SeccompProfile, SecurityContext, Service, ServicePort, ServiceSpec,
        TCPSocketAction, Toleration,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::ObjectMeta, util::intstr::IntOrString,
    },
};
use net::Protocol;

use super::networks::External;

/// Port of the servers, over TCP and UDP.
pub const PORT: u16 = 8080;

/// Port of the agents, which make calls.
pub const AGENT_PORT: u16 = 8081;

/// Port of the Services.
pub const SERVICE_PORT: u16 = 80;

/// Maximum lifetime of pods, in seconds, if nobody deletes them: the tester may be killed.
const LIFETIME: i64 = 1800;

/// User and group of the pods, which must be given in case the image names none: `nobody` on most
/// systems.
const NOBODY: i64 = 65534;

/// The value of `app.kubernetes.io/name` of all created objects.
const APP: &str = "tripod-test";

/// The label by which Services select a pod.
pub const ROLE: &str = "tripod-test-role";

/// The label with the name in a pod's answers.
const NAME: &str = "tripod-test-pod";

/// The value of [`ROLE`] of endpoints.
const SERVER: &str = "server";

/// The value of [`ROLE`] of a pod that no Service selects.
pub const NO_ROLE: &str = "none";

/// One run of a test: the namespace of its objects, and their distinction from others.
#[derive(Clone, Debug)]
pub struct Run {
    /// Distinguishes the names of this run from those of others.
    pub id: String,
    /// The namespace of pods and Services.
    pub namespace: String,
    /// Whether this run creates and removes the namespace.
    pub is_own: bool,
    /// The image of the pods.
    pub image: String,
    /// SHA-256 of the token of this run, in hexadecimal digits.
    pub token_sha256: String,
    /// Whether the objects are kept when the run ends.
    pub keep: bool,
    /// The addresses of Services that have external ones.
    pub external: External,
}

/// A pod of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlan {
    /// The name in its answers.
    pub name: &'static str,
    /// The node on which it runs.
    pub node: String,
    /// Whether it is an endpoint of the Services.
    pub serves: bool,
}

/// The purpose of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A cluster IP.
    ClusterIp,
    /// A node port.
    NodePort,
    /// A cluster IP with `sessionAffinity: ClientIP`.
    Affinity,
    /// A node port with `externalTrafficPolicy: Local`.
    ExternalLocal,
    /// A cluster IP with `internalTrafficPolicy: Local`.
    InternalLocal,
    /// One endpoint, on this node, and `externalTrafficPolicy: Local`.
    Single,
    /// A Service whose selector selects no pod.
    Empty,
    /// An external IP, listed in `externalIPs`.
    ExternalIp,
    /// A load balancer, and `externalTrafficPolicy: Local`.
    LoadBalancer,
    /// A load balancer for one of the pods only: `loadBalancerSourceRanges`.
    SourceRanges,
    /// `trafficDistribution: PreferSameNode`.
    SameNode,
    /// The scheduler `sh`, by annotation.
    SourceHash,
}

impl Kind {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Kind; 12] = [
        Kind::ClusterIp,
        Kind::Single,
        Kind::NodePort,
        Kind::ExternalLocal,
        Kind::InternalLocal,
        Kind::Affinity,
        Kind::SameNode,
        Kind::SourceHash,
        Kind::Empty,
        Kind::ExternalIp,
        Kind::LoadBalancer,
        Kind::SourceRanges,
    ];

    /// The name of its Service.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ClusterIp => "cluster-ip",
            Kind::NodePort => "node-port",
            Kind::Affinity => "affinity",
            Kind::ExternalLocal => "external-local",
            Kind::InternalLocal => "internal-local",
            Kind::Single => "single",
            Kind::Empty => "no-endpoints",
            Kind::ExternalIp => "external-ip",
            Kind::LoadBalancer => "load-balancer",
            Kind::SourceRanges => "source-ranges",
            Kind::SameNode => "same-node",
            Kind::SourceHash => "source-hash",
        }
    }

    fn has_node_port(self) -> bool {
        matches!(self, Kind::NodePort | Kind::ExternalLocal | Kind::Single)
    }

    /// Returns whether its Service is of type LoadBalancer.
    pub fn is_balancer(self) -> bool {
        matches!(self, Kind::LoadBalancer | Kind::SourceRanges)
    }

    /// Returns whether its Service has addresses from outside the cluster's networks.
    /// Clusters may refuse such Services: admission plugins, quotas.
    pub fn is_external(self) -> bool {
        self.place().is_some()
    }

    /// Returns whether clusters may refuse its Service, for example because the API server does not
    /// know a field.
    pub fn may_be_refused(self) -> bool {
        self.is_external() || self == Kind::SameNode
    }

    /// The index of its Service's address among those of a run, if it has one.
    fn place(self) -> Option<usize> {
        match self {
            Kind::ExternalIp => Some(0),
            Kind::LoadBalancer => Some(1),
            Kind::SourceRanges => Some(2),
            _ => None,
        }
    }

    /// Returns whether a server of that name is one of its endpoints.
    pub fn has(self, server: &str) -> bool {
        match self {
            Kind::Single => server == SINGLE,
            Kind::Empty => false,
            _ => true,
        }
    }
}

/// The pod that makes calls and is not an endpoint.
pub const CLIENT: &str = "client";

/// The scheduler that [`Kind::SourceHash`] requests.
pub const SCHEDULER: &str = "sh";

/// The only endpoint of [`Kind::Single`].
pub const SINGLE: &str = "here-1";

/// Protocols of every Service, each with a port that has its name in lower case.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

impl Run {
    /// The name of an object in the namespace.
    pub fn named(&self, name: &str) -> String {
        if self.is_own {
            name.to_owned()
        } else {
            format!("{APP}-{}-{name}", self.id)
        }
    }

    /// Returns the label selector for the pods of this run.
    pub fn selector(&self) -> String {
        format!("app.kubernetes.io/instance={}", self.id)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        labels([
            ("app.kubernetes.io/name", APP),
            ("app.kubernetes.io/instance", &self.id),
        ])
    }

    /// Builds the namespace that the run creates.
    pub fn namespace(&self) -> Namespace {
        let mut labels = self.labels();
        // Pod Security admission refuses pods that do not meet that standard.
        let key = "pod-security.kubernetes.io/enforce".to_owned();
        labels.insert(key, "restricted".to_owned());
        Namespace {
            metadata: ObjectMeta {
                name: Some(self.namespace.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    }

    /// Builds a pod.
    pub fn pod(&self, plan: &PodPlan) -> Pod {
        let mut labels = self.labels();
        let role = if plan.serves { SERVER } else { NO_ROLE };
        labels.insert(ROLE.to_owned(), role.to_owned());
        labels.insert(NAME.to_owned(), plan.name.to_owned());
        Pod {
            metadata: ObjectMeta {
                name: Some(self.named(plan.name)),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![self.container(plan)],
                // Not left to the scheduler: the test is about this node.
                node_name: Some(plan.node.clone()),
                tolerations: Some(vec![Toleration {
                    operator: Some("Exists".to_owned()),
                    ..Toleration::default()
                }]),
                active_deadline_seconds: (!self.keep).then_some(LIFETIME),
                automount_service_account_token: Some(false),
                enable_service_links: Some(false),
                restart_policy: Some("Never".to_owned()),
                termination_grace_period_seconds: Some(1),
                security_context: Some(PodSecurityContext {
                    run_as_non_root: Some(true),
                    run_as_user: Some(NOBODY),
                    run_as_group: Some(NOBODY),
                    seccomp_profile: Some(SeccompProfile {
                        type_: "RuntimeDefault".to_owned(),
                        ..SeccompProfile::default()
                    }),
                    ..PodSecurityContext::default()
                }),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn container(&self, plan: &PodPlan) -> Container {
        let command = [
            "/usr/local/bin/tripod".to_owned(),
            "test-server".to_owned(),
            format!("--name={}", plan.name),
            format!("--port={PORT}"),
            format!("--agent-port={AGENT_PORT}"),
            format!("--token-sha256={}", self.token_sha256),
        ];
        let port = |number: u16, protocol: Protocol| ContainerPort {
            container_port: i32::from(number),
            protocol: Some(protocol.name().to_owned()),
            ..ContainerPort::default()
        };
        let quantities = |of: [(&str, &str); 2]| {
            let each = of.into_iter();
            let each = each.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
            each.collect::<BTreeMap<_, _>>()
        };
        Container {
            name: "server".to_owned(),
            image: Some(self.image.clone()),
            command: Some(command.into()),
            ports: Some(vec![
                port(PORT, Protocol::Tcp),
                port(PORT, Protocol::Udp),
                port(AGENT_PORT, Protocol::Tcp),
            ]),
            readiness_probe: Some(Probe {
                tcp_socket: Some(TCPSocketAction {
                    port: IntOrString::Int(i32::from(PORT)),
                    ..TCPSocketAction::default()
                }),
                period_seconds: Some(1),
                ..Probe::default()
            }),
            resources: Some(ResourceRequirements {
                requests: Some(quantities([("cpu", "10m"), ("memory", "16Mi")])),
                limits: Some(quantities([("cpu", "500m"), ("memory", "64Mi")])),
                ..ResourceRequirements::default()
            }),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                read_only_root_filesystem: Some(true),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".to_owned()]),
                    ..Capabilities::default()
                }),
                ..SecurityContext::default()
            }),
            ..Container::default()
        }
    }

    /// The addresses of a Service from outside the cluster's networks.
    pub fn external_addresses(&self, kind: Kind) -> Vec<IpAddr> {
        let place = kind.place();
        place.map_or_else(Vec::new, |place| self.external.addresses(place))
    }

    /// Builds a Service, of both IP families if the cluster has both, with source ranges for the
    /// addresses in `let_in`.
    pub fn service(&self, kind: Kind, let_in: &[IpAddr]) -> Service {
        let local = || Some("Local".to_owned());
        let of_run = ("app.kubernetes.io/instance", &*self.id);
        let selector = match kind {
            Kind::Single => labels([of_run, (NAME, SINGLE)]),
            Kind::Empty => labels([of_run, (ROLE, "nobody")]),
            _ => labels([of_run, (ROLE, SERVER)]),
        };
        let is_local = matches!(
            kind,
            Kind::ExternalLocal | Kind::Single | Kind::LoadBalancer
        );
        let port = |protocol: Protocol| ServicePort {
            name: Some(protocol.name().to_lowercase()),
            protocol: Some(protocol.name().to_owned()),
            port: i32::from(SERVICE_PORT),
            target_port: Some(IntOrString::Int(i32::from(PORT))),
            ..ServicePort::default()
        };
        let type_ = match kind {
            kind if kind.has_node_port() => "NodePort",
            kind if kind.is_balancer() => "LoadBalancer",
            _ => "ClusterIP",
        };
        let is_balancer = kind.is_balancer();
        let ranges = || let_in.iter().map(|ip| IpNet::from(*ip).to_string());
        let external = || self.external_addresses(kind).into_iter();
        Service {
            metadata: ObjectMeta {
                name: Some(self.named(kind.name())),
                labels: Some(self.labels()),
                annotations: (kind == Kind::SourceHash)
                    .then(|| labels([("tripod.proxy/scheduler", SCHEDULER)])),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some(type_.to_owned()),
                selector: Some(selector),
                ports: Some(PROTOCOLS.map(port).into()),
                ip_family_policy: Some("PreferDualStack".to_owned()),
                external_traffic_policy: is_local.then(local).flatten(),
                internal_traffic_policy: (kind == Kind::InternalLocal).then(local).flatten(),
                external_ips: (kind == Kind::ExternalIp)
                    .then(|| external().map(|ip| ip.to_string()).collect()),
                // A class that no controller serves: the test assigns the addresses itself.
                load_balancer_class: is_balancer.then(|| APP.to_owned()),
                allocate_load_balancer_node_ports: is_balancer.then_some(false),
                load_balancer_source_ranges: (kind == Kind::SourceRanges)
                    .then(|| ranges().collect()),
                traffic_distribution: (kind == Kind::SameNode).then(|| "PreferSameNode".to_owned()),
                session_affinity: (kind == Kind::Affinity).then(|| "ClientIP".to_owned()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }
}

fn labels<const LABELS: usize>(labels: [(&str, &str); LABELS]) -> BTreeMap<String, String> {
    let labels = labels.into_iter();
    labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::cli::{self, Job, TestServer};

    fn run() -> Run {
        Run {
            id: "0123abcd".to_owned(),
            namespace: "n".to_owned(),
            is_own: true,
            image: "tripod:test".to_owned(),
            token_sha256: "ff".to_owned(),
            keep: false,
            external: External::choose(&["203.0.113.0/24".parse().unwrap()], 0, &BTreeSet::new()),
        }
    }

    fn plan() -> PodPlan {
        PodPlan {
            name: SINGLE,
            node: "node-1".to_owned(),
            serves: true,
        }
    }

    #[test]
    fn the_pods_command_is_understood() {
        let pod = run().pod(&plan());
        let command = pod.spec.unwrap().containers.remove(0).command.unwrap();
        let words = command.into_iter().map(Into::into);
        let settings = cli::read(words, |_| unreachable!("no file")).unwrap();
        let expected = TestServer {
            name: SINGLE.to_owned(),
            port: PORT,
            agent_port: AGENT_PORT,
            token_sha256: "ff".to_owned(),
        };
        assert_eq!(settings.job, Job::TestServer(expected));
    }

    /// Checks the requirements of `k8s.io/pod-security-admission` for pods under `restricted`.
    #[test]
    fn pods_are_within_the_restricted_standard() {
        let pod = serde_json::to_value(run().pod(&plan())).unwrap();
        let spec = &pod["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        let profile = &spec["securityContext"]["seccompProfile"];
        assert_eq!(profile["type"], "RuntimeDefault");
        let container = &spec["containers"][0]["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(spec["automountServiceAccountToken"], false);
        for absent in ["hostNetwork", "hostPID", "hostIPC", "volumes"] {
            assert!(spec[absent].is_null(), "{absent}");
        }
    }

    #[test]
    fn in_a_given_namespace_names_are_the_runs_own() {
        let given = Run {
            is_own: false,
            ..run()
        };
        let name = |run: Run| run.service(Kind::Empty, &[]).metadata.name;
        assert_eq!(name(run()).as_deref(), Some("no-endpoints"));
        let expected = Some("tripod-test-0123abcd-no-endpoints");
        assert_eq!(name(given).as_deref(), expected);
    }

    #[test]
    fn load_balancers_are_left_alone_by_controllers_and_have_no_node_ports() {
        let ip = "10.244.0.9".parse().unwrap();
        for kind in Kind::ALL {
            let spec = run().service(kind, &[ip]).spec.unwrap();
            let is_balancer = spec.type_.as_deref() == Some("LoadBalancer");
            assert_eq!(is_balancer, kind.is_balancer(), "{kind:?}");
            assert_eq!(spec.load_balancer_class.is_some(), is_balancer, "{kind:?}");
            let given = spec.allocate_load_balancer_node_ports;
            assert_eq!(given, is_balancer.then_some(false), "{kind:?}");
            let ranges = (kind == Kind::SourceRanges).then(|| vec!["10.244.0.9/32".to_owned()]);
            assert_eq!(spec.load_balancer_source_ranges, ranges, "{kind:?}");
            let ips = (kind == Kind::ExternalIp).then(|| vec!["203.0.113.1".to_owned()]);
            assert_eq!(spec.external_ips, ips, "{kind:?}");
        }
    }
}

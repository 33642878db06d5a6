//! The objects that a test creates: a namespace, pods and Services.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use net::Protocol;
use serde_json::{Value, json};

use super::{super::agent, networks::External};

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
    /// The token that entitles to calls by the agents.
    pub token: String,
    /// The unix socket of the running Tripod.
    pub socket: PathBuf,
    /// Time limit for each step of the setup.
    pub timeout: Duration,
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

    /// The names of its Service and of its check.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::ClusterIp => ("cluster-ip", "cluster IP"),
            Kind::NodePort => ("node-port", "node port"),
            Kind::Affinity => ("affinity", "session affinity"),
            Kind::ExternalLocal => ("external-local", "externalTrafficPolicy Local"),
            Kind::InternalLocal => ("internal-local", "internalTrafficPolicy Local"),
            Kind::Single => ("single", "hairpin"),
            Kind::Empty => ("no-endpoints", "no endpoints"),
            Kind::ExternalIp => ("external-ip", "external IP"),
            Kind::LoadBalancer => ("load-balancer", "load-balancer IP"),
            Kind::SourceRanges => ("source-ranges", "loadBalancerSourceRanges"),
            Kind::SameNode => ("same-node", "trafficDistribution PreferSameNode"),
            Kind::SourceHash => ("source-hash", "scheduler sh"),
        }
    }

    /// The name of its Service.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// The name of the check of calls to its Service.
    pub fn check(self) -> &'static str {
        self.names().1
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

    fn labels(&self) -> Value {
        json!({"app.kubernetes.io/name": APP, "app.kubernetes.io/instance": self.id})
    }

    /// Builds the namespace that the run creates.
    pub fn namespace(&self) -> Value {
        let mut labels = self.labels();
        // Pod Security admission refuses pods that do not meet that standard.
        labels["pod-security.kubernetes.io/enforce"] = "restricted".into();
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": labels},
        })
    }

    /// Builds a pod.
    pub fn pod(&self, plan: &PodPlan) -> Value {
        let mut labels = self.labels();
        labels[ROLE] = if plan.serves { SERVER } else { NO_ROLE }.into();
        labels[NAME] = plan.name.into();
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.named(plan.name), "labels": labels},
            "spec": {
                "containers": [self.container(plan)],
                // Not left to the scheduler: the test is about this node.
                "nodeName": plan.node,
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": NOBODY,
                    "runAsGroup": NOBODY,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        });
        if !self.keep {
            pod["spec"]["activeDeadlineSeconds"] = LIFETIME.into();
        }
        pod
    }

    fn container(&self, plan: &PodPlan) -> Value {
        json!({
            "name": "server",
            "image": self.image,
            "command": [
                "/usr/local/bin/tripod",
                "test-server",
                format!("--name={}", plan.name),
                format!("--port={PORT}"),
                format!("--agent-port={AGENT_PORT}"),
                format!("--token-sha256={}", agent::digest(&self.token)),
            ],
            "ports": [
                {"containerPort": PORT, "protocol": "TCP"},
                {"containerPort": PORT, "protocol": "UDP"},
                {"containerPort": AGENT_PORT, "protocol": "TCP"},
            ],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {"cpu": "500m", "memory": "64Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
        })
    }

    /// The addresses of a Service from outside the cluster's networks.
    pub fn external_addresses(&self, kind: Kind) -> Vec<IpAddr> {
        let place = kind.place();
        place.map_or_else(Vec::new, |place| self.external.addresses(place))
    }

    /// Builds a Service, of both IP families if the cluster has both, with source ranges for the
    /// addresses in `let_in`.
    pub fn service(&self, kind: Kind, let_in: &[IpAddr]) -> Value {
        let (label, value) = match kind {
            Kind::Single => (NAME, SINGLE),
            Kind::Empty => (ROLE, "nobody"),
            _ => (ROLE, SERVER),
        };
        let type_ = match kind {
            kind if kind.has_node_port() => "NodePort",
            kind if kind.is_balancer() => "LoadBalancer",
            _ => "ClusterIP",
        };
        let port = |protocol: Protocol| {
            json!({
                "name": protocol.name().to_lowercase(),
                "protocol": protocol.name(),
                "port": SERVICE_PORT,
                "targetPort": PORT,
            })
        };
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.named(kind.name()), "labels": self.labels()},
            "spec": {
                "type": type_,
                "selector": {"app.kubernetes.io/instance": self.id, label: value},
                "ports": PROTOCOLS.map(port),
                "ipFamilyPolicy": "PreferDualStack",
            },
        });
        let spec = &mut service["spec"];
        if matches!(
            kind,
            Kind::ExternalLocal | Kind::Single | Kind::LoadBalancer
        ) {
            spec["externalTrafficPolicy"] = "Local".into();
        }
        if kind.is_balancer() {
            // A class that no controller serves: the test assigns the addresses itself.
            spec["loadBalancerClass"] = APP.into();
            spec["allocateLoadBalancerNodePorts"] = false.into();
        }
        match kind {
            Kind::InternalLocal => spec["internalTrafficPolicy"] = "Local".into(),
            Kind::ExternalIp => spec["externalIPs"] = json!(self.external_addresses(kind)),
            Kind::SourceRanges => {
                let ranges = let_in.iter().map(|ip| IpNet::from(*ip).to_string());
                spec["loadBalancerSourceRanges"] = ranges.collect();
            }
            Kind::SameNode => spec["trafficDistribution"] = "PreferSameNode".into(),
            Kind::Affinity => spec["sessionAffinity"] = "ClientIP".into(),
            Kind::SourceHash => {
                let annotations = json!({"tripod.proxy/scheduler": SCHEDULER});
                service["metadata"]["annotations"] = annotations;
            }
            _ => {}
        }
        service
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1::{Pod, Service};

    use super::*;
    use crate::cli::{self, Job, TestServer};

    fn run() -> Run {
        Run {
            id: "0123abcd".to_owned(),
            namespace: "n".to_owned(),
            is_own: true,
            image: "tripod:test".to_owned(),
            token: "secret".to_owned(),
            socket: PathBuf::new(),
            timeout: Duration::ZERO,
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
        let pod: Pod = serde_json::from_value(run().pod(&plan())).unwrap();
        let command = pod.spec.unwrap().containers.remove(0).command.unwrap();
        let words = command.into_iter().map(Into::into);
        let settings = cli::read(words, |_| unreachable!("no file")).unwrap();
        let expected = TestServer {
            name: SINGLE.to_owned(),
            port: PORT,
            agent_port: AGENT_PORT,
            token_sha256: agent::digest("secret"),
        };
        assert_eq!(settings.job, Job::TestServer(expected));
    }

    /// Checks the requirements of `k8s.io/pod-security-admission` for pods under `restricted`.
    #[test]
    fn pods_are_within_the_restricted_standard() {
        let pod = run().pod(&plan());
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
        let name = |run: Run| run.service(Kind::Empty, &[])["metadata"]["name"].clone();
        assert_eq!(name(run()), "no-endpoints");
        assert_eq!(name(given), "tripod-test-0123abcd-no-endpoints");
    }

    #[test]
    fn load_balancers_are_left_alone_by_controllers_and_have_no_node_ports() {
        let ip = "10.244.0.9".parse().unwrap();
        for kind in Kind::ALL {
            let service: Service = serde_json::from_value(run().service(kind, &[ip])).unwrap();
            let spec = service.spec.unwrap();
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

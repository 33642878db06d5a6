//! The objects that a test created, once they are ready.

use std::net::{IpAddr, SocketAddr};

use net::Protocol;
use serde_json::Value;

use super::{
    super::agent::Agent,
    objects::{AGENT_PORT, Kind, PodPlan},
    promise::Servers,
};
use crate::{config::ModeName, status_api::ServicePort};

/// Pods and Services that can be called.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The mode that runs.
    pub mode: ModeName,
    /// Features that the mode lacks on this kernel.
    pub lost: Vec<String>,
    /// The name of this node.
    pub node: String,
    /// The pods that were created and are ready, including one that was removed from the Services.
    pub pods: Vec<TestPod>,
    /// The Services that were created, one for each kind.
    pub services: Vec<TestService>,
    /// Why there is no pod on another node; `None` if there is one.
    pub alone: Option<String>,
    /// Services that a cluster may refuse or a mode may not support and that are missing or
    /// skipped, each with the reason.
    pub not_made: Vec<(Kind, String)>,
    /// The token of this run.
    pub token: String,
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct TestPod {
    /// The request.
    pub plan: PodPlan,
    /// Its addresses, of each IP family of the cluster.
    pub ips: Vec<IpAddr>,
    /// Addresses of its node.
    pub host_ips: Vec<IpAddr>,
}

/// A Service, with its assigned addresses.
#[derive(Clone, Debug)]
pub struct TestService {
    /// Its purpose.
    pub kind: Kind,
    /// Its name in the namespace of the run.
    pub name: String,
    /// Its cluster IPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its node ports, one for each protocol.
    pub node_ports: Vec<(Protocol, u16)>,
    /// Its external IPs or load-balancer IPs, of the IP families that it has.
    pub external: Vec<IpAddr>,
    /// Health-check node port, at which nodes tell whether they have endpoints of the Service;
    /// `None` if it has none.
    pub health_check: Option<u16>,
    /// The scheduler that chooses among its endpoints, as the running Tripod reports it.
    pub scheduler: String,
}

/// The location of the endpoints that a call may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// On any node.
    Cluster,
    /// On this node.
    Node,
}

impl Stage {
    /// Returns whether a pod runs on this node.
    pub fn is_here(&self, pod: &TestPod) -> bool {
        pod.plan.node == self.node
    }

    /// The names of a Service's endpoints within `reach`, of the IP family of `ip`.
    pub fn servers(&self, kind: Kind, ip: IpAddr, reach: Reach) -> Servers {
        let pods = self.pods.iter();
        let serving = pods.filter(|pod| pod.plan.serves && kind.has(pod.plan.name));
        let reachable = serving.filter(|pod| pod.of_family(ip).is_some());
        let chosen = reachable.filter(|pod| reach == Reach::Cluster || self.is_here(pod));
        chosen.map(|pod| pod.plan.name.to_owned()).collect()
    }

    /// Returns the pod that answers with that name.
    pub fn pod(&self, name: &str) -> Option<&TestPod> {
        self.pods.iter().find(|pod| pod.plan.name == name)
    }

    /// Returns the Service that was created for `kind`.
    pub fn service(&self, kind: Kind) -> Option<&TestService> {
        self.services.iter().find(|service| service.kind == kind)
    }

    /// Returns this node's address of the IP family of `ip`, as the kubelet reports it.
    pub fn node_ip(&self, ip: IpAddr) -> Option<IpAddr> {
        let here = self.pods.iter().find(|pod| self.is_here(pod))?;
        let mut addresses = here.host_ips.iter().copied();
        addresses.find(|own| own.is_ipv4() == ip.is_ipv4())
    }

    /// Returns the access to a pod's agent.
    pub fn agent(&self, pod: &TestPod) -> Option<Agent> {
        Some(Agent {
            address: SocketAddr::new(*pod.ips.first()?, AGENT_PORT),
            token: self.token.clone(),
        })
    }
}

impl TestPod {
    /// Reads a pod as the API server returns it; `None` if it is not ready.
    pub fn read(plan: &PodPlan, pod: &Value) -> Option<TestPod> {
        let status = &pod["status"];
        let all = each(&status["podIPs"]).map(|ip| &ip["ip"]);
        let ips = addresses(all.chain([&status["podIP"]]));
        let hosts = each(&status["hostIPs"]).map(|ip| &ip["ip"]);
        let host_ips = addresses(hosts.chain([&status["hostIP"]]));
        (is_ready(pod) && !ips.is_empty()).then(|| TestPod {
            plan: plan.clone(),
            ips,
            host_ips,
        })
    }

    /// Returns its address of the IP family of `ip`; `None` if it has none.
    pub fn of_family(&self, ip: IpAddr) -> Option<IpAddr> {
        let mut ips = self.ips.iter().copied();
        ips.find(|own| own.is_ipv4() == ip.is_ipv4())
    }
}

impl TestService {
    /// Reads a Service as the API server stored it; `None` if it has no cluster IP.
    pub fn read(kind: Kind, service: &Value) -> Option<TestService> {
        let spec = &service["spec"];
        let cluster_ips = addresses(each(&spec["clusterIPs"]).chain([&spec["clusterIP"]]));
        let ports = each(&spec["ports"]).filter_map(|port| {
            let mut all = Protocol::ALL.into_iter();
            let protocol = all.find(|known| port["protocol"] == known.name())?;
            Some((protocol, number(&port["nodePort"])?))
        });
        let balanced = each(&service["status"]["loadBalancer"]["ingress"]).map(|one| &one["ip"]);
        let mut external = addresses(each(&spec["externalIPs"]).chain(balanced));
        external.retain(|ip| cluster_ips.iter().any(|own| own.is_ipv4() == ip.is_ipv4()));
        (!cluster_ips.is_empty()).then(|| TestService {
            kind,
            name: service["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            cluster_ips,
            node_ports: ports.collect(),
            external,
            health_check: number(&spec["healthCheckNodePort"]).filter(|port| *port > 0),
            scheduler: String::new(),
        })
    }

    /// Returns whether a ServicePort of the running Tripod is this Service's, for that
    /// cluster IP and protocol.
    pub fn is_of(&self, port: &ServicePort, ip: IpAddr, protocol: Protocol) -> bool {
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        port.name == self.name && port.family == family && port.protocol == protocol.name()
    }
}

/// Returns the items of an array; none if it is missing.
pub fn each(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64()?.try_into().ok()
}

/// Returns whether a pod or a node is ready.
fn is_ready(object: &Value) -> bool {
    let mut conditions = each(&object["status"]["conditions"]);
    conditions.any(|now| now["type"] == "Ready" && now["status"] == "True")
}

/// Parses the texts that are addresses, without duplicates.
fn addresses<'a>(texts: impl Iterator<Item = &'a Value>) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for ip in texts.filter_map(|text| text.as_str()?.parse().ok()) {
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    found
}

/// Finds a node other than `this` that accepts pods.
///
/// # Errors
/// When there is none, and why.
pub fn other_node(nodes: &[Value], this: &str) -> Result<String, String> {
    let takes_pods = |node: &&Value| {
        let spec = &node["spec"];
        let mut taints = each(&spec["taints"]);
        let is_tainted = taints.any(|taint| taint["effect"] != "PreferNoSchedule");
        is_ready(node) && !is_tainted && spec["unschedulable"] != true
    };
    let mut others = nodes.iter().filter(|node| node["metadata"]["name"] != this);
    let found = others.find(takes_pods);
    let name = found.and_then(|node| node["metadata"]["name"].as_str());
    name.map(str::to_owned)
        .ok_or_else(|| "there is no other node that is ready and takes pods".to_owned())
}

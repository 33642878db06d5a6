//! The Service of a case and its EndpointSlices.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::addresses::{
    PORT, SECOND_PORT, SECOND_TARGET, TARGET, address, health_check_port, node_port_number,
};
use super::case::{Family, Target};
use super::endpoints::{Endpoint, Pod, ready};

/// Suffix of the name of a Service that has only the second port.
const MORE: &str = "-more";

/// Suffix of the name of a Service that has addresses of another.
const RIVAL: &str = "-rival";

/// The addresses that a rival has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contested {
    /// External IPs, as its own.
    ExternalIps,
    /// Cluster IPs, as its external IPs.
    ClusterIps,
    /// Cluster IPs, as its own.
    ClusterIpsAsSuch,
    /// The node's first address as its external IP, with the node ports as its
    /// ports.
    NodePorts,
}

/// An address that no other Service has.
fn beside(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => (u32::from(v4) + (1 << 8)).to_be_bytes().into(),
        IpAddr::V6(v6) => (u128::from(v6) + (1 << 16)).to_be_bytes().into(),
    }
}

/// An EndpointSlice of each family.
#[derive(Clone, Debug)]
struct Slice {
    endpoints: Vec<Endpoint>,
    target: u16,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
}

/// A Service whose name and addresses are derived from the number of its case.
#[derive(Clone, Debug)]
pub struct Service {
    families: Vec<Family>,
    slice_families: Vec<Family>,
    kind: &'static str,
    node_ports: bool,
    external_ip: bool,
    ip_mode: Option<&'static str>,
    sctp: bool,
    second_port: bool,
    /// Whether the second port is a separate Service.
    own_slices: bool,
    /// Whether each of the two ports has the other one's number.
    exchanged: bool,
    /// The protocol that its ports lack.
    without: Option<&'static str>,
    /// The addresses of the balancer.
    balancer: Target,
    /// Endpoints of another Service that has some of its addresses.
    rival: Vec<Endpoint>,
    /// The addresses that both Services have.
    contested: Contested,
    /// Year of creation.
    created: Option<u16>,
    /// Year of creation of the other Service.
    rival_created: Option<u16>,
    /// Whether only the other Service exists.
    gone: bool,
    /// The end of its name.
    suffix: &'static str,
    spec: Map<String, Value>,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    slices: Vec<Slice>,
}

/// A dual-stack Service with a cluster IP, and these ready endpoints.
pub fn cluster_ip(pods: impl IntoIterator<Item = Pod>) -> Service {
    Service {
        families: vec![Family::V4, Family::V6],
        slice_families: vec![Family::V4, Family::V6],
        kind: "ClusterIP",
        node_ports: false,
        external_ip: false,
        ip_mode: None,
        sctp: false,
        second_port: false,
        own_slices: false,
        exchanged: false,
        without: None,
        balancer: Target::LoadBalancer,
        rival: Vec::new(),
        contested: Contested::ExternalIps,
        created: None,
        rival_created: None,
        gone: false,
        suffix: "",
        spec: Map::new(),
        labels: Map::new(),
        annotations: Map::new(),
        slices: Vec::new(),
    }
    .on(pods)
}

/// Like [`cluster_ip`], with a node port.
pub fn node_port(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).becomes("NodePort")
}

/// Like [`node_port`], with load-balancer IPs.
pub fn load_balancer(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).becomes("LoadBalancer")
}

/// Like [`cluster_ip`], with external IPs.
pub fn external_ip(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).with_external_ip()
}

/// A Service with every kind of address.
pub fn everywhere(pods: impl IntoIterator<Item = Pod>) -> Service {
    load_balancer(pods).with_external_ip()
}

impl Service {
    /// Sets these ready endpoints, in one slice of each family.
    pub fn on(self, pods: impl IntoIterator<Item = Pod>) -> Service {
        self.with(pods.into_iter().map(ready))
    }

    /// Sets these endpoints, in one slice of each family.
    pub fn with(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Service {
        self.slices.clear();
        self.and_slice(endpoints)
    }

    /// Adds these endpoints in another slice.
    pub fn and_slice(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Service {
        self.slices.push(Slice {
            endpoints: endpoints.into_iter().collect(),
            target: TARGET,
            labels: Map::new(),
            annotations: Map::new(),
        });
        self
    }

    /// Lets the latest slice's endpoints listen at another port.
    pub fn at_target(mut self, port: u16) -> Service {
        self.latest().target = port;
        self
    }

    /// Sets `tripod.proxy/weight` of the latest slice.
    pub fn weighing(mut self, weight: u32) -> Service {
        let annotations = &mut self.latest().annotations;
        annotations.insert("tripod.proxy/weight".into(), weight.to_string().into());
        self
    }

    fn latest(&mut self) -> &mut Slice {
        self.slices.last_mut().expect("a Service has a slice")
    }

    pub fn becomes(mut self, kind: &'static str) -> Service {
        self.kind = kind;
        self.node_ports = matches!(kind, "NodePort" | "LoadBalancer");
        self
    }

    pub fn without_node_ports(mut self) -> Service {
        self.node_ports = false;
        self.spec("allocateLoadBalancerNodePorts", false)
    }

    pub fn with_external_ip(mut self) -> Service {
        self.external_ip = true;
        self
    }

    pub fn without_external_ip(mut self) -> Service {
        self.external_ip = false;
        self
    }

    pub fn with_sctp(mut self) -> Service {
        self.sctp = true;
        self
    }

    pub fn with_second_port(mut self) -> Service {
        self.second_port = true;
        self
    }

    pub fn without_second_port(mut self) -> Service {
        self.second_port = false;
        self
    }

    /// Moves the second port to a separate Service at the same external and load-balancer IPs.
    pub fn with_second_port_in_slices_of_its_own(mut self) -> Service {
        self.own_slices = true;
        self.with_second_port()
    }

    /// Exchanges the numbers and node ports of the two ports.
    pub fn exchange_ports(mut self) -> Service {
        self.exchanged = !self.exchanged;
        self
    }

    /// Gives it ports of all protocols except this one.
    pub fn without(mut self, protocol: &'static str) -> Service {
        self.without = Some(protocol);
        self
    }

    /// Sets the addresses of its load balancer, to its own or the node's.
    pub fn balanced_at(mut self, addresses: Target) -> Service {
        self.balancer = addresses;
        self
    }

    /// Makes it another object with the addresses and ports of this one.
    pub fn under_another_name(mut self) -> Service {
        self.suffix = "-successor";
        self
    }

    /// Adds another Service with the same external IPs and ports, and these endpoints.
    pub fn with_rival_on(mut self, pods: impl IntoIterator<Item = Pod>) -> Service {
        self.rival = pods.into_iter().map(ready).collect();
        self
    }

    /// Sets the addresses that the other Service has in common, if not the external IPs.
    pub fn contested(mut self, contested: Contested) -> Service {
        self.contested = contested;
        self
    }

    /// Sets the years in which the Service and the other one were created.
    pub fn made_in(mut self, year: u16, rival: u16) -> Service {
        (self.created, self.rival_created) = (Some(year), Some(rival));
        self
    }

    /// Deletes it, and keeps the other one.
    pub fn yields_to_its_rival(mut self) -> Service {
        self.gone = true;
        self
    }

    /// Adds this label to the latest slice.
    pub fn slice_labelled(mut self, key: &str) -> Service {
        self.latest().labels.insert(key.into(), "".into());
        self
    }

    pub fn single_stack(mut self, family: Family) -> Service {
        self.families = vec![family];
        self.slice_families = vec![family];
        self
    }

    pub fn dual_stack(mut self) -> Service {
        self.families = vec![Family::V4, Family::V6];
        self.slice_families = self.families.clone();
        self
    }

    /// Gives a dual-stack Service endpoints of only one family.
    pub fn endpoints_of(mut self, family: Family) -> Service {
        self.slice_families = vec![family];
        self
    }

    pub fn ip_mode_proxy(mut self) -> Service {
        self.ip_mode = Some("Proxy");
        self
    }

    pub fn ip_mode_vip(mut self) -> Service {
        self.ip_mode = None;
        self
    }

    /// Sets a field of its `spec`.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Service {
        self.spec.insert(field.into(), value.into());
        self
    }

    pub fn external_policy(self, policy: &str) -> Service {
        self.spec("externalTrafficPolicy", policy)
    }

    pub fn internal_policy(self, policy: &str) -> Service {
        self.spec("internalTrafficPolicy", policy)
    }

    pub fn sticky_for(self, seconds: u32) -> Service {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        self.spec("sessionAffinity", "ClientIP")
            .spec("sessionAffinityConfig", config)
    }

    pub fn only_for(self, ranges: &[&str]) -> Service {
        self.spec("loadBalancerSourceRanges", json!(ranges))
    }

    pub fn has_source_ranges(&self) -> bool {
        self.spec.contains_key("loadBalancerSourceRanges")
    }

    pub fn annotated(mut self, key: &str, value: &str) -> Service {
        self.annotations.insert(key.into(), value.into());
        self
    }

    pub fn labelled(mut self, key: &str, value: &str) -> Service {
        self.labels.insert(key.into(), value.into());
        self
    }

    pub fn unlabelled(mut self) -> Service {
        self.labels.clear();
        self
    }

    /// The items of a List.
    pub fn manifests(&self, number: u16) -> Vec<Value> {
        let mut items = if self.gone {
            Vec::new()
        } else {
            self.objects(number, &format!("case-{number}{}", self.suffix))
        };
        if !self.rival.is_empty() {
            let rival = Service {
                suffix: RIVAL,
                created: self.rival_created,
                external_ip: self.contested != Contested::ClusterIpsAsSuch,
                ..self.clone()
            };
            let rival = rival.becomes("ClusterIP").with(self.rival.iter().cloned());
            items.extend(rival.objects(number, &format!("case-{number}{RIVAL}")));
        }
        if self.second_port && self.own_slices {
            let more = Service {
                own_slices: false,
                suffix: MORE,
                ..self.clone()
            };
            items.extend(more.objects(number, &format!("case-{number}{MORE}")));
        }
        items
    }

    fn objects(&self, number: u16, name: &str) -> Vec<Value> {
        let mut items = vec![self.service(number, name)];
        for (index, slice) in self.slices.iter().enumerate() {
            for family in &self.slice_families {
                items.push(self.slice(name, index, slice, *family));
            }
        }
        items
    }

    fn ports(&self) -> Vec<(&'static str, &'static str, u16)> {
        let (usual, second) = if self.exchanged {
            (SECOND_PORT, PORT)
        } else {
            (PORT, SECOND_PORT)
        };
        let mut ports = vec![("tcp", "TCP", usual), ("udp", "UDP", usual)];
        if self.sctp {
            ports.push(("sctp", "SCTP", usual));
        }
        if self.second_port {
            ports.push(("more", "TCP", second));
        }
        ports.retain(|(name, protocol, _)| {
            let elsewhere = match self.suffix {
                MORE => *name != "more",
                _ => *name == "more" && self.own_slices,
            };
            !elsewhere && Some(*protocol) != self.without
        });
        ports
    }

    fn service(&self, number: u16, name: &str) -> Value {
        let ips = |target| {
            let ips = self.families.iter();
            ips.map(|family| address(target, *family, number))
                .collect::<Vec<_>>()
        };
        let ports = self.ports().into_iter().map(|(name, protocol, port)| {
            let port = match (self.suffix, self.contested) {
                (RIVAL, Contested::NodePorts) => node_port_number(number, port),
                _ => port,
            };
            let mut manifest = json!({"name": name, "protocol": protocol, "port": port});
            if self.node_ports {
                manifest["nodePort"] = node_port_number(number, port).into();
            }
            manifest
        });
        let cluster = match (self.suffix, self.contested) {
            (RIVAL, Contested::ClusterIpsAsSuch) => ips(Target::ClusterIp),
            (MORE | RIVAL, _) => ips(Target::ClusterIp).into_iter().map(beside).collect(),
            _ => ips(Target::ClusterIp),
        };
        let families = self.families.iter().map(|family| family.name());
        let mut spec = json!({
            "type": self.kind,
            "clusterIP": cluster[0],
            "clusterIPs": cluster,
            "ipFamilies": families.collect::<Vec<_>>(),
            "ports": ports.collect::<Vec<_>>(),
        });
        if self.external_ip {
            spec["externalIPs"] = json!(ips(match (self.suffix, self.contested) {
                (RIVAL, Contested::ClusterIps) => Target::ClusterIp,
                (RIVAL, Contested::NodePorts) => Target::NodeAddress,
                _ => Target::ExternalIp,
            }));
        }
        let local = self.spec.get("externalTrafficPolicy") == Some(&json!("Local"));
        if self.kind == "LoadBalancer" && local {
            spec["healthCheckNodePort"] = health_check_port(number).into();
        }
        if self.kind == "ExternalName" {
            spec = json!({"type": self.kind, "externalName": "elsewhere.test"});
        }
        for (field, value) in &self.spec {
            spec[field] = value.clone();
        }
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": "conformance",
                "labels": self.labels, "annotations": self.annotations,
            },
            "spec": spec,
        });
        if let Some(year) = self.created {
            let time = format!("{year}-01-01T00:00:00Z");
            service["metadata"]["creationTimestamp"] = time.into();
        }
        if self.kind == "LoadBalancer" {
            let ingress = ips(self.balancer).into_iter().map(|ip| {
                let mode = self.ip_mode.unwrap_or("VIP");
                json!({"ip": ip, "ipMode": mode})
            });
            let ingress = ingress.collect::<Vec<_>>();
            service["status"] = json!({"loadBalancer": {"ingress": ingress}});
        }
        service
    }

    fn slice(&self, name: &str, index: usize, slice: &Slice, family: Family) -> Value {
        let ports = self.ports().into_iter().map(|(name, protocol, _)| {
            let target = match name {
                "more" => SECOND_TARGET,
                _ => slice.target,
            };
            json!({"name": name, "protocol": protocol, "port": target})
        });
        let endpoints = slice.endpoints.iter().map(|e| e.manifest(family));
        let mut labels = slice.labels.clone();
        labels.insert("kubernetes.io/service-name".into(), name.into());
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}-{index}", family.name().to_lowercase()),
                "namespace": "conformance",
                "labels": labels,
                "annotations": slice.annotations,
            },
            "addressType": family.name(),
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

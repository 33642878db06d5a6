//! The Service of a case and its EndpointSlices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};

use super::case::{Family, Target};

/// Pods that answer. `a` and `b` are on the node, `c` on the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pod {
    A,
    B,
    C,
}

pub const ALL: [Pod; 3] = [Pod::A, Pod::B, Pod::C];
pub const HERE: [Pod; 2] = [Pod::A, Pod::B];
pub const ELSEWHERE: [Pod; 1] = [Pod::C];

impl Pod {
    pub fn name(self) -> &'static str {
        match self {
            Pod::A => "a",
            Pod::B => "b",
            Pod::C => "c",
        }
    }

    pub fn node(self) -> &'static str {
        match self {
            Pod::A | Pod::B => "node",
            Pod::C => "other",
        }
    }

    pub fn addresses(self) -> (Ipv4Addr, Ipv6Addr) {
        let (subnet, last) = match self {
            Pod::A => (0, 11),
            Pod::B => (0, 12),
            Pod::C => (1, 13),
        };
        (
            Ipv4Addr::new(10, 244, subnet, last),
            Ipv6Addr::new(0xfd00, 0x244, 0, subnet.into(), 0, 0, 0, last.into()),
        )
    }
}

/// Its address of each family.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pod: Pod,
    ready: bool,
    serving: bool,
    terminating: bool,
    hints: Map<String, Value>,
}

pub fn ready(pod: Pod) -> Endpoint {
    Endpoint {
        pod,
        ready: true,
        serving: true,
        terminating: false,
        hints: Map::new(),
    }
}

pub fn unready(pod: Pod) -> Endpoint {
    Endpoint {
        ready: false,
        serving: false,
        ..ready(pod)
    }
}

/// On its way out and still answering.
pub fn terminating(pod: Pod) -> Endpoint {
    Endpoint {
        ready: false,
        terminating: true,
        ..ready(pod)
    }
}

/// On its way out and not answering any more.
pub fn ending(pod: Pod) -> Endpoint {
    Endpoint {
        serving: false,
        ..terminating(pod)
    }
}

impl Endpoint {
    /// What `publishNotReadyAddresses` has the slice controller say of one that
    /// is not: ready.
    pub fn published_anyway(mut self) -> Endpoint {
        self.ready = true;
        self
    }

    pub fn for_zone(mut self, zone: &str) -> Endpoint {
        self.hints
            .insert("forZones".into(), json!([{"name": zone}]));
        self
    }

    pub fn for_node(mut self, node: &str) -> Endpoint {
        self.hints
            .insert("forNodes".into(), json!([{"name": node}]));
        self
    }

    fn manifest(&self, family: Family) -> Value {
        let (v4, v6) = self.pod.addresses();
        let address = match family {
            Family::V4 => IpAddr::from(v4),
            Family::V6 => v6.into(),
        };
        let mut endpoint = json!({
            "addresses": [address],
            "nodeName": self.pod.node(),
            "conditions": {
                "ready": self.ready, "serving": self.serving, "terminating": self.terminating,
            },
        });
        if !self.hints.is_empty() {
            endpoint["hints"] = self.hints.clone().into();
        }
        endpoint
    }
}

/// An EndpointSlice of each family.
#[derive(Clone, Debug)]
struct Slice {
    endpoints: Vec<Endpoint>,
    target: u16,
    annotations: Map<String, Value>,
}

/// The usual port of a Service, TCP and UDP.
pub const PORT: u16 = 80;
/// A further one, for Services that have several.
pub const SECOND_PORT: u16 = 81;
/// Where endpoints listen for these ports.
pub const TARGET: u16 = 8080;
pub const SECOND_TARGET: u16 = 8081;

/// A Service whose name and addresses follow from the number of its case.
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
        spec: Map::new(),
        labels: Map::new(),
        annotations: Map::new(),
        slices: Vec::new(),
    }
    .on(pods)
}

/// As [`cluster_ip`], with a node port.
pub fn node_port(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).becomes("NodePort")
}

/// As [`node_port`], with load-balancer IPs.
pub fn load_balancer(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).becomes("LoadBalancer")
}

/// As [`cluster_ip`], with external IPs.
pub fn external_ip(pods: impl IntoIterator<Item = Pod>) -> Service {
    cluster_ip(pods).with_external_ip()
}

/// Every way in at once.
pub fn everywhere(pods: impl IntoIterator<Item = Pod>) -> Service {
    load_balancer(pods).with_external_ip()
}

impl Service {
    /// With these ready endpoints, in one slice of each family.
    pub fn on(self, pods: impl IntoIterator<Item = Pod>) -> Service {
        self.with(pods.into_iter().map(ready))
    }

    /// With these endpoints, in one slice of each family.
    pub fn with(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Service {
        self.slices.clear();
        self.and_slice(endpoints)
    }

    /// With these endpoints in a further slice.
    pub fn and_slice(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Service {
        self.slices.push(Slice {
            endpoints: endpoints.into_iter().collect(),
            target: TARGET,
            annotations: Map::new(),
        });
        self
    }

    /// The latest slice's endpoints listen elsewhere.
    pub fn at_target(mut self, port: u16) -> Service {
        self.latest().target = port;
        self
    }

    /// The latest slice says `tripod.proxy/weight`.
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
        self.node_ports = kind != "ClusterIP";
        self
    }

    pub fn without_node_ports(mut self) -> Service {
        self.node_ports = false;
        self.says("allocateLoadBalancerNodePorts", false)
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

    /// Dual-stack, but with endpoints of one family.
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
    pub fn says(mut self, field: &str, value: impl Into<Value>) -> Service {
        self.spec.insert(field.into(), value.into());
        self
    }

    pub fn external_policy(self, policy: &str) -> Service {
        self.says("externalTrafficPolicy", policy)
    }

    pub fn internal_policy(self, policy: &str) -> Service {
        self.says("internalTrafficPolicy", policy)
    }

    pub fn sticky_for(self, seconds: u32) -> Service {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        self.says("sessionAffinity", "ClientIP")
            .says("sessionAffinityConfig", config)
    }

    pub fn only_for(self, ranges: &[&str]) -> Service {
        self.says("loadBalancerSourceRanges", json!(ranges))
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

    /// As items of a List.
    pub fn manifests(&self, number: u16) -> Vec<Value> {
        let name = format!("case-{number}");
        let mut items = vec![self.service(number, &name)];
        for (index, slice) in self.slices.iter().enumerate() {
            for family in &self.slice_families {
                items.push(self.slice(&name, index, slice, *family));
            }
        }
        items
    }

    fn ports(&self) -> Vec<(&'static str, &'static str, u16)> {
        let mut ports = vec![("tcp", "TCP", PORT), ("udp", "UDP", PORT)];
        if self.sctp {
            ports.push(("sctp", "SCTP", PORT));
        }
        if self.second_port {
            ports.push(("more", "TCP", SECOND_PORT));
        }
        ports
    }

    fn service(&self, number: u16, name: &str) -> Value {
        let ips = |target| {
            let ips = self.families.iter();
            ips.map(|family| address(target, *family, number))
                .collect::<Vec<_>>()
        };
        let ports = self.ports().into_iter().map(|(name, protocol, port)| {
            let mut manifest = json!({"name": name, "protocol": protocol, "port": port});
            if self.node_ports {
                manifest["nodePort"] = node_port_number(number, port).into();
            }
            manifest
        });
        let cluster = ips(Target::ClusterIp);
        let families = self.families.iter().map(|family| family.name());
        let mut spec = json!({
            "type": self.kind,
            "clusterIP": cluster[0],
            "clusterIPs": cluster,
            "ipFamilies": families.collect::<Vec<_>>(),
            "ports": ports.collect::<Vec<_>>(),
        });
        if self.external_ip {
            spec["externalIPs"] = json!(ips(Target::ExternalIp));
        }
        let local = self.spec.get("externalTrafficPolicy") == Some(&json!("Local"));
        if self.kind == "LoadBalancer" && local {
            spec["healthCheckNodePort"] = health_check_port(number).into();
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
        if self.kind == "LoadBalancer" {
            let ingress = ips(Target::LoadBalancer).into_iter().map(|ip| {
                let mode = self.ip_mode.unwrap_or("VIP");
                json!({"ip": ip, "ipMode": mode})
            });
            let ingress = ingress.collect::<Vec<_>>();
            service["status"] = json!({"loadBalancer": {"ingress": ingress}});
        }
        service
    }

    fn slice(&self, name: &str, index: usize, slice: &Slice, family: Family) -> Value {
        let ports = self.ports().into_iter().map(|(name, protocol, port)| {
            let target = match port {
                SECOND_PORT => SECOND_TARGET,
                _ => slice.target,
            };
            json!({"name": name, "protocol": protocol, "port": target})
        });
        let endpoints = slice.endpoints.iter().map(|e| e.manifest(family));
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}-{index}", family.name().to_lowercase()),
                "namespace": "conformance",
                "labels": {"kubernetes.io/service-name": name},
                "annotations": slice.annotations,
            },
            "addressType": family.name(),
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// The two addresses that the node has.
pub const NODE: [(Ipv4Addr, Ipv6Addr); 2] = [
    (
        Ipv4Addr::new(192, 0, 2, 10),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10),
    ),
    (
        Ipv4Addr::new(198, 18, 0, 10),
        Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 0x10),
    ),
];

fn node_port_number(number: u16, port: u16) -> u16 {
    match port {
        SECOND_PORT => 31_000 + number,
        _ => 30_000 + number,
    }
}

fn health_check_port(number: u16) -> u16 {
    32_000 + number
}

fn address(target: Target, family: Family, number: u16) -> IpAddr {
    let low = u8::try_from(number).expect("fewer than 256 cases");
    let own = |v4: [u8; 3], v6: [u16; 3]| match family {
        Family::V4 => IpAddr::from([v4[0], v4[1], v4[2], low]),
        Family::V6 => IpAddr::from([v6[0], v6[1], v6[2], 0, 0, 0, 0, number]),
    };
    let pick = |(v4, v6): (Ipv4Addr, Ipv6Addr)| match family {
        Family::V4 => IpAddr::from(v4),
        Family::V6 => v6.into(),
    };
    match target {
        Target::ClusterIp => own([10, 96, 0], [0xfd00, 0x96, 0]),
        Target::ExternalIp => own([198, 51, 100], [0x2001, 0xdb8, 0x51]),
        Target::LoadBalancer => own([203, 0, 113], [0x2001, 0xdb8, 0x113]),
        Target::NodePort | Target::HealthCheck => pick(NODE[0]),
        Target::SecondNodePort => pick(NODE[1]),
        Target::Loopback => pick((Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)),
    }
}

/// Where the Service of case `number` is called.
pub fn socket_address(target: Target, family: Family, number: u16, port: u16) -> SocketAddr {
    let port = match target {
        Target::ClusterIp | Target::LoadBalancer | Target::ExternalIp => port,
        Target::NodePort | Target::SecondNodePort | Target::Loopback => {
            node_port_number(number, port)
        }
        Target::HealthCheck => health_check_port(number),
    };
    SocketAddr::new(address(target, family, number), port)
}

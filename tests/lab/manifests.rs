//! Services and EndpointSlices as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};

/// The port on which every backend listens, TCP and UDP.
pub const BACKEND_PORT: u16 = 8080;

/// A dual-stack Service whose addresses are derived from its number.
#[derive(Clone, Debug)]
pub struct Service {
    pub name: String,
    number: u8,
    sticky: Option<u32>,
    node_port: bool,
    external_ip: bool,
    load_balancer: bool,
    udp_port_name: String,
    /// Further fields of its `spec`.
    spec: Map<String, Value>,
    annotations: Map<String, Value>,
}

/// A backend as an endpoint: its conditions, and the callers for which it is meant.
#[derive(Clone, Debug)]
pub struct EndpointChoice {
    pub name: String,
    ready: bool,
    serving: bool,
    terminating: bool,
    node: Option<String>,
    hints: Map<String, Value>,
}

impl EndpointChoice {
    pub fn ready(name: &str) -> EndpointChoice {
        EndpointChoice {
            name: name.into(),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            hints: Map::new(),
        }
    }

    pub fn unready(name: &str) -> EndpointChoice {
        EndpointChoice {
            ready: false,
            serving: false,
            ..EndpointChoice::ready(name)
        }
    }

    /// Returns an endpoint that is being shut down, and still answers if `serving`.
    pub fn terminating(name: &str, serving: bool) -> EndpointChoice {
        EndpointChoice {
            ready: false,
            serving,
            terminating: true,
            ..EndpointChoice::ready(name)
        }
    }

    /// Puts it on the node of that name.
    pub fn on(mut self, node: &str) -> EndpointChoice {
        self.node = Some(node.into());
        self
    }

    /// Adds a topology hint: for callers of one zone (`forZones`) or node (`forNodes`).
    pub fn hint(mut self, field: &str, name: &str) -> EndpointChoice {
        self.hints.insert(field.into(), json!([{"name": name}]));
        self
    }

    fn manifest(&self, address: IpAddr) -> Value {
        let mut endpoint = json!({
            "addresses": [address],
            "conditions": {
                "ready": self.ready, "serving": self.serving, "terminating": self.terminating,
            },
        });
        if let Some(node) = &self.node {
            endpoint["nodeName"] = node.as_str().into();
        }
        if !self.hints.is_empty() {
            endpoint["hints"] = self.hints.clone().into();
        }
        endpoint
    }
}

/// The port on which every Service listens, TCP and UDP.
const PORT: u16 = 80;

impl Service {
    pub fn new(name: &str, number: u8) -> Service {
        Service {
            name: name.into(),
            number,
            sticky: None,
            node_port: false,
            external_ip: false,
            load_balancer: false,
            udp_port_name: "udp".into(),
            spec: Map::new(),
            annotations: Map::new(),
        }
    }

    /// Sets a further field of its `spec`.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Service {
        self.spec.insert(field.into(), value.into());
        self
    }

    /// Sets an annotation.
    pub fn annotated(mut self, key: &str, value: &str) -> Service {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Sets ClientIP affinity for that many seconds.
    pub fn sticky(mut self, seconds: u32) -> Service {
        self.sticky = Some(seconds);
        self
    }

    /// Sets the name of its UDP port, which is `udp` by default.
    pub fn udp_port_named(mut self, name: &str) -> Service {
        self.udp_port_name = name.into();
        self
    }

    /// The name of its port for `protocol`.
    fn port_name(&self, protocol: &str) -> String {
        if protocol == "UDP" {
            self.udp_port_name.clone()
        } else {
            protocol.to_lowercase()
        }
    }

    pub fn with_node_port(mut self) -> Service {
        self.node_port = true;
        self
    }

    pub fn with_external_ip(mut self) -> Service {
        self.external_ip = true;
        self
    }

    pub fn with_load_balancer(mut self) -> Service {
        self.load_balancer = true;
        self
    }

    fn ips(&self, v4: [u8; 3], v6: [u16; 3]) -> [IpAddr; 2] {
        [
            Ipv4Addr::new(v4[0], v4[1], v4[2], self.number).into(),
            Ipv6Addr::new(v6[0], v6[1], v6[2], 0, 0, 0, 0, self.number.into()).into(),
        ]
    }

    fn cluster_ips(&self) -> [IpAddr; 2] {
        self.ips([10, 96, 0], [0xfd00, 0x96, 0])
    }

    fn external_ips(&self) -> [IpAddr; 2] {
        self.ips([198, 51, 100], [0x2001, 0xdb8, 0x51])
    }

    fn ingress_ips(&self) -> [IpAddr; 2] {
        self.ips([203, 0, 113], [0x2001, 0xdb8, 0x113])
    }

    /// Returns the cluster IP of each family with its port, IPv4 first.
    pub fn cluster(&self) -> [SocketAddr; 2] {
        self.cluster_ips().map(|ip| SocketAddr::new(ip, PORT))
    }

    pub fn external(&self) -> [SocketAddr; 2] {
        self.external_ips().map(|ip| SocketAddr::new(ip, PORT))
    }

    pub fn ingress(&self) -> [SocketAddr; 2] {
        self.ingress_ips().map(|ip| SocketAddr::new(ip, PORT))
    }

    pub fn node_port(&self) -> u16 {
        30_000 + u16::from(self.number)
    }

    fn manifest(&self) -> Value {
        let cluster = self.cluster_ips();
        let ports = ["TCP", "UDP"].map(|protocol| {
            let mut port = json!({
                "name": self.port_name(protocol), "protocol": protocol,
                "port": PORT, "targetPort": BACKEND_PORT,
            });
            if self.node_port {
                port["nodePort"] = self.node_port().into();
            }
            port
        });
        let kind = if self.load_balancer {
            "LoadBalancer"
        } else if self.node_port {
            "NodePort"
        } else {
            "ClusterIP"
        };
        let mut spec = json!({
            "type": kind,
            "clusterIP": cluster[0],
            "clusterIPs": cluster,
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "ports": ports,
        });
        if self.external_ip {
            spec["externalIPs"] = json!(self.external_ips());
        }
        if let Some(seconds) = self.sticky {
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        for (field, value) in &self.spec {
            spec[field] = value.clone();
        }
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": spec,
        });
        if !self.annotations.is_empty() {
            service["metadata"]["annotations"] = self.annotations.clone().into();
        }
        if self.load_balancer {
            let ingress = self.ingress_ips().map(|ip| json!({"ip": ip}));
            service["status"] = json!({"loadBalancer": {"ingress": ingress}});
        }
        service
    }

    fn slice(&self, family: usize, endpoints: &[(&EndpointChoice, [IpAddr; 2])]) -> Value {
        let address_type = ["IPv4", "IPv6"][family];
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({"name": self.port_name(protocol), "protocol": protocol, "port": BACKEND_PORT})
        });
        let endpoints = endpoints
            .iter()
            .map(|(choice, addresses)| choice.manifest(addresses[family]));
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name, address_type.to_lowercase()),
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": address_type,
            "ports": ports,
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

/// Returns the Service and its slices, one for each family, as a `List`.
pub fn list(service: &Service, endpoints: &[(&EndpointChoice, [IpAddr; 2])]) -> String {
    let items = json!([
        service.manifest(),
        service.slice(0, endpoints),
        service.slice(1, endpoints)
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

//! Clusters that are large in different ways: many Services, many endpoints, many ports.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

use serde_json::{Value, json};

use crate::large::BACKENDS;

/// The shapes of the document. Others can be given as arguments.
pub const SHAPES: [&str; 5] = [
    "44125x2",
    "5006x50",
    "1000x1-1000ports",
    "1x65000",
    "20000x10-dual",
];

/// Endpoints of one slice, as the controller of Kubernetes makes them.
const IN_SLICE: u32 = 100;
const NAMESPACE: &str = "shapes";
/// The namespace of the Services that are called: if there are not enough open files or local ports
/// for all Services, each namespace gets a share.
const CALLED_NAMESPACE: &str = "called";

/// A number of alike Services, written like `44125x2`, `1000x1-1000ports` or `20000x10-dual`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    services: u32,
    endpoints: u32,
    ports: u16,
    is_dual: bool,
}

/// The shapes of [`SHAPES`].
pub fn shapes() -> impl Iterator<Item = Shape> {
    let shapes = SHAPES.into_iter();
    shapes.map(|word| Shape::parse(word).expect("a shape of the document is well written"))
}

impl Shape {
    /// Parses what [`Shape::fmt`] writes.
    pub fn parse(word: &str) -> Option<Shape> {
        let mut parts = word.split('-');
        let (services, endpoints) = parts.next()?.split_once('x')?;
        let mut shape = Shape {
            services: services.parse().ok()?,
            endpoints: endpoints.parse().ok()?,
            ports: 1,
            is_dual: false,
        };
        for part in parts {
            match part.strip_suffix("ports") {
                Some(ports) => shape.ports = ports.parse().ok()?,
                None if part == "dual" => shape.is_dual = true,
                None => return None,
            }
        }
        (shape.services > 0 && shape.ports > 0).then_some(shape)
    }

    /// Whether its Services have addresses of both IP families.
    pub fn is_dual(self) -> bool {
        self.is_dual
    }

    /// All of its objects, one after the other.
    pub fn objects(self) -> impl Iterator<Item = Value> {
        (0..self.services).flat_map(move |number| {
            std::iter::once(self.service(number)).chain(self.slices(number))
        })
    }

    fn service(self, number: u32) -> Value {
        let mut ips = vec![Ipv4Addr::from(u32::from(SERVICES_V4) + number).to_string()];
        let mut families = vec!["IPv4"];
        if self.is_dual {
            ips.push(Ipv6Addr::from(u128::from(SERVICES_V6) + u128::from(number)).to_string());
            families.push("IPv6");
        }
        service(NAMESPACE, &name(number), &ips, &families, self.ports)
    }

    fn slices(self, number: u32) -> impl Iterator<Item = Value> {
        let families = if self.is_dual { 2 } else { 1 };
        let parts = self.endpoints.div_ceil(IN_SLICE);
        (0..families).flat_map(move |family| {
            (0..parts).map(move |part| self.slice(number, part, family == 1, None))
        })
    }

    /// One slice of a Service; `more` is the address of an additional endpoint.
    fn slice(self, number: u32, part: u32, is_v6: bool, more: Option<Ipv4Addr>) -> Value {
        let first = part * IN_SLICE;
        let last = self.endpoints.min(first + IN_SLICE);
        let from = number * self.endpoints;
        let own = (from + first..from + last).map(|endpoint| match is_v6 {
            true => Ipv6Addr::from(u128::from(ENDPOINTS_V6) + u128::from(endpoint)).to_string(),
            false => Ipv4Addr::from(u32::from(ENDPOINTS_V4) + endpoint).to_string(),
        });
        let addresses = own.chain(more.map(|more| more.to_string()));
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        let slice_name = format!("{}-{}-{part}", name(number), family.to_lowercase());
        let service = name(number);
        let ports = self.ports;
        slice(NAMESPACE, &slice_name, &service, family, addresses, ports)
    }

    /// The first slice of a Service with one endpoint more than it has at first. Each `turn`
    /// concerns another Service, as long as there are any, and another endpoint.
    pub fn with_one_more(self, turn: u32) -> Value {
        let number = turn.wrapping_mul(7919) % self.services;
        let [.., high, low] = turn.to_be_bytes();
        let more = Ipv4Addr::new(10, 200, high, low);
        self.slice(number, 0, false, Some(more))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)?;
        if self.ports > 1 {
            write!(f, "-{}ports", self.ports)?;
        }
        if self.is_dual {
            write!(f, "-dual")?;
        }
        Ok(())
    }
}

/// The first addresses of Services and endpoints.
const SERVICES_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const ENDPOINTS_V4: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);
const SERVICES_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1);
const ENDPOINTS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x128, 0, 0, 0, 0, 0, 1);

fn name(number: u32) -> String {
    format!("service-{number:05}")
}

/// A Service that is called, next to those of the shape.
#[derive(Clone, Copy)]
pub enum Called {
    /// Its endpoint stays.
    Steady,
    /// Its endpoint changes, so that calls show when a change was applied.
    Changing,
}

impl Called {
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 111, 0, 1 + self as u8)
    }

    fn name(self) -> &'static str {
        match self {
            Called::Steady => "steady",
            Called::Changing => "changing",
        }
    }

    pub fn service(self) -> Value {
        let ips = [self.address().to_string()];
        service(CALLED_NAMESPACE, self.name(), &ips, &["IPv4"], 1)
    }

    /// Its slice with one endpoint.
    pub fn slice(self, backend: Ipv4Addr) -> Value {
        let addresses = std::iter::once(backend.to_string());
        let name = self.name();
        slice(CALLED_NAMESPACE, name, name, "IPv4", addresses, 1)
    }
}

fn ports(count: u16) -> impl Iterator<Item = (String, u16)> {
    (0..count).map(|number| (format!("port-{number}"), 80 + number))
}

fn service(namespace: &str, name: &str, ips: &[String], families: &[&str], count: u16) -> Value {
    let ports = ports(count).map(
        |(name, port)| json!({"name": name, "port": port, "protocol": "TCP", "targetPort": 8080}),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ips[0],
            "clusterIPs": ips,
            "ipFamilies": families,
            "ipFamilyPolicy": if families.len() == 1 { "SingleStack" } else { "RequireDualStack" },
            "ports": ports.collect::<Vec<_>>(),
            "selector": {"app": name},
        },
    })
}

fn slice(
    namespace: &str,
    name: &str,
    service: &str,
    family: &str,
    addresses: impl Iterator<Item = String>,
    count: u16,
) -> Value {
    let endpoints = addresses.map(|address| {
        json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "node-b"})
    });
    let ports =
        ports(count).map(|(name, _)| json!({"name": name, "port": 8080, "protocol": "TCP"}));
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
    })
}

/// The objects of the Services that are called.
pub fn called() -> Vec<Value> {
    let both = [Called::Steady, Called::Changing];
    let objects = both.map(|of| [of.service(), of.slice(BACKENDS[0])]);
    objects.into_iter().flatten().collect()
}

//! A Service object, reduced to what proxying needs.

use std::{net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use hashbrown::HashSet;
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as api;
use net::{
    Family, Protocol,
    address::{is_special, is_unusable, parse_ip},
};

use super::{
    ServiceName, TrafficPolicy,
    extensions::{self, Preferences},
    invalid::{Inspection, Invalid, Reduced, once},
    names::Names,
    namespaces::namespace,
    source_ranges::{nobody, source_ranges},
    wire,
};

/// Label by which a Service requests another proxy (KEP-2447).
pub(super) const OTHER_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// The API server's default for ClientIP affinity (`DefaultClientIPServiceAffinitySeconds`).
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;
/// The API server's maximum (`MaxClientIPServiceAffinitySeconds`): one day.
const MAX_AFFINITY_SECONDS: i32 = 86_400;

/// Why an address of a Service is refused. A loopback address would capture the traffic between
/// processes of the node.
const NOT_SERVED: &str =
    "an unspecified, multicast, broadcast or loopback address cannot be served";

/// A Service, as far as proxying needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ServiceName,
    /// Time of creation: if two Services name the same address, the older one takes precedence.
    pub created: Created,
    /// The part that a proxy must serve, or why it serves nothing.
    pub serving: Result<Serving, NotServed>,
    /// Whether it has a selector, from which the control plane writes its EndpointSlices.
    pub selector: bool,
    /// The settings of its annotations `tripod.proxy/…`; `None` if it has none.
    pub preferences: Option<Arc<Preferences>>,
}

/// `metadata.creationTimestamp`, in seconds since 1970. Ordered from old to new;
/// an object without one, as in a manifest, counts as newer than any with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created(i64);

impl Created {
    /// No time of creation.
    pub(super) const UNKNOWN: Created = Created(i64::MAX);

    /// Returns the time that is `seconds` after the beginning of 1970.
    #[cfg(test)]
    pub(crate) fn at(seconds: i64) -> Created {
        Created(seconds)
    }

    /// Reads the time of creation in `metadata`.
    fn of(metadata: &wire::Meta) -> Created {
        let time = metadata.creation_timestamp.as_ref();
        time.map_or(Created::UNKNOWN, |time| Created(time.0.as_second()))
    }
}

/// Why a proxy does not serve a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServed {
    /// `clusterIP: None`: clients find the endpoints by DNS.
    Headless,
    /// Type ExternalName: a DNS alias.
    ExternalName,
    /// Labelled for another proxy.
    OtherProxy,
    /// No cluster IP, which happens only without an API server that allocates one.
    NoClusterIp,
}

/// The part of a Service that a proxy must serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Cluster IPs, at most one of each family.
    pub cluster_ips: Box<[IpAddr]>,
    /// Ports, with different names or protocols.
    pub ports: Box<[Port]>,
    /// External IPs of the families above.
    pub external_ips: Box<[IpAddr]>,
    /// Load-balancer IPs of the families above that the node itself serves.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Clients that may use the load-balancer IPs, of both families; if empty, everyone may.
    pub load_balancer_source_ranges: Box<[IpNet]>,
    /// Timeout of `spec.sessionAffinity`; `None` if there is none.
    pub session_affinity: Option<Duration>,
    /// Policy for the cluster IP.
    pub internal_traffic_policy: TrafficPolicy,
    /// Policy for external and load-balancer IPs and node ports.
    pub external_traffic_policy: TrafficPolicy,
    /// Port at which load balancers ask whether this node has endpoints; `None` if there is none.
    pub health_check_node_port: Option<u16>,
}

impl Serving {
    /// Returns whether nobody may reach its external and load-balancer IPs of `family`, because
    /// none of its source ranges can be parsed.
    pub fn is_closed(&self, family: Family) -> bool {
        self.load_balancer_source_ranges.contains(&nobody(family))
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the port; empty for an unnamed one.
    pub name: Arc<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Port on the Service's addresses, or the first one of a range.
    pub port: u16,
    /// Last port of a range (`tripod.proxy/ports`), which is forwarded port for port; `None`: it is
    /// a port of the spec.
    pub last_port: Option<NonZeroU16>,
    /// Port on the node's addresses; `None` if it has no node port.
    pub node_port: Option<u16>,
}

impl Service {
    /// Reduces a Service of the API.
    ///
    /// # Errors
    /// Names the first field without which the Service cannot be served.
    pub fn reduce(service: &wire::Service, names: &mut Names) -> Result<Reduced<Service>, Invalid> {
        let metadata = &service.metadata;
        let namespace = namespace(metadata.namespace.as_deref());
        let object_name = metadata.name.as_deref().unwrap_or_default();
        let mut inspection = Inspection::of("Service", format_args!("{namespace}/{object_name}"));
        if object_name.is_empty() {
            return Err(inspection.refuse("metadata.name", "", "an object needs a name"));
        }
        inspection.name("metadata.namespace", namespace)?;
        inspection.name("metadata.name", object_name)?;
        let name = ServiceName {
            namespace: names.share(namespace),
            name: names.share(object_name),
        };
        let spec = service.spec.clone().unwrap_or_default();
        let mut preferences = extensions::preferences(metadata, names);
        let serving = match not_served(service, &spec) {
            Some(reason) => Err(reason),
            None => {
                let mut serving = serving(&spec, service, &mut inspection, names)?;
                preferences.too_many_addresses = serving.limit_addresses();
                serving.add_ranges(&mut preferences, names);
                Ok(serving)
            }
        };
        let preferences = (preferences != Preferences::default()).then(|| Arc::new(preferences));
        Ok(inspection.finish(Service {
            name,
            created: Created::of(metadata),
            serving,
            selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
            preferences,
        }))
    }
}

fn not_served(service: &wire::Service, spec: &api::ServiceSpec) -> Option<NotServed> {
    let labelled = |label| {
        let labels = service.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key(label))
    };
    let ips = || {
        spec.cluster_ip
            .iter()
            .chain(spec.cluster_ips.iter().flatten())
    };
    if labelled(OTHER_PROXY_LABEL) {
        Some(NotServed::OtherProxy)
    } else if spec.type_.as_deref() == Some("ExternalName") {
        Some(NotServed::ExternalName)
    } else if ips().any(|ip| ip == "None") {
        Some(NotServed::Headless)
    } else if ips().all(|ip| ip.is_empty()) {
        Some(NotServed::NoClusterIp)
    } else {
        None
    }
}

fn serving(
    spec: &api::ServiceSpec,
    service: &wire::Service,
    inspection: &mut Inspection,
    names: &mut Names,
) -> Result<Serving, Invalid> {
    let cluster_ips = cluster_ips(spec, inspection)?;
    let ports = ports(spec, inspection, names)?;
    let families: Vec<Family> = cluster_ips.iter().map(Family::of).collect();
    let external_ips = external_ips(spec, &families, inspection);
    let load_balancer_ips = load_balancer_ips(service, &families, inspection);
    let load_balancer_source_ranges = source_ranges(spec, &families, inspection);

    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        let reason = "a type is ClusterIP, NodePort, LoadBalancer or ExternalName";
        return Err(inspection.refuse("spec.type", kind, reason));
    }
    let internal_traffic_policy = traffic_policy(
        "spec.internalTrafficPolicy",
        &spec.internal_traffic_policy,
        inspection,
    )?;
    // kube-proxy heeds the external policy only where the type or an external
    // IP makes the Service reachable from outside (`ExternalPolicyLocal`).
    let accessible = kind != "ClusterIP"
        || spec
            .external_ips
            .as_ref()
            .is_some_and(|ips| !ips.is_empty());
    let external_traffic_policy = match traffic_policy(
        "spec.externalTrafficPolicy",
        &spec.external_traffic_policy,
        inspection,
    )? {
        TrafficPolicy::Local if accessible => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    };
    let health_check_node_port =
        if kind == "LoadBalancer" && external_traffic_policy == TrafficPolicy::Local {
            inspection.optional_port("spec.healthCheckNodePort", spec.health_check_node_port)?
        } else {
            None
        };
    Ok(Serving {
        cluster_ips,
        ports,
        external_ips,
        load_balancer_ips,
        load_balancer_source_ranges,
        session_affinity: session_affinity(spec, inspection)?,
        internal_traffic_policy,
        external_traffic_policy,
        health_check_node_port,
    })
}

fn cluster_ips(
    spec: &api::ServiceSpec,
    inspection: &mut Inspection,
) -> Result<Box<[IpAddr]>, Invalid> {
    let listed: Vec<(String, &String)> = match spec.cluster_ips.as_deref() {
        Some(ips) if !ips.is_empty() => ips
            .iter()
            .enumerate()
            .map(|(i, ip)| (format!("spec.clusterIPs[{i}]"), ip))
            .collect(),
        _ => spec
            .cluster_ip
            .iter()
            .map(|ip| ("spec.clusterIP".to_owned(), ip))
            .collect(),
    };
    let mut found: Vec<IpAddr> = Vec::with_capacity(listed.len());
    for (field, text) in listed {
        let ip =
            parse_ip(text).ok_or_else(|| inspection.refuse(&*field, text, "not an IP address"))?;
        if is_unusable(&ip) || ip.is_loopback() {
            return Err(inspection.refuse(field, text, NOT_SERVED));
        }
        if found
            .iter()
            .any(|other| Family::of(other) == Family::of(&ip))
        {
            let reason = "a Service has at most one cluster IP of each family";
            return Err(inspection.refuse(field, text, reason));
        }
        found.push(ip);
    }
    Ok(found.into())
}

fn ports(
    spec: &api::ServiceSpec,
    inspection: &Inspection,
    names: &mut Names,
) -> Result<Box<[Port]>, Invalid> {
    let mut ports: Vec<Port> = Vec::new();
    let mut known = HashSet::new();
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let at = |field: &str| format!("spec.ports[{i}].{field}");
        let name = port.name.as_deref().unwrap_or_default();
        inspection.name(at("name"), name)?;
        let name = names.share(name);
        let protocol = inspection.protocol(at("protocol"), port.protocol.as_deref())?;
        if !known.insert((Arc::clone(&name), protocol)) {
            let reason = format!("another {protocol} port of this Service has that name too");
            return Err(inspection.refuse(at("name"), name, reason));
        }
        ports.push(Port {
            name,
            protocol,
            port: inspection.port(at("port"), port.port)?,
            last_port: None,
            node_port: inspection.optional_port(at("nodePort"), port.node_port)?,
        });
    }
    Ok(ports.into())
}

fn external_ips(
    spec: &api::ServiceSpec,
    families: &[Family],
    inspection: &mut Inspection,
) -> Box<[IpAddr]> {
    let mut found = Vec::new();
    for (i, text) in spec.external_ips.iter().flatten().enumerate() {
        let field = format!("spec.externalIPs[{i}]");
        match parse_ip(text) {
            None => inspection.skip(field, text, "not an IP address"),
            Some(ip) if is_special(&ip) => {
                inspection.skip(field, text, "a loopback, link-local, multicast or unspecified address cannot be an external IP");
            }
            Some(ip) => keep(ip, field, families, &mut found, inspection),
        }
    }
    once(found)
}

fn load_balancer_ips(
    service: &wire::Service,
    families: &[Family],
    inspection: &mut Inspection,
) -> Box<[IpAddr]> {
    let status = service.status.as_ref();
    let ingress = status
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default();
    let mut found = Vec::new();
    for (i, point) in ingress.iter().enumerate() {
        // With ipMode Proxy the balancer forwards to node ports by itself, and
        // traffic to its address must leave the node (KEP-1860).
        if !matches!(point.ip_mode.as_deref(), None | Some("" | "VIP")) {
            continue;
        }
        let Some(text) = point.ip.as_ref().filter(|ip| !ip.is_empty()) else {
            continue;
        };
        let field = format!("status.loadBalancer.ingress[{i}].ip");
        match parse_ip(text) {
            None => inspection.skip(field, text, "not an IP address"),
            Some(ip) if is_unusable(&ip) || ip.is_loopback() => {
                inspection.skip(field, text, NOT_SERVED);
            }
            Some(ip) => keep(ip, field, families, &mut found, inspection),
        }
    }
    once(found)
}

fn keep(
    ip: IpAddr,
    field: String,
    families: &[Family],
    found: &mut Vec<IpAddr>,
    inspection: &mut Inspection,
) {
    let family = Family::of(&ip);
    if !families.contains(&family) {
        let reason = format!("the Service has no {family} cluster IP");
        inspection.skip(field, ip, reason);
    } else {
        found.push(ip);
    }
}

fn session_affinity(
    spec: &api::ServiceSpec,
    inspection: &Inspection,
) -> Result<Option<Duration>, Invalid> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return Ok(None),
        Some("ClientIP") => {}
        Some(other) => {
            let reason = "session affinity is None or ClientIP";
            return Err(inspection.refuse("spec.sessionAffinity", other, reason));
        }
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client_ip| client_ip.timeout_seconds)
        .unwrap_or(DEFAULT_AFFINITY_SECONDS);
    match u64::try_from(seconds) {
        Ok(secs @ 1..) if seconds <= MAX_AFFINITY_SECONDS => Ok(Some(Duration::from_secs(secs))),
        _ => Err(inspection.refuse(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            seconds,
            "a timeout is from 1 to 86400 seconds",
        )),
    }
}

fn traffic_policy(
    field: &str,
    value: &Option<String>,
    inspection: &Inspection,
) -> Result<TrafficPolicy, Invalid> {
    match value.as_deref() {
        None | Some("" | "Cluster") => Ok(TrafficPolicy::Cluster),
        Some("Local") => Ok(TrafficPolicy::Local),
        Some(other) => Err(inspection.refuse(field, other, "a traffic policy is Cluster or Local")),
    }
}

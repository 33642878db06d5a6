//! An EndpointSlice object, reduced to what proxying needs.

use std::{borrow::Cow, collections::BTreeMap, fmt, net::IpAddr, sync::Arc, time::SystemTime};

use hashbrown::HashSet;
use k8s_openapi::{api::discovery::v1 as api, jiff::Timestamp};
use net::{
    Family, Protocol,
    address::{is_special, is_unusable, parse_ip},
};

use super::{
    Identity, ServiceName, extensions,
    invalid::{Inspection, Invalid, Reduced},
    names::Names,
    namespaces::namespace,
    service::OTHER_PROXY_LABEL,
    wire,
};

/// Label of EndpointSlices of a headless Service. No other label excludes a slice:
/// `service.kubernetes.io/service-proxy-name` counts only on Services since kube-proxy 1.36
/// (kubernetes #134623).
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label that names the Service of an EndpointSlice.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Annotation with the time of the change for which the endpoints controller
/// wrote the slice (`core/v1 EndpointsLastChangeTriggerTime`).
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Namespace and name of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceName {
    /// Namespace of the slice.
    pub namespace: Arc<str>,
    /// Name of the slice.
    pub name: Arc<str>,
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An EndpointSlice: a part of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: SliceName,
    /// The Service whose endpoints these are.
    pub owner: Owner,
    /// Whether it is labelled for another proxy. This is a copy of the Service's label, which
    /// decides; but if it is set, an unknown Service is no oddity.
    pub for_another_proxy: bool,
    /// Ports that each endpoint has.
    pub ports: Box<[SlicePort]>,
    /// The endpoints, all of one family.
    pub endpoints: Box<[SliceEndpoint]>,
    /// The first addresses of endpoints that are left out because no endpoint of a Service may have
    /// them.
    pub forbidden: Box<[IpAddr]>,
    /// The weight of each of its endpoints, from `tripod.proxy/weight`, else
    /// `service.cilium.io/weight`; `None` if not given or
    /// malformed.
    pub weight: Option<u16>,
    /// The time of the change for which it was written.
    pub trigger: Trigger,
}

/// The Service of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The slice has the endpoints of this Service.
    Service(ServiceName),
    /// The slice has the endpoints of a headless Service, by its label.
    NotServed,
    /// It has no `kubernetes.io/service-name` label.
    Unlabelled,
}

/// A port that each endpoint of a slice has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service port that it serves; empty for the unnamed one.
    pub name: Arc<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Port on the endpoint's address.
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// Its first address; the API defines no meaning for further ones.
    pub address: IpAddr,
    /// Its identity, which stays when its address or slice changes.
    pub identity: Identity,
    /// Name of the node on which it runs; `None` if not known.
    pub node_name: Option<Arc<str>>,
    /// Whether it takes new connections (condition `ready`).
    pub ready: bool,
    /// Whether it serves, terminating or not (condition `serving`).
    pub serving: bool,
    /// Whether it is being shut down (condition `terminating`).
    pub terminating: bool,
    /// Zones and nodes for which it is meant; `None` if the controller gave no hints.
    pub hints: Option<Arc<Hints>>,
}

/// Topology hints: zones and nodes that an endpoint is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Zones whose nodes should use it.
    pub zones: Box<[Arc<str>]>,
    /// Nodes that should use it.
    pub nodes: Box<[Arc<str>]>,
}

/// The time of the change that caused a slice to be written, if its author gave one. It says
/// nothing about endpoints, so all values are equal: a slice in which only this differs did not
/// change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trigger(Option<SystemTime>);

impl Trigger {
    /// Reads the annotation. A malformed one counts as missing: it is only for statistics.
    fn of(annotations: Option<&BTreeMap<String, String>>) -> Trigger {
        let annotation = annotations.and_then(|a| a.get(TRIGGER_ANNOTATION));
        Trigger(annotation.and_then(|text| Some(text.parse::<Timestamp>().ok()?.into())))
    }

    /// When the change happened; `None` if unknown.
    pub fn time(self) -> Option<SystemTime> {
        self.0
    }
}

impl PartialEq for Trigger {
    fn eq(&self, _: &Trigger) -> bool {
        true
    }
}

impl Eq for Trigger {}

impl EndpointSlice {
    /// Reduces an EndpointSlice of the API or of a file.
    ///
    /// # Errors
    /// Names the first field without which the slice cannot be used.
    pub fn reduce(
        slice: &wire::EndpointSlice,
        loopback: Loopback,
        names: &mut Names,
    ) -> Result<Reduced<EndpointSlice>, Invalid> {
        let metadata = &slice.metadata;
        let namespace = namespace(metadata.namespace.as_deref());
        let object_name = metadata.name.as_deref().unwrap_or_default();
        let mut inspection =
            Inspection::of("EndpointSlice", format_args!("{namespace}/{object_name}"));
        if object_name.is_empty() {
            return Err(inspection.refuse("metadata.name", "", "an object needs a name"));
        }
        inspection.name("metadata.namespace", namespace)?;
        inspection.name("metadata.name", object_name)?;
        let name = SliceName {
            namespace: names.share(namespace),
            name: Arc::from(object_name),
        };
        let owner = owner(metadata, &name, names);
        let (ports, endpoints, forbidden) = match slice.address_type.as_str() {
            "IPv4" => contents(slice, Family::V4, loopback, &mut inspection, names),
            "IPv6" => contents(slice, Family::V6, loopback, &mut inspection, names),
            "FQDN" => {
                let reason = "endpoints that are host names are not supported; none of them is \
                              used";
                inspection.skip("addressType", "FQDN", reason);
                Default::default()
            }
            other => {
                let reason = "an address type is IPv4 or IPv6";
                return Err(inspection.refuse("addressType", other, reason));
            }
        };
        let weight = extensions::slice_weight(metadata, &mut inspection);
        Ok(inspection.finish(EndpointSlice {
            name,
            owner,
            for_another_proxy: labelled(metadata, OTHER_PROXY_LABEL).is_some(),
            ports,
            endpoints,
            forbidden,
            weight,
            trigger: Trigger::of(metadata.annotations.as_ref()),
        }))
    }

    /// Returns whether its endpoints' weights depend on one of `nodes`.
    pub(super) fn weighs_by(&self, nodes: &HashSet<Arc<str>>) -> bool {
        let mut names = self.endpoints.iter().filter_map(|e| e.node_name.as_ref());
        self.weight.is_none() && names.any(|name| nodes.contains(name))
    }

    /// Returns whether its interpretation depends on the zone of this node.
    pub(super) fn has_zone_hints(&self) -> bool {
        self.endpoints.iter().any(|endpoint| {
            let hints = endpoint.hints.as_ref();
            hints.is_some_and(|hints| !hints.zones.is_empty())
        })
    }
}

fn labelled<'a>(metadata: &'a wire::Meta, label: &str) -> Option<&'a String> {
    metadata.labels.as_ref()?.get(label)
}

fn owner(metadata: &wire::Meta, slice: &SliceName, names: &mut Names) -> Owner {
    if labelled(metadata, HEADLESS_LABEL).is_some() {
        return Owner::NotServed;
    }
    match labelled(metadata, SERVICE_LABEL) {
        Some(service) if !service.is_empty() => Owner::Service(ServiceName {
            namespace: Arc::clone(&slice.namespace),
            name: names.share(service),
        }),
        _ => Owner::Unlabelled,
    }
}

/// Whether endpoints may have loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// In files on this node: users who may write them may also name processes of the node itself
    /// as endpoints.
    Allowed,
    /// In objects of the API.
    Refused,
}

type Contents = (Box<[SlicePort]>, Box<[SliceEndpoint]>, Box<[IpAddr]>);

/// Maximum number of left-out endpoints of a slice that are listed.
const SHOWN: usize = 20;

fn contents(
    slice: &wire::EndpointSlice,
    family: Family,
    loopback: Loopback,
    inspection: &mut Inspection,
    names: &mut Names,
) -> Contents {
    let mut ports = Vec::new();
    for (i, port) in slice.ports.iter().flatten().enumerate() {
        match slice_port(i, port, inspection, names) {
            Ok(port) => ports.push(port),
            // The other ports can be used.
            Err(invalid) => inspection.warn(invalid),
        }
    }

    let mut endpoints: Vec<SliceEndpoint> = Vec::new();
    let mut forbidden = Vec::new();
    for (i, endpoint) in slice.endpoints.iter().flatten().enumerate() {
        let addresses = endpoint.addresses.as_deref().unwrap_or_default();
        let text = addresses.first().map_or("", String::as_str);
        let address = match address(text, family, loopback) {
            Ok(address) => address,
            Err(reason) => {
                let of_family = parse_ip(text).filter(|ip| Family::of(ip) == family);
                forbidden.extend(of_family.filter(|_| forbidden.len() < SHOWN));
                inspection.skip(format!("endpoints[{i}].addresses[0]"), text, reason);
                continue;
            }
        };
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let mut hints = hints(endpoint, names);
        // Most endpoints of a slice have the same hints as the previous one.
        if let Some(last) = endpoints.last()
            && last.hints == hints
        {
            hints.clone_from(&last.hints);
        }
        let pod = endpoint.target_ref.as_ref();
        let pod_uid = pod.and_then(|pod| pod.uid.as_deref());
        endpoints.push(SliceEndpoint {
            address,
            identity: Identity::of(pod_uid, address),
            node_name: endpoint.node_name.as_deref().map(|name| names.share(name)),
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
            hints,
        });
    }
    (ports.into(), endpoints.into(), forbidden.into())
}

fn slice_port(
    number: usize,
    port: &api::EndpointPort,
    inspection: &Inspection,
    names: &mut Names,
) -> Result<SlicePort, Invalid> {
    let at = |field: &str| format!("ports[{number}].{field}");
    let Some(port_number) = port.port else {
        let reason = "a port without a number means every port, which a proxy cannot serve";
        return Err(inspection.refuse(at("port"), "", reason));
    };
    let name = port.name.as_deref().unwrap_or_default();
    inspection.name(at("name"), name)?;
    Ok(SlicePort {
        name: names.share(name),
        protocol: inspection.protocol(at("protocol"), port.protocol.as_deref())?,
        port: inspection.port(at("port"), port_number)?,
    })
}

/// Parses the address of an endpoint, or says why it is not used. It refuses what the API server
/// refuses (`ValidateEndpointIP` of `pkg/apis/core/validation`): otherwise those who may write
/// slices could reach, through a Service, servers on the node that listen only for the node itself,
/// or the metadata service of a cloud at 169.254.169.254.
fn address(text: &str, family: Family, loopback: Loopback) -> Result<IpAddr, Cow<'static, str>> {
    let Some(ip) = parse_ip(text) else {
        return Err("not an IP address".into());
    };
    if Family::of(&ip) != family {
        return Err(format!("not an {family} address, which addressType says it is").into());
    }
    if is_unusable(&ip) {
        return Err("nothing can be reached at this address".into());
    }
    if is_special(&ip) && !(ip.is_loopback() && loopback == Loopback::Allowed) {
        return Err("a loopback or link-local address cannot be an endpoint".into());
    }
    Ok(ip)
}

fn hints(endpoint: &wire::Endpoint, names: &mut Names) -> Option<Arc<Hints>> {
    let given = endpoint.hints.as_ref()?;
    let zones = given.for_zones.iter().flatten();
    let zones: Box<[Arc<str>]> = zones.map(|zone| names.share(&zone.name)).collect();
    let nodes = given.for_nodes.iter().flatten();
    let nodes: Box<[Arc<str>]> = nodes.map(|node| names.share(&node.name)).collect();
    if zones.is_empty() && nodes.is_empty() {
        return None;
    }
    Some(Arc::new(Hints { zones, nodes }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn rfc_3339_is_read_and_anything_else_is_none() {
        let of = |text: &str| {
            let annotations = BTreeMap::from([(TRIGGER_ANNOTATION.to_owned(), text.to_owned())]);
            Trigger::of(Some(&annotations)).time()
        };
        let expected = UNIX_EPOCH + Duration::from_millis(1_800_000_000_250);
        assert_eq!(of("2027-01-15T08:00:00.25Z"), Some(expected));
        assert_eq!(of("2027-01-15T09:00:00.25+01:00"), Some(expected));
        for malformed in ["", "yesterday", "2027-13-01T00:00:00Z"] {
            assert_eq!(of(malformed), None, "{malformed}");
        }
        assert_eq!(Trigger::of(None).time(), None);
    }
}

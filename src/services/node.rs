//! A Node object, reduced to what proxying needs.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use net::address::{parse_cidr, parse_ip};

use super::{
    extensions,
    invalid::{Inspection, Invalid, Reduced},
    names::Names,
    wire,
};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Set by the cluster autoscaler on a node that it is about to remove
/// (KEP-3458: load balancers should stop sending to it).
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// A Node, as far as proxying needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the Node.
    pub name: Arc<str>,
    /// Zone of the Node, from its label `topology.kubernetes.io/zone`; `None` if it has no such
    /// label.
    pub zone: Option<Arc<str>>,
    /// Networks from which its pods get their addresses.
    pub pod_cidrs: Box<[IpNet]>,
    /// Its IP addresses: internal ones first, then external ones, each in
    /// order of the status.
    pub addresses: Box<[IpAddr]>,
    /// Whether the Node object is being deleted.
    pub deleting: bool,
    /// Whether the cluster autoscaler is about to remove the node.
    pub to_be_deleted: bool,
    /// The weight of each endpoint that runs on it, from `tripod.proxy/weight`; `None` if not given
    /// or malformed.
    pub weight: Option<u16>,
}

impl Node {
    /// Returns `node`, with the addresses and pod networks of the object `before` if it has none: a
    /// Node that is registered again, or whose addresses a cloud controller cannot find out, has
    /// none for a while, although the node itself still has them. Kube-proxy also keeps the
    /// addresses, and exits when the networks change (`OnNodeChange` of its `pkg/proxy/node.go`).
    pub(super) fn with_addresses_of(mut node: Arc<Node>, before: &Node) -> Arc<Node> {
        if node.addresses.is_empty() && !before.addresses.is_empty() {
            Arc::make_mut(&mut node).addresses = before.addresses.clone();
        }
        if node.pod_cidrs.is_empty() && !before.pod_cidrs.is_empty() {
            Arc::make_mut(&mut node).pod_cidrs = before.pod_cidrs.clone();
        }
        node
    }

    /// Reduces a Node of the API.
    ///
    /// # Errors
    /// When the Node has no name.
    pub fn reduce(node: &wire::Node, names: &mut Names) -> Result<Reduced<Node>, Invalid> {
        let metadata = &node.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let mut inspection = Inspection::of("Node", name);
        if name.is_empty() {
            return Err(inspection.refuse("metadata.name", "", "an object needs a name"));
        }
        let labels = metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(ZONE_LABEL));
        let spec = node.spec.as_ref();
        let pod_cidrs = pod_cidrs(spec, &mut inspection);
        let addresses = addresses(node.status.as_ref(), &mut inspection);
        let taints = spec
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let object = Node {
            name: names.share(name),
            zone: zone
                .filter(|zone| !zone.is_empty())
                .map(|zone| names.share(zone)),
            pod_cidrs,
            addresses,
            deleting: metadata.deletion_timestamp.is_some(),
            to_be_deleted: taints.iter().any(|taint| taint.key == TO_BE_DELETED_TAINT),
            weight: extensions::weight(metadata, &mut inspection),
        };
        Ok(inspection.finish(object))
    }
}

fn pod_cidrs(spec: Option<&wire::NodeSpec>, inspection: &mut Inspection) -> Box<[IpNet]> {
    let Some(spec) = spec else {
        return Box::default();
    };
    let listed: Vec<(String, &String)> = match spec.pod_cidrs.as_deref() {
        Some(cidrs) if !cidrs.is_empty() => cidrs
            .iter()
            .enumerate()
            .map(|(i, cidr)| (format!("spec.podCIDRs[{i}]"), cidr))
            .collect(),
        _ => spec
            .pod_cidr
            .iter()
            .filter(|cidr| !cidr.is_empty())
            .map(|cidr| ("spec.podCIDR".to_owned(), cidr))
            .collect(),
    };
    let mut found = Vec::new();
    for (field, text) in listed {
        match parse_cidr(text) {
            Some(cidr) => found.push(cidr),
            None => inspection.skip(field, text, "not a CIDR such as 10.244.0.0/24"),
        }
    }
    found.into()
}

fn addresses(status: Option<&wire::NodeStatus>, inspection: &mut Inspection) -> Box<[IpAddr]> {
    let listed = status
        .and_then(|status| status.addresses.as_deref())
        .unwrap_or_default();
    let mut found = Vec::new();
    for kind in ["InternalIP", "ExternalIP"] {
        for (i, address) in listed.iter().enumerate() {
            if address.type_ != kind {
                continue;
            }
            match parse_ip(&address.address) {
                Some(ip) if !found.contains(&ip) => found.push(ip),
                Some(_) => {}
                None => inspection.skip(
                    format!("status.addresses[{i}].address"),
                    &address.address,
                    "not an IP address",
                ),
            }
        }
    }
    found.into()
}

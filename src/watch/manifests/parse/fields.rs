//! The fields that objects have (Kubernetes 1.36), so that a field with a typing error is noticed:
//! otherwise an object whose `ports` are called `prots` would be a valid one without ports.
//!
//! Parts that a proxy does not read have no fields here, and may have any.

use std::fmt;

use serde_json::Value;

use super::similar::similar;
use crate::services::Kind;

/// Maximum number of unknown fields of an object that are named.
const MOST: usize = 10;

/// Fields by their names.
type Fields = &'static [(&'static str, Shape)];

#[derive(Clone, Copy)]
enum Shape {
    /// Anything.
    Any,
    /// An object with these fields.
    Object(Fields),
    /// A list of objects with these fields.
    List(Fields),
}

use Shape::{Any, List, Object};

const METADATA: Fields = &[
    ("annotations", Any),
    ("clusterName", Any),
    ("creationTimestamp", Any),
    ("deletionGracePeriodSeconds", Any),
    ("deletionTimestamp", Any),
    ("finalizers", Any),
    ("generateName", Any),
    ("generation", Any),
    ("labels", Any),
    ("managedFields", Any),
    ("name", Any),
    ("namespace", Any),
    ("ownerReferences", Any),
    ("resourceVersion", Any),
    ("selfLink", Any),
    ("uid", Any),
];

const SERVICE: Fields = &[
    ("apiVersion", Any),
    ("kind", Any),
    ("metadata", Object(METADATA)),
    ("spec", Object(SERVICE_SPEC)),
    ("status", Object(SERVICE_STATUS)),
];

const SERVICE_SPEC: Fields = &[
    ("allocateLoadBalancerNodePorts", Any),
    ("clusterIP", Any),
    ("clusterIPs", Any),
    ("externalIPs", Any),
    ("externalName", Any),
    ("externalTrafficPolicy", Any),
    ("healthCheckNodePort", Any),
    ("internalTrafficPolicy", Any),
    ("ipFamilies", Any),
    ("ipFamily", Any),
    ("ipFamilyPolicy", Any),
    ("loadBalancerClass", Any),
    ("loadBalancerIP", Any),
    ("loadBalancerSourceRanges", Any),
    ("ports", List(SERVICE_PORT)),
    ("publishNotReadyAddresses", Any),
    ("selector", Any),
    ("sessionAffinity", Any),
    ("sessionAffinityConfig", Object(AFFINITY)),
    ("topologyKeys", Any),
    ("trafficDistribution", Any),
    ("type", Any),
];

const SERVICE_PORT: Fields = &[
    ("appProtocol", Any),
    ("name", Any),
    ("nodePort", Any),
    ("port", Any),
    ("protocol", Any),
    ("targetPort", Any),
];

const AFFINITY: Fields = &[("clientIP", Object(&[("timeoutSeconds", Any)]))];

const SERVICE_STATUS: Fields = &[
    ("conditions", Any),
    ("loadBalancer", Object(&[("ingress", List(INGRESS))])),
];

const INGRESS: Fields = &[
    ("hostname", Any),
    ("ip", Any),
    ("ipMode", Any),
    ("ports", Any),
];

const SLICE: Fields = &[
    ("addressType", Any),
    ("apiVersion", Any),
    ("endpoints", List(ENDPOINT)),
    ("kind", Any),
    ("metadata", Object(METADATA)),
    ("ports", List(SLICE_PORT)),
];

const ENDPOINT: Fields = &[
    ("addresses", Any),
    ("conditions", Object(CONDITIONS)),
    ("deprecatedTopology", Any),
    ("hints", Object(HINTS)),
    ("hostname", Any),
    ("nodeName", Any),
    ("targetRef", Any),
    ("topology", Any),
    ("zone", Any),
];

const CONDITIONS: Fields = &[("ready", Any), ("serving", Any), ("terminating", Any)];

const HINTS: Fields = &[
    ("forNodes", List(&[("name", Any)])),
    ("forZones", List(&[("name", Any)])),
];

const SLICE_PORT: Fields = &[
    ("appProtocol", Any),
    ("name", Any),
    ("port", Any),
    ("protocol", Any),
];

const NODE: Fields = &[
    ("apiVersion", Any),
    ("kind", Any),
    ("metadata", Object(METADATA)),
    ("spec", Object(NODE_SPEC)),
    ("status", Object(NODE_STATUS)),
];

const NODE_SPEC: Fields = &[
    ("configSource", Any),
    ("externalID", Any),
    ("podCIDR", Any),
    ("podCIDRs", Any),
    ("providerID", Any),
    ("taints", List(TAINT)),
    ("unschedulable", Any),
];

const TAINT: Fields = &[
    ("effect", Any),
    ("key", Any),
    ("timeAdded", Any),
    ("value", Any),
];

const NODE_STATUS: Fields = &[
    ("addresses", List(&[("address", Any), ("type", Any)])),
    ("allocatable", Any),
    ("capacity", Any),
    ("conditions", Any),
    ("config", Any),
    ("daemonEndpoints", Any),
    ("declaredFeatures", Any),
    ("features", Any),
    ("images", Any),
    ("nodeInfo", Any),
    ("phase", Any),
    ("runtimeHandlers", Any),
    ("volumesAttached", Any),
    ("volumesInUse", Any),
];

const SERVICE_CIDR: Fields = &[
    ("apiVersion", Any),
    ("kind", Any),
    ("metadata", Object(METADATA)),
    ("spec", Object(&[("cidrs", Any)])),
    ("status", Any),
];

fn fields(kind: Kind) -> Fields {
    match kind {
        Kind::Service => SERVICE,
        Kind::EndpointSlice => SLICE,
        Kind::Node => NODE,
        Kind::ServiceCidr => SERVICE_CIDR,
    }
}

/// A field that objects of this kind do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::watch::manifests) struct UnknownField {
    /// The path of the field, such as `spec.prots`.
    path: String,
    /// The intended field: it has a similar name, and is missing. Otherwise the field may be one of
    /// a newer version of Kubernetes.
    meant: Option<&'static str>,
}

impl UnknownField {
    /// Returns whether it is a typing error, as far as that can be decided.
    pub(in crate::watch::manifests) fn is_typing_error(&self) -> bool {
        self.meant.is_some()
    }
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownField { path, meant } = self;
        match meant {
            Some(meant) => write!(f, "unknown field {path}, did you mean {meant}?"),
            None => write!(f, "unknown field {path}"),
        }
    }
}

/// Finds the unknown fields of an object of this kind, even if it has other faults.
pub(super) fn unknown_fields(kind: Kind, object: &Value) -> Vec<UnknownField> {
    let mut found = Vec::new();
    walk(object, Object(fields(kind)), "", &mut found);
    found
}

/// Walks through a value of this shape.
fn walk(value: &Value, shape: Shape, path: &str, found: &mut Vec<UnknownField>) {
    match (shape, value) {
        (Object(fields), Value::Object(object)) => {
            for (name, shape) in fields {
                if let (Object(_) | List(_), Some(value)) = (shape, object.get(*name)) {
                    walk(value, *shape, &join(path, name), found);
                }
            }
            let unknown = object
                .keys()
                .filter(|key| fields.iter().all(|(name, _)| name != key));
            for key in unknown.take(MOST.saturating_sub(found.len())) {
                let names = fields.iter().map(|(name, _)| *name);
                let missing = names.filter(|name| !object.contains_key(*name));
                found.push(UnknownField {
                    meant: similar(key, missing),
                    path: join(path, key),
                });
            }
        }
        (List(fields), Value::Array(items)) => {
            for (number, item) in items.iter().enumerate() {
                walk(item, Object(fields), &format!("{path}[{number}]"), found);
            }
        }
        _ => {}
    }
}

/// Maximum number of characters of a field's name that are shown.
const SHOWN: usize = 60;

fn join(path: &str, name: &str) -> String {
    let name: String = name.chars().take(SHOWN).collect();
    match path {
        "" => name,
        path => format!("{path}.{name}"),
    }
}

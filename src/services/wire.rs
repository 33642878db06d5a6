//! Objects as servers send them and files contain them, without fields that no proxy reads:
//! decoding skips `managedFields`, a Node's images and the like before they take memory, and there
//! is less code for each format.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The part that is read of an object of any kind.
#[derive(Deserialize)]
pub(super) struct Bare {
    pub(super) metadata: Meta,
}

/// The part that identifies an object: it is read if the rest cannot be parsed, or does not matter.
#[derive(Deserialize)]
pub(super) struct Identified<'a> {
    #[serde(borrow)]
    pub(super) metadata: Identity<'a>,
}

/// The metadata that identify the object and its version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity<'a> {
    name: Option<String>,
    namespace: Option<String>,
    pub(super) resource_version: Option<String>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

impl Identity<'_> {
    /// Returns whether an annotation has this value.
    pub(super) fn is_annotated(&self, name: &str, value: &str) -> bool {
        let all = self.annotations.map(RawValue::get);
        let all = all.and_then(|all| serde_json::from_str::<serde_json::Value>(all).ok());
        all.is_some_and(|all| all.get(name).is_some_and(|found| found == value))
    }
}

impl From<Identity<'_>> for Meta {
    fn from(identity: Identity<'_>) -> Self {
        Meta {
            name: identity.name,
            namespace: identity.namespace,
            resource_version: identity.resource_version,
            ..Meta::default()
        }
    }
}

/// Metadata of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Meta {
    fn into_api(self) -> ObjectMeta {
        ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            labels: self.labels,
            annotations: self.annotations,
            ..ObjectMeta::default()
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Service {
    #[serde(default)]
    pub(super) metadata: Meta,
    spec: Option<core::ServiceSpec>,
    status: Option<ServiceStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceStatus {
    load_balancer: Option<core::LoadBalancerStatus>,
}

impl From<Service> for core::Service {
    fn from(wire: Service) -> Self {
        core::Service {
            metadata: wire.metadata.into_api(),
            spec: wire.spec,
            status: wire.status.map(|status| core::ServiceStatus {
                load_balancer: status.load_balancer,
                ..core::ServiceStatus::default()
            }),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointSlice {
    #[serde(default)]
    pub(super) metadata: Meta,
    #[serde(default)]
    address_type: String,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<discovery::EndpointPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<discovery::EndpointConditions>,
    hints: Option<discovery::EndpointHints>,
    node_name: Option<String>,
}

impl From<EndpointSlice> for discovery::EndpointSlice {
    fn from(wire: EndpointSlice) -> Self {
        let endpoints = wire.endpoints.into_iter().flatten();
        let endpoints = endpoints.map(|endpoint| discovery::Endpoint {
            addresses: endpoint.addresses.unwrap_or_default(),
            conditions: endpoint.conditions,
            hints: endpoint.hints,
            node_name: endpoint.node_name,
            ..discovery::Endpoint::default()
        });
        discovery::EndpointSlice {
            metadata: wire.metadata.into_api(),
            address_type: wire.address_type,
            endpoints: Some(endpoints.collect()),
            ports: wire.ports,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Node {
    #[serde(default)]
    pub(super) metadata: Meta,
    spec: Option<NodeSpec>,
    status: Option<NodeStatus>,
}

#[derive(Deserialize)]
struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
    taints: Option<Vec<core::Taint>>,
}

#[derive(Deserialize)]
struct NodeStatus {
    addresses: Option<Vec<core::NodeAddress>>,
}

impl From<Node> for core::Node {
    fn from(wire: Node) -> Self {
        core::Node {
            metadata: wire.metadata.into_api(),
            spec: wire.spec.map(|spec| core::NodeSpec {
                pod_cidr: spec.pod_cidr,
                pod_cidrs: spec.pod_cidrs,
                taints: spec.taints,
                ..core::NodeSpec::default()
            }),
            status: wire.status.map(|status| core::NodeStatus {
                addresses: status.addresses,
                ..core::NodeStatus::default()
            }),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct ServiceCidr {
    #[serde(default)]
    pub(super) metadata: Meta,
    spec: Option<networking::ServiceCIDRSpec>,
}

impl From<ServiceCidr> for networking::ServiceCIDR {
    fn from(wire: ServiceCidr) -> Self {
        networking::ServiceCIDR {
            metadata: wire.metadata.into_api(),
            spec: wire.spec,
            status: None,
        }
    }
}

impl From<Bare> for core::Node {
    fn from(wire: Bare) -> Self {
        core::Node {
            metadata: wire.metadata.into_api(),
            ..core::Node::default()
        }
    }
}

//! Objects as servers send them and files contain them, without fields that no proxy reads:
//! decoding skips `managedFields`, a Node's images and the like before they take memory, and there
//! is less code for each format. Fields have the names and meanings of the API.
#![allow(missing_docs, reason = "the API's reference documents them")]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The part that identifies an object: it is read if the rest cannot be parsed, or does not matter.
#[derive(Deserialize)]
pub struct Identified<'a> {
    #[serde(borrow)]
    pub metadata: Identity<'a>,
}

/// The metadata that identify the object and its version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity<'a> {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub resource_version: Option<String>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

impl Identity<'_> {
    /// Whether an annotation has this value.
    pub fn is_annotated(&self, name: &str, value: &str) -> bool {
        let all = self.annotations.map(RawValue::get);
        let all = all.and_then(|all| serde_json::from_str::<serde_json::Value>(all).ok());
        all.is_some_and(|all| all.get(name).is_some_and(|found| found == value))
    }
}

/// Metadata of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub resource_version: Option<String>,
    pub creation_timestamp: Option<Time>,
    pub deletion_timestamp: Option<Time>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub struct Service {
    #[serde(default)]
    pub metadata: Meta,
    pub spec: Option<core::ServiceSpec>,
    pub status: Option<ServiceStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: Option<core::LoadBalancerStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(default)]
    pub metadata: Meta,
    #[serde(default)]
    pub address_type: String,
    pub endpoints: Option<Vec<Endpoint>>,
    pub ports: Option<Vec<discovery::EndpointPort>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub addresses: Option<Vec<String>>,
    pub conditions: Option<discovery::EndpointConditions>,
    pub hints: Option<discovery::EndpointHints>,
    pub node_name: Option<String>,
    pub target_ref: Option<TargetRef>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct TargetRef {
    pub uid: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Node {
    #[serde(default)]
    pub metadata: Meta,
    pub spec: Option<NodeSpec>,
    pub status: Option<NodeStatus>,
}

#[derive(Debug, Deserialize)]
pub struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Option<Vec<String>>,
    pub taints: Option<Vec<core::Taint>>,
}

#[derive(Debug, Deserialize)]
pub struct NodeStatus {
    pub addresses: Option<Vec<core::NodeAddress>>,
}

#[derive(Debug, Deserialize)]
pub struct ServiceCidr {
    #[serde(default)]
    pub metadata: Meta,
    pub spec: Option<networking::ServiceCIDRSpec>,
}

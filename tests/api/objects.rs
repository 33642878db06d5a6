//! Objects as a server stores them, with the ballast that real ones carry.

use serde_json::{Value, json};

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "namespace": "shop",
        "uid": format!("uid-of-{name}"),
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"a\":\n\"b\"}"},
        "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
    })
}

/// A Service with cluster IP `10.96.0.<last>`.
pub fn service(name: &str, last: u8) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": format!("10.96.0.{last}"),
            "clusterIPs": [format!("10.96.0.{last}")],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": name},
        },
        "status": {"loadBalancer": {}},
    })
}

/// A slice of a Service, with an endpoint `10.0.0.<last>` for each of `last`.
pub fn slice(name: &str, service: &str, last: &[u8]) -> Value {
    let endpoints = last.iter().map(|last| {
        json!({
            "addresses": [format!("10.0.0.{last}")],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-a",
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": format!("pod-{last}")},
        })
    });
    let mut meta = metadata(name);
    meta["labels"] = json!({"kubernetes.io/service-name": service});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// A Node in a zone.
pub fn node(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "images": [{"names": ["registry.example/a"], "sizeBytes": 1}],
        },
    })
}

/// A ServiceCIDR with these networks.
pub fn service_cidr(name: &str, networks: &[&str]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": networks},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

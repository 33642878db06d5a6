//! ServicePorts and their endpoints.

use serde::{Deserialize, Serialize};

use super::Unsupported;

/// ServicePorts, sorted by namespace and name, a page of them at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortList {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `ServicePortList`.
    pub kind: String,
    /// The ServicePorts of this page.
    pub items: Vec<ServicePort>,
    /// The parameter with which the next page is asked for; `None`: this is the last.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// One port of a Service in one IP family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port; empty for an unnamed one.
    pub port: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Where clients reach it, those apart that another Service owns.
    pub addresses: Vec<Address>,
    /// How an endpoint is chosen.
    pub scheduler: String,
    /// How long clients keep their endpoint; `None`: they do not.
    pub affinity_seconds: Option<u64>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// Networks that may reach its load-balancer addresses; empty: all.
    pub source_ranges: Vec<String>,
    /// Its endpoints, sorted by address.
    pub endpoints: Vec<Endpoint>,
    /// Why none of them takes new connections; `None`: some does. An earlier version has
    /// nothing of it.
    #[serde(default)]
    pub no_endpoints: Option<NoEndpoints>,
    /// Why it is not in force as asked.
    pub failing: Option<String>,
    /// Where the health-check node port of its Service cannot be served, and why.
    #[serde(default)]
    pub health_check_failing: Vec<String>,
    /// What it asks for that the mode does not do.
    pub unsupported: Vec<Unsupported>,
    /// Which addresses it does not get, and who owns them.
    pub conflicts: Vec<String>,
    /// What it carried.
    pub traffic: Option<Traffic>,
    /// How often the limits of its Service kept something out, at whichever of its ports; `None`:
    /// the mode has none, or does not serve it.
    #[serde(default)]
    pub limited: Option<Limited>,
}

/// How often the limits of a Service kept something out, since the process serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limited {
    /// Times that accepting paused, and datagrams of new UDP clients that were dropped, because
    /// the Service has as many connections as it may.
    pub service: u64,
    /// TCP connections that were reset, and datagrams of new UDP flows that were dropped, because
    /// their client has as many of the Service as it may.
    pub client: u64,
}

/// Why no endpoint takes connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoEndpoints {
    /// The reason, in words.
    pub why: String,
    /// The command that shows the EndpointSlices of the Service; `None`: there is no cluster
    /// to ask.
    pub command: Option<String>,
}

/// Where clients reach a ServicePort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// `clusterIP`, `externalIP`, `loadBalancerIP` or `nodePort`.
    pub kind: String,
    /// The address; `None`: those of the node.
    pub ip: Option<String>,
    /// The port there.
    pub port: u16,
}

/// An endpoint of a ServicePort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Where it listens.
    pub address: String,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Its share of new connections.
    pub weight: u16,
    /// Whether it takes new connections.
    pub in_use: bool,
    /// The reason for which it takes none.
    pub why: Option<String>,
    /// What it carried.
    pub traffic: Option<Traffic>,
}

/// What was carried; each is `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Connections that are open now.
    pub active: Option<u64>,
    /// Connections so far.
    pub connections: Option<u64>,
    /// Bytes from clients.
    pub bytes_in: Option<u64>,
    /// Bytes to clients.
    pub bytes_out: Option<u64>,
}

impl Traffic {
    /// Returns both together; what is not known of one is not known of both.
    pub fn plus(self, other: Traffic) -> Traffic {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Traffic {
            active: sum(self.active, other.active),
            connections: sum(self.connections, other.connections),
            bytes_in: sum(self.bytes_in, other.bytes_in),
            bytes_out: sum(self.bytes_out, other.bytes_out),
        }
    }
}

//! ServicePorts and their endpoints.

use serde::{Deserialize, Serialize};

use super::Unsupported;

/// ServicePorts, sorted by namespace and name, a page of them at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortList {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `ServicePortList`.
    pub kind: String,
    /// The ServicePorts of this page.
    pub items: Vec<ServicePort>,
    /// Value of the parameter `continue` that requests the next page; `None` if this is the last
    /// page.
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
    /// Addresses at which clients reach it, without those that another Service owns.
    pub addresses: Vec<Address>,
    /// Name of the scheduler that chooses an endpoint for a new connection.
    pub scheduler: String,
    /// Timeout of session affinity, in seconds; `None` if there is no session affinity.
    pub affinity_seconds: Option<u64>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// Networks (CIDR) that may reach its load-balancer addresses; empty: all networks.
    pub source_ranges: Vec<String>,
    /// Name of the mode that serves it, if it is not that of the node: its Service chose it
    /// (`tripod.proxy/mode`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Its endpoints, sorted by address.
    pub endpoints: Vec<Endpoint>,
    /// Why no endpoint takes new connections; `None` if at least one does. Earlier versions do not
    /// have this field.
    #[serde(default)]
    pub no_endpoints: Option<NoEndpoints>,
    /// Why its desired state is not applied; `None` if it is applied.
    pub failing: Option<String>,
    /// Addresses at which the health-check node port of its Service cannot be served, each with the
    /// reason.
    #[serde(default)]
    pub health_check_failing: Vec<String>,
    /// The health-check node port of its Service; `None` if it has none. Earlier versions do not have
    /// this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Settings of its Service that the mode does not support.
    pub unsupported: Vec<Unsupported>,
    /// Addresses that it does not get, each with the ServicePort that owns it.
    pub conflicts: Vec<String>,
    /// Connections and bytes; `None` if nothing is known about them.
    pub traffic: Option<Traffic>,
    /// Number of connections or datagrams rejected by the limits of its Service, over all its
    /// ports; `None` if the mode has no limits, or does not serve the Service.
    #[serde(default)]
    pub limited: Option<Limited>,
}

/// The health-check node port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// The port at which Tripod answers load balancers.
    pub port: u16,
    /// Number of ready endpoints of the ServicePort on this node.
    pub local_endpoints: usize,
}

/// Number of connections or datagrams rejected by the limits of a Service, since the process began
/// to serve it; in nftables mode, since its rules were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limited {
    /// Number of pauses in accepting (in nftables mode: of refused attempts to connect), and of
    /// dropped datagrams of new UDP clients, because the Service reached its connection limit.
    pub service: u64,
    /// Number of TCP connections that were reset or refused, and of dropped datagrams of new UDP flows,
    /// because their client reached its connection limit for the Service.
    pub client: u64,
}

/// Why no endpoint takes new connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoEndpoints {
    /// Readable description of the reason.
    pub why: String,
    /// The kubectl command that shows the EndpointSlices of the Service; `None` if objects come
    /// from a folder.
    pub command: Option<String>,
}

/// An address at which clients reach a ServicePort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// `clusterIP`, `externalIP`, `loadBalancerIP` or `nodePort`.
    pub kind: String,
    /// The IP address; `None`: the node's addresses that serve node ports.
    pub ip: Option<String>,
    /// The port at this address, or the first one of a range.
    pub port: u16,
    /// The last port of a range (`tripod.proxy/ports`); `None`: it is no range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_port: Option<u16>,
    /// Why it is served nowhere on this node, with the remedy; `None` if it is served.
    #[serde(default)]
    pub unserved: Option<String>,
}

/// An endpoint of a ServicePort.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// IP address and port of the endpoint.
    pub address: String,
    /// Name of the node on which it runs; `None` if not known.
    pub node: Option<String>,
    /// Its weight in the distribution of new connections; 0: it gets none.
    pub weight: u16,
    /// How many percent of its weight it has, while its share grows after it became ready; `None` if
    /// it has all of it.
    pub starting: Option<u8>,
    /// Whether it counts as ready although it is not, because it was one of the last that were.
    /// Earlier versions do not have this field.
    #[serde(default)]
    pub last_ready: bool,
    /// Whether it gets new connections on this node.
    pub in_use: bool,
    /// Why it gets no new connections, or why these reach no endpoint although it gets its share;
    /// `None` if they do.
    pub why: Option<String>,
    /// Connections and bytes; `None` if nothing is known about them.
    pub traffic: Option<Traffic>,
}

/// Connections and bytes; each is `None` if the mode does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Number of connections that are open now, including UDP clients.
    pub active: Option<u64>,
    /// Number of connections since counting began.
    pub connections: Option<u64>,
    /// Bytes that clients sent since counting began.
    pub bytes_in: Option<u64>,
    /// Bytes that were sent to clients since counting began.
    pub bytes_out: Option<u64>,
}

impl Traffic {
    /// Adds both; what is unknown of one is unknown of the sum.
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

//! The path of a packet.

use serde::{Deserialize, Serialize};

use super::{Difference, Listed, NoEndpoints};

/// The path of a packet, according to the current Services and the state of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `Explanation`.
    pub kind: String,
    /// Name of the current mode.
    pub mode: String,
    /// Destination of the packet, with its port.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Sender of the packet as requested: an address, `pod`, `node` or `outside`.
    pub from: String,
    /// Kind of the sender: `pod`, `node` or `outside`.
    pub origin: String,
    /// The outcome: `forwarded`, `answered` (by Tripod itself), `refused`, `dropped`, `notServed`
    /// (routed as without Tripod) or `depends` (on the sender's address).
    pub verdict: String,
    /// The decisions about the packet, step by step; the last one determines the outcome.
    pub steps: Vec<String>,
    /// `namespace/name:port` of the ServicePort to which the destination belongs; `None` if it
    /// belongs to none.
    pub service_port: Option<String>,
    /// Kind of the destination: `clusterIP`, `externalIP`, `loadBalancerIP` or `nodePort`; `None`
    /// if it belongs to no ServicePort.
    pub role: Option<String>,
    /// The endpoints to which it may be sent.
    pub candidates: Vec<Candidate>,
    /// Why no endpoint gets the packet; `None` if one does, or the outcome does not depend on
    /// endpoints. Earlier versions do not have this field.
    #[serde(default)]
    pub no_endpoints: Option<NoEndpoints>,
    /// Chains of other programs with policy DROP at the hooks that the packet passes: FORWARD, and
    /// INPUT in userspace and ipvs mode. They drop the packet unless one of their rules accepts it.
    /// `None`: they were not read, or could not be read.
    pub forward_policies: Option<Vec<String>>,
    /// The other endpoints of the ServicePort, each with the reason.
    pub passed_over: Vec<PassedOver>,
    /// The objects of the kernel, and the listeners of the proxy, for the ServicePort, each with
    /// its state.
    pub objects: Vec<Object>,
    /// Other differences of the IP family that may send packets elsewhere; those of other
    /// ServicePorts are omitted.
    pub differences: Listed<Difference>,
    /// Entries of conntrack for this destination, and for this sender if `from` is an address;
    /// `None` if they were not read, or could not be read.
    pub connections: Option<Connections>,
    /// Why conntrack could not be read; `None` if it was read, or not requested.
    pub connections_error: Option<String>,
    /// Why the state of the kernel is not known; `None` if it is known, or was not requested.
    pub error: Option<String>,
}

/// The paths of packets to a Service: one explanation for each of its cluster IPs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationList {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `ExplanationList`.
    pub kind: String,
    /// The explanation for each cluster IP.
    pub items: Vec<Explanation>,
}

/// Connections and UDP clients in conntrack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// Total number of entries.
    pub total: usize,
    /// Number of stale entries.
    pub stale: usize,
    /// The first entries, stale ones before the others.
    pub items: Vec<Connection>,
}

/// An entry of conntrack: a connection or a UDP client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Source address and port of the client.
    pub client: String,
    /// The endpoint to which its packets are sent; `None` if they are not translated, or Tripod
    /// relays them.
    pub endpoint: Option<String>,
    /// Its state in conntrack, such as `ESTABLISHED`; for UDP `UNREPLIED`, `REPLIED` or
    /// `ASSURED`.
    pub state: String,
    /// Why a new connection would not be sent to this endpoint; `None` if it could be.
    pub stale: Option<String>,
}

/// An endpoint to which a packet may be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// IP address and port of the endpoint.
    pub address: String,
    /// Name of the node on which it runs; `None` if not known.
    pub node: Option<String>,
    /// Probability that it is chosen, from 0 to 1; `None` if this depends on loads or on the
    /// client's address.
    pub share: Option<f64>,
}

/// An endpoint to which a packet is not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// IP address and port of the endpoint.
    pub address: String,
    /// Name of the node on which it runs; `None` if not known.
    pub node: Option<String>,
    /// Why no connection is sent to it.
    pub why: String,
}

/// An object that a ServicePort needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// Readable description of the object.
    pub object: String,
    /// `present`, `missing` or `altered`; `unknown` if the kernel was not read, or could not be
    /// read.
    pub found: String,
}

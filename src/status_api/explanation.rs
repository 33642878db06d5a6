//! What becomes of a packet.

use serde::{Deserialize, Serialize};

use super::{Difference, Listed, NoEndpoints};

/// What becomes of a packet, by the Services as they are now and by what the kernel
/// holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `Explanation`.
    pub kind: String,
    /// The mode that runs.
    pub mode: String,
    /// Destination of the packet, with its port.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Who sends it: an address, `pod`, `node` or `outside`.
    pub from: String,
    /// What the sender is taken for: `pod`, `node` or `outside`.
    pub origin: String,
    /// What becomes of it: `forwarded`, `answered` (by Tripod itself), `refused`, `dropped`,
    /// `notServed` (it goes where it would go without Tripod) or `depends` (on the sender's
    /// address).
    pub verdict: String,
    /// Its way, step by step; the last step says what decides.
    pub steps: Vec<String>,
    /// `namespace/name:port` of the ServicePort that it is for; `None`: for none.
    pub service_port: Option<String>,
    /// What its destination is to the ServicePort: `clusterIP`, `externalIP`,
    /// `loadBalancerIP` or `nodePort`.
    pub role: Option<String>,
    /// Where it may be sent.
    pub candidates: Vec<Candidate>,
    /// Why no endpoint gets it; `None`: some does, or it is not for endpoints. An earlier
    /// version has nothing of it.
    #[serde(default)]
    pub no_endpoints: Option<NoEndpoints>,
    /// Chains of other programs that drop it where it is forwarded, or reaches the node itself
    /// on its way (in userspace and ipvs mode), unless one of their rules accepts it: their
    /// policy is DROP. `None`: that was not, or could not be, read.
    pub forward_policies: Option<Vec<String>>,
    /// The other endpoints of the ServicePort, each with the reason.
    pub passed_over: Vec<PassedOver>,
    /// What the kernel, or the proxy, has for the ServicePort, each with what was found
    /// of it.
    pub objects: Vec<Object>,
    /// What else of the IP family is not as it is to be, so that packets may go another
    /// way; that of other ServicePorts is left out.
    pub differences: Listed<Difference>,
    /// What conntrack holds of this destination, and of this sender where `from` is an
    /// address; `None`: it was not, or could not be, read.
    pub connections: Option<Connections>,
    /// Why conntrack could not be read.
    pub connections_error: Option<String>,
    /// Why it is not known what the kernel holds.
    pub error: Option<String>,
}

/// What becomes of packets to a Service: one for each of its cluster IPs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationList {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `ExplanationList`.
    pub kind: String,
    /// What becomes of a packet to each.
    pub items: Vec<Explanation>,
}

/// Connections, and UDP clients, that are known to conntrack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// How many there are.
    pub total: usize,
    /// How many of them are stale.
    pub stale: usize,
    /// The first of them, those that are stale before the others.
    pub items: Vec<Connection>,
}

/// An entry of conntrack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// The address and port that the client sends from.
    pub client: String,
    /// Where its packets are sent; `None`: they are not translated, or Tripod relays them.
    pub endpoint: Option<String>,
    /// Its state as conntrack has it, like `ESTABLISHED`; of UDP `UNREPLIED`, `REPLIED` or
    /// `ASSURED`.
    pub state: String,
    /// Why new connections would not go there; `None`: they may.
    pub stale: Option<String>,
}

/// An endpoint that a packet may be sent to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Where it listens.
    pub address: String,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Its share of such packets, of 1; `None`: it follows from loads, or from the
    /// client's address.
    pub share: Option<f64>,
}

/// An endpoint that a packet is not sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// Where it listens.
    pub address: String,
    /// The node that it runs on.
    pub node: Option<String>,
    /// Why no connection is sent to it.
    pub why: String,
}

/// Something that is to be there for a ServicePort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// What it is.
    pub object: String,
    /// `present`, `missing` or `altered`; `unknown` where the kernel was not, or
    /// could not be, read.
    pub found: String,
}

//! Tries of userspace mode to reach endpoints.

use serde::{Deserialize, Serialize};

/// Tries to reach endpoints of a ServicePort, since a number that an earlier answer gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DialList {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `DialList`.
    pub kind: String,
    /// The tries, in their order.
    pub items: Vec<Dial>,
    /// The parameter `after` of the next request.
    pub next: u64,
    /// Some may be missing: there were more than are remembered.
    pub lost: bool,
}

/// A try to reach an endpoint for a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dial {
    /// Address and port of the client.
    pub client: String,
    /// Address and port of the endpoint.
    pub endpoint: String,
    /// The address and port that the endpoint sees; `None`: it was not reached, or that is not
    /// known.
    pub from: Option<String>,
    /// Why the endpoint did not take the client; `None`: it did.
    pub error: Option<String>,
}

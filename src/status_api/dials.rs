//! Attempts of userspace mode to reach endpoints.

use serde::{Deserialize, Serialize};

/// Attempts to reach endpoints of a ServicePort, after the number `next` of an earlier answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DialList {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `DialList`.
    pub kind: String,
    /// The attempts, in their order.
    pub items: Vec<Dial>,
    /// The parameter `after` of the next request.
    pub next: u64,
    /// Whether some may be missing, because there were more than are kept.
    pub lost: bool,
}

/// An attempt to reach an endpoint for a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dial {
    /// Address and port of the client.
    pub client: String,
    /// Address and port of the endpoint.
    pub endpoint: String,
    /// The address and port that the endpoint sees; `None` if it was not reached, or that is not
    /// known.
    pub from: Option<String>,
    /// Why the endpoint did not accept the client; `None` if it did.
    pub error: Option<String>,
}

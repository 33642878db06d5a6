//! The last syncs.

use serde::{Deserialize, Serialize};

/// The last syncs of each IP family, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncList {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `SyncList`.
    pub kind: String,
    /// At most 100 syncs of each family.
    pub items: Vec<PastSync>,
}

/// A sync of one IP family that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastSync {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The time at which the sync ended (RFC 3339).
    pub ended: String,
    /// Duration of the sync, in seconds.
    pub seconds: f64,
    /// Whether the sync compared everything with the kernel, not only the changes.
    pub full: bool,
    /// Number of ServicePorts that the sync processed; `None` if it had no effect.
    pub service_ports: Option<usize>,
    /// Number of ServicePorts that were not applied after the sync; `None` if it had no effect.
    pub failed: Option<usize>,
    /// Why the sync had no effect; `None` if it took effect.
    pub error: Option<String>,
}

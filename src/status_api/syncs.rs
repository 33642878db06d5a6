//! The last syncs.

use serde::{Deserialize, Serialize};

/// The last syncs of each IP family, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncList {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `SyncList`.
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
    /// The time at which it ended.
    pub ended: String,
    /// How long it took.
    pub seconds: f64,
    /// Whether everything was compared with the kernel.
    pub full: bool,
    /// ServicePorts that it looked at; `None`: it took no effect.
    pub service_ports: Option<usize>,
    /// ServicePorts that are not in force as asked after it; `None`: it took no effect.
    pub failed: Option<usize>,
    /// Why it took no effect.
    pub error: Option<String>,
}

//! Differences between the kernel and the desired state.

use serde::{Deserialize, Serialize};

use super::Listed;

/// Differences between the kernel and the desired state for the current Services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `Diff`.
    pub kind: String,
    /// Name of the current mode.
    pub mode: String,
    /// The differences of each IP family that the mode serves.
    pub families: Vec<FamilyDiff>,
    /// Differences that belong to no mode, such as limits of connection tracking. Earlier versions
    /// do not have this field.
    #[serde(default)]
    pub node: Listed<Difference>,
}

/// Differences of one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyDiff {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Why the differences are not known, in which case none are listed; `None` if they are known.
    pub error: Option<String>,
    /// The differences, at most 1,000 of them.
    pub differences: Listed<Difference>,
}

/// An object in the kernel, or a listener, that differs from the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `missing`; `altered`: it exists, but differs; or `unneeded`: it exists, but nothing needs
    /// it.
    pub found: String,
    /// Readable description of the object, such as `virtual server 10.96.0.10:80/TCP`.
    pub object: String,
    /// `namespace/name:port` of the ServicePort to which it belongs; `None` if it belongs to no
    /// single ServicePort, or this is not known.
    pub service_port: Option<String>,
    /// Protocol of the ServicePort: `TCP`, `UDP` or `SCTP`; `None` if `service_port` is `None`.
    pub protocol: Option<String>,
}

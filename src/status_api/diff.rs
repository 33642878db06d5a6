//! How the kernel differs from what it is to hold.

use serde::{Deserialize, Serialize};

use super::Listed;

/// How the kernel differs from what it is to hold for the Services as they are now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `Diff`.
    pub kind: String,
    /// The mode that runs.
    pub mode: String,
    /// Each IP family that the mode serves.
    pub families: Vec<FamilyDiff>,
    /// What of the node itself is not as it is to be, whatever the mode. An earlier
    /// version has nothing of it.
    #[serde(default)]
    pub node: Listed<Difference>,
}

/// How the kernel differs in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyDiff {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Why it is not known; then there are no differences here.
    pub error: Option<String>,
    /// What is not as it is to be.
    pub differences: Listed<Difference>,
}

/// Something that is not as it is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `missing`; `altered`: it is there, and not as it is to be; or `unneeded`: it is
    /// there, and nothing needs it.
    pub found: String,
    /// What it is.
    pub object: String,
    /// `namespace/name:port` of the ServicePort that it is for; `None`: for none alone,
    /// or that is not known.
    pub service_port: Option<String>,
    /// The ServicePort's protocol.
    pub protocol: Option<String>,
}

//! How the proxy is.

use serde::{Deserialize, Serialize};

use super::Listed;

/// How the proxy is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of this format: [`super::VERSION`].
    pub api_version: String,
    /// The kind of object: `Status`.
    pub kind: String,
    /// Version of the program.
    pub version: String,
    /// The number of its process.
    pub pid: u32,
    /// Name of the node that it serves.
    pub node: String,
    /// The time at which it began.
    pub started: String,
    /// Whether all that is asked for is in force, and can be kept so.
    pub healthy: bool,
    /// What is not as it should be, if it is not healthy.
    pub problems: Vec<String>,
    /// Another process of Tripod has taken over, or is about to: this one writes nothing
    /// until that one has ended. An earlier version has nothing of it.
    #[serde(default)]
    pub gave_way: bool,
    /// How traffic is carried.
    pub mode: Mode,
    /// Where objects come from.
    pub objects: Objects,
    /// How syncs of each IP family go.
    pub syncs: Vec<FamilySync>,
    /// What stays until its last connection ends. An earlier version has nothing of it.
    #[serde(default)]
    pub draining: Listed<Draining>,
    /// How much there is.
    pub counts: Counts,
    /// What is not in force as asked.
    pub failing: Listed<Failing>,
    /// Health-check node ports that cannot be served.
    #[serde(default)]
    pub health_checks_failing: Listed<HealthCheckFailing>,
    /// What Services ask for that this mode does not do.
    pub unsupported: Listed<Unsupported>,
    /// Addresses that several Services name.
    pub conflicts: Listed<Conflict>,
}

/// How traffic is carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mode {
    /// Name of the mode.
    pub name: String,
    /// Why each better mode was passed over.
    pub passed_over: Vec<String>,
    /// What the mode itself does without.
    pub lost: Vec<String>,
}

/// Where objects come from, and how that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    /// The source, in words.
    pub source: String,
    /// The kinds that are followed.
    pub kinds: Vec<ObjectKind>,
}

/// One kind of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectKind {
    /// Name of the kind, in the plural.
    pub name: String,
    /// Whether all were known once. The last known ones stay in force.
    pub complete: bool,
    /// Whether nothing is served before they are.
    pub required: bool,
    /// Why they cannot be followed now.
    pub trouble: Option<Trouble>,
}

/// What does not work, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// The time at which it began.
    pub since: String,
    /// What failed, in words.
    pub why: String,
}

/// What probes of the pod ask for: a part of [`Status`] that costs the same with any number of
/// Services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `Health`.
    pub kind: String,
    /// How syncs go.
    pub syncs: Vec<FamilySync>,
}

/// How syncs of one IP family go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilySync {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The last one that came in force.
    pub last: Option<LastSync>,
    /// The time at which the one under way began.
    pub under_way_since: Option<String>,
    /// Why none comes in force.
    pub trouble: Option<Trouble>,
    /// Whether changes have waited for too long, as `/livez` has it.
    pub overdue: bool,
    /// Addresses and endpoints that stay until their last connection ends.
    pub draining: usize,
    /// Why Services of the family are not served, which is no failure: the node does not have
    /// the family. `None`: they are. An earlier version has nothing of it.
    #[serde(default)]
    pub not_served: Option<String>,
}

/// What stays until its last connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    /// The address that clients called, with port and protocol.
    pub address: String,
    /// The endpoint that left its Service; `null`: the address itself is no longer served.
    pub endpoint: Option<String>,
}

/// A sync that came in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastSync {
    /// The time at which it ended.
    pub ended: String,
    /// How long it took.
    pub seconds: f64,
    /// Whether everything was compared with the kernel.
    pub full: bool,
}

/// How much there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Services that are known.
    pub services: usize,
    /// Their ports, once for each IP family.
    pub service_ports: usize,
    /// Endpoints of all these.
    pub endpoints: usize,
    /// Those of them that take new connections.
    pub endpoints_in_use: usize,
}

/// Something that is not in force as asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// `namespace/name:port` of the ServicePort; `None`: it is of no one's.
    pub service_port: Option<String>,
    /// The ServicePort's protocol.
    pub protocol: Option<String>,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// What failed, in words.
    pub why: String,
}

/// A health-check node port that cannot be served at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckFailing {
    /// `namespace/name` of the Service.
    pub service: String,
    /// Where it is to be served.
    pub address: String,
    /// The time at which it was first tried in vain.
    pub since: String,
    /// What failed, in words.
    pub why: String,
}

/// Something that a Service asks for and the mode does not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unsupported {
    /// `namespace/name` of the Service.
    pub service: String,
    /// The annotation, or another part of the Service.
    pub what: String,
    /// Why not, and what is done instead.
    pub why: String,
}

/// An address that a Service names and another one has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// `namespace/name:port` of the ServicePort that does not get it.
    pub service_port: String,
    /// The ServicePort's protocol.
    pub protocol: String,
    /// `namespace/name:port` of the ServicePort that owns it.
    pub owner: String,
    /// Which address, and why.
    pub why: String,
}

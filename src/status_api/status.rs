//! The state of the proxy.

use serde::{Deserialize, Serialize};

use super::Listed;

/// State of the running proxy: health, mode, syncs, and everything that is not applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `Status`.
    pub kind: String,
    /// Version of the program, such as `0.1.0`.
    pub version: String,
    /// Process ID, in the PID namespace of the proxy.
    pub pid: u32,
    /// Name of the node that the proxy serves.
    pub node: String,
    /// The time at which the process started (RFC 3339).
    pub started: String,
    /// Whether the desired state is applied and the objects are being followed.
    pub healthy: bool,
    /// The reasons why it is not healthy; empty if it is.
    pub problems: Vec<String>,
    /// Whether another Tripod process has taken over, or is about to: this process writes nothing
    /// until that one has ended. Earlier versions do not have this field.
    #[serde(default)]
    pub gave_way: bool,
    /// The current mode, and why no better one runs.
    pub mode: Mode,
    /// The source of the objects, and whether they are being followed.
    pub objects: Objects,
    /// State of the syncs of each IP family.
    pub syncs: Vec<FamilySync>,
    /// Addresses and endpoints that stay until their last connection ends. Earlier versions do not
    /// have this field.
    #[serde(default)]
    pub draining: Listed<Draining>,
    /// Numbers of Services, ServicePorts and endpoints.
    pub counts: Counts,
    /// ServicePorts, and other state, that are not applied as desired.
    pub failing: Listed<Failing>,
    /// Health-check node ports that cannot be served.
    #[serde(default)]
    pub health_checks_failing: Listed<HealthCheckFailing>,
    /// Objects that cannot be used as they are. Earlier versions do not have this field.
    #[serde(default)]
    pub unusable: Listed<Unusable>,
    /// Settings of Services that this mode does not support.
    pub unsupported: Listed<Unsupported>,
    /// Addresses that several Services name.
    pub conflicts: Listed<Conflict>,
}

/// The current mode, and why no better one runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mode {
    /// Name of the mode: `ipvs`, `nftables`, `iptables` or `userspace`.
    pub name: String,
    /// For each better mode, the reason why it does not run.
    pub passed_over: Vec<String>,
    /// Whether the settings name a mode. Earlier versions do not have this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// Features that the mode lacks on this kernel, and other facts that an operator must know
    /// about it.
    pub lost: Vec<String>,
}

/// The source of the objects, and whether they are being followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objects {
    /// Readable description of the source, such as `the API server`.
    pub source: String,
    /// The kinds that are followed.
    pub kinds: Vec<ObjectKind>,
}

/// A kind of objects that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectKind {
    /// Name of the kind, in the plural.
    pub name: String,
    /// Whether all objects of the kind have been known once. The last known ones stay in use.
    pub complete: bool,
    /// Whether nothing is served until all objects of the kind are known.
    pub required: bool,
    /// Why the objects cannot be followed now; `None` if they are being followed.
    pub trouble: Option<Trouble>,
    /// Why some objects cannot be used as they are now, such as a document of a folder with a
    /// typing error; their last good versions stay in use, and the others are followed.
    #[serde(default)]
    pub faults: Vec<String>,
}

/// A problem, and the time at which it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// The time at which the problem began (RFC 3339).
    pub since: String,
    /// Readable description of the failure.
    pub why: String,
}

/// The answer to probes of the pod: a part of [`Status`] that costs the same with any number of
/// Services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Version of the API: always [`VERSION`](super::VERSION).
    pub api_version: String,
    /// Kind of the object: always `Health`.
    pub kind: String,
    /// State of the syncs of each IP family.
    pub syncs: Vec<FamilySync>,
}

/// State of the syncs of one IP family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilySync {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The last sync that took effect; `None` if none has.
    pub last: Option<LastSync>,
    /// The time at which the current sync began (RFC 3339); `None` if no sync is running.
    pub under_way_since: Option<String>,
    /// Progress of the current sync; `None` if nothing is planned yet, or no sync is running.
    /// Earlier versions do not have this field.
    #[serde(default)]
    pub progress: Option<Progress>,
    /// Why the last attempt had no effect; `None` if it had.
    pub trouble: Option<Trouble>,
    /// Whether changes have waited for so long that `/livez` fails.
    pub overdue: bool,
    /// Number of addresses and endpoints that stay until their last connection ends.
    pub draining: usize,
    /// Why Services of the family are not served although nothing failed: the node does not have
    /// the family, or cannot serve it. `None`: they are served. Earlier versions do not have this field.
    #[serde(default)]
    pub not_served: Option<String>,
    /// Whether the last sync that took effect had no Services of the family to serve. Earlier
    /// versions do not have this field.
    #[serde(default)]
    pub empty: bool,
}

/// Progress of a sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The counted objects, in the plural.
    pub what: String,
    /// Number of objects to compare and, where they differ, write.
    pub planned: usize,
    /// Number of those that were compared and sent.
    pub sent: usize,
    /// Number of those for which the kernel has answered.
    pub done: usize,
    /// The progress in words.
    pub text: String,
}

/// An address or endpoint that stays until its last connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    /// The address that clients called, with port and protocol.
    pub address: String,
    /// The endpoint that was removed from its Service; `None` if the address itself is no longer
    /// served.
    pub endpoint: Option<String>,
}

/// A sync that took effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastSync {
    /// The time at which the sync ended (RFC 3339).
    pub ended: String,
    /// Duration of the sync, in seconds.
    pub seconds: f64,
    /// Whether the sync compared everything with the kernel, not only the changes.
    pub full: bool,
}

/// Numbers of Services, ServicePorts and endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Number of known Services.
    pub services: usize,
    /// Number of ports of these Services, counted once for each IP family.
    pub service_ports: usize,
    /// Number of endpoints of all these ports.
    pub endpoints: usize,
    /// Number of these endpoints that take new connections.
    pub endpoints_in_use: usize,
}

/// A ServicePort, or other state, that is not applied as desired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// `namespace/name:port` of the ServicePort; `None` if the failure belongs to no ServicePort.
    pub service_port: Option<String>,
    /// Protocol of the ServicePort: `TCP`, `UDP` or `SCTP`; `None` if `service_port` is `None`.
    pub protocol: Option<String>,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Readable description of the failure.
    pub why: String,
}

/// A health-check node port that cannot be served at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckFailing {
    /// `namespace/name` of the Service.
    pub service: String,
    /// The address at which it should be served, with its port.
    pub address: String,
    /// The time of the first failed attempt (RFC 3339).
    pub since: String,
    /// Readable description of the failure.
    pub why: String,
}

/// An object that cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unusable {
    /// Kind and name of the object, such as `Service default/web`.
    pub object: String,
    /// The time since which it cannot be used (RFC 3339).
    pub since: String,
    /// Why it cannot be used.
    pub why: String,
    /// Whether its last valid version stays in use.
    pub stays: bool,
}

/// A setting of a Service that the mode does not support, or that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unsupported {
    /// `namespace/name` of the Service.
    pub service: String,
    /// The annotation, or another field of the Service.
    pub what: String,
    /// The reason, and what is done instead.
    pub why: String,
    /// Whether no mode supports it, because it cannot be parsed.
    #[serde(default)]
    pub unreadable: bool,
}

/// An address that a Service names and another Service owns; or a node port that is a port of
/// Tripod, which then has the ServicePort itself as its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// `namespace/name:port` of the ServicePort that does not get it.
    pub service_port: String,
    /// Protocol of both ServicePorts: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `namespace/name:port` of the ServicePort that owns it.
    pub owner: String,
    /// The address, and the rule by which the other ServicePort owns it.
    pub why: String,
}

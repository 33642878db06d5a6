//! `KubeProxyConfiguration`, with the defaults of kube-proxy 1.36.
//!
//! The form is that of kube-proxy's internal type (`pkg/proxy/apis/config/types.go`): values that a
//! file has for each mode (sync periods, `masqueradeAll`) are here only once, for the requested
//! mode. The names of fields are those of the file, as kube-proxy writes it.

use std::{collections::BTreeMap, ops::Not, time::Duration};

use serde::{Serialize, Serializer};

use super::{
    ModeName,
    bind::{HEALTHZ_PORT, METRICS_PORT},
};
use crate::duration;

/// The configuration. `Default` is an empty file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// Feature gates by name, and whether each is enabled.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// The connection to the API server.
    pub client_connection: ClientConnection,
    /// Format and verbosity of the log.
    pub logging: Logging,
    /// Name of this node; empty: the machine's host name.
    pub hostname_override: String,
    /// This node's primary address; `0.0.0.0` or `::`: taken from the Node object.
    pub bind_address: String,
    /// Where `/healthz` is served; empty: nowhere.
    pub healthz_bind_address: String,
    /// Where `/metrics` is served; empty: nowhere.
    pub metrics_bind_address: String,
    /// Whether the program ends if an address cannot be bound.
    pub bind_address_hard_fail: bool,
    /// Whether to serve `/debug/pprof`.
    pub enable_profiling: bool,
    /// The version since which hidden metrics are shown; if empty, none are shown.
    pub show_hidden_metrics_for_version: String,
    /// The requested mode, as written; empty: the default.
    pub mode: String,
    /// Time between two full syncs, which compare everything with the kernel.
    #[serde(skip)]
    pub sync_period: Duration,
    /// Shortest time between two syncs; `None` if it is not configured.
    #[serde(skip)]
    pub min_sync_period: Option<Duration>,
    /// Whether everything that is sent to cluster IPs is masqueraded.
    #[serde(skip)]
    pub masquerade_all: bool,
    /// Settings of iptables mode, and of ipvs mode's iptables rules.
    pub iptables: Iptables,
    /// Settings of ipvs mode.
    pub ipvs: Ipvs,
    /// Settings of nftables mode.
    pub nftables: Nftables,
    /// Settings for Windows, which nothing reads.
    pub winkernel: Winkernel,
    /// How traffic from this node's pods is distinguished from other traffic;
    /// empty: by cluster CIDR.
    pub detect_local_mode: String,
    /// The parameters of `detect_local_mode`.
    pub detect_local: Detect,
    /// For the `detect_local_mode` `ClusterCIDR`: one CIDR, or one of each family, separated by a
    /// comma.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// CIDRs of node addresses that serve node ports, or `primary`; none: all.
    #[serde(serialize_with = "list")]
    pub node_port_addresses: Vec<String>,
    /// Score adjustment for the kernel's out-of-memory killer, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Settings of the kernel's connection tracking.
    pub conntrack: Conntrack,
    /// Time after which everything is fetched again from the API server.
    #[serde(serialize_with = "duration::serialize")]
    pub config_sync_period: Duration,
    /// Range of local ports for redirect capture in userspace mode, such as `30000-31000`; empty:
    /// any free port.
    pub port_range: String,
    /// Settings for Windows, which nothing reads.
    #[serde(skip_serializing_if = "Not::not")]
    pub windows_run_as_service: bool,
}

/// The connection to the API server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnection {
    /// Path of a kubeconfig file; empty: that of the pod's service account.
    pub kubeconfig: String,
    /// `Accept` of requests; empty: as `content_type`.
    pub accept_content_types: String,
    /// `Content-Type` of requests.
    pub content_type: String,
    /// Requests to the API server per second, on average.
    #[serde(serialize_with = "number")]
    pub qps: f32,
    /// Requests to the API server that may exceed `qps` at once.
    pub burst: i32,
}

/// Format and verbosity of the log (`k8s.io/component-base/logs/api/v1`).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// `text` or `json`.
    pub format: String,
    /// Longest time that a line may be buffered.
    #[serde(serialize_with = "duration::serialize")]
    pub flush_frequency: Duration,
    /// Verbosity, as `--v` sets it.
    pub verbosity: u32,
    /// Verbosity of some source files, as `--vmodule` sets it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<VmoduleItem>,
    /// Options of each format.
    pub options: LogOptions,
}

/// Where the lines of each format of the log go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogOptions {
    /// Options of format `text`.
    pub text: StreamOptions,
    /// Options of format `json`.
    pub json: StreamOptions,
}

/// Another verbosity for some source files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmoduleItem {
    /// Pattern of the files' names.
    pub file_pattern: String,
    /// Verbosity of log messages from these files.
    pub verbosity: u32,
}

/// Where lines of the log go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamOptions {
    /// Whether errors go to standard error and all other lines to standard output.
    #[serde(skip_serializing_if = "Not::not")]
    pub split_stream: bool,
    /// Bytes to buffer, a [quantity](super::quantity).
    pub info_buffer_size: String,
}

/// Settings of iptables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Iptables {
    /// Bit of the packet mark that requests SNAT, 0 to 31.
    pub masquerade_bit: i32,
    /// Whether node ports are also served on loopback addresses.
    pub localhost_node_ports: bool,
}

/// Settings of ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipvs {
    /// Name of the default scheduler; empty: `rr`.
    pub scheduler: String,
    /// CIDRs of virtual servers that belong to other programs.
    #[serde(rename = "excludeCIDRs", serialize_with = "list")]
    pub exclude_cidrs: Vec<String>,
    /// Whether the node answers no ARP requests for service addresses.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// Timeout of idle TCP connections; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub tcp_timeout: Duration,
    /// Timeout of TCP connections after a FIN; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub tcp_fin_timeout: Duration,
    /// Timeout of UDP flows; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub udp_timeout: Duration,
}

/// Settings of nftables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nftables {
    /// Bit of the packet mark that requests SNAT, 0 to 31.
    pub masquerade_bit: i32,
}

/// Settings for Windows, which are accepted and not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Winkernel {
    /// The field `networkName`.
    pub network_name: String,
    /// The field `sourceVip`.
    pub source_vip: String,
    /// The field `enableDSR`.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// The field `rootHnsEndpointName`.
    pub root_hns_endpoint_name: String,
    /// The field `forwardHealthCheckVip`.
    pub forward_health_check_vip: bool,
}

/// Parameters of the ways to detect local traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detect {
    /// Name of the bridge, for `BridgeInterface`.
    pub bridge_interface: String,
    /// Prefix of interface names, for `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}

/// Settings of the kernel's connection tracking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    /// Largest number of entries per core; 0: the kernel's value is not changed.
    pub max_per_core: i32,
    /// Lower bound of the largest number of entries, unless `max_per_core` is 0.
    pub min: i32,
    /// Timeout of established TCP connections; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub tcp_established_timeout: Duration,
    /// Timeout of TCP connections in CLOSE_WAIT; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub tcp_close_wait_timeout: Duration,
    /// Whether TCP packets outside the window are accepted as valid.
    pub tcp_be_liberal: bool,
    /// Timeout of UDP flows without an answer; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub udp_timeout: Duration,
    /// Timeout of UDP flows with an answer; zero: the kernel's value is not changed.
    #[serde(serialize_with = "duration::serialize")]
    pub udp_stream_timeout: Duration,
}

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        KubeProxyConfiguration {
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: "0.0.0.0".to_owned(),
            healthz_bind_address: format!("0.0.0.0:{HEALTHZ_PORT}"),
            metrics_bind_address: format!("127.0.0.1:{METRICS_PORT}"),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            sync_period: Duration::from_secs(30),
            min_sync_period: None,
            masquerade_all: false,
            iptables: Iptables {
                masquerade_bit: 14,
                localhost_node_ports: true,
            },
            ipvs: Ipvs::default(),
            nftables: Nftables { masquerade_bit: 14 },
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: Detect::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: Duration::from_secs(15 * 60),
            port_range: String::new(),
            windows_run_as_service: false,
        }
    }
}

impl Default for ClientConnection {
    fn default() -> Self {
        ClientConnection {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            qps: 5.0,
            burst: 10,
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Logging {
            format: "text".to_owned(),
            flush_frequency: Duration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LogOptions::default(),
        }
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions {
            split_stream: false,
            info_buffer_size: "0".to_owned(),
        }
    }
}

impl Default for Conntrack {
    fn default() -> Self {
        Conntrack {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: Duration::from_secs(24 * 3600),
            tcp_close_wait_timeout: Duration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }
}

impl KubeProxyConfiguration {
    /// The group of the file's fields with the values that exist for each mode; it has the name
    /// of the mode.
    pub(super) fn mode_section(&self) -> ModeName {
        match self.mode.as_str() {
            "ipvs" => ModeName::Ipvs,
            "nftables" => ModeName::Nftables,
            _ => ModeName::Iptables,
        }
    }

    /// The parts of `cluster_cidr`.
    pub fn cluster_cidrs(&self) -> impl Iterator<Item = &str> {
        let parts = self.cluster_cidr.split(',');
        parts.filter(|_| !self.cluster_cidr.is_empty())
    }
}

/// Writes a number as Go does: whole numbers without a decimal point.
fn number<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        to.serialize_i64(*value as i64)
    } else {
        to.serialize_f32(*value)
    }
}

/// Writes a list as Go does: an empty one, which Go never created, is null.
fn list<S: Serializer>(items: &[String], to: S) -> Result<S::Ok, S::Error> {
    match items {
        [] => to.serialize_none(),
        items => items.serialize(to),
    }
}

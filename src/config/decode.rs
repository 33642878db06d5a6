//! Reads a configuration file as kube-proxy 1.36 does (`Options.loadConfig` of
//! `cmd/kube-proxy/app/options.go`): unknown fields and fields given twice are reported
//! and ignored, anything else that is wrong is an error.

use std::{net::IpAddr, time::Duration};

use super::{
    KubeProxyConfiguration, ModeName, Problem, StreamOptions, VmoduleItem, bind, quantity,
    section::{Findings, Readable, Section},
    tree::{self, Tree},
};

/// `apiVersion` of the file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// `kind` of the file.
pub const KIND: &str = "KubeProxyConfiguration";

/// The content of a file.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The configuration, with defaults for fields that are absent or cannot be
    /// used.
    pub configuration: KubeProxyConfiguration,
    /// Values that cannot be used.
    pub problems: Vec<Problem>,
    /// Lines about ignored settings.
    pub warnings: Vec<String>,
    /// Fields that are unknown or given twice: one line for each, beginning with the
    /// field's path.
    pub ignored: Vec<String>,
}

/// Why a file is not a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAConfiguration {
    /// The file has no content.
    #[error("it is empty; it must hold a {KIND} of apiVersion {API_VERSION}")]
    Empty,
    /// The file is neither YAML nor JSON.
    #[error("it is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// The file is of another kind or version.
    #[error("its {field} is {found}; it must be {expected}")]
    Other {
        /// `kind` or `apiVersion`.
        field: &'static str,
        /// The value in the file.
        found: String,
        /// The value that it must have.
        expected: &'static str,
    },
}

/// Reads the text of a file.
///
/// # Errors
/// When the text is not a `KubeProxyConfiguration` v1alpha1. Fields that cannot be used
/// are in the result, so that all can be reported at once.
pub fn decode(text: &str) -> Result<Decoded, NotAConfiguration> {
    let mut documents = tree::parse(text)
        .map_err(NotAConfiguration::Syntax)?
        .into_iter();
    let entries = match documents.next() {
        Some(Tree::Map(entries)) => entries,
        None | Some(Tree::Null) => return Err(NotAConfiguration::Empty),
        Some(other) => {
            return Err(NotAConfiguration::Syntax(format!(
                "it is {other}, not a group of fields"
            )));
        }
    };
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = entries.iter().rev().find(|(key, _)| key == field);
        match found.map(|(_, value)| value) {
            Some(Tree::Text(found)) if found == expected => {}
            other => {
                let found = other.map_or("missing".to_owned(), Tree::to_string);
                return Err(NotAConfiguration::Other {
                    field,
                    found,
                    expected,
                });
            }
        }
    }
    let mut findings = Findings::default();
    let mut configuration = KubeProxyConfiguration::default();
    Section::visit(String::new(), &entries, &mut findings, |top| {
        read(top, &mut configuration);
    });
    let mode = configuration.mode.as_str();
    let (elsewhere, problems) = findings
        .problems
        .into_iter()
        .partition::<Vec<_>, _>(|problem| is_for_another_mode(&problem.field, mode));
    let mut warnings: Vec<String> = elsewhere
        .iter()
        .map(|problem| format!("{problem}; ignored in mode {mode:?}"))
        .collect();
    if !findings.ignored.is_empty() {
        warnings.push(format!("ignored fields: {}", findings.ignored.join("; ")));
    }
    let more = documents.count();
    if more > 0 {
        warnings.push(format!(
            "only the first document is used; {more} more in the file are ignored"
        ));
    }
    Ok(Decoded {
        configuration,
        problems,
        warnings,
        ignored: findings.ignored,
    })
}

/// Returns whether `field` belongs to another mode than `mode`, so that nothing reads it.
/// kube-proxy does not check the values of such fields, so they must not prevent a node
/// from starting.
fn is_for_another_mode(field: &str, mode: &str) -> bool {
    match field.split_once('.') {
        Some(("nftables", _)) => mode != "nftables",
        // An empty mode means ipvs; userspace mode uses its scheduler.
        Some(("ipvs", _)) => ["iptables", "nftables"].contains(&mode),
        Some(("iptables", "syncPeriod" | "minSyncPeriod")) => ["ipvs", "nftables"].contains(&mode),
        _ => false,
    }
}

fn read(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    top.skip("apiVersion");
    top.skip("kind");
    top.value("featureGates", &mut c.feature_gates);
    top.section("clientConnection", |section| {
        let client = &mut c.client_connection;
        section.value("kubeconfig", &mut client.kubeconfig);
        section.value("acceptContentTypes", &mut client.accept_content_types);
        section.value("contentType", &mut client.content_type);
        section.value("qps", &mut client.qps);
        section.value("burst", &mut client.burst);
    });
    logging(top, c);
    top.value("hostnameOverride", &mut c.hostname_override);
    addresses(top, c);
    top.value("bindAddressHardFail", &mut c.bind_address_hard_fail);
    top.value("enableProfiling", &mut c.enable_profiling);
    let hidden = &mut c.show_hidden_metrics_for_version;
    top.value("showHiddenMetricsForVersion", hidden);
    top.value("mode", &mut c.mode);
    modes(top, c);
    top.section("winkernel", |section| {
        let windows = &mut c.winkernel;
        section.value("networkName", &mut windows.network_name);
        section.value("sourceVip", &mut windows.source_vip);
        section.value("enableDSR", &mut windows.enable_dsr);
        section.value("rootHnsEndpointName", &mut windows.root_hns_endpoint_name);
        let forward = &mut windows.forward_health_check_vip;
        section.value("forwardHealthCheckVip", forward);
    });
    top.value("detectLocalMode", &mut c.detect_local_mode);
    top.section("detectLocal", |section| {
        section.value("bridgeInterface", &mut c.detect_local.bridge_interface);
        let prefix = &mut c.detect_local.interface_name_prefix;
        section.value("interfaceNamePrefix", prefix);
    });
    top.value("clusterCIDR", &mut c.cluster_cidr);
    top.value("nodePortAddresses", &mut c.node_port_addresses);
    top.pointer("oomScoreAdj", &mut c.oom_score_adj);
    top.section("conntrack", |section| {
        let conntrack = &mut c.conntrack;
        section.pointer("maxPerCore", &mut conntrack.max_per_core);
        section.pointer("min", &mut conntrack.min);
        let established = &mut conntrack.tcp_established_timeout;
        section.pointer("tcpEstablishedTimeout", established);
        section.pointer("tcpCloseWaitTimeout", &mut conntrack.tcp_close_wait_timeout);
        section.value("tcpBeLiberal", &mut conntrack.tcp_be_liberal);
        section.value("udpTimeout", &mut conntrack.udp_timeout);
        section.value("udpStreamTimeout", &mut conntrack.udp_stream_timeout);
    });
    top.value("configSyncPeriod", &mut c.config_sync_period);
    top.value("portRange", &mut c.port_range);
    top.value("windowsRunAsService", &mut c.windows_run_as_service);
}

/// Reads the addresses to serve on, whose defaults depend on the family of `bindAddress`.
fn addresses(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    // As in kube-proxy (`To4` of Go's `net.IP`), an IPv4-mapped IPv6 address counts as IPv4.
    let is_v6 = |text: &str| match text.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_ipv6(),
        Err(_) => text.contains(':'),
    };
    if top.value("bindAddress", &mut c.bind_address) && is_v6(&c.bind_address) {
        c.healthz_bind_address = format!("[::]:{}", bind::HEALTHZ_PORT);
        c.metrics_bind_address = format!("[::1]:{}", bind::METRICS_PORT);
    }
    top.value("healthzBindAddress", &mut c.healthz_bind_address);
    top.value("metricsBindAddress", &mut c.metrics_bind_address);
    c.healthz_bind_address = bind::with_port(&c.healthz_bind_address, bind::HEALTHZ_PORT);
    c.metrics_bind_address = bind::with_port(&c.metrics_bind_address, bind::METRICS_PORT);
}

/// Fields that a file can have separately for each mode; zero if they are not given.
#[derive(Default)]
struct Periods {
    sync: Duration,
    min: Duration,
}

impl Periods {
    fn read(section: &mut Section<'_>) -> Periods {
        let mut periods = Periods::default();
        section.value("syncPeriod", &mut periods.sync);
        section.value("minSyncPeriod", &mut periods.min);
        periods
    }
}

fn modes(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    let (mut iptables, mut ipvs, mut nftables): (Periods, Periods, Periods) = Default::default();
    let (mut masquerade_all, mut nftables_masquerade_all) = (false, false);
    top.section("iptables", |section| {
        iptables = Periods::read(section);
        section.value("masqueradeAll", &mut masquerade_all);
        section.pointer("masqueradeBit", &mut c.iptables.masquerade_bit);
        section.pointer("localhostNodePorts", &mut c.iptables.localhost_node_ports);
    });
    top.section("ipvs", |section| {
        ipvs = Periods::read(section);
        section.value("scheduler", &mut c.ipvs.scheduler);
        section.value("excludeCIDRs", &mut c.ipvs.exclude_cidrs);
        section.value("strictARP", &mut c.ipvs.strict_arp);
        section.value("tcpTimeout", &mut c.ipvs.tcp_timeout);
        section.value("tcpFinTimeout", &mut c.ipvs.tcp_fin_timeout);
        section.value("udpTimeout", &mut c.ipvs.udp_timeout);
    });
    top.section("nftables", |section| {
        nftables = Periods::read(section);
        section.value("masqueradeAll", &mut nftables_masquerade_all);
        section.pointer("masqueradeBit", &mut c.nftables.masquerade_bit);
    });
    let is_blank = |periods: &Periods| periods.sync.is_zero() && periods.min.is_zero();
    let periods = match c.mode_section() {
        ModeName::Ipvs => ipvs,
        ModeName::Nftables => nftables,
        // Without a mode, kube-proxy would use the fields for iptables, and Tripod runs
        // ipvs mode: the first group with a value applies.
        _ if c.mode.is_empty() && is_blank(&iptables) => ipvs,
        _ => iptables,
    };
    if !periods.sync.is_zero() {
        c.sync_period = periods.sync;
    }
    c.min_sync_period = Some(periods.min).filter(|min| !min.is_zero());
    c.masquerade_all = match c.mode_section() {
        ModeName::Nftables => nftables_masquerade_all,
        _ => masquerade_all,
    };
}

fn logging(top: &mut Section<'_>, c: &mut KubeProxyConfiguration) {
    let logging = &mut c.logging;
    top.section("logging", |section| {
        section.value("format", &mut logging.format);
        let mut flush = FlushFrequency::default();
        if section.value("flushFrequency", &mut flush) {
            logging.flush_frequency = flush.0;
        }
        section.value("verbosity", &mut logging.verbosity);
        section.sections("vmodule", |section| {
            let mut item = VmoduleItem::default();
            section.value("filePattern", &mut item.file_pattern);
            section.value("verbosity", &mut item.verbosity);
            logging.vmodule.push(item);
        });
        section.section("options", |section| {
            stream(section, "text", &mut logging.options.text);
            stream(section, "json", &mut logging.options.json);
        });
    });
}

fn stream(options: &mut Section<'_>, name: &'static str, stream: &mut StreamOptions) {
    options.section(name, |section| {
        section.value("splitStream", &mut stream.split_stream);
        let mut size = BufferSize::default();
        if section.value("infoBufferSize", &mut size) {
            stream.info_buffer_size = size.0;
        }
    });
}

/// A duration, or nanoseconds as a number, which was its first notation
/// (`TimeOrMetaDuration` of `k8s.io/component-base/logs/api/v1`).
#[derive(Default, PartialEq)]
struct FlushFrequency(Duration);

impl Readable for FlushFrequency {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Int(nanos) => match u64::try_from(*nanos) {
                Ok(nanos) => Ok(FlushFrequency(Duration::from_nanos(nanos))),
                Err(_) => Err(format!("{nanos} ns is not a duration; write it like 5s")),
            },
            other => Duration::read(other).map(FlushFrequency),
        }
    }
}

/// A quantity, which may be written as a number.
#[derive(Default, PartialEq)]
struct BufferSize(String);

impl Readable for BufferSize {
    fn read(tree: &Tree) -> Result<Self, String> {
        let text = match tree {
            Tree::Int(number) => number.to_string(),
            other => String::read(other)?,
        };
        quantity::is_nonzero(&text)?;
        Ok(BufferSize(text))
    }
}

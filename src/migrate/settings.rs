//! The effects of kube-proxy's settings in each mode of Tripod; pure.

use net::Family;

use super::{origin::Given, report::Rows};
use crate::{
    config::{KubeProxyConfiguration, ModeName, NodePortAddresses, fields_without_effect},
    sched::SchedulerName,
};

/// Adds the differences in `mode`.
pub(super) fn rows(given: &Given, mode: ModeName, rows: &mut Rows) {
    unknown(given, rows);
    without_effect(given, rows);
    objects(&given.settings.configuration, rows);
    scheduler(given, mode, rows);
    service_addresses(given, mode, rows);
    localhost(given, mode, rows);
    node_ports(given, mode, rows);
    invalid_packets(given, mode, rows);
    syncs(given, rows);
    userspace(given, mode, rows);
}

fn unknown(given: &Given, rows: &mut Rows) {
    for line in &given.ignored {
        rows.note([
            line,
            "ignores it, because kube-proxy 1.36 does not know it; older versions may have used it",
            "ignores it, too, and logs that once",
            "delete it from the file",
        ]);
    }
}

fn without_effect(given: &Given, rows: &mut Rows) {
    for field in fields_without_effect(&given.settings.configuration) {
        // The settings for fetching objects have their own rows.
        if field == "configSyncPeriod" || field.starts_with("clientConnection") {
            continue;
        }
        if field.starts_with("win") {
            let kube_proxy = "uses it only on Windows";
            let tripod = "accepts it, without effect";
            rows.note([&field, kube_proxy, tripod, "nothing, or delete it"]);
            continue;
        }
        let to_do = match field.split([' ', '.']).next() {
            Some("enableProfiling") => "take profiles with perf(1), which needs no setting",
            Some("featureGates") => {
                "nothing: these gates concern parts of kube-proxy that Tripod does not have"
            }
            Some("showHiddenMetricsForVersion") => {
                "nothing, unless a dashboard reads a hidden metric: docs/metrics.md lists all"
            }
            _ => "set --v and --logging-format, which Tripod uses",
        };
        rows.differs([&field, "heeds it", "accepts it, without effect", to_do]);
    }
}

/// Adds the differences in fetching objects.
fn objects(c: &KubeProxyConfiguration, rows: &mut Rows) {
    let usual = KubeProxyConfiguration::default();
    if c.config_sync_period != usual.config_sync_period {
        rows.note([
            "configSyncPeriod",
            "processes all known objects again after this time",
            "follows watches, and lists again when one was interrupted",
            "nothing",
        ]);
    }
    let (client, usual) = (&c.client_connection, &usual.client_connection);
    let given =
        !client.accept_content_types.is_empty() || client.content_type != usual.content_type;
    if given {
        rows.note([
            "clientConnection.contentType",
            "asks the API server for objects in this format",
            "asks for JSON, of which it reads the fields that it needs",
            "nothing",
        ]);
    }
}

fn scheduler(given: &Given, mode: ModeName, rows: &mut Rows) {
    let name = given.settings.configuration.ipvs.scheduler.as_str();
    let named = if name.is_empty() { "rr" } else { name };
    let setting = format!("ipvs.scheduler: {name:?}");
    let annotation = "annotate Services that need one: tripod.proxy/scheduler";
    let was = given.kube_proxy_mode();
    let before = match was {
        ModeName::Ipvs => format!("chooses endpoints by {named}"),
        _ if name.is_empty() => "chooses endpoints at random".to_owned(),
        _ => "chooses endpoints at random, because schedulers are for ipvs mode".to_owned(),
    };
    let after = match mode {
        ModeName::Iptables | ModeName::Nftables => "chooses at random".to_owned(),
        ModeName::Ipvs => format!("chooses by {named}"),
        ModeName::Userspace => match name.parse::<SchedulerName>() {
            Ok(known) => format!("chooses by {known}"),
            Err(_) => format!("chooses by rr, because only the kernel has {named}"),
        },
    };
    let same = match (was, mode) {
        (ModeName::Ipvs, ModeName::Ipvs) => true,
        (ModeName::Ipvs, ModeName::Userspace) => name.parse::<SchedulerName>().is_ok(),
        (ModeName::Ipvs, _) => false,
        (_, ModeName::Iptables | ModeName::Nftables) => true,
        _ => false,
    };
    if same {
        return;
    }
    let to_do = match mode {
        ModeName::Iptables => "run ipvs or userspace mode if a scheduler matters",
        ModeName::Nftables => "annotate Services that need rr or sh: tripod.proxy/scheduler",
        ModeName::Ipvs => annotation,
        ModeName::Userspace => "set ipvs.scheduler, which also accepts random here",
    };
    rows.differs([&setting, &before, &after, to_do]);
}

/// Adds the differences in the settings for addresses and virtual servers of ipvs mode.
fn service_addresses(given: &Given, mode: ModeName, rows: &mut Rows) {
    let ipvs = &given.settings.configuration.ipvs;
    let (was, is) = (
        given.kube_proxy_mode() == ModeName::Ipvs,
        mode == ModeName::Ipvs,
    );
    let timeouts = [ipvs.tcp_timeout, ipvs.tcp_fin_timeout, ipvs.udp_timeout];
    if was && !is && timeouts.iter().any(|timeout| !timeout.is_zero()) {
        rows.differs([
            "ipvs.tcpTimeout, ipvs.tcpFinTimeout, ipvs.udpTimeout",
            "sets the timeouts of IPVS",
            "does not use IPVS: connections end by the timeouts of conntrack",
            "set those of the section conntrack, which count in every mode of the kernel",
        ]);
    }
    let arp = format!("ipvs.strictARP: {}", ipvs.strict_arp);
    match (was, is, ipvs.strict_arp) {
        (false, true, false) => rows.differs([
            &arp,
            "puts service addresses on no link",
            "puts them on kube-ipvs0, and the node answers ARP for them on every link",
            "set ipvs.strictARP: true if a program such as MetalLB announces addresses in layer 2",
        ]),
        (false, true, true) => rows.note([
            &arp,
            "ignores it: it puts service addresses on no link",
            "sets arp_ignore and arp_announce, like kube-proxy's ipvs mode",
            "nothing",
        ]),
        (true, false, true) => rows.note([
            &arp,
            "sets arp_ignore and arp_announce, because service addresses are on kube-ipvs0",
            "leaves both as they are: service addresses are on no link that answers ARP",
            "nothing",
        ]),
        _ => {}
    }
}

/// Adds the difference for packets of connections that conntrack does not follow.
fn invalid_packets(given: &Given, mode: ModeName, rows: &mut Rows) {
    let drops = matches!(mode, ModeName::Iptables | ModeName::Nftables);
    let was = given.kube_proxy_mode();
    if was != ModeName::Nftables || !drops || given.settings.configuration.conntrack.tcp_be_liberal
    {
        return;
    }
    rows.differs([
        "conntrack.tcpBeLiberal: false",
        "forwards packets that connection tracking finds invalid; its iptables mode drops them",
        "drops them: untranslated, they would make clients reset their connections",
        "set conntrack.tcpBeLiberal: true if this node sees only one direction of connections",
    ]);
}

/// Adds that nftables mode serves node ports at fewer addresses if none are configured, as
/// kube-proxy's does (`platformApplyDefaults` of its `cmd/kube-proxy/app/init_linux.go`).
fn node_ports(given: &Given, mode: ModeName, rows: &mut Rows) {
    // Never empty if kube-proxy's mode is nftables.
    let named = &given.settings.configuration.node_port_addresses;
    if mode != ModeName::Nftables || !named.is_empty() {
        return;
    }
    rows.note([
        "nodePortAddresses: []",
        "serves node ports at all addresses of the node",
        "serves them only at the addresses of the Node object (primary) if the configuration names \
         mode: nftables, as kube-proxy does; at all addresses if it runs in place of another mode",
        "set nodePortAddresses: [0.0.0.0/0, \"::/0\"] if clients call other addresses of the node",
    ]);
}

/// Adds the differences for node ports at 127.0.0.1.
fn localhost(given: &Given, mode: ModeName, rows: &mut Rows) {
    let settings = &given.settings;
    let node_ports = &settings.effective.node_ports;
    let asked = settings.configuration.iptables.localhost_node_ports;
    let before = match given.kube_proxy_mode() {
        ModeName::Iptables => asked && covers_loopback(node_ports),
        ModeName::Userspace => covers_loopback(node_ports),
        ModeName::Ipvs | ModeName::Nftables => false,
    };
    let after = match mode {
        ModeName::Iptables => asked && covers_loopback(node_ports),
        ModeName::Userspace => covers_loopback(node_ports),
        ModeName::Ipvs | ModeName::Nftables => names_loopback(node_ports),
    };
    let setting = format!(
        "iptables.localhostNodePorts: {asked}, nodePortAddresses: {:?}",
        settings.configuration.node_port_addresses
    );
    match (before, after) {
        (true, false) => rows.differs([
            &setting,
            "serves node ports at 127.0.0.1, too",
            "serves them only at other addresses of the node",
            "add localhost to nodePortAddresses if programs of the node call localhost: TCP is \
             relayed then",
        ]),
        (false, true) => rows.differs([
            &setting,
            "serves no node ports at 127.0.0.1",
            "serves them there, for the node itself",
            match mode {
                ModeName::Iptables => "set iptables.localhostNodePorts: false",
                ModeName::Userspace => "name other nodePortAddresses, such as primary",
                ModeName::Ipvs | ModeName::Nftables => "name no loopback in nodePortAddresses",
            },
        ]),
        _ => {}
    }
}

/// Returns whether 127.0.0.1 is among the addresses that serve node ports, including the
/// case that all addresses do (`NodePortAddresses.ContainsIPv4Loopback` of kube-proxy's
/// `pkg/proxy/util`).
fn covers_loopback(configured: &NodePortAddresses) -> bool {
    let loopback = Family::V4.loopback();
    let is_v4 = |network: &&ipnet::IpNet| network.addr().is_ipv4();
    let mut of_family = configured.networks.iter().filter(is_v4).peekable();
    if of_family.peek().is_none() {
        return !configured.primary;
    }
    of_family.any(|network| network.contains(&loopback) || loopback.contains(network))
}

/// Returns whether some network contains only loopback addresses (KEP-6032).
fn names_loopback(configured: &NodePortAddresses) -> bool {
    let named = &configured.networks;
    !configured.not_relayed && named.iter().any(|network| network.addr().is_loopback())
}

fn syncs(given: &Given, rows: &mut Rows) {
    let c = &given.settings.configuration;
    let was = given.kube_proxy_mode();
    if c.min_sync_period.is_none() && matches!(was, ModeName::Iptables | ModeName::Nftables) {
        rows.note([
            "minSyncPeriod is not set",
            "waits 1 s from one sync to the next",
            "waits 10 ms, because its own work for a change does not depend on the number of \
             Services",
            "nothing; minSyncPeriod: 1s in the section of the mode sets kube-proxy's rate",
        ]);
    }
    if given.mode.is_empty() && c.sync_period != KubeProxyConfiguration::default().sync_period {
        rows.note([
            "syncPeriod",
            "takes it from the section iptables, because no mode is named",
            "takes it from there, or from the section ipvs if it is not given there",
            "name the mode",
        ]);
    }
}

/// Adds the settings that apply only in userspace mode.
fn userspace(given: &Given, mode: ModeName, rows: &mut Rows) {
    if mode != ModeName::Userspace || given.kube_proxy_mode() == ModeName::Userspace {
        return;
    }
    let c = &given.settings.configuration;
    if !c.port_range.is_empty() {
        rows.differs([
            &format!("portRange: {:?}", c.port_range),
            "ignores it since 1.26, which has no userspace mode",
            "takes from it the local ports to which rules redirect packets",
            "delete it, unless a firewall needs that range",
        ]);
    }
    if c.masquerade_all {
        rows.note([
            "masqueradeAll: true",
            "shows endpoints the node's address for calls to cluster IPs",
            "shows them the node's address in any case",
            "nothing",
        ]);
    }
}

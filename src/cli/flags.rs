//! Every flag: those of kube-proxy 1.36 with its names, defaults and meanings,
//! and ours among them.

use super::{
    flag::{Field, Flag},
    options::{Options, Version},
};
use crate::{
    config::{bind, duration, notation, port_range, quantity},
    modes::userspace::capture::Requested,
    services::address::parse_ip,
};

/// The flags by the headings that they have in the help.
pub(super) const GROUPS: [(&str, &[Flag]); 9] = [
    ("Objects", OBJECTS),
    ("Proxying", PROXYING),
    ("iptables mode", IPTABLES),
    ("ipvs mode", IPVS),
    ("Userspace mode", USERSPACE),
    ("Connection tracking of the kernel", CONNTRACK),
    ("Observing", OBSERVING),
    ("Logging", LOGGING),
    ("Running", RUNNING),
];

/// Every flag.
pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|(_, flags)| flags.iter())
}

const OBJECTS: &[Flag] = &[
    Flag::new(
        "manifests",
        "DIR",
        Field::Set(
            |o, text| {
                o.own.manifests = (!text.is_empty()).then(|| text.into());
                Ok(())
            },
            "",
        ),
        "Folder of manifests (*.yaml, *.yml, *.json) to serve Services, EndpointSlices and Nodes \
         from, without any API server; changes are followed",
    )
    .beside_file(),
    Flag::text(
        "kubeconfig",
        "FILE",
        |o| &mut o.configuration.client_connection.kubeconfig,
        "How to reach the API server and who we are; without it, the service account of the pod",
    ),
    Flag::text(
        "master",
        "URL",
        |o| &mut o.master,
        "Address of the API server; counts before the one in the kubeconfig",
    )
    .beside_file(),
    Flag::new(
        "hostname-override",
        "NAME",
        Field::Set(hostname, ""),
        "Name of this node, if it is not the machine's host name",
    )
    .beside_file(),
    Flag::text(
        "kube-api-content-type",
        "TYPE",
        |o| &mut o.configuration.client_connection.content_type,
        "Content type of requests to the API server",
    ),
    Flag::new(
        "kube-api-qps",
        "N",
        Field::Float(|o| &mut o.configuration.client_connection.qps),
        "Requests a second to the API server",
    ),
    Flag::int(
        "kube-api-burst",
        |o| &mut o.configuration.client_connection.burst,
        "Requests at once to the API server",
    ),
    Flag::time(
        "config-sync-period",
        |o| &mut o.configuration.config_sync_period,
        "How often everything is fetched from the API server again; greater than 0",
    ),
];

const PROXYING: &[Flag] = &[
    Flag::text(
        "proxy-mode",
        "MODE",
        |o| &mut o.configuration.mode,
        "How traffic is carried: ipvs, iptables or userspace; nftables means the best one. A mode \
         that this build or this kernel cannot run falls back to the next. Without it: ipvs",
    ),
    Flag::new(
        "bind-address",
        "IP",
        Field::Set(
            |o, text| {
                // kube-proxy keeps its default when the flag is empty.
                if !text.is_empty() {
                    parse_ip(text).ok_or("it must be an IP address")?;
                    o.configuration.bind_address = text.to_owned();
                }
                Ok(())
            },
            "0.0.0.0",
        ),
        "This node's own address, if it is not to be taken from its Node; nothing is bound to it, \
         whatever the name says",
    ),
    Flag::text(
        "detect-local-mode",
        "HOW",
        |o| &mut o.configuration.detect_local_mode,
        "How traffic from this node's own pods is told from other traffic: ClusterCIDR, NodeCIDR, \
         BridgeInterface or InterfaceNamePrefix. Without it: ClusterCIDR",
    ),
    Flag::text(
        "cluster-cidr",
        "CIDRS",
        |o| &mut o.cluster_cidr,
        "Where the cluster's pods have their addresses, for ClusterCIDR: one CIDR, or one of each \
         family with a comma between them",
    ),
    Flag::text(
        "pod-bridge-interface",
        "NAME",
        |o| &mut o.configuration.detect_local.bridge_interface,
        "The bridge that this node's pods are on, for BridgeInterface",
    ),
    Flag::text(
        "pod-interface-name-prefix",
        "PREFIX",
        |o| &mut o.configuration.detect_local.interface_name_prefix,
        "How the names of links to this node's pods begin, for InterfaceNamePrefix",
    ),
    Flag::new(
        "nodeport-addresses",
        "CIDRS",
        Field::List(|o| &mut o.configuration.node_port_addresses),
        "Node addresses that serve node ports: those within these CIDRs, or `primary` for the \
         addresses of the Node object; all, if there is none",
    ),
    Flag::switch(
        "masquerade-all",
        |o| &mut o.configuration.masquerade_all,
        "Give the node's address to all traffic that is sent to cluster IPs",
    ),
];

const IPTABLES: &[Flag] = &[
    Flag::new(
        "iptables-sync-period",
        "DURATION",
        Field::Set(|o, text| period(&mut o.periods.iptables, text), "30s"),
        "How often everything is compared with the kernel, unless the mode is ipvs",
    ),
    Flag::new(
        "iptables-min-sync-period",
        "DURATION",
        Field::Set(|o, text| period(&mut o.periods.iptables_min, text), "1s"),
        "Least time between two syncs, unless the mode is ipvs; 0: each change at once",
    ),
    Flag::int(
        "iptables-masquerade-bit",
        |o| &mut o.configuration.iptables.masquerade_bit,
        "Bit of the packet mark that asks for SNAT, 0 to 31; in ipvs mode too",
    ),
    Flag::switch(
        "iptables-localhost-nodeports",
        |o| &mut o.configuration.iptables.localhost_node_ports,
        "Serve node ports on loopback addresses too (iptables mode, IPv4)",
    ),
];

const IPVS: &[Flag] = &[
    Flag::new(
        "ipvs-sync-period",
        "DURATION",
        Field::Set(|o, text| period(&mut o.periods.ipvs, text), "30s"),
        "How often everything is compared with the kernel, if the mode is ipvs",
    ),
    Flag::new(
        "ipvs-min-sync-period",
        "DURATION",
        Field::Set(|o, text| period(&mut o.periods.ipvs_min, text), "1s"),
        "Least time between two syncs, if the mode is ipvs; 0: each change at once",
    ),
    Flag::text(
        "ipvs-scheduler",
        "NAME",
        |o| &mut o.configuration.ipvs.scheduler,
        "Scheduler of Services that name none: rr, random, wrr, lc, wlc, sed, nq, sh, dh or mh; \
         in userspace mode too. Without it: rr",
    ),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        Field::List(|o| &mut o.configuration.ipvs.exclude_cidrs),
        "Virtual servers with addresses in these CIDRs are somebody else's and left alone",
    ),
    Flag::switch(
        "ipvs-strict-arp",
        |o| &mut o.configuration.ipvs.strict_arp,
        "Do not answer ARP for service addresses (arp_ignore 1, arp_announce 2)",
    ),
    Flag::time(
        "ipvs-tcp-timeout",
        |o| &mut o.configuration.ipvs.tcp_timeout,
        "Timeout of idle TCP connections; 0: as the kernel has it",
    ),
    Flag::time(
        "ipvs-tcpfin-timeout",
        |o| &mut o.configuration.ipvs.tcp_fin_timeout,
        "Timeout of TCP connections after a FIN; 0: as the kernel has it",
    ),
    Flag::time(
        "ipvs-udp-timeout",
        |o| &mut o.configuration.ipvs.udp_timeout,
        "Timeout of UDP flows; 0: as the kernel has it",
    ),
];

const USERSPACE: &[Flag] = &[
    Flag::new(
        "userspace-capture",
        "HOW",
        Field::Set(capture, "auto"),
        "How the packets of service addresses come to Tripod: nat rules that redirect them \
         (redirect), local routes without any netfilter (local), or what this kernel can (auto)",
    )
    .beside_file(),
    Flag::new(
        "proxy-port-range",
        "FIRST-LAST",
        Field::Set(
            |o, text| {
                port_range::parse(text)?;
                o.own.proxy_port_range = Some(text.to_owned());
                Ok(())
            },
            "",
        ),
        "Local ports for redirect capture, like 20000-21999; without it, free ones that the \
         kernel picks. Counts before portRange of the configuration file",
    )
    .beside_file(),
    Flag::new(
        "udp-timeout",
        "DURATION",
        Field::Set(
            |o, text| {
                o.own.udp_timeout = notation::positive(text)?;
                Ok(())
            },
            "30s",
        ),
        "How long a UDP client that is silent keeps its backend",
    )
    .beside_file(),
    Flag::new(
        "userspace-workers",
        "N",
        Field::Set(
            |o, text| {
                o.own.workers = text.parse().map_err(|_| "it must be a whole number")?;
                Ok(())
            },
            "0",
        ),
        "Threads of the data path; 0: one a core, at most 8",
    )
    .beside_file(),
];

const CONNTRACK: &[Flag] = &[
    Flag::int(
        "conntrack-max-per-core",
        |o| &mut o.configuration.conntrack.max_per_core,
        "Entries for each core; 0: as the kernel has it, and conntrack-min does not count",
    ),
    Flag::int(
        "conntrack-min",
        |o| &mut o.configuration.conntrack.min,
        "Entries at least, however few the cores are",
    ),
    Flag::switch(
        "conntrack-tcp-be-liberal",
        |o| &mut o.configuration.conntrack.tcp_be_liberal,
        "Do not take packets outside the TCP window for invalid ones",
    ),
    Flag::time(
        "conntrack-tcp-timeout-established",
        |o| &mut o.configuration.conntrack.tcp_established_timeout,
        "Timeout of idle TCP connections; 0: as the kernel has it",
    ),
    Flag::time(
        "conntrack-tcp-timeout-close-wait",
        |o| &mut o.configuration.conntrack.tcp_close_wait_timeout,
        "Timeout of TCP connections in CLOSE_WAIT; 0: as the kernel has it",
    ),
    Flag::time(
        "conntrack-udp-timeout",
        |o| &mut o.configuration.conntrack.udp_timeout,
        "Timeout of UDP flows without an answer; 0: as the kernel has it",
    ),
    Flag::time(
        "conntrack-udp-timeout-stream",
        |o| &mut o.configuration.conntrack.udp_stream_timeout,
        "Timeout of UDP flows with answers; 0: as the kernel has it",
    ),
];

const OBSERVING: &[Flag] = &[
    Flag::new(
        "healthz-bind-address",
        "IP:PORT",
        Field::Set(
            |o, text| {
                bind::check_flag(text)?;
                o.configuration.healthz_bind_address = text.to_owned();
                Ok(())
            },
            "0.0.0.0:10256",
        ),
        "Where /healthz and /livez are served; empty: nowhere",
    ),
    Flag::new(
        "metrics-bind-address",
        "IP:PORT",
        Field::Set(
            |o, text| {
                bind::check_flag(text)?;
                o.configuration.metrics_bind_address = text.to_owned();
                Ok(())
            },
            "127.0.0.1:10249",
        ),
        "Where /metrics is served; empty: nowhere",
    ),
    Flag::switch(
        "bind-address-hard-fail",
        |o| &mut o.configuration.bind_address_hard_fail,
        "End if one of these addresses cannot be bound, instead of trying again",
    ),
    Flag::switch(
        "profiling",
        |o| &mut o.configuration.enable_profiling,
        "Accepted for kube-proxy's sake: there is no /debug/pprof here",
    ),
    Flag::text(
        "show-hidden-metrics-for-version",
        "VERSION",
        |o| &mut o.configuration.show_hidden_metrics_for_version,
        "Accepted for kube-proxy's sake: no metric is hidden here",
    ),
    Flag::new(
        "healthz-port",
        "PORT",
        Field::Set(|o, text| port(&mut o.ports.0, text), ""),
        "Port for --healthz-bind-address where it names none; 0: serve nowhere",
    )
    .hidden(),
    Flag::new(
        "metrics-port",
        "PORT",
        Field::Set(|o, text| port(&mut o.ports.1, text), ""),
        "Port for --metrics-bind-address where it names none; 0: serve nowhere",
    )
    .hidden(),
];

const LOGGING: &[Flag] = &[
    Flag::new(
        "v",
        "LEVEL",
        Field::Set(
            |o, text| {
                let level = text.parse().ok().filter(|level| *level <= i32::MAX as u32);
                o.configuration.logging.verbosity =
                    level.ok_or("it must be a whole number from 0")?;
                Ok(())
            },
            "0",
        ),
        "How much is logged: 0 what an operator must know, 2 each sync too, 4 each attempt to \
         reach an endpoint that failed too",
    )
    .short('v')
    .beside_file(),
    Flag::text(
        "logging-format",
        "FORMAT",
        |o| &mut o.configuration.logging.format,
        "text or json",
    )
    .beside_file(),
    Flag::time(
        "log-flush-frequency",
        |o| &mut o.configuration.logging.flush_frequency,
        "Longest time that a line may be held back; Tripod holds none back",
    )
    .beside_file(),
    Flag::new(
        "vmodule",
        "PATTERN=N,...",
        Field::Set(
            |o, text| {
                o.configuration
                    .logging
                    .vmodule
                    .extend(notation::vmodule(text)?);
                Ok(())
            },
            "",
        ),
        "Accepted for kube-proxy's sake: there is one verbosity for all files here",
    )
    .beside_file(),
    Flag::switch(
        "log-text-split-stream",
        |o| &mut o.configuration.logging.text.split_stream,
        "Accepted for kube-proxy's sake: the log is on standard error",
    )
    .beside_file(),
    Flag::new(
        "log-text-info-buffer-size",
        "SIZE",
        Field::Set(
            |o, text| size(&mut o.configuration.logging.text.info_buffer_size, text),
            "",
        ),
        "Accepted for kube-proxy's sake: nothing is buffered",
    )
    .beside_file(),
    Flag::switch(
        "log-json-split-stream",
        |o| &mut o.configuration.logging.json.split_stream,
        "Accepted for kube-proxy's sake: the log is on standard error",
    )
    .beside_file(),
    Flag::new(
        "log-json-info-buffer-size",
        "SIZE",
        Field::Set(
            |o, text| size(&mut o.configuration.logging.json.info_buffer_size, text),
            "",
        ),
        "Accepted for kube-proxy's sake: nothing is buffered",
    )
    .beside_file(),
];

const RUNNING: &[Flag] = &[
    Flag::text(
        "config",
        "FILE",
        |o| &mut o.config,
        "Configuration file (KubeProxyConfiguration). What it can say counts before the flags",
    )
    .beside_file(),
    Flag::text(
        "write-config-to",
        "FILE",
        |o| &mut o.write_config_to,
        "Write the configuration that flags and --config make to this file, and exit",
    )
    .beside_file(),
    Flag::switch(
        "init-only",
        |o| &mut o.init_only,
        "Do what needs full root privileges and exit; CAP_NET_ADMIN is enough to serve then",
    )
    .beside_file(),
    Flag::switch(
        "cleanup",
        |o| &mut o.cleanup,
        "Remove what Tripod installed, like the subcommand, and exit",
    )
    .beside_file(),
    Flag::int(
        "oom-score-adj",
        |o| &mut o.configuration.oom_score_adj,
        "Score for the kernel's out-of-memory killer, -1000 to 1000",
    ),
    Flag::new(
        "feature-gates",
        "GATE=BOOL,...",
        Field::Set(
            |o, text| notation::feature_gates(text, &mut o.configuration.feature_gates),
            "",
        ),
        "Accepted for kube-proxy's sake: Tripod has no feature gates",
    ),
    Flag::text(
        "machine-id-file",
        "FILES",
        |o| &mut o.id_files.0,
        "Accepted for kube-proxy's sake: nothing reads it [default: \
         /etc/machine-id,/var/lib/dbus/machine-id]",
    )
    .beside_file(),
    Flag::text(
        "boot-id-file",
        "FILES",
        |o| &mut o.id_files.1,
        "Accepted for kube-proxy's sake: nothing reads it [default: \
         /proc/sys/kernel/random/boot_id]",
    )
    .beside_file(),
    Flag::new(
        "version",
        "raw",
        Field::SetOr(version, "true"),
        "Print the version and exit; with =raw, all there is to say about it",
    )
    .beside_file(),
];

fn hostname(options: &mut Options, text: &str) -> Result<(), String> {
    let name = text.trim();
    if name.is_empty() && !text.is_empty() {
        return Err("it must not be blank".to_owned());
    }
    options.hostname_override = (!name.is_empty()).then(|| name.to_lowercase());
    Ok(())
}

fn period(into: &mut Option<std::time::Duration>, text: &str) -> Result<(), String> {
    *into = Some(duration::parse(text)?);
    Ok(())
}

fn port(into: &mut Option<u16>, text: &str) -> Result<(), String> {
    let port = text.parse::<u16>();
    *into = Some(port.map_err(|_| "it must be a port from 0 to 65535")?);
    Ok(())
}

fn size(into: &mut String, text: &str) -> Result<(), String> {
    quantity::is_nonzero(text)?;
    *into = text.to_owned();
    Ok(())
}

fn capture(options: &mut Options, text: &str) -> Result<(), String> {
    options.own.capture = match text {
        "auto" => Requested::Auto,
        "redirect" => Requested::Redirect,
        "local" => Requested::Local,
        _ => return Err("it must be auto, redirect or local".to_owned()),
    };
    Ok(())
}

fn version(options: &mut Options, text: &str) -> Result<(), String> {
    options.version = match (text, notation::boolean(text)) {
        ("raw", _) => Version::Raw,
        (_, Some(true)) => Version::Line,
        (_, Some(false)) => Version::No,
        _ => return Err("it must be true, false or raw".to_owned()),
    };
    Ok(())
}

//! Flags about proxying, in any mode and in each.

use std::{num::NonZeroU32, time::Duration};

use net::address::parse_ip;

use crate::{
    cli::{
        flag::{Field, Flag, path, store},
        options::Options,
    },
    config::{notation, port_range},
    duration, hold,
    modes::{
        iptables::plan::DispatchChoice,
        userspace::{ConnectionLimits, Io, capture::Requested},
    },
};

/// The minimum if none is given: the default of the schedule, which is the same in every mode.
const MIN_SYNC_PERIOD: &str = "10ms";

pub(super) const PROXYING: &[Flag] = &[
    Flag::text(
        "proxy-mode",
        "MODE",
        |o| &mut o.configuration.mode,
        "How traffic is forwarded: ipvs, nftables, iptables or userspace. If this kernel cannot \
         run the mode, Tripod runs the next mode in this order that it can. Without the flag: the \
         first mode in this order that it can",
    )
    .line("ipvs, nftables, iptables or userspace; without it, the best here")
    .common(),
    Flag::switch(
        "strict-proxy-mode",
        |o| &mut o.own.strict_mode,
        "Exit and print what is missing, instead of running in another mode than --proxy-mode \
         names",
    )
    .beside_file(),
    Flag::new(
        "without",
        "NAMES",
        Field::Add(|o, text| {
            let words = text.split(',').map(str::trim);
            words
                .filter(|word| !word.is_empty())
                .try_for_each(|word| o.own.without.add(word))
        }),
        "Do not use these features of the kernel, as if it lacked them, for example because a \
         match is broken. Names separated by commas, such as recent,dummy,ipvs-wrr; for an unknown \
         name, the error lists all names",
    )
    .line("Do not use these features of the kernel, such as recent,dummy")
    .beside_file(),
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
        "This node's address, instead of that of its Node object; in spite of the name, nothing is \
         bound to it",
    )
    .line("This node's address, if not that of its Node object"),
    Flag::text(
        "detect-local-mode",
        "HOW",
        |o| &mut o.configuration.detect_local_mode,
        "How traffic from this node's own pods is distinguished from other traffic: ClusterCIDR, NodeCIDR, \
         BridgeInterface or InterfaceNamePrefix. Without it: ClusterCIDR",
    )
    .line("How this node's pods are recognized; without it: ClusterCIDR")
    .common(),
    Flag::new(
        "cluster-cidr",
        "CIDRS",
        Field::Set(
            |o, text| {
                let cidrs: Vec<&str> = text.split(',').map(str::trim).collect();
                o.configuration.cluster_cidr = cidrs.join(",");
                Ok(())
            },
            "",
        ),
        "Addresses of the cluster's pods, for ClusterCIDR: one CIDR, or one of each IP family, \
         separated by a comma",
    )
    .line("Addresses of the cluster's pods: a CIDR, or one of each family")
    .common(),
    Flag::text(
        "pod-bridge-interface",
        "NAME",
        |o| &mut o.configuration.detect_local.bridge_interface,
        "Bridge to which this node's pods are attached, for BridgeInterface",
    ),
    Flag::text(
        "pod-interface-name-prefix",
        "PREFIX",
        |o| &mut o.configuration.detect_local.interface_name_prefix,
        "Prefix of the names of links to this node's pods, for InterfaceNamePrefix",
    ),
    Flag::new(
        "nodeport-addresses",
        "CIDRS",
        Field::List(|o| &mut o.configuration.node_port_addresses),
        "Node addresses that serve node ports: CIDRs (a family without a CIDR uses all its \
         addresses) and the words `primary`, the addresses of the Node object; `localhost`, \
         loopback addresses (in ipvs and nftables mode over TCP only, by sockets of Tripod); and \
         `all`. Without it: all addresses",
    )
    .line("Where node ports are served: CIDRs, primary, localhost or all")
    .common(),
    Flag::switch(
        "masquerade-all",
        |o| &mut o.configuration.masquerade_all,
        "Masquerade all traffic to cluster IPs: endpoints see the node's address",
    )
    .line("Masquerade all traffic to cluster IPs")
    .common(),
];

pub(super) const IPTABLES: &[Flag] = &[
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
        "Minimum time between two syncs, unless the mode is ipvs; 0: apply each change at once. If \
         it is not given, Tripod uses 10ms instead of kube-proxy's default",
    )
    .not_given(MIN_SYNC_PERIOD),
    Flag::int(
        "iptables-masquerade-bit",
        |o| &mut o.configuration.iptables.masquerade_bit,
        "Bit of the packet mark that requests SNAT, 0 to 31; also used in ipvs mode",
    ),
    Flag::switch(
        "iptables-localhost-nodeports",
        |o| &mut o.configuration.iptables.localhost_node_ports,
        "Serve node ports on loopback addresses as well (iptables mode, IPv4)",
    ),
    Flag::new(
        "iptables-dispatch",
        "HOW",
        Field::Set(dispatch, "auto"),
        "How packets find their Service: rule by rule, as with kube-proxy (linear); through chains \
         by address prefix (indexed); or indexed if there are more than about 1000 ServicePorts \
         (auto)",
    )
    .beside_file(),
];

pub(super) const IPVS: &[Flag] = &[
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
        "Minimum time between two syncs, if the mode is ipvs; 0: apply each change at once. If it \
         is not given, Tripod uses 10ms instead of kube-proxy's default",
    )
    .not_given(MIN_SYNC_PERIOD),
    Flag::text(
        "ipvs-scheduler",
        "NAME",
        |o| &mut o.configuration.ipvs.scheduler,
        "Scheduler of Services that name none: rr, random, wrr, lc, wlc, sed, nq, sh, dh, mh or \
         mh-port; also used in userspace mode. Without it: rr",
    )
    .line("Scheduler of Services that name none; without it: rr")
    .common(),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        Field::List(|o| &mut o.configuration.ipvs.exclude_cidrs),
        "Virtual servers with addresses in these CIDRs belong to other programs and are not \
         changed",
    )
    .line("Virtual servers at these addresses are not changed"),
    Flag::switch(
        "ipvs-strict-arp",
        |o| &mut o.configuration.ipvs.strict_arp,
        "Do not answer ARP for service addresses (arp_ignore 1, arp_announce 2)",
    ),
    Flag::time(
        "ipvs-tcp-timeout",
        |o| &mut o.configuration.ipvs.tcp_timeout,
        "Timeout of idle TCP connections; 0: keep the kernel's value",
    ),
    Flag::time(
        "ipvs-tcpfin-timeout",
        |o| &mut o.configuration.ipvs.tcp_fin_timeout,
        "Timeout of TCP connections after a FIN; 0: keep the kernel's value",
    ),
    Flag::time(
        "ipvs-udp-timeout",
        |o| &mut o.configuration.ipvs.udp_timeout,
        "Timeout of UDP flows; 0: keep the kernel's value",
    ),
    Flag::new(
        "ipvs-drain-timeout",
        "DURATION",
        Field::Set(
            |o, text| store(&mut o.own.ipvs_drain_timeout, duration::parse(text)),
            "0s",
        ),
        "How long TCP connections to an endpoint that was removed or is not ready may continue, \
         unless the Service is annotated with tripod.proxy/drain-timeout; 0: no limit",
    )
    .beside_file(),
];

pub(super) const USERSPACE: &[Flag] = &[
    Flag::new(
        "userspace-capture",
        "HOW",
        Field::Set(capture, "auto"),
        "How packets to service addresses reach Tripod: by nat rules that redirect them \
         (redirect), by local routes without netfilter (local), or by redirect if the kernel \
         supports it, otherwise local (auto)",
    )
    .line("How packets reach Tripod: redirect, local or auto"),
    Flag::new(
        "userspace-io",
        "HOW",
        Field::Set(|o, text| store(&mut o.own.io, Io::parse(text)), "auto"),
        "How data is received and sent: by one system call per message (epoll), or also by \
         io_uring, with one call for many connections that exchange short messages (uring). auto: \
         use io_uring if this kernel allows it",
    )
    .line("How data is received and sent: epoll, uring or auto"),
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
        "Local ports for redirect capture, such as 20000-21999; without it, the kernel picks free \
         ones. Overrides portRange of the configuration file",
    ),
    Flag::new(
        "udp-timeout",
        "DURATION",
        Field::Set(
            |o, text| store(&mut o.own.udp_timeout, notation::positive(text)),
            "30s",
        ),
        "How long a silent UDP client keeps its endpoint",
    ),
    Flag::new(
        "userspace-dial-attempts",
        "N",
        Field::Set(
            |o, text| {
                let attempts = text.parse().ok().filter(|n| *n > 0);
                o.own.dial_attempts = attempts.ok_or("it must be a whole number greater than 0")?;
                Ok(())
            },
            "8",
        ),
        "Maximum number of attempts to connect one client to an endpoint, before its connection is \
         reset",
    ),
    Flag::new(
        "userspace-dial-timeout",
        "DURATION",
        Field::Set(
            |o, text| store(&mut o.own.dial_timeout, notation::positive(text)),
            "5s",
        ),
        "Maximum time that all these attempts may take together",
    ),
    Flag::new(
        "userspace-tcp-user-timeout",
        "DURATION",
        Field::Set(
            |o, text| store(&mut o.own.tcp_user_timeout, duration::parse(text)),
            "2m",
        ),
        "How long data sent to a client or endpoint may stay unacknowledged before the connection \
         is reset; 0: as long as the kernel allows (net.ipv4.tcp_retries2). A peer that answers \
         but does not read is never disconnected",
    ),
    Flag::new(
        "userspace-max-connections",
        "N",
        Field::Set(
            |o, text| {
                let most: u32 = text.parse().map_err(|_| "it must be a whole number")?;
                o.own.limits.service = NonZeroU32::new(most);
                Ok(())
            },
            "0",
        ),
        "Maximum number of TCP connections and UDP clients of each Service on this node, unless it \
         is annotated with tripod.proxy/max-connections; further connections wait. 0: limited only \
         by file descriptors and memory",
    ),
    Flag::new(
        "userspace-max-connections-per-client",
        "N",
        Field::Set(
            |o, text| {
                let limits = ConnectionLimits::per_client(text)?;
                o.own.limits.client = limits.client;
                o.own.limits.leaves_room = limits.leaves_room;
                Ok(())
            },
            "auto",
        ),
        "Maximum number of TCP connections and UDP flows of each client of a Service, unless the \
         Service is annotated with tripod.proxy/max-connections-per-client; further connections \
         are reset, and their datagrams dropped. auto: as many as leave file descriptors and \
         memory to other clients of the Service, at most about three fifths of them; a number: in \
         addition, at most that many; none: no limit",
    ),
    Flag::time(
        "userspace-drain-timeout",
        |o| &mut o.own.drain_timeout,
        "How long Tripod may continue after SIGTERM or a change of its configuration file. It \
         follows the cluster and accepts connections until another Tripod process does, and exits \
         when its connections have ended; a second signal ends it at once",
    ),
    Flag::new(
        "userspace-holder-socket",
        "PATH",
        Field::Set(|o, text| path(&mut o.own.holder_socket, text), hold::SOCKET),
        "Unix socket of tripod hold, which keeps the listening sockets open while no Tripod \
         process runs, so that new connections wait for the next one instead of being refused; \
         empty: none",
    )
    .line("Holder's socket"),
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
        "Number of threads of the data path; 0: one per core, at most 8",
    ),
    Flag::switch(
        "userspace-transparent",
        |o| &mut o.own.transparent,
        "Let endpoints see the client's address if their answers come back through this node; \
         needs iptables with the socket match",
    ),
];

pub(super) const CONNTRACK: &[Flag] = &[
    Flag::int(
        "conntrack-max-per-core",
        |o| &mut o.configuration.conntrack.max_per_core,
        "Maximum number of entries per core; 0: keep the kernel's value and ignore conntrack-min",
    ),
    Flag::int(
        "conntrack-min",
        |o| &mut o.configuration.conntrack.min,
        "Minimum value of the maximum number of entries, regardless of the number of cores",
    ),
    Flag::switch(
        "conntrack-tcp-be-liberal",
        |o| &mut o.configuration.conntrack.tcp_be_liberal,
        "Do not treat packets outside the TCP window as invalid",
    ),
    Flag::time(
        "conntrack-tcp-timeout-established",
        |o| &mut o.configuration.conntrack.tcp_established_timeout,
        "Timeout of idle TCP connections; 0: keep the kernel's value",
    ),
    Flag::time(
        "conntrack-tcp-timeout-close-wait",
        |o| &mut o.configuration.conntrack.tcp_close_wait_timeout,
        "Timeout of TCP connections in CLOSE_WAIT; 0: keep the kernel's value",
    ),
    Flag::time(
        "conntrack-udp-timeout",
        |o| &mut o.configuration.conntrack.udp_timeout,
        "Timeout of UDP flows without an answer; 0: keep the kernel's value",
    ),
    Flag::time(
        "conntrack-udp-timeout-stream",
        |o| &mut o.configuration.conntrack.udp_stream_timeout,
        "Timeout of UDP flows with answers; 0: keep the kernel's value",
    ),
];

fn period(into: &mut Option<Duration>, text: &str) -> Result<(), String> {
    store(into, duration::parse(text).map(Some))
}

fn dispatch(options: &mut Options, text: &str) -> Result<(), String> {
    options.own.iptables_dispatch = match text {
        "auto" => DispatchChoice::Auto,
        "linear" => DispatchChoice::Linear,
        "indexed" => DispatchChoice::Indexed,
        _ => return Err("it must be auto, linear or indexed".to_owned()),
    };
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

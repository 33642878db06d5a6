//! Flags about proxying, in any mode and in each.

use std::{num::NonZeroU32, time::Duration};

use net::address::parse_ip;

use crate::{
    cli::{
        flag::{Field, Flag},
        options::Options,
    },
    config::{notation, port_range},
    duration, hold,
    modes::{
        iptables::plan::DispatchChoice,
        userspace::{ConnectionLimits, Io, capture::Requested},
    },
};

/// What counts if no minimum is given: the default of the schedule, which is the same in every mode.
const MIN_SYNC_PERIOD: &str = "10ms";

pub(super) const PROXYING: &[Flag] = &[
    Flag::text(
        "proxy-mode",
        "MODE",
        |o| &mut o.configuration.mode,
        "How traffic is carried: ipvs, nftables, iptables or userspace. Where this kernel cannot run \
         the mode, Tripod runs the next in this order that it can. Without it: the first in this order",
    )
    .line("ipvs, nftables, iptables or userspace; without it: the best here")
    .common(),
    Flag::switch(
        "strict-proxy-mode",
        |o| &mut o.own.strict_mode,
        "End with what is missing, instead of running in another mode than --proxy-mode says",
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
        "Leave out what tripod probe found, as if this kernel did not have it: a match that is \
         broken here, or a test. Names with commas, such as recent,dummy,ipvs-wrr; an unknown \
         one has all of them listed",
    )
    .line("Leave out these features of the kernel, such as recent,dummy")
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
        "This node's own address, if it is not to be taken from its Node; nothing is bound to it, \
         whatever the name says",
    )
    .line("This node's address, if it is not that of its Node"),
    Flag::text(
        "detect-local-mode",
        "HOW",
        |o| &mut o.configuration.detect_local_mode,
        "How traffic from this node's own pods is distinguished from other traffic: ClusterCIDR, NodeCIDR, \
         BridgeInterface or InterfaceNamePrefix. Without it: ClusterCIDR",
    )
    .line("How this node's pods are recognized; without it: ClusterCIDR")
    .common(),
    Flag::text(
        "cluster-cidr",
        "CIDRS",
        |o| &mut o.cluster_cidr,
        "Where the cluster's pods have their addresses, for ClusterCIDR: one CIDR, or one of each \
         family with a comma between them",
    )
    .line("Addresses of the cluster's pods: a CIDR, or one of each family")
    .common(),
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
        "Node addresses that serve node ports: those within these CIDRs (all of a family that none \
         of them is of), and those that words stand for: `primary` the addresses of the Node \
         object, `localhost` loopback addresses (in ipvs and nftables mode TCP alone, by sockets of \
         Tripod), `all` every address; all, if there is none",
    )
    .line("Where node ports are served: CIDRs, primary, localhost or all")
    .common(),
    Flag::switch(
        "masquerade-all",
        |o| &mut o.configuration.masquerade_all,
        "Give the node's address to all traffic that is sent to cluster IPs",
    )
    .line("Masquerade all traffic that is sent to cluster IPs")
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
        "Least time between two syncs, unless the mode is ipvs; 0: each change at once. If it is not \
         given, Tripod takes 10ms in place of kube-proxy's default",
    )
    .not_given(MIN_SYNC_PERIOD),
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
    Flag::new(
        "iptables-dispatch",
        "HOW",
        Field::Set(dispatch, "auto"),
        "How packets find their Service: rule by rule as with kube-proxy (linear), through chains \
         by address prefix (indexed), or indexed from about 1000 Service ports on (auto)",
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
        "Least time between two syncs, if the mode is ipvs; 0: each change at once. If it is not \
         given, Tripod takes 10ms in place of kube-proxy's default",
    )
    .not_given(MIN_SYNC_PERIOD),
    Flag::text(
        "ipvs-scheduler",
        "NAME",
        |o| &mut o.configuration.ipvs.scheduler,
        "Scheduler of Services that name none: rr, random, wrr, lc, wlc, sed, nq, sh, dh or mh; \
         in userspace mode too. Without it: rr",
    )
    .line("Scheduler of Services that name none; without it: rr")
    .common(),
    Flag::new(
        "ipvs-exclude-cidrs",
        "CIDRS",
        Field::List(|o| &mut o.configuration.ipvs.exclude_cidrs),
        "Virtual servers with addresses in these CIDRs belong to other programs and are left alone",
    )
    .line("Virtual servers at these addresses are left alone"),
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
    Flag::new(
        "ipvs-drain-timeout",
        "DURATION",
        Field::Set(
            |o, text| {
                o.own.ipvs_drain_timeout = duration::parse(text)?;
                Ok(())
            },
            "0s",
        ),
        "How long TCP connections to an endpoint that left its Service or is not ready may go on \
         where the Service does not say (tripod.proxy/drain-timeout); 0: as long as they last",
    )
    .beside_file(),
];

pub(super) const USERSPACE: &[Flag] = &[
    Flag::new(
        "userspace-capture",
        "HOW",
        Field::Set(capture, "auto"),
        "How the packets of service addresses come to Tripod: nat rules that redirect them \
         (redirect), local routes without any netfilter (local), or what this kernel can (auto)",
    )
    .line("How packets come to Tripod: redirect, local or auto")
    .beside_file(),
    Flag::new(
        "userspace-io",
        "HOW",
        Field::Set(
            |o, text| {
                o.own.io = Io::parse(text)?;
                Ok(())
            },
            "auto",
        ),
        "How bytes are received and sent: by one system call for each message (epoll), or also by \
         io_uring, for many connections at once where these exchange short messages (uring). auto: \
         by io_uring if this kernel allows it",
    )
    .line("How bytes are moved: epoll, uring or auto")
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
         kernel picks. Wins over portRange of the configuration file",
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
        "userspace-dial-attempts",
        "N",
        Field::Set(
            |o, text| {
                let attempts = text.parse().ok().filter(|n| *n > 0);
                o.own.dial_attempts = attempts.ok_or("it must be a whole number from 1 on")?;
                Ok(())
            },
            "8",
        ),
        "How often Tripod tries to connect one client to an endpoint before it resets the \
         client's connection",
    )
    .beside_file(),
    Flag::new(
        "userspace-dial-timeout",
        "DURATION",
        Field::Set(
            |o, text| {
                o.own.dial_timeout = notation::positive(text)?;
                Ok(())
            },
            "5s",
        ),
        "How long all of these attempts may take together",
    )
    .beside_file(),
    Flag::new(
        "userspace-tcp-user-timeout",
        "DURATION",
        Field::Set(
            |o, text| {
                o.own.tcp_user_timeout = duration::parse(text)?;
                Ok(())
            },
            "2m",
        ),
        "How long a client or endpoint may acknowledge nothing of what is under way to it before \
         its connection is reset; 0: as long as the kernel allows (net.ipv4.tcp_retries2). One \
         that answers and only does not read is never cut off",
    )
    .beside_file(),
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
        "TCP connections and UDP clients that each Service may have on this node, unless it is \
         annotated tripod.proxy/max-connections; what is more waits. 0: as many as there are file \
         descriptors and memory for",
    )
    .beside_file(),
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
        "TCP connections and UDP flows that each client of a Service may have, unless that is \
         annotated tripod.proxy/max-connections-per-client; what is more is reset, or dropped. \
         auto: as many as leave file descriptors and memory to other clients of the Service, at \
         most about three fifths of them; a number is a limit besides; none: no limit",
    )
    .beside_file(),
    Flag::new(
        "userspace-drain-timeout",
        "DURATION",
        Field::Set(
            |o, text| {
                o.own.drain_timeout = duration::parse(text)?;
                Ok(())
            },
            "20s",
        ),
        "How long Tripod goes on after SIGTERM, or after its configuration file was changed: it \
         follows the cluster and takes new connections until another process of Tripod does, then \
         ends when its connections have; a second signal ends it at once",
    )
    .beside_file(),
    Flag::new(
        "userspace-holder-socket",
        "PATH",
        Field::Set(
            |o, text| {
                let path = Some(text).filter(|path| !path.is_empty());
                o.own.holder_socket = path.map(Into::into);
                Ok(())
            },
            hold::SOCKET,
        ),
        "Unix socket of tripod hold, which keeps the listening sockets open while no Tripod runs, \
         so that who connects waits for the next one instead of being refused; empty: none",
    )
    .line("Holder's socket")
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
    Flag::switch(
        "userspace-transparent",
        |o| &mut o.own.transparent,
        "Let endpoints see the client's address where their answers come back through this node; \
         takes iptables with the socket match",
    )
    .beside_file(),
];

pub(super) const CONNTRACK: &[Flag] = &[
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

fn period(into: &mut Option<Duration>, text: &str) -> Result<(), String> {
    *into = Some(duration::parse(text)?);
    Ok(())
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

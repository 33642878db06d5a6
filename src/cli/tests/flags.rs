//! The meaning of the flags by themselves.

use super::*;

#[test]
fn the_command_is_well_formed() {
    command().debug_assert();
}

#[test]
fn values_are_written_as_for_kube_proxy() {
    let verbosity = |arguments: &[&str]| settings(arguments).configuration.logging.verbosity;
    for arguments in [
        &["-v", "2"][..],
        &["-v=2"],
        &["-v2"],
        &["--v=2"],
        &["--v", "2"],
        &["--v=5", "--v=2"],
    ] {
        assert_eq!(verbosity(arguments), 2, "{arguments:?}");
    }
    let masquerade_all = |arguments| settings(arguments).configuration.masquerade_all;
    assert!(masquerade_all(&["--masquerade-all"]));
    assert!(masquerade_all(&["--masquerade_all=T"]));
    assert!(!masquerade_all(&[
        "--masquerade-all",
        "--masquerade-all=false"
    ]));
    let c = settings(&[
        "--iptables-localhost-nodeports=0",
        "--oom-score-adj",
        "-500",
    ])
    .configuration;
    assert!(!c.iptables.localhost_node_ports);
    assert_eq!(c.oom_score_adj, -500);
    // Empty arguments are ignored, unless they are values.
    let c = settings(&["", "-v", "3", "", "--proxy-mode", "", "--master", "--v", ""]);
    assert_eq!(c.configuration.logging.verbosity, 3);
    assert_eq!(c.effective.mode, ModeName::Ipvs);
    assert!(!c.effective.is_mode_named && settings(&["--proxy-mode=ipvs"]).effective.is_mode_named);
    assert_eq!(c.master.as_deref(), Some("--v"));
    let c = settings(&[
        "--iptables-masquerade-bit=0x10",
        "--conntrack-min=1_000",
        "--nodeport-addresses=\"192.0.2.0/24\",\"fd00::/8\"",
    ])
    .configuration;
    assert_eq!((c.iptables.masquerade_bit, c.conntrack.min), (16, 1000));
    assert_eq!(c.node_port_addresses, ["192.0.2.0/24", "fd00::/8"]);
    let c = settings(&[
        "--nodeport-addresses=10.0.0.0/8,fd00::/8",
        "--nodeport_addresses",
        "192.0.2.0/24",
        "--feature-gates=A=true,B=false",
        "--feature-gates=B=true",
        "--vmodule=a=1,b=2",
        "--kube-api-qps=2.5",
        "--log-json-info-buffer-size=64Ki",
    ])
    .configuration;
    assert_eq!(
        c.node_port_addresses,
        ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24"]
    );
    let gates = BTreeMap::from([("A".to_owned(), true), ("B".to_owned(), true)]);
    assert_eq!(c.feature_gates, gates);
    assert_eq!(c.logging.vmodule.len(), 2);
    assert_eq!(c.client_connection.qps, 2.5);
    assert_eq!(c.logging.options.json.info_buffer_size, "64Ki");
}

#[test]
fn addresses_to_serve_on() {
    for (flags, healthz, metrics) in [
        (&[][..], "0.0.0.0:10256", "127.0.0.1:10249"),
        (&["--bind-address=::"], "0.0.0.0:10256", "127.0.0.1:10249"),
        (&["--bind-address="], "0.0.0.0:10256", "127.0.0.1:10249"),
        (
            &[
                "--healthz-bind-address=::1",
                "--metrics-bind-address=192.0.2.1",
            ],
            "[::1]:10256",
            "192.0.2.1:10249",
        ),
        (
            &[
                "--healthz-bind-address=[::1]:1",
                "--metrics-bind-address=192.0.2.1:2",
            ],
            "[::1]:1",
            "192.0.2.1:2",
        ),
        (
            &["--healthz-bind-address=", "--metrics-bind-address="],
            "0.0.0.0:10256",
            "",
        ),
        (&["--healthz-port=0", "--metrics-port=0"], "", ""),
        (
            &[
                "--healthz-port=1",
                "--metrics-bind-address=::",
                "--metrics-port=2",
            ],
            "0.0.0.0:10256",
            "[::]:2",
        ),
    ] {
        let effective = settings(flags).effective;
        let text = |address: Option<std::net::SocketAddr>| {
            address.map(|a| a.to_string()).unwrap_or_default()
        };
        assert_eq!(text(effective.healthz), healthz, "{flags:?}");
        assert_eq!(text(effective.metrics), metrics, "{flags:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (arguments, words) in [
        (&["--no-such-flag"][..], &["--no-such-flag"][..]),
        (&["stray"], &["stray"]),
        (&["--master"], &["--master"]),
        (
            &["--masquerade-all=maybe"],
            &["--masquerade-all", "true or false"],
        ),
        (&["--udp-timeout=5"], &["--udp-timeout", "unit is missing"]),
        (&["--udp-timeout=0s"], &["--udp-timeout", "greater than 0"]),
        (
            &["--userspace-dial-attempts=0"],
            &["--userspace-dial-attempts", "greater than 0"],
        ),
        (
            &["--userspace-dial-timeout=0s"],
            &["--userspace-dial-timeout", "greater than 0"],
        ),
        (
            &["--proxy-mode=magic"],
            &["--proxy-mode", "magic", "userspace"],
        ),
        (&["--proxy-mode=kernelspace"], &["--proxy-mode", "Windows"]),
        (
            &["--proxy-mode=userspace", "--ipvs-scheduler=magic"],
            &["--ipvs-scheduler", "magic", "wrr"],
        ),
        (&["--proxy-port-range=9-8"], &["--proxy-port-range", "9-8"]),
        (
            &["--nodeport-addresses=nowhere"],
            &["--nodeport-addresses", "nowhere"],
        ),
        (
            &["--metrics-bind-address=here"],
            &["--metrics-bind-address", "0.0.0.0:10256"],
        ),
        (
            &["--userspace-capture=net"],
            &["--userspace-capture", "redirect"],
        ),
        (&["--bind-address=node"], &["--bind-address", "IP address"]),
        (
            &["--oom-score-adj=1e3"],
            &["--oom-score-adj", "whole number"],
        ),
        (&["--feature-gates=A"], &["--feature-gates", "Gate=true"]),
        (&["--vmodule=a"], &["--vmodule", "pattern=N"]),
        (
            &["--hostname-override= "],
            &["--hostname-override", "blank"],
        ),
        (&["--config=elsewhere"], &["--config elsewhere"]),
        (
            &["--iptables-sync-period=0"],
            &["--iptables-sync-period", "greater than 0"],
        ),
        (
            &["--iptables-sync-period=1s", "--iptables-min-sync-period=2s"],
            &["--iptables-sync-period", "at least"],
        ),
    ] {
        let text = refusal("", arguments);
        for word in words {
            assert!(text.contains(word), "{text}");
        }
    }
}

#[test]
fn modes() {
    for (file, flags, mode, warns) in [
        (None, &[][..], ModeName::Ipvs, false),
        (None, &["--proxy-mode="], ModeName::Ipvs, false),
        (None, &["--proxy-mode=ipvs"], ModeName::Ipvs, false),
        (None, &["--proxy-mode=iptables"], ModeName::Iptables, false),
        (
            None,
            &["--proxy-mode=userspace"],
            ModeName::Userspace,
            false,
        ),
        (None, &["--proxy-mode=nftables"], ModeName::Nftables, false),
        (Some("mode: nftables\n"), &[], ModeName::Nftables, false),
        // kube-proxy would not check these in that mode.
        (
            Some("mode: iptables\nipvs: {scheduler: magic}\n"),
            &[],
            ModeName::Iptables,
            true,
        ),
        (
            Some("mode: iptables\nipvs: {excludeCIDRs: [x]}\n"),
            &[],
            ModeName::Iptables,
            true,
        ),
        (
            Some("mode: iptables\nipvs: {tcpTimeout: -1s}\nnftables: {syncPeriod: -1s}\n"),
            &[],
            ModeName::Iptables,
            true,
        ),
        (
            Some("mode: ipvs\niptables: {syncPeriod: -1s, minSyncPeriod: -1s}\n"),
            &[],
            ModeName::Ipvs,
            true,
        ),
        (
            None,
            &["--proxy-mode=ipvs", "--ipvs-scheduler=lblc"],
            ModeName::Ipvs,
            true,
        ),
    ] {
        let settings = match file {
            Some(text) => settings_of_file(&format!("{TOP}{text}"), flags),
            None => settings(flags),
        };
        assert_eq!(settings.effective.mode, mode, "{file:?} {flags:?}");
        assert_eq!(
            !settings.warnings.is_empty(),
            warns,
            "{:?}",
            settings.warnings
        );
        assert_eq!(settings.effective.scheduler, SchedulerName::Rr);
    }
    // A user who requested nftables must not find node ports open on more addresses.
    let nftables = settings(&["--proxy-mode=nftables"]).effective;
    let primary = NodePortAddresses {
        primary: true,
        ..NodePortAddresses::default()
    };
    assert_eq!(nftables.node_ports, primary);
}

#[test]
fn words_stand_for_addresses_of_node_ports_beside_cidrs() {
    let named = |flag: &str| settings(&[flag]).effective.node_ports;
    for (words, primary, networks) in [
        ("primary", true, &[][..]),
        ("localhost", false, &["127.0.0.0/8", "::1/128"]),
        ("all", false, &["0.0.0.0/0", "::/0"]),
        (
            "192.0.2.0/24,primary,localhost",
            true,
            &["192.0.2.0/24", "127.0.0.0/8", "::1/128"],
        ),
    ] {
        let found = named(&format!("--nodeport-addresses={words}"));
        let networks = networks.iter().map(|text| text.parse().expect("a network"));
        let networks = networks.collect();
        let expected = NodePortAddresses {
            primary,
            networks,
            ..NodePortAddresses::default()
        };
        assert_eq!(found, expected, "{words}");
    }
}

#[test]
fn sync_periods_follow_the_mode() {
    let seconds = Duration::from_secs;
    let both = ["--iptables-sync-period=11s", "--ipvs-sync-period=22s"];
    for (flags, sync, min) in [
        (vec![], 30, None),
        (vec!["--proxy-mode=ipvs", both[0], both[1]], 22, None),
        (vec!["--proxy-mode=userspace", both[0], both[1]], 11, None),
        (vec![both[0], both[1]], 11, None),
        (vec![both[1], "--ipvs-min-sync-period=3s"], 22, Some(3)),
        (vec!["--iptables-min-sync-period=0"], 30, Some(0)),
    ] {
        let c = settings(&flags).configuration;
        assert_eq!(c.sync_period, seconds(sync), "{flags:?}");
        assert_eq!(c.min_sync_period, min.map(seconds), "{flags:?}");
    }
    for (file, sync, min) in [
        (
            "mode: ipvs\niptables: {syncPeriod: 11s}\nipvs: {syncPeriod: 22s}\n",
            22,
            None,
        ),
        (
            "mode: nftables\nnftables: {syncPeriod: 33s, minSyncPeriod: 1s}\n",
            33,
            Some(1),
        ),
        (
            "iptables: {syncPeriod: 11s}\nipvs: {syncPeriod: 22s}\n",
            11,
            None,
        ),
        ("ipvs: {syncPeriod: 22s, minSyncPeriod: 2s}\n", 22, Some(2)),
    ] {
        let c = settings_of_file(&format!("{TOP}{file}"), &[]).configuration;
        assert_eq!(c.sync_period, seconds(sync), "{file}");
        assert_eq!(c.min_sync_period, min.map(seconds), "{file}");
    }
}

#[test]
fn jobs() {
    for (arguments, job) in [
        (&[][..], Job::Serve),
        (&["--cleanup=false"], Job::Serve),
        (&["--cleanup"], Job::Cleanup(Cleanup::default())),
        (&["cleanup"], Job::Cleanup(Cleanup::default())),
        (
            &["cleanup", "--keep-kube-proxy"],
            Job::Cleanup(Cleanup {
                keep_kube_proxy: true,
            }),
        ),
        (&["--init-only"], Job::Init),
        (
            &["--cleanup", "--write-config-to=f"],
            Job::WriteConfig("f".into()),
        ),
    ] {
        assert_eq!(settings(arguments).job, job, "{arguments:?}");
    }
    assert_eq!(
        answer(&["--version"]),
        format!("Tripod v{}", env!("CARGO_PKG_VERSION"))
    );
    assert!(answer(&["--version=raw"]).starts_with("version.Info{Major:"));
    assert_eq!(settings(&["--version=false"]).job, Job::Serve);
    let reported = settings(&["--version=v1.36.0"]);
    assert_eq!(reported.job, Job::Serve);
    let warning = "--version: accepted, but without effect in Tripod";
    assert_eq!(reported.warnings, [warning]);
}

#[test]
fn flags_are_listed_with_their_values() {
    let flags = settings(&[
        "--v=1",
        "--v=4",
        "--ipvs-strict-arp",
        "--ipvs-exclude-cidrs=192.0.2.0/24,198.51.100.0/24",
        "--ipvs-exclude-cidrs=fd00::/8",
        "--without=recent",
        "--without=dummy",
        "--feature-gates=A=true",
        "--feature-gates=B=false",
        "--ipvs-min-sync-period=2s",
    ])
    .flags;
    assert!(flags.is_sorted());
    for expected in [
        ("v", "4"),
        ("ipvs-strict-arp", "true"),
        ("ipvs-udp-timeout", "0s"),
        ("masquerade-all", "false"),
        ("nodeport-addresses", "[]"),
        ("oom-score-adj", "-999"),
        (
            "ipvs-exclude-cidrs",
            "[192.0.2.0/24,198.51.100.0/24,fd00::/8]",
        ),
        ("without", "recent,dummy"),
        ("feature-gates", "A=true,B=false"),
        ("ipvs-min-sync-period", "2s"),
        // Applied, unlike kube-proxy's default.
        ("iptables-min-sync-period", "10ms"),
    ] {
        assert!(
            flags
                .iter()
                .any(|(name, value)| (*name, value.as_str()) == expected),
            "{expected:?} is not in {flags:?}"
        );
    }
}

#[test]
fn what_is_to_be_left_out_is_known_by_name_and_no_flag_of_kube_proxys() {
    assert!(!FLAGS.lines().any(|line| line.starts_with("without\t")));
    let words = |arguments: &[&str]| settings(arguments).own.without.words();
    assert!(words(&[]).is_empty());
    let several = ["--without=recent, dummy", "--without", "ipset-hash-ip-port"];
    let expected = ["dummy", "ipset-hash-ip-port", "recent"].map(str::to_owned);
    for job in [&[][..], &["probe"], &["render", "--manifests=/m"]] {
        assert_eq!(words(&[job, &several].concat()), expected.clone().into());
    }
    let refused = refusal("", &["--without=recent,xt_recent"]);
    for part in ["--without", "xt_recent", "recent", "ipvs-wrr", "nat"] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
}

#[test]
fn the_node_that_is_compared_can_be_named() {
    let named = |flags: &[&str]| match settings(&[&["migrate", "--check"], flags].concat()).job {
        Job::Migrate(asked) => asked.node().map(str::to_owned),
        other => panic!("{flags:?}: {other:?}"),
    };
    assert_eq!(named(&[]), None);
    assert_eq!(named(&["--hostname-override="]), None);
    let name = named(&["--hostname-override= Node-7 "]);
    assert_eq!(name.as_deref(), Some("node-7"));
    refusal("", &["migrate", "--check", "--hostname-override= "]);
}

#[test]
fn questions_to_the_running_proxy() {
    let ask = |arguments: &[&str]| match settings(arguments).job {
        Job::Ask(ask) => ask,
        other => panic!("{arguments:?}: {other:?}"),
    };
    let common = |output, socket: &str| Common {
        format: Format { output },
        socket: socket.into(),
    };
    let status = |common| {
        Ask::Status(Status {
            common,
            probe: None,
        })
    };
    let services = |namespace: Option<&str>, name: Option<&str>, watch, output| {
        Ask::Services(Services {
            common: common(output, "/run/tripod/tripod.sock"),
            watch,
            services: namespace.map(|of| (of.to_owned(), name.map(str::to_owned))),
        })
    };
    let usual = "/run/tripod/tripod.sock";
    for (arguments, expected) in [
        (&["status"][..], status(common(Output::Table, usual))),
        (
            &["status", "-o", "wide", "--status-socket=/s"],
            status(common(Output::Wide, "/s")),
        ),
        (
            &["services", "--output=json"],
            services(None, None, false, Output::Json),
        ),
        (
            &["services", "shop", "-oyaml"],
            services(Some("shop"), None, false, Output::Yaml),
        ),
        (
            &["services", "shop/cart"],
            services(Some("shop"), Some("cart"), false, Output::Table),
        ),
        (
            &["services", "--watch"],
            services(None, None, true, Output::Table),
        ),
    ] {
        assert_eq!(ask(arguments), expected, "{arguments:?}");
    }
    for wrong in ["/", "a/", "/b", "a/b/c", "a?continue=x", "a b"] {
        let why = refusal("", &["services", "--", wrong]);
        assert!(why.contains("it must be a namespace"), "{wrong:?}: {why}");
    }
    let why = refusal("", &["services", "-w", "-o", "json"]);
    assert!(why.contains("--watch prints only tables"), "{why}");
    let socket = |arguments: &[&str]| settings(arguments).own.status_socket;
    assert_eq!(socket(&[]), Some(usual.into()));
    assert_eq!(socket(&["--status-socket", ""]), None);
    assert_eq!(socket(&["--status-socket=/s"]), Some("/s".into()));
}

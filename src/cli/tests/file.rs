//! The meaning of a configuration file, together with flags.

use super::*;

#[test]
fn all_problems_are_reported_at_once() {
    let text = format!(
        "{TOP}mode: magic\nbindAddress: here\nhealthzBindAddress: 0.0.0.0:0\nmetricsBindAddress: a:b\n\
         oomScoreAdj: 1001\nclientConnection: {{burst: -1, qps: x}}\niptables: {{masqueradeBit: 32}}\n\
         conntrack: {{maxPerCore: -1, min: 1.5, udpTimeout: 5}}\nconfigSyncPeriod: -1s\n\
         detectLocalMode: Guess\nnodePortAddresses: [10.0.0.0/8, here, Primary]\n\
         clusterCIDR: 10.0.0.0/8\nportRange: 9-8\nlogging: {{format: xml, verbosity: 4294967295}}\n\
         featureGates: {{A: 1}}\nwinkernel: 5\nhostnameOverride: 7\n"
    );
    let text = refusal(&text, &["--config=config"]);
    for path in [
        "mode",
        "bindAddress",
        "healthzBindAddress",
        "metricsBindAddress",
        "oomScoreAdj",
        "clientConnection.burst",
        "clientConnection.qps",
        "iptables.masqueradeBit",
        "conntrack.maxPerCore",
        "conntrack.min",
        "conntrack.udpTimeout",
        "configSyncPeriod",
        "detectLocalMode",
        "nodePortAddresses[1]",
        "nodePortAddresses[2]",
        "portRange",
        "logging.format",
        "logging.verbosity",
        "featureGates",
        "winkernel",
        "hostnameOverride",
    ] {
        let line = format!("\n  KubeProxyConfiguration.{path}");
        let found = text.matches(&line).count();
        let exact = text
            .match_indices(&line)
            .filter(|(at, _)| text[at + line.len()..].starts_with([' ', ':']))
            .count();
        assert_eq!(exact, 1, "{path} ({found}) in {text}");
    }
    assert_eq!(text.lines().count(), 22, "{text}");
}

/// kube-proxy does not read the field any more, and accepts any value.
#[test]
fn a_bad_port_range_is_an_error_in_userspace_mode_alone() {
    let file = |mode: &str| format!("{TOP}mode: {mode}\nportRange: 0-70000\n");
    let text = refusal(&file("userspace"), &["--config=config"]);
    assert!(text.contains("portRange"), "{text}");
    for mode in ["ipvs", "nftables", "iptables"] {
        let warnings = settings_of_file(&file(mode), &[]).warnings;
        let is_reported =
            |warning: &&String| warning.starts_with("portRange: \"0-70000\" is ignored");
        assert_eq!(
            warnings.iter().filter(is_reported).count(),
            1,
            "{mode}: {warnings:?}"
        );
    }
}

/// ipvs mode gives its name to the kernel, which has it.
#[test]
fn a_scheduler_that_the_kernel_alone_has_is_not_called_invalid() {
    let file = format!("{TOP}mode: ipvs\nipvs: {{scheduler: lblc}}\n");
    let settings = settings_of_file(&file, &[]);
    let [warning] = settings.warnings.as_slice() else {
        panic!("{:?}", settings.warnings);
    };
    let expected = "KubeProxyConfiguration.ipvs.scheduler (--ipvs-scheduler): \"lblc\" is a \
                    scheduler that only the kernel's IPVS has: ipvs mode uses it, userspace mode \
                    uses rr instead";
    assert_eq!(warning, expected);
    assert_eq!(settings.configuration.ipvs.scheduler, "lblc");
    assert_eq!(settings.effective.scheduler, SchedulerName::Rr);
}

#[test]
fn periods_and_interfaces_are_checked_with_their_mode() {
    for (text, path) in [
        (
            "mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}",
            "ipvs.syncPeriod",
        ),
        (
            "mode: iptables\niptables: {syncPeriod: 1s, minSyncPeriod: 2s}",
            "iptables.syncPeriod",
        ),
        (
            "mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}",
            "nftables.syncPeriod",
        ),
        (
            "mode: nftables\nnftables: {masqueradeBit: -1}",
            "nftables.masqueradeBit",
        ),
        ("mode: ipvs\nipvs: {scheduler: magic}", "ipvs.scheduler"),
        ("mode: ipvs\nipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout"),
        (
            "mode: iptables\niptables: {syncPeriod: -1s}",
            "iptables.syncPeriod",
        ),
        (
            "mode: ipvs\niptables: {masqueradeBit: 99}",
            "iptables.masqueradeBit",
        ),
        (
            "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, x]}",
            "ipvs.excludeCIDRs[1]",
        ),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix",
            "detectLocal.interfaceNamePrefix",
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: sixteen-bytes-is}",
            "detectLocal.bridgeInterface",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: sixteen-bytes-is}",
            "detectLocal.interfaceNamePrefix",
        ),
        ("clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "clusterCIDR"),
        ("clusterCIDR: 10.0.0.0/8,x", "clusterCIDR"),
        (
            "logging: {vmodule: [{filePattern: '', verbosity: 1}]}",
            "logging.vmodule[0].filePattern",
        ),
        (
            "logging: {format: json, vmodule: [{filePattern: a}]}",
            "logging.vmodule",
        ),
    ] {
        let text = refusal(&format!("{TOP}{text}\n"), &["--config=config"]);
        assert!(
            [' ', ':']
                .iter()
                .any(|end| text.contains(&format!("KubeProxyConfiguration.{path}{end}"))),
            "{path}: {text}"
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    for (text, words) in [
        ("", &["empty"][..]),
        ("# nothing\n", &["empty"]),
        ("a: [", &["neither YAML nor JSON"]),
        ("just text", &["not a group of fields"]),
        ("kind: KubeProxyConfiguration", &["apiVersion", "missing"]),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
            &["kind", "missing"],
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration",
            &["apiVersion", "kubeproxy.config.k8s.io/v1\"", "v1alpha1"],
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration",
            &["kind", "KubeletConfiguration", "KubeProxyConfiguration"],
        ),
    ] {
        let refusal = refusal(text, &["--config=config"]);
        for word in words.iter().chain(&["--config config"]) {
            assert!(refusal.contains(word), "{text}: {refusal}");
        }
    }
}

#[test]
fn unknown_and_repeated_fields_are_named_and_ignored() {
    let text = format!(
        "{TOP}udpIdleTimeout: 250ms\noomScoreAdj: 1\noomScoreAdj: 2\nipTables: {{}}\n\
         ipvs: {{strictArp: true}}\n---\nkind: Other\n"
    );
    let settings = settings_of_file(&text, &[]);
    assert_eq!(settings.configuration.oom_score_adj, 2);
    let [fields, documents] = settings.warnings.as_slice() else {
        panic!("{:?}", settings.warnings);
    };
    for words in [
        "udpIdleTimeout is unknown",
        "oomScoreAdj is given twice",
        "ipTables is unknown, did you mean iptables?",
        "ipvs.strictArp is unknown, did you mean strictARP?",
    ] {
        assert!(fields.contains(words), "{fields}");
    }
    assert!(documents.contains("first document"), "{documents}");
}

#[test]
fn numbers_are_read_as_kube_proxy_reads_them() {
    let text = "oomScoreAdj: -0x10\nclientConnection: {qps: 5, burst: 1e1}\n\
                iptables: {masqueradeBit: 017}\nconntrack: {maxPerCore: 3.2e4, min: 1.0}\n";
    let c = settings_of_file(&format!("{TOP}{text}"), &[]).configuration;
    assert_eq!(c.oom_score_adj, -16);
    assert_eq!(
        (c.client_connection.burst, c.client_connection.qps),
        (10, 5.0)
    );
    assert_eq!(c.iptables.masquerade_bit, 15);
    assert_eq!((c.conntrack.max_per_core, c.conntrack.min), (32_000, 1));
    for text in ["conntrack: {min: 1e99}", "conntrack: {min: 1.5}"] {
        let text = refusal(&format!("{TOP}{text}\n"), &["--config=config"]);
        assert!(
            text.contains("KubeProxyConfiguration.conntrack.min: "),
            "{text}"
        );
    }
}

#[test]
fn a_family_that_is_served_whole_is_reported() {
    for (cluster, node_ports, unnamed) in [
        ("10.0.0.0/8,fd00::/8", "[192.0.2.0/24]", Some("IPv6")),
        ("10.0.0.0/8,fd00::/8", "['2001:db8::/64']", Some("IPv4")),
        ("fd00::/8", "[192.0.2.0/24]", Some("IPv6")),
        ("10.0.0.0/8", "[192.0.2.0/24]", None),
        ("10.0.0.0/8,fd00::/8", "[192.0.2.0/24, '::/0']", None),
        ("10.0.0.0/8,fd00::/8", "[primary]", None),
        ("10.0.0.0/8,fd00::/8", "[]", None),
    ] {
        let text = format!("{TOP}clusterCIDR: '{cluster}'\nnodePortAddresses: {node_ports}\n");
        let warnings = settings_of_file(&text, &[]).warnings;
        let expected = unnamed.map(|family| format!("names no {family} CIDR"));
        assert_eq!(
            warnings.len(),
            usize::from(expected.is_some()),
            "{warnings:?}"
        );
        for (words, warning) in expected.iter().zip(&warnings) {
            assert!(warning.contains(words), "{warning}");
        }
    }
}

#[test]
fn json_is_read_too() {
    let text = r#"{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1",
        "kind":"KubeProxyConfiguration","mode":"iptables","oomScoreAdj":-1}"#;
    let settings = settings_of_file(text, &[]);
    assert_eq!(settings.effective.mode, ModeName::Iptables);
    assert_eq!(settings.configuration.oom_score_adj, -1);
}

#[test]
fn the_file_wins_but_for_what_kube_proxy_excepts() {
    let file = format!(
        "{TOP}mode: iptables\nlogging: {{verbosity: 1, vmodule: [{{filePattern: f, verbosity: 1}}]}}\n"
    );
    let settings = settings_of_file(
        &file,
        &[
            "--proxy-mode=ipvs",
            "--cluster-cidr=10.0.0.0/8",
            "--feature-gates=A=true",
            "--kubeconfig=/ignored",
            "--healthz-port=0",
            "--hostname-override= Node-7 ",
            "--master=https://192.0.2.1:6443",
            "--v=4",
            "--vmodule=g=2",
            "--manifests=/m",
            "--userspace-capture=local",
        ],
    );
    assert_eq!(settings.effective.mode, ModeName::Iptables);
    assert_eq!(
        settings.effective.detect_local,
        DetectLocal::ClusterCidr(vec![])
    );
    assert!(settings.effective.kubeconfig.is_none());
    assert!(settings.effective.healthz.is_some());
    assert!(settings.configuration.feature_gates.is_empty());
    assert_eq!(settings.configuration.hostname_override, "node-7");
    assert_eq!(settings.master.as_deref(), Some("https://192.0.2.1:6443"));
    assert_eq!(settings.configuration.logging.verbosity, 4);
    let patterns = settings.configuration.logging.vmodule.iter();
    let patterns: Vec<&str> = patterns.map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["g", "f"]);
    assert_eq!(settings.own.manifests.as_deref(), Some(Path::new("/m")));
    assert_eq!(settings.own.capture, Requested::Local);
    let file = settings.file.expect("was read");
    assert_eq!(file.path, Path::new("config"));
    let ignored: Vec<&String> = settings
        .warnings
        .iter()
        .filter(|w| w.starts_with("ignored"))
        .collect();
    assert_eq!(
        ignored,
        [
            "ignored, because --config overrides them: --kubeconfig, --proxy-mode, --cluster-cidr, \
             --healthz-port, --feature-gates"
        ]
    );
}

proptest::proptest! {
    #[test]
    fn no_file_panics(text in "[a-z:{}\\[\\]\\-, \n0-9\"'&*#]{0,200}") {
        let _ = read_with(&format!("{TOP}{text}"), &["--config=config"]);
        let _ = read_with(&text, &["--config=config"]);
    }
}

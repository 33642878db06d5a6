//! Reports for configurations like those of real clusters.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::*;

/// Reads ConfigMaps and configuration files like those of real clusters.
fn sample(name: &str) -> Given {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migrate");
    let path = folder.join(name);
    assert!(fs::exists(&path).unwrap_or(false), "{}", path.display());
    origin::read(path.to_str(), None).unwrap_or_else(|why| panic!("{name}: {why}"))
}

fn configured(text: &str) -> Given {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Relaxed);
    let name = format!("tripod-configuration-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    fs::write(&path, format!("{head}{text}\n")).expect("a temporary file");
    let given = origin::read(path.to_str(), None).expect(text);
    fs::remove_file(path).expect("it was written");
    given
}

fn gets(mode: ModeName) -> Chosen {
    Chosen {
        mode: Some(mode.to_string()),
        passed_over: Vec::new(),
        lost: Vec::new(),
    }
}

/// The settings that differ in `mode`, shortened to their first words.
fn differing(given: &Given, mode: ModeName) -> Vec<String> {
    settings_of(given, mode, Importance::Difference)
}

fn settings_of(given: &Given, mode: ModeName, importance: Importance) -> Vec<String> {
    let rows = differences(given, Some(&gets(mode)), None).into_iter();
    let rows = rows.filter(|row| row.importance == importance);
    let rows = rows.filter(|row| row.modes.contains(&mode.to_string()));
    rows.map(|row| {
        let name = row.setting.split([':', ',']).next().unwrap_or_default();
        name.to_owned()
    })
    .collect()
}

const SCHEDULER: &str = "ipvs.scheduler";
const LOCALHOST: &str = "iptables.localhostNodePorts";
const EXTERNAL_LOCAL: &str = "externalTrafficPolicy";
const AFFINITY: &str = "sessionAffinity";
const INVALID: &str = "conntrack.tcpBeLiberal";
const PORTS: &str = "ports of a cluster IP that its Service does not name";
const FORWARD: &str = "chain FORWARD of iptables";
const CLIENT: &str = "the client's address";
const INTERNAL_LOCAL: &str = "internalTrafficPolicy";
const INPUT: &str = "hook INPUT";
const EXTERNAL_IPS: &str = "externalIPs";
const LINK: &str = "kube-ipvs0";
const POLICIES: &str = "NetworkPolicies";

#[test]
fn each_cluster_hears_what_differs_in_each_mode() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let to_ipvs = [
        "mode",
        SCHEDULER,
        "ipvs.strictARP",
        LOCALHOST,
        EXTERNAL_LOCAL,
        AFFINITY,
        EXTERNAL_IPS,
        PORTS,
        INPUT,
    ];
    let to_nftables = ["mode", LOCALHOST, FORWARD, PORTS];
    let to_userspace = [
        "mode",
        SCHEDULER,
        CLIENT,
        POLICIES,
        "SCTP",
        INTERNAL_LOCAL,
        INPUT,
    ];
    let cases: &[(&str, ModeName, &[&str])] = &[
        // It names no mode: kube-proxy runs iptables mode.
        ("kubeadm-1.28.yaml", Iptables, &[]),
        ("kubeadm-1.28.yaml", Ipvs, &to_ipvs),
        ("kubeadm-1.28.yaml", Nftables, &to_nftables),
        ("kubeadm-1.28.yaml", Userspace, &to_userspace),
        ("kubeadm-1.36-nftables.yaml", Nftables, &[INVALID]),
        (
            "kubeadm-1.36-nftables.yaml",
            Iptables,
            &["mode", INVALID, PORTS],
        ),
        ("list.yaml", Iptables, &["enableProfiling"]),
        ("eks.yaml", Iptables, &[]),
        ("eks.yaml", Nftables, &to_nftables),
    ];
    for (name, mode, expected) in cases {
        hears(name, *mode, expected);
    }
}

/// Checks the differences for the cluster of a sample in `mode`.
fn hears(name: &str, mode: ModeName, expected: &[&str]) {
    let found = differing(&sample(name), mode);
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let expected = BTreeSet::from_iter(expected.iter().copied());
    assert_eq!(found, expected, "{name} in {mode} mode");
}

/// Effects of IPVS and its link that other modes do not have.
#[test]
fn a_cluster_in_ipvs_mode_hears_what_it_loses() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let name = "kubeadm-1.32-ipvs.yaml";
    hears(name, Ipvs, &[INTERNAL_LOCAL]);
    let of_ipvs = [
        "mode",
        "ipvs.tcpTimeout",
        EXTERNAL_LOCAL,
        AFFINITY,
        EXTERNAL_IPS,
        LINK,
    ];
    for (mode, more) in [
        (Nftables, &[SCHEDULER, FORWARD][..]),
        (Iptables, &[SCHEDULER, LOCALHOST, PORTS]),
        (
            Userspace,
            &[LOCALHOST, CLIENT, POLICIES, "SCTP", INTERNAL_LOCAL, INPUT],
        ),
    ] {
        hears(name, mode, &[&of_ipvs[..], more].concat());
    }
}

#[test]
fn fields_that_are_unknown_are_named() {
    let notes = settings_of(&sample("eks.yaml"), ModeName::Iptables, Importance::Note);
    for field in ["resourceContainer is unknown", "udpIdleTimeout is unknown"] {
        assert!(notes.iter().any(|note| note == field), "{notes:?}");
    }
}

/// Checks, for each configuration and mode, whether `setting` matters.
fn check(setting: &str, cases: &[(&str, ModeName, bool)]) {
    for (text, mode, expected) in cases {
        let found = differing(&configured(text), *mode);
        let differs = found.iter().any(|name| name == setting);
        assert_eq!(differs, *expected, "{text} in {mode} mode: {found:?}");
    }
}

#[test]
fn node_ports_on_localhost_are_kept_or_named() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let named = "mode: iptables\nnodePortAddresses: [localhost]";
    let others = "mode: iptables\nnodePortAddresses: [192.0.2.0/24]";
    let not_asked = "mode: iptables\niptables: {localhostNodePorts: false}";
    let cases = [
        ("mode: iptables", Ipvs, true),
        (named, Ipvs, false),
        (named, Nftables, false),
        (others, Nftables, false),
        (not_asked, Nftables, false),
        (not_asked, Userspace, true),
        ("mode: ipvs", Iptables, true),
        ("mode: nftables", Iptables, false),
    ];
    check(LOCALHOST, &cases);
}

/// The addresses are fewer only where the mode is named.
#[test]
fn node_ports_at_other_addresses_are_noted_for_nftables_mode() {
    use ModeName::{Iptables, Ipvs, Nftables};
    let addresses = "mode: ipvs\nnodePortAddresses: [0.0.0.0/0]";
    for (text, mode, expected) in [
        ("mode: iptables", Nftables, true),
        ("mode: ipvs", Nftables, true),
        ("", Nftables, true),
        ("mode: ipvs", Iptables, false),
        ("mode: iptables", Ipvs, false),
        ("mode: nftables", Nftables, false),
        (addresses, Nftables, false),
    ] {
        let notes = settings_of(&configured(text), mode, Importance::Note);
        let is_noted = notes.iter().any(|note| note == "nodePortAddresses");
        assert_eq!(is_noted, expected, "{text} in {mode} mode: {notes:?}");
    }
}

#[test]
fn schedulers_are_kept_or_named() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let least = "mode: ipvs\nipvs: {scheduler: lc}";
    let cases = [
        ("mode: iptables\nipvs: {scheduler: lc}", Iptables, false),
        (least, Ipvs, false),
        (least, Nftables, true),
        (least, Userspace, false),
        ("mode: ipvs\nipvs: {scheduler: lblc}", Userspace, true),
    ];
    check(SCHEDULER, &cases);
}

#[test]
fn other_settings_mean_what_they_meant_or_are_named() {
    use ModeName::{Ipvs, Nftables, Userspace};
    let strict = "mode: iptables\nipvs: {strictARP: true}";
    check(
        "ipvs.strictARP",
        &[(strict, Ipvs, false), ("mode: iptables", Ipvs, true)],
    );
    let ports = "mode: iptables\nportRange: 30000-31000";
    check(
        "portRange",
        &[(ports, Userspace, true), (ports, Nftables, false)],
    );
    let liberal = "mode: nftables\nconntrack: {tcpBeLiberal: true}";
    check(
        "conntrack.tcpBeLiberal",
        &[
            (liberal, Nftables, false),
            ("mode: nftables", Nftables, true),
            ("mode: iptables", Nftables, false),
        ],
    );
    let gates = "mode: iptables\nfeatureGates: {TopologyAwareHints: true}";
    check(
        "featureGates (TopologyAwareHints)",
        &[(gates, Nftables, true)],
    );
    let windows = "mode: iptables\nwinkernel: {networkName: l2}";
    check("winkernel.networkName", &[(windows, Nftables, false)]);
}

/// For each mode of kube-proxy and of Tripod: whether packets to Services begin to pass hook
/// INPUT, and the report for a node whose chains are known, or not.
#[test]
fn a_firewall_in_input_is_named_where_packets_come_to_pass_it() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let chains = ["chain INPUT of table ip filter (nf_tables)".to_owned()];
    let known = [
        (None, "look for a firewall"),
        (Some(&[][..]), "nothing, unless rules of a firewall"),
        (
            Some(&chains[..]),
            "accept packets to Services in each of these chains",
        ),
    ];
    for (was, mode, is_said) in [
        (Iptables, Iptables, false),
        (Iptables, Nftables, false),
        (Iptables, Ipvs, true),
        (Iptables, Userspace, true),
        (Nftables, Ipvs, true),
        (Nftables, Userspace, true),
        (Ipvs, Ipvs, false),
        (Ipvs, Nftables, false),
        (Ipvs, Userspace, true),
    ] {
        let given = configured(&format!("mode: {was}"));
        for (dropping, to_do) in known {
            let rows = differences(&given, Some(&gets(mode)), dropping).into_iter();
            let mut rows = rows.filter(|row| row.modes.contains(&mode.to_string()));
            let row = rows.find(|row| row.setting.starts_with(INPUT));
            assert_eq!(row.is_some(), is_said, "{was} to {mode}: {row:?}");
            let Some(row) = row else { continue };
            assert!(row.to_do.starts_with(to_do), "{was} to {mode}: {row:?}");
            let is_named = row.tripod.contains(&chains[0]);
            assert_eq!(
                is_named,
                dropping == Some(&chains[..]),
                "{was} to {mode}: {row:?}"
            );
        }
    }
}

/// Builds a report about `given` on a node that gets `mode`.
fn report(given: &Given, mode: Option<ModeName>) -> Report {
    let node = Chosen {
        mode: mode.map(|mode| mode.to_string()),
        passed_over: vec!["ipvs mode cannot run here: it needs IPVS".to_owned()],
        lost: Vec::new(),
    };
    Report {
        configuration: given.origin.clone(),
        kube_proxy_mode: given.kube_proxy_mode().to_string(),
        asked: given.settings.effective.mode.to_string(),
        differences: differences(given, Some(&node), None),
        node: Some(node),
        kernel: Vec::new(),
        unknown: Vec::new(),
        changes: None,
        incomplete: None,
    }
}

#[test]
fn the_mode_that_would_run_decides_whether_something_differs() {
    let given = configured("mode: iptables");
    for (mode, differs) in [
        (Some(ModeName::Iptables), false),
        (Some(ModeName::Nftables), true),
        (None, true),
    ] {
        assert_eq!(report(&given, mode).differs(), differs, "{mode:?}");
    }
}

#[test]
fn people_read_what_counts_for_this_node_first() {
    let given = sample("kubeadm-1.28.yaml");
    let report = report(&given, Some(ModeName::Nftables));
    let text = table(&report, true);
    let at = |part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("no {part:?} in {text}"))
    };
    let short = table(&report, false);
    for (part, is_short) in [
        ("Differs in nftables mode, which would run", true),
        ("Differs in ipvs mode", false),
        ("To know", false),
    ] {
        assert_eq!(short.contains(part), is_short, "{part}: {short}");
        assert!(text.contains(part), "{part}: {text}");
    }
    for text in [&text, &short] {
        assert!(text.starts_with("Tripod      nftables mode on this node\n"));
    }
    assert!(
        short.contains("-o wide") && !text.contains("-o wide"),
        "{short}"
    );
    assert!(
        at("Differs in nftables mode, which would run")
            < at("Differs in ipvs mode, if that is chosen")
    );
    assert!(at("passed over ipvs mode cannot run here: it needs IPVS") < at("Something differs."));
    for line in text.lines() {
        assert!(line.chars().count() <= 130, "{line}");
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn what_could_not_be_read_is_named() {
    let given = configured("mode: iptables");
    let unknown = "chains of iptables mode: cannot list them";
    let report = Report {
        unknown: vec![unknown.to_owned()],
        ..report(&given, Some(ModeName::Iptables))
    };
    let text = table(&report, false);
    let line = format!("  not known, because it could not be read: {unknown}\n");
    assert!(text.contains(&line), "{text}");
}

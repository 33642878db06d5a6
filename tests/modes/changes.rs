//! The changes in the kernel that `tripod migrate --check --manifests` reports.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    migrate::check,
    probe::node,
    stale_state::{
        engines, left, restore,
        start::{MANIFESTS, start},
        state::State,
    },
};
use crate::lab::{
    recorded::{self, Case, Folder},
    run, tripod_binary,
};

/// Writes a configuration with the settings of the recording of `case`.
fn configuration(folder: &Path, case: &Case, mode: &str) -> PathBuf {
    let more = match case.args.first().map(String::as_str) {
        None => "",
        Some("--masquerade-all") => "iptables: {masqueradeAll: true}\n",
        Some("--nodeport-addresses=primary") => "nodePortAddresses: [primary]\n",
        Some(other) => panic!("{}: {other}", case.name),
    };
    let path = folder.join("config");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         mode: {mode}\nhostnameOverride: lab-node\n\
         clusterCIDR: \"10.244.0.0/16,fd00:10:244::/48\"\nconntrack: {{maxPerCore: 0}}\n{more}"
    );
    fs::write(&path, text).expect("a file");
    path
}

/// The lines of all places of one mode: those added, those removed, and the number that stay.
#[derive(Debug, Default)]
struct Changes {
    comes: Vec<String>,
    goes: Vec<String>,
    stays: u64,
}

/// Reads the report's changes for `mode`, in the places for which `counts` is true.
fn changes(report: &Value, mode: &str, counts: impl Fn(&str) -> bool) -> Changes {
    let modes = report["changes"].as_array().expect("changes").iter();
    let mut modes = modes.filter(|of| of["mode"] == mode);
    let of_mode = modes.next().expect("the mode");
    assert!(of_mode["impossible"].is_null(), "{of_mode:#}");
    let mut all = Changes::default();
    for place in of_mode["places"].as_array().expect("places") {
        if counts(place["place"].as_str().expect("a name")) {
            let lines = |what: &str| -> Vec<String> {
                serde_json::from_value(place[what].clone()).expect("lines")
            };
            all.comes.extend(lines("comes"));
            all.goes.extend(lines("goes"));
            all.stays += place["stays"].as_u64().expect("a number");
        }
    }
    all
}

/// Whether a line is one in which Tripod differs from a recording on purpose, as in the tests of
/// each mode.
fn is_excepted(case: &Case, line: &str) -> bool {
    case.name == "15-ignored" && line.contains("--match-set KUBE-CLUSTER-IP dst,dst -j")
}

/// In kube-proxy's own mode nothing changes; in others everything is removed, and the
/// mode's own lines are added.
#[test]
fn of_what_was_recorded_all_stays_in_the_same_mode_and_goes_in_others() {
    for case in recorded::cases() {
        let folder = Folder::new("saved");
        let manifests = Folder::new("objects");
        case.write_manifests(&manifests.0);
        for mode in ["iptables", "ipvs"] {
            let config = configuration(&folder.0, &case, mode);
            let done = Command::new(tripod_binary())
                .args(["migrate", "--check", "--output=json"])
                .arg(format!("--config={}", config.display()))
                .arg(format!("--manifests={}", manifests.0.display()))
                .arg(format!("--saved={}", case.path.join(mode).display()))
                .output()
                .expect("running it");
            let report: Value =
                serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
            let mut own = changes(&report, mode, |_| true);
            own.comes.retain(|line| !is_excepted(&case, line));
            own.goes.retain(|line| !is_excepted(&case, line));
            let name = format!("{} in {mode} mode", case.name);
            assert!(
                own.comes.is_empty() && own.goes.is_empty(),
                "{name}: {own:?}"
            );
            assert!(own.stays > 40, "{name}: {own:?}");
            for other in ["nftables", "userspace"] {
                let other = changes(&report, other, |_| true);
                assert_eq!(other.stays, 0, "{name}: {other:?}");
                assert!(other.goes.len() as u64 > own.stays / 2, "{name}: {other:?}");
            }
            let nftables = changes(&report, "nftables", |place| place == "table ip tripod");
            assert!(nftables.comes.contains(&"add table ip tripod".to_owned()));
        }
    }
}

/// A start changes exactly the reported things, and then nothing is left to change.
#[test]
fn what_is_said_of_a_node_is_what_a_start_changes() {
    run(|| {
        let node = node();
        let mode = "iptables";
        let engine = engines()[0];
        let case = left::case("05-nodeport");
        left::kube_proxys(&node, &case, mode, engine, engine);
        left::nftables(&node);
        // As if kube-proxy had been interrupted.
        let odd = "*nat\n:KUBE-SVC-STALE - [0:0]\n-A KUBE-SVC-STALE -j RETURN\n\
                   -D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" \
                   -j KUBE-POSTROUTING\nCOMMIT\n";
        restore(&node, engine, "iptables", odd);
        fs::create_dir_all(MANIFESTS).expect("a folder");
        case.write_manifests(MANIFESTS.as_ref());
        let folder = Folder::new("config");
        let config = configuration(&folder.0, &case, mode);
        let flags = [
            format!("--config={}", config.display()),
            format!("--manifests={MANIFESTS}"),
        ];
        let before = State::of(&node);
        let (report, _) = check(&node, &flags);
        before.assert_same(&State::of(&node), "after it was asked");

        let of_rules = |place: &str| place.contains(", table nat");
        let said = changes(&report, mode, of_rules);
        let jump = "-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" \
                    -j KUBE-POSTROUTING";
        assert!(said.comes.contains(&jump.to_owned()), "{said:?}");
        let stale = [":KUBE-SVC-STALE", "-A KUBE-SVC-STALE -j RETURN"];
        for line in stale {
            assert!(said.goes.contains(&line.to_owned()), "{said:?}");
        }
        assert!(said.stays > 10, "{said:?}");
        let tables = changes(&report, mode, |place| place.starts_with("table "));
        assert_eq!(tables.goes.len(), 2, "{tables:?}");
        let nftables = changes(&report, "nftables", of_rules);
        assert_eq!(nftables.stays, 0, "{nftables:?}");

        let mut tripod = start(&node, &[&format!("--proxy-mode={mode}")]);
        assert!(tripod.terminate().success());
        let (report, _) = check(&node, &flags);
        let left = changes(&report, mode, |_| true);
        assert!(left.comes.is_empty() && left.goes.is_empty(), "{left:?}");
    });
}

/// Node ports are served at all addresses of a node, including those that its object
/// lacks: ipvs mode has a virtual server at each.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn node_ports_at_addresses_that_the_object_lacks_stay() {
    run(|| {
        let node = node();
        node.ip(&["address add 203.0.113.77/32 dev lo"]);
        let case = left::case("05-nodeport");
        fs::create_dir_all(MANIFESTS).expect("a folder");
        case.write_manifests(MANIFESTS.as_ref());
        let folder = Folder::new("config");
        let config = configuration(&folder.0, &case, "ipvs");
        let mut tripod = start(&node, &["--proxy-mode=ipvs"]);
        assert!(tripod.terminate().success());
        let flags = [
            format!("--config={}", config.display()),
            format!("--manifests={MANIFESTS}"),
        ];
        let (report, _) = check(&node, &flags);
        let left = changes(&report, "ipvs", |_| true);
        assert!(left.stays > 10, "{left:?}");
        assert!(left.comes.is_empty() && left.goes.is_empty(), "{left:?}");
    });
}

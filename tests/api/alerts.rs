//! Each alert fires on its fault alone: promtool has the rules evaluate series of a node
//! that is healthy but for one fault.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::monitoring::{program, rules};

/// When it is looked at, an hour of series being there.
const AT: &str = "55m";

/// Series of healthy nodes, without the label `job`, and their values, a minute each.
/// Syncs that fail once, ports that fail for some minutes and changes that wait for the
/// next sync are no reason for an alert.
const HEALTHY: [(&str, &str); 14] = [
    (UP, "1x60"),
    // Another node.
    ("up{instance=\"b\"}", "1x60"),
    (QUEUED, "10+30x60"),
    (SYNCED, "11+60x60"),
    (SYNCS_FAILED, "0x20 1x40"),
    (PORTS_FAILED, "0x30 1x3 0x30"),
    (HEALTH_CHECKS_FAILED, "0x30 1x3 0x30"),
    (FALLBACK, "0x60"),
    (CONFLICTING, "0x60"),
    (NO_LOCAL, "0x60"),
    // Callers from outside are sent to other nodes by their load balancer.
    (
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{instance=\"a\",traffic_policy=\"external\"}",
        "7x60",
    ),
    (WITHIN_A_SECOND, "0+60x60"),
    (
        "kubeproxy_network_programming_duration_seconds_bucket{instance=\"a\",le=\"60\"}",
        "0+60x60",
    ),
    (
        "kubeproxy_network_programming_duration_seconds_bucket{instance=\"a\",le=\"+Inf\"}",
        "0+60x60",
    ),
];

const UP: &str = "up{instance=\"a\"}";
const QUEUED: &str =
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{instance=\"a\",ip_family=\"IPv4\"}";
const SYNCED: &str =
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"a\",ip_family=\"IPv4\"}";
const SYNCS_FAILED: &str = "tripod_sync_failures_total{instance=\"a\",ip_family=\"IPv4\"}";
const PORTS_FAILED: &str = "tripod_service_ports_failed{instance=\"a\"}";
const HEALTH_CHECKS_FAILED: &str = "tripod_health_check_node_ports_failed{instance=\"a\"}";
const FALLBACK: &str = "tripod_mode_fallback{instance=\"a\",reason=\"ipvs,dummy\"}";
const CONFLICTING: &str = "tripod_service_ports_conflicting{instance=\"a\"}";
const NO_LOCAL: &str = "kubeproxy_sync_proxy_rules_no_local_endpoints_total{instance=\"a\",traffic_policy=\"internal\"}";
const WITHIN_A_SECOND: &str =
    "kubeproxy_network_programming_duration_seconds_bucket{instance=\"a\",le=\"1\"}";

/// No values: the series is not there.
const ABSENT: &str = "_x60";

/// Something that is wrong: its name, the series that are other than on a healthy node,
/// and the alerts that fire then, sorted.
type Fault = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const FAULTS: [Fault; 12] = [
    ("nothing", &[], &[]),
    ("one of two nodes is down", &[(UP, "0x60")], &["TripodDown"]),
    (
        "no node is known to Prometheus",
        &[(UP, ABSENT), ("up{instance=\"b\"}", ABSENT)],
        &["TripodAbsent"],
    ),
    (
        "changes wait for a sync",
        &[(QUEUED, "10+60x60"), (SYNCED, "5x60")],
        &["TripodNotSynced"],
    ),
    (
        "syncs fail again and again",
        &[(SYNCS_FAILED, "0+1x60")],
        &["TripodSyncFails"],
    ),
    (
        "a port is not in force",
        &[(PORTS_FAILED, "1x60")],
        &["TripodServicePortsFail"],
    ),
    (
        "a health-check node port cannot be served",
        &[(HEALTH_CHECKS_FAILED, "1x60")],
        &["TripodHealthChecksFail"],
    ),
    (
        "another mode runs",
        &[(FALLBACK, "1x60")],
        &["TripodFallsBack"],
    ),
    (
        "two Services want an address",
        &[(CONFLICTING, "1x60")],
        &["TripodAddressConflicts"],
    ),
    (
        "a Service has no endpoint for the pods of a node",
        &[(NO_LOCAL, "1x60")],
        &["TripodDropsForWantOfEndpoints"],
    ),
    (
        "changes take more than a second, up to a minute",
        &[(WITHIN_A_SECOND, "0x60")],
        &["TripodSlow"],
    ),
    // Where every node is down, none answers.
    (
        "all nodes are down",
        &[(UP, "0x60"), ("up{instance=\"b\"}", "0x60")],
        &["TripodAbsent", "TripodDown"],
    ),
];

/// Returns the case of a fault, as promtool reads it.
fn case((name, changed, fires): &Fault) -> Value {
    let mut series: BTreeMap<&str, &str> = HEALTHY.into();
    for (one, values) in *changed {
        let healthy = series.insert(one, values);
        assert!(healthy.is_some(), "{name}: {one} is not among the healthy");
    }
    let series = series.into_iter().map(|(one, values)| {
        let one = one.replace('{', "{job=\"kube-proxy\",");
        json!({"series": one, "values": values})
    });
    let fires = fires.iter().map(|alert| {
        // On as many nodes as have the fault.
        let nodes = changed.len() as u32;
        let value = if *alert == "TripodDown" { nodes } else { 1 };
        json!({"labels": format!("{{alertname=\"{alert}\"}}"), "value": value})
    });
    json!({
        "name": name,
        "interval": "1m",
        "input_series": series.collect::<Vec<_>>(),
        "promql_expr_test": [{
            "expr": "count by (alertname) (ALERTS{alertstate=\"firing\"})",
            "eval_time": AT,
            "exp_samples": fires.collect::<Vec<_>>(),
        }],
    })
}

#[test]
fn each_alert_fires_on_its_fault_and_none_on_a_healthy_node() {
    let Some(program) = program("promtool") else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alerts");
    fs::create_dir_all(&folder).expect("a folder");
    let spec = rules();
    // Prometheus reads JSON as the YAML that it is.
    fs::write(folder.join("rules.yaml"), spec.to_string()).expect("rules");
    let cases = json!({
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": FAULTS.iter().map(case).collect::<Vec<_>>(),
    });
    fs::write(folder.join("alerts.yaml"), cases.to_string()).expect("cases");
    for arguments in [
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "alerts.yaml"],
    ] {
        let done = Command::new(&program)
            .args(arguments)
            .current_dir(&folder)
            .output();
        let done = done.expect("running promtool");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success(), "{arguments:?}: {out}{errors}");
    }
    // No rule is left out of the cases, or of what there is to do.
    let remedies = include_str!("../../docs/troubleshooting.md");
    let rules = spec["groups"][0]["rules"].as_array();
    for rule in rules.expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        let has_a_case = FAULTS.iter().any(|(_, _, fires)| *fires == [name]);
        assert!(has_a_case, "{name} has no fault on which it fires alone");
        assert!(
            remedies.contains(&format!("| {name} |")),
            "docs/troubleshooting.md does not say what to do about {name}"
        );
    }
}

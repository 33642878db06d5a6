//! Each alert fires on its fault alone: promtool evaluates the rules on the series of a node that
//! is healthy except for one fault. If no sync ever succeeds, the series also come from the program
//! itself.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    lists::shop,
    monitoring::{program, rules},
    program::{command, fetch, in_sandbox},
    tcp_server::TcpServer,
    tls::Authority,
};
use crate::lab::{ProgramFault, Programs, Tripod, eventually};

const SOON: Duration = Duration::from_secs(30);

/// The time of the evaluation, with an hour of series.
const AT: &str = "55m";

/// Series of healthy nodes, without the label `job`, and their values, one per minute. A single
/// failed sync, ports that fail for some minutes, changes that wait for the next sync, an API
/// server that is unreachable for some minutes and missing optional objects are no reason for an
/// alert.
const HEALTHY: [(&str, &str); 24] = [
    (UP, "1x60"),
    // The target of kube-prometheus-stack on the same node, which is read without TLS.
    (UP_OF_STACK, "0x60"),
    // Another node.
    ("up{instance=\"b\"}", "1x60"),
    (SERVICES, "1x40 0x8 1x60"),
    (SLICES, "1x60"),
    (
        "tripod_objects_followed{instance=\"a\",kind=\"ServiceCIDRs\",required=\"false\"}",
        "0x60",
    ),
    (WAITING, "0 60 120 0x5 60 0x60"),
    (WAITING_V6, "0x60"),
    (SYNCED, "11+60x60"),
    (SYNCED_V6, "11x60"),
    (SYNCS_FAILED, "0x20 1x40"),
    (SYNCS_FAILED_V6, "0x60"),
    (PORTS_FAILED, "0x30 1x3 0x30"),
    (HEALTH_CHECKS_FAILED, "0x30 1x3 0x30"),
    (FALLBACK, "0x60"),
    (CONFLICTING, "0x60"),
    (NO_LOCAL, "0x60"),
    // Load balancers send callers from outside to other nodes.
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
    (ANSWERED_SOON, "0+60x60"),
    (
        "tripod_first_answer_duration_seconds_bucket{instance=\"a\",le=\"4.096\"}",
        "0+60x60",
    ),
    (
        "tripod_first_answer_duration_seconds_bucket{instance=\"a\",le=\"+Inf\"}",
        "0+60x60",
    ),
];

const UP: &str = "up{instance=\"a\"}";
const UP_OF_STACK: &str = "up{instance=\"a\",service=\"kube-prometheus-stack-kube-proxy\"}";
const SERVICES: &str =
    "tripod_objects_followed{instance=\"a\",kind=\"Services\",required=\"true\"}";
const SLICES: &str =
    "tripod_objects_followed{instance=\"a\",kind=\"EndpointSlices\",required=\"true\"}";
const WAITING: &str = "tripod_sync_waiting_seconds{instance=\"a\",ip_family=\"IPv4\"}";
const WAITING_V6: &str = "tripod_sync_waiting_seconds{instance=\"a\",ip_family=\"IPv6\"}";
const SYNCED: &str =
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"a\",ip_family=\"IPv4\"}";
const SYNCED_V6: &str =
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds{instance=\"a\",ip_family=\"IPv6\"}";
const SYNCS_FAILED: &str = "tripod_sync_failures_total{instance=\"a\",ip_family=\"IPv4\"}";
const SYNCS_FAILED_V6: &str = "tripod_sync_failures_total{instance=\"a\",ip_family=\"IPv6\"}";
const PORTS_FAILED: &str = "tripod_service_ports_failed{instance=\"a\"}";
const HEALTH_CHECKS_FAILED: &str = "tripod_health_check_node_ports_failed{instance=\"a\"}";
const FALLBACK: &str = "tripod_mode_fallback{instance=\"a\",reason=\"ipvs,dummy\"}";
const CONFLICTING: &str = "tripod_service_ports_conflicting{instance=\"a\"}";
const NO_LOCAL: &str = "kubeproxy_sync_proxy_rules_no_local_endpoints_total{instance=\"a\",traffic_policy=\"internal\"}";
const WITHIN_A_SECOND: &str =
    "kubeproxy_network_programming_duration_seconds_bucket{instance=\"a\",le=\"1\"}";
const ANSWERED_SOON: &str =
    "tripod_first_answer_duration_seconds_bucket{instance=\"a\",le=\"0.512\"}";

/// No values: the series is not there.
const ABSENT: &str = "_x60";

/// A fault: its name, the series that differ from those of a healthy node, and the alerts that then
/// fire, sorted.
type Fault = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const FAULTS: [Fault; 19] = [
    ("nothing", &[], &[]),
    ("one of two nodes is down", &[(UP, "0x60")], &["TripodDown"]),
    (
        "no node is known to Prometheus",
        &[
            (UP, ABSENT),
            (UP_OF_STACK, ABSENT),
            ("up{instance=\"b\"}", ABSENT),
        ],
        &["TripodAbsent"],
    ),
    (
        "the API server never answered",
        &[
            (SERVICES, "0x60"),
            (SLICES, "0x60"),
            (SYNCED, ABSENT),
            (SYNCED_V6, ABSENT),
        ],
        &["TripodObjectsNotFollowed"],
    ),
    (
        "watches broke later",
        &[(SERVICES, "1x40 0x20"), (SLICES, "1x40 0x20")],
        &["TripodObjectsNotFollowed"],
    ),
    (
        "changes wait for a sync",
        &[(WAITING, "0+60x60"), (SYNCED, "5x60")],
        &["TripodNotSynced"],
    ),
    (
        "the first sync does not end",
        &[
            (WAITING, "0+60x60"),
            (WAITING_V6, "0+60x60"),
            (SYNCED, ABSENT),
            (SYNCED_V6, ABSENT),
        ],
        &["TripodNotSynced"],
    ),
    (
        "the first sync of one family does not end",
        &[(WAITING_V6, "0+60x60"), (SYNCED_V6, ABSENT)],
        &["TripodNotSynced"],
    ),
    (
        "every sync failed",
        &[
            (WAITING, "0+60x60"),
            (WAITING_V6, "0+60x60"),
            (SYNCED, ABSENT),
            (SYNCED_V6, ABSENT),
            (SYNCS_FAILED, "0+1x60"),
            (SYNCS_FAILED_V6, "0+1x60"),
        ],
        &["TripodNotSynced", "TripodSyncFails"],
    ),
    (
        "a node cannot serve one of the families",
        &[
            (WAITING_V6, "0+60x60"),
            (SYNCED_V6, ABSENT),
            (SYNCS_FAILED_V6, "0+1x60"),
        ],
        &["TripodSyncFails"],
    ),
    (
        "syncs fail again and again",
        &[(SYNCS_FAILED, "0+1x60")],
        &["TripodSyncFails"],
    ),
    (
        "a port is not applied",
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
    (
        "connections wait more than half a second, up to four",
        &[(ANSWERED_SOON, "0x60")],
        &["TripodAnswersLate"],
    ),
    // If every node is down, none answers.
    (
        "all nodes are down",
        &[(UP, "0x60"), ("up{instance=\"b\"}", "0x60")],
        &["TripodAbsent", "TripodDown"],
    ),
];

/// Builds the test case of a fault for promtool.
fn case((name, changed, fires): &Fault) -> Value {
    let mut series: BTreeMap<&str, &str> = HEALTHY.into();
    for (one, values) in *changed {
        let healthy = series.insert(one, values);
        assert!(healthy.is_some(), "{name}: {one} is not among the healthy");
    }
    let series = series.into_iter();
    let series = series.map(|(one, values)| (one.to_owned(), values.to_owned()));
    // On as many nodes as have the fault.
    let down = changed.len() as u32;
    case_of(name, series, fires, down)
}

/// Builds a test case of series without the label `job`, on which the alerts `fires` fire,
/// TripodDown on `down` nodes.
fn case_of(
    name: &str,
    series: impl Iterator<Item = (String, String)>,
    fires: &[&str],
    down: u32,
) -> Value {
    let series = series.map(|(one, values)| {
        let one = one.replace('{', "{job=\"kube-proxy\",");
        json!({"series": one, "values": values})
    });
    let fires = fires.iter().map(|alert| {
        let value = if *alert == "TripodDown" { down } else { 1 };
        json!({"labels": format!("{{alertname=\"{alert}\"}}"), "value": value})
    });
    json!({
        "name": name,
        "interval": "1m",
        "input_series": series.collect::<Vec<_>>(),
        "promql_expr_test": [{
            // A node may have a fault in both families, or with several kinds of objects.
            "expr": "count by (alertname) \
                     (group by (alertname, instance) (ALERTS{alertstate=\"firing\"}))",
            "eval_time": AT,
            "exp_samples": fires.collect::<Vec<_>>(),
        }],
    })
}

/// Runs promtool to check the rules, and to test them with `cases`, in a folder of that name.
fn judge(promtool: &PathBuf, folder: &str, cases: &[Value]) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).expect("a folder");
    // Prometheus reads JSON, because it is YAML.
    fs::write(folder.join("rules.yaml"), rules().to_string()).expect("rules");
    let cases = json!({
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": cases,
    });
    fs::write(folder.join("alerts.yaml"), cases.to_string()).expect("cases");
    for arguments in [
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "alerts.yaml"],
    ] {
        let done = Command::new(promtool)
            .args(arguments)
            .current_dir(&folder)
            .output();
        let done = done.expect("running promtool");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success(), "{arguments:?}: {out}{errors}");
    }
}

#[test]
fn each_alert_fires_on_its_fault_and_none_on_a_healthy_node() {
    let Some(promtool) = program("promtool") else {
        return;
    };
    let cases: Vec<Value> = FAULTS.iter().map(case).collect();
    judge(&promtool, "alerts", &cases);
    // The cases and the remedies cover every rule.
    let remedies = include_str!("../../docs/alerts.md");
    let spec = rules();
    let rules = spec["groups"][0]["rules"].as_array();
    for rule in rules.expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        let has_a_case = FAULTS.iter().any(|(_, _, fires)| *fires == [name]);
        assert!(has_a_case, "{name} has no fault on which it fires alone");
        let runbook = format!("docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], runbook.as_str());
        assert!(
            remedies.contains(&format!("\n## {name}\n")),
            "docs/alerts.md does not say what to do about {name}"
        );
    }
}

/// Returns the series that the program exports now, as those of node `a`, once `are_there` returns
/// true for the text.
fn shown(
    what: &str,
    tripod: &Tripod,
    mut are_there: impl FnMut(&str) -> bool,
) -> Vec<(String, f64)> {
    let text = eventually(what, SOON, || {
        let text = fetch("127.0.0.1:10249", "/metrics").map_err(|error| error.to_string())?;
        if are_there(&text) {
            return Ok(text);
        }
        let ours = text.lines().filter(|line| line.contains("tripod_"));
        let ours: Vec<&str> = ours.collect();
        Err(format!("{}\n{}", ours.join("\n"), tripod.log()))
    });
    // Rules use only these, and promtool cannot read every value of others.
    let ours = ["tripod_", "kubeproxy_"];
    let lines = text.lines();
    let lines = lines.filter(|line| ours.iter().any(|prefix| line.starts_with(prefix)));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let name = match name.split_once('{') {
            Some((name, labels)) => format!("{name}{{instance=\"a\",{labels}"),
            None => format!("{name}{{instance=\"a\"}}"),
        };
        (name, value.parse().expect("a number"))
    });
    series.collect()
}

/// Builds a test case of series that are constant for an hour, except for waiting times.
fn lasting(name: &str, series: Vec<(String, f64)>, fires: &[&str]) -> Value {
    let up = [(UP.to_owned(), 1.0)];
    let series = series.into_iter().chain(up).map(|(name, value)| {
        let grows = name.starts_with("tripod_sync_waiting_seconds{") && value > 0.0;
        let step = if grows { "+60" } else { "" };
        (name, format!("{value}{step}x60"))
    });
    case_of(name, series, fires, 1)
}

/// An unreachable API server, a first sync that does not end, and credentials that expire later are
/// visible in the series that the program itself exports.
#[test]
fn the_program_shows_that_it_never_syncs() {
    let Some(promtool) = program("promtool") else {
        return;
    };
    in_sandbox(async || {
        let tcp = TcpServer::open(shop(), "alerts", &Authority::new(), false).await;
        tcp.server.down();
        let mut programs = Programs::new();
        let mut command = command(&tcp);
        command.arg("--proxy-mode=iptables");
        programs.come_first(&mut command);
        let tripod = Tripod::spawn(command);
        let followed = |kind: &str, value: u8| {
            format!("tripod_objects_followed{{kind=\"{kind}\",required=\"true\"}} {value}\n")
        };
        let are = |text: &str, value: u8| {
            ["Services", "EndpointSlices"]
                .iter()
                .all(|kind| text.contains(&followed(kind, value)))
        };
        let waiting = |text: &str| {
            let families = text.lines();
            let families = families.filter(|line| line.starts_with("tripod_sync_waiting"));
            families.filter(|line| !line.ends_with(" 0")).count()
        };
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{";
        let away = shown("that objects are not known", &tripod, |text| {
            are(text, 0) && !text.contains(synced)
        });
        programs.break_with(ProgramFault::Hang);
        tcp.server.up();
        let hangs = shown("that the first sync does not end", &tripod, |text| {
            are(text, 1) && waiting(text) == 2 && !text.contains(synced)
        });
        let well = shown("that all is well", &tripod, |text| {
            // A process that started meanwhile may not have reported yet that it hangs.
            programs.repair();
            are(text, 1) && text.matches(synced).count() == 2 && waiting(text) == 0
        });
        // The credentials expire: open watches continue, other requests are refused.
        tcp.server.script().token = Some("another".to_owned());
        tcp.server.end_watches();
        let broke = shown("that objects are not followed", &tripod, |text| {
            are(text, 0)
        });
        judge(
            &promtool,
            "program-alerts",
            &[
                lasting("away", away, &["TripodObjectsNotFollowed"]),
                lasting("hangs", hangs, &["TripodNotSynced"]),
                lasting("well", well, &[]),
                lasting("broke", broke, &["TripodObjectsNotFollowed"]),
            ],
        );
    });
}

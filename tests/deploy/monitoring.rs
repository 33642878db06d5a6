//! PodMonitor and PrometheusRule have the fields of prometheus-operator's
//! CustomResourceDefinitions: the API server drops others, and refuses other types. Prometheus
//! makes one target for each node from them.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{chart, daemon_set, objects::as_understood, only, secure};
use crate::api::monitoring::program;

/// A field: its type, and whether it is required.
type Fields = BTreeMap<&'static str, (&'static str, bool)>;

const KINDS: [&str; 2] = ["PodMonitor", "PrometheusRule"];

fn fields() -> Fields {
    let lines = include_str!("monitoring_fields.tsv").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [path, kind, required] => (path, (kind, required == "required")),
        _ => panic!("{line:?}"),
    });
    fields.collect()
}

/// Adds the parts of `value`, which is at `path`, that do not match `fields` to `wrong`.
fn check(fields: &Fields, path: &str, value: &Value, wrong: &mut Vec<String>) {
    let Some((kind, _)) = fields.get(path) else {
        wrong.push(format!("{path}: there is no such field"));
        return;
    };
    let is_right = match *kind {
        "object" | "map" => value.is_object(),
        "list" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "integer-or-string" => value.is_i64() || value.is_string(),
        "metadata" => as_understood::<ObjectMeta>(value) == *value,
        kind => {
            let allowed = kind.strip_prefix("string of ").expect("a known type");
            let mut allowed = allowed.split('|');
            allowed.any(|allowed| value == allowed)
        }
    };
    if !is_right {
        wrong.push(format!("{path}: {value} is no {kind}"));
    }
    match value {
        Value::Object(_) if *kind == "metadata" => {}
        Value::Object(entries) if *kind == "map" => {
            for value in entries.values() {
                check(fields, &format!("{path}{{}}"), value, wrong);
            }
        }
        Value::Object(entries) => check_object(fields, path, entries, wrong),
        Value::Array(entries) => {
            for value in entries {
                check(fields, &format!("{path}[]"), value, wrong);
            }
        }
        _ => {}
    }
}

fn check_object(
    fields: &Fields,
    path: &str,
    entries: &serde_json::Map<String, Value>,
    wrong: &mut Vec<String>,
) {
    for (name, value) in entries {
        check(fields, &format!("{path}.{name}"), value, wrong);
    }
    let inner = fields.iter().filter_map(|(field, (_, required))| {
        let name = field.strip_prefix(path)?.strip_prefix('.')?;
        (*required && !name.contains(['.', '[', '{'])).then_some(name)
    });
    for name in inner.filter(|name| !entries.contains_key(*name)) {
        wrong.push(format!("{path}: {name} is missing"));
    }
}

/// Lists the faults of an object of one of [`KINDS`].
fn problems(object: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let kind = object["kind"].as_str().expect("a kind");
    check(&fields(), kind, object, &mut wrong);
    wrong
}

#[test]
fn objects_of_prometheus_operator_have_fields_that_it_knows() {
    let pod_monitor: Value = only("monitoring/pod-monitor.yaml");
    let secure = secure::patched(pod_monitor.clone(), "monitoring/secure/pod-monitor.yaml");
    let rule = only("monitoring/prometheus-rule.yaml");
    for object in [pod_monitor, secure, rule] {
        assert_eq!(problems(&object), [""; 0], "{}", object["kind"]);
    }
    let monitoring = "monitoring.enabled=true";
    for values in [&[monitoring][..], &[monitoring, "monitoring.scheme=http"]] {
        let Some(objects) = chart::rendered(values) else {
            return;
        };
        let ours = objects
            .iter()
            .filter(|((kind, _), _)| KINDS.contains(&&**kind));
        let ours: Vec<_> = ours.map(|(_, object)| object).collect();
        assert_eq!(ours.len(), KINDS.len(), "{values:?}");
        for object in ours {
            assert_eq!(problems(object), [""; 0], "{values:?}: {}", object["kind"]);
        }
    }
}

#[test]
fn a_field_that_prometheus_operator_does_not_know_is_found() {
    let of = |file: &str, path: &str, value: Value| {
        let mut object: Value = only(&format!("monitoring/{file}.yaml"));
        let (parent, name) = path.rsplit_once('/').expect("a path");
        let parent = object.pointer_mut(parent).expect("it is there");
        if value.is_null() {
            parent.as_object_mut().expect("an object").remove(name);
        } else {
            parent[name] = value;
        }
        problems(&object)
    };
    let endpoint = "/spec/podMetricsEndpoints/0";
    let relabeling = &format!("{endpoint}/relabelings/0");
    let rule = "/spec/groups/0/rules/0";
    for (file, path, value, expected) in [
        ("pod-monitor", "/specs", json!({}), "PodMonitor.specs"),
        ("pod-monitor", "/spec/joblabel", json!("x"), "spec.joblabel"),
        (
            "pod-monitor",
            "/spec/selector",
            Value::Null,
            "selector is missing",
        ),
        (
            "pod-monitor",
            &format!("{endpoint}/interval"),
            json!(30),
            "is no string",
        ),
        (
            "pod-monitor",
            &format!("{endpoint}/scheme"),
            json!("ftp"),
            "scheme",
        ),
        (
            "pod-monitor",
            &format!("{relabeling}/target"),
            json!("x"),
            "relabelings[].target",
        ),
        (
            "pod-monitor",
            &format!("{relabeling}/action"),
            json!("replaces"),
            "action",
        ),
        (
            "prometheus-rule",
            &format!("{rule}/expression"),
            json!("1"),
            "rules[].expression",
        ),
        (
            "prometheus-rule",
            &format!("{rule}/expr"),
            Value::Null,
            "expr is missing",
        ),
        (
            "prometheus-rule",
            &format!("{rule}/labels/severity"),
            json!(1),
            "labels{}",
        ),
        ("prometheus-rule", "/metadata/label", json!({}), "metadata"),
        (
            "prometheus-rule",
            "/apiVersion",
            json!("monitoring.coreos.com/v2"),
            "apiVersion",
        ),
    ] {
        let found = of(file, path, value);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].contains(expected), "{path}: {found:?}");
    }
}

/// The labels with which pod discovery finds the containers of a pod that has the address
/// `host` of its node: one target for each container without ports, including init containers
/// (`discovery/kubernetes/pod.go` of Prometheus, `buildPod`).
fn discovered(host: &str, sidecar: bool) -> Vec<Value> {
    let template = daemon_set().spec.expect("a spec").template;
    let pod = template.spec.expect("a pod");
    let of = |containers: Vec<k8s_openapi::api::core::v1::Container>, is_init: bool| {
        let none_has_ports = containers.iter().all(|one| one.ports.is_none());
        assert!(none_has_ports, "another port would be another target");
        containers.into_iter().map(move |one| (one.name, is_init))
    };
    let init = of(pod.init_containers.unwrap_or_default(), true);
    // An admission webhook may add one.
    let added = sidecar.then(|| ("sidecar".to_owned(), false));
    let all = of(pod.containers, false).chain(added).chain(init);
    let targets = all.map(|(name, is_init)| {
        json!({
            "targets": [host],
            "labels": {
                "__meta_kubernetes_pod_container_name": name,
                "__meta_kubernetes_pod_container_init": is_init.to_string(),
                "__meta_kubernetes_pod_host_ip": host,
                "__meta_kubernetes_pod_node_name": "node-a",
            },
        })
    });
    targets.collect()
}

/// The relabelings of the PodMonitor in the form of Prometheus' configuration, after that of
/// prometheus-operator by which containers differ (`generatePodMonitorConfig`).
fn relabelings() -> Vec<Value> {
    let monitor: Value = only("monitoring/pod-monitor.yaml");
    let ours = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"].as_array();
    let names = [
        ("sourceLabels", "source_labels"),
        ("targetLabel", "target_label"),
    ];
    let ours = ours.expect("relabelings").iter().map(|one| {
        let fields = one.as_object().expect("an object").iter();
        let fields = fields.map(|(field, value)| {
            let known = names.iter().find(|(of_operator, _)| of_operator == field);
            let field = known.map_or(field.as_str(), |(_, of_prometheus)| of_prometheus);
            (field.to_owned(), value.clone())
        });
        Value::Object(fields.collect())
    });
    let by_container = json!({
        "source_labels": ["__meta_kubernetes_pod_container_name"],
        "target_label": "container",
    });
    std::iter::once(by_container).chain(ours).collect()
}

#[test]
fn a_node_is_one_target() {
    let Some(program) = program("promtool") else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("targets");
    fs::create_dir_all(&folder).expect("a folder");
    for (host, address) in [
        ("192.0.2.1", "192.0.2.1:10249"),
        ("2001:db8::1", "[2001:db8::1]:10249"),
    ] {
        let found = discovered(host, true);
        assert_eq!(found.len(), 3, "{found:?}");
        let config = json!({
            "scrape_configs": [{
                "job_name": "kube-proxy",
                "static_configs": found,
                "relabel_configs": relabelings(),
            }],
        });
        // Prometheus reads JSON, because it is YAML.
        fs::write(folder.join("prometheus.yaml"), config.to_string()).expect("a file");
        let done = Command::new(&program)
            // It always waits for targets until the timeout.
            .args(["check", "service-discovery", "--timeout=1s"])
            .args(["prometheus.yaml", "kube-proxy"])
            .current_dir(&folder)
            .output()
            .expect("running promtool");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{errors}");
        let targets: Vec<Value> = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(targets.len(), 3, "{targets:?}");
        let labels = targets.iter().map(|target| &target["labels"]);
        let kept = labels.filter(|labels| **labels != json!({}));
        let kept: Vec<[&Value; 3]> = kept
            .map(|labels| ["__address__", "container", "node"].map(|name| &labels[name]))
            .collect();
        assert_eq!(kept, [[address, "kube-proxy", "node-a"]], "{targets:?}");
    }
}

//! The chart produces the same objects as kustomize, except for labels and annotations of Helm.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::{Objects, name, objects, proxy, rendered, template, tool};
use crate::deploy::{folder, holder, only, read, secure::patched};

/// Prefixes of labels and annotations that only the chart sets.
const OF_HELM: [&str; 3] = ["app.kubernetes.io/", "helm.sh/", "checksum/"];

/// Renders a folder of `deploy` with kustomize.
fn kustomized(path: &str) -> Option<Objects> {
    kustomized_in(&folder(), path)
}

fn kustomized_in(folder: &Path, path: &str) -> Option<Objects> {
    let mut command = Command::new(tool("kubectl/kubectl")?);
    let done = command.arg("kustomize").arg(folder.join(path)).output();
    let done = done.expect("running kubectl");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{path}: {errors}");
    Some(objects(&String::from_utf8_lossy(&done.stdout)))
}

/// Renders these resources and components of `deploy` with kustomize.
fn composed(resources: &str, components: &str) -> Option<Objects> {
    let place = std::env::temp_dir().join(format!(
        "tripod-composed-{}-{}",
        std::process::id(),
        components.replace('/', "-").replace(", ", "-")
    ));
    fs::create_dir_all(&place).expect("a temporary folder");
    // kustomize accepts only relative paths without links.
    let mut copy = Command::new("cp");
    let copied = copy
        .arg("-r")
        .arg(folder())
        .arg(place.join("deploy"))
        .status();
    assert!(copied.expect("running cp").success());
    let kustomization = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\n\
         kind: Kustomization\n\
         resources: [{resources}]\n\
         components: [{components}]\n"
    );
    fs::write(place.join("kustomization.yaml"), kustomization).expect("a file");
    let objects = kustomized_in(&place, ".");
    fs::remove_dir_all(place).expect("it was made");
    objects
}

/// Removes fields that only the chart sets.
fn without_helm(mut objects: Objects) -> Objects {
    let clean = |metadata: &mut Value| {
        for field in ["labels", "annotations"] {
            let Some(words) = metadata.get_mut(field).and_then(Value::as_object_mut) else {
                continue;
            };
            words.retain(|word, _| !OF_HELM.iter().any(|begin| word.starts_with(begin)));
            if words.is_empty() {
                metadata.as_object_mut().expect("fields").remove(field);
            }
        }
    };
    for object in objects.values_mut() {
        clean(&mut object["metadata"]);
        if let Some(pod) = object.pointer_mut("/spec/template/metadata") {
            clean(pod);
        }
    }
    objects
}

/// Checks that Helm renders `values` to the same objects as kustomize renders the base with
/// `components`.
fn values_are_components(values: &[&str], components: &str) {
    let composed = composed("deploy/kustomize/base", components);
    // Without one of the tools there is nothing to compare; the test says so.
    if let (Some(of_helm), Some(of_kustomize)) = (rendered(values), composed) {
        assert_eq!(without_helm(of_helm), of_kustomize, "{components}");
    }
}

#[test]
fn default_values_give_the_objects_of_kustomize() {
    for (values, path) in [
        (&[][..], "kustomize/base"),
        (&super::NEW_CLUSTER, "kustomize/new-cluster"),
    ] {
        let (Some(of_helm), Some(of_kustomize)) = (rendered(values), kustomized(path)) else {
            return;
        };
        assert_eq!(without_helm(of_helm), of_kustomize, "{path}");
    }
}

/// Without it, other programs could take the ports of a process that was killed.
#[test]
fn every_installation_has_the_holder() {
    let Some(new) = rendered(&super::NEW_CLUSTER) else {
        return;
    };
    let elsewhere = [&super::NEW_CLUSTER[..], &["surge.enabled=true"]].concat();
    for objects in [
        rendered(&[]),
        Some(new),
        template("helm/tripod", "proxies", &elsewhere),
        kustomized("kustomize/base"),
        kustomized("kustomize/new-cluster"),
        composed("deploy/kustomize/new-cluster", "deploy/kustomize/surge"),
    ] {
        let Some(objects) = objects else { return };
        let set = objects[&name("DaemonSet", "tripod-holder")].clone();
        holder::find_each_other(&set, proxy(&objects));
    }
}

/// Compared with the files: kustomize itself adds empty lines to folded expressions.
#[test]
fn monitoring_is_that_of_its_folder() {
    let values = ["monitoring.enabled=true", "secureMetrics.enabled=true"];
    let (Some(with), Some(without)) = (rendered(&values), rendered(&values[1..])) else {
        return;
    };
    let with = without_helm(with);
    let added = with.iter().filter(|(name, _)| !without.contains_key(*name));
    let added: Vec<String> = added
        .map(|((kind, name), _)| format!("{kind} {name}"))
        .collect();
    assert_eq!(
        added,
        [
            "ClusterRoleBinding tripod:metrics-reader",
            "ConfigMap tripod-dashboard",
            "PodMonitor kube-proxy",
            "PrometheusRule tripod",
            "Secret tripod-metrics-reader",
            "ServiceAccount tripod-metrics-reader",
        ]
    );
    let rule: Value = only("monitoring/prometheus-rule.yaml");
    assert_eq!(with[&name("PrometheusRule", "tripod")], rule);
    let plain = ["monitoring.enabled=true", "monitoring.scheme=http"];
    let Some(plain) = rendered(&plain) else {
        return;
    };
    let monitor: Value = only("monitoring/pod-monitor.yaml");
    let plain = without_helm(plain);
    assert_eq!(plain[&name("PodMonitor", "kube-proxy")], monitor);
    let dashboard = &with[&name("ConfigMap", "tripod-dashboard")];
    assert_eq!(
        dashboard["data"]["dashboard.json"],
        read("monitoring/dashboard.json")
    );
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
}

/// The kustomization of docs/secure-metrics.md, and the equivalent value.
#[test]
fn metrics_over_tls_are_those_of_the_components() {
    let values = ["monitoring.enabled=true"];
    let composed = composed(
        "deploy/kustomize/base, deploy/monitoring",
        "deploy/kustomize/secure-metrics, deploy/monitoring/secure",
    );
    let (Some(of_helm), Some(mut of_kustomize)) = (rendered(&values), composed) else {
        return;
    };
    let mut of_helm = without_helm(of_helm);
    // kustomize adds empty lines to folded expressions.
    for objects in [&mut of_helm, &mut of_kustomize] {
        objects.retain(|(kind, _), _| kind != "PrometheusRule");
    }
    assert_eq!(of_helm, of_kustomize);
}

#[test]
fn the_holder_is_that_of_its_component() {
    let (Some(with), Some(mut without)) = (rendered(&[]), rendered(&["holder.enabled=false"]))
    else {
        return;
    };
    let holder = with[&name("DaemonSet", "tripod-holder")].clone();
    assert_eq!(
        without.insert(name("DaemonSet", "tripod-holder"), holder),
        None
    );
    let proxy = without
        .get_mut(&name("DaemonSet", "kube-proxy"))
        .expect("a proxy");
    *proxy = patched(proxy.clone(), "kustomize/holder/daemon-set.yaml");
    assert_eq!(without, with);
}

#[test]
fn a_surge_is_that_of_its_component() {
    values_are_components(&["surge.enabled=true"], "deploy/kustomize/surge");
    values_are_components(
        &["surge.enabled=true", "secureMetrics.enabled=true"],
        "deploy/kustomize/secure-metrics, deploy/kustomize/surge",
    );
    let values = [
        "surge.enabled=true",
        "updateStrategy.rollingUpdate.maxSurge=10%",
    ];
    let Some(objects) = rendered(&values) else {
        return;
    };
    let set = proxy(&objects);
    assert_eq!(
        set["spec"]["updateStrategy"],
        json!({"rollingUpdate": {"maxSurge": "10%"}})
    );
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    assert!(container["readinessProbe"]["exec"].is_object());
    let none = ["updateStrategy.rollingUpdate.maxSurge=0"];
    rendered(&none).expect("Helm is there");
}

//! The Helm chart, rendered by Helm itself, gives the objects that kustomize gives.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::{Value, json};

use super::{folder, objects::as_understood, only, read, secure::patched};
use crate::lab::skip;

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

pub const NEW_CLUSTER: [&str; 3] = [
    "config.create=true",
    "config.server=https://192.0.2.10:6443",
    "config.kubeProxy.clusterCIDR=10.244.0.0/16",
];

/// Returns a program that `make test-all` unpacked, or `None` after the test was skipped.
pub fn tool(path: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let program = tools.join(path);
    if !program.is_file() {
        skip(format!(
            "{path} is not here: make test-all INSTALL=yes unpacks it"
        ));
        return None;
    }
    Some(program)
}

pub fn helm(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(tool("helm/helm")?);
    let done = command.args(arguments).current_dir(folder()).output();
    Some(done.expect("running helm"))
}

/// Renders `chart` in `namespace` with these values.
fn template(chart: &str, namespace: &str, values: &[&str]) -> Option<Objects> {
    let mut arguments = vec!["template", "tripod", chart, "--namespace", namespace];
    for value in values {
        arguments.extend(["--set", value]);
    }
    let done = helm(&arguments)?;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{values:?}: {errors}");
    Some(objects(&String::from_utf8_lossy(&done.stdout)))
}

pub fn rendered(values: &[&str]) -> Option<Objects> {
    template("helm/tripod", "kube-system", values)
}

/// What kustomize makes of a folder of `deploy`.
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

/// Reads documents; a configuration within a ConfigMap counts by its meaning.
fn objects(text: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let documents = documents.into_iter().filter(|object| !object.is_null());
    let mut found = Objects::new();
    for mut object in documents {
        if let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) {
            for (_, text) in data.iter_mut().filter(|(key, _)| key.ends_with(".conf")) {
                let inner = text.as_str().expect("text");
                *text = serde_saphyr::from_str(inner).expect("YAML within YAML");
            }
        }
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let name = (word(&object["kind"]), word(&object["metadata"]["name"]));
        assert!(
            found.insert(name.clone(), object).is_none(),
            "{name:?} again"
        );
    }
    found
}

#[test]
fn default_values_give_the_objects_of_kustomize() {
    for (values, path) in [
        (&[][..], "kustomize/base"),
        (&NEW_CLUSTER, "kustomize/new-cluster"),
    ] {
        let (Some(of_helm), Some(of_kustomize)) = (rendered(values), kustomized(path)) else {
            return;
        };
        assert_eq!(of_helm, of_kustomize, "{path}");
    }
}

/// Compared with the files: kustomize itself adds empty lines to folded expressions.
#[test]
fn monitoring_is_that_of_its_folder() {
    let Some(with) = rendered(&["monitoring.enabled=true"]) else {
        return;
    };
    let Some(without) = rendered(&[]) else {
        return;
    };
    let added = with.iter().filter(|(name, _)| !without.contains_key(*name));
    let added: Vec<&str> = added.map(|((kind, _), _)| kind.as_str()).collect();
    assert_eq!(added, ["ConfigMap", "PodMonitor", "PrometheusRule"]);
    for file in ["pod-monitor", "prometheus-rule"] {
        let object: Value = only(&format!("monitoring/{file}.yaml"));
        assert!(with.values().any(|found| *found == object), "{file}");
    }
    let dashboard = &with[&("ConfigMap".to_owned(), "tripod-dashboard".to_owned())];
    assert_eq!(
        dashboard["data"]["dashboard.json"],
        read("monitoring/dashboard.json")
    );
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
}

/// As kube-prometheus-stack wants them.
#[test]
fn what_prometheus_selects_has_its_labels() {
    let labels = [
        "monitoring.enabled=true",
        "monitoring.labels.release=prometheus",
    ];
    let (Some(with), Some(without)) = (rendered(&labels), rendered(&labels[..1])) else {
        return;
    };
    for (name, mut object) in with {
        if ["PodMonitor", "PrometheusRule"].contains(&&*name.0) {
            let labels = object["metadata"]["labels"].as_object_mut();
            let release = labels.expect("labels").remove("release");
            assert_eq!(release, Some(json!("prometheus")), "{name:?}");
            if object["metadata"]["labels"] == json!({}) {
                let metadata = object["metadata"].as_object_mut();
                metadata.expect("fields").remove("labels");
            }
        }
        assert_eq!(object, without[&name], "{name:?}");
    }
}

/// What kustomize makes of these resources and components of `deploy`.
fn composed(resources: &str, components: &str) -> Option<Objects> {
    let place = std::env::temp_dir().join(format!(
        "tripod-composed-{}-{}",
        std::process::id(),
        components.replace('/', "-").replace(", ", "-")
    ));
    fs::create_dir_all(&place).expect("a temporary folder");
    // kustomize takes relative paths without links alone.
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

/// The kustomization of docs/secure-metrics.md, and the values that mean the same.
#[test]
fn metrics_over_tls_are_those_of_the_components() {
    let values = ["secureMetrics.enabled=true", "monitoring.enabled=true"];
    let composed = composed(
        "deploy/kustomize/base, deploy/monitoring",
        "deploy/kustomize/secure-metrics, deploy/monitoring/secure",
    );
    let (Some(mut of_helm), Some(mut of_kustomize)) = (rendered(&values), composed) else {
        return;
    };
    // kustomize adds empty lines to folded expressions.
    for objects in [&mut of_helm, &mut of_kustomize] {
        objects.retain(|(kind, _), _| kind != "PrometheusRule");
    }
    assert_eq!(of_helm, of_kustomize);
    let Some(elsewhere) = template("helm/tripod", "proxies", &values) else {
        return;
    };
    for ((kind, name), object) in elsewhere {
        let namespace = &object["metadata"]["namespace"];
        let in_none = kind.starts_with("Cluster");
        assert_eq!(
            *namespace == "proxies",
            !in_none,
            "{kind} {name}: {object:#}"
        );
        let subjects = object["subjects"].as_array().into_iter().flatten();
        for subject in subjects {
            assert_eq!(subject["namespace"], "proxies", "{kind} {name}");
        }
    }
}

/// What helm makes of `values` is what kustomize makes of the base with `components`.
fn values_are_components(values: &[&str], components: &str) {
    let composed = composed("deploy/kustomize/base", components);
    // Without one of the tools there is nothing to compare, which is said.
    if let (Some(of_helm), Some(of_kustomize)) = (rendered(values), composed) {
        assert_eq!(of_helm, of_kustomize, "{components}");
    }
}

#[test]
fn the_holder_is_that_of_its_component() {
    let name = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
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
    let values = [
        "image=registry.example/tripod:1",
        "nodeSelector.pool=edge",
        "imagePullSecrets[0].name=registry",
        "updateStrategy.type=RollingUpdate",
    ];
    let Some(elsewhere) = template("helm/tripod", "proxies", &values) else {
        return;
    };
    let holder = &elsewhere[&("DaemonSet".to_owned(), "tripod-holder".to_owned())];
    assert_eq!(holder["metadata"]["namespace"], "proxies");
    // It must not be replaced together with kube-proxy.
    let strategy = &holder["spec"]["updateStrategy"];
    assert_eq!(*strategy, json!({"type": "OnDelete"}));
    let pod = &holder["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["pool"], "edge");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    let image = &pod["containers"][0]["image"];
    assert_eq!(image, "registry.example/tripod:1");
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
    let set = &objects[&("DaemonSet".to_owned(), "kube-proxy".to_owned())];
    assert_eq!(
        set["spec"]["updateStrategy"],
        json!({"rollingUpdate": {"maxSurge": "10%"}})
    );
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    assert!(container["readinessProbe"]["exec"].is_object());
    let none = ["updateStrategy.rollingUpdate.maxSurge=0"];
    rendered(&none).expect("Helm is there");
}

#[test]
fn every_field_is_one_of_its_type() {
    let values = [
        &NEW_CLUSTER[..],
        &[
            "resources.requests.cpu=10m",
            "nodeSelector.pool=edge",
            "tolerations[0].key=x",
            "imagePullSecrets[0].name=registry",
            "podAnnotations.example\\.com/team=net",
            "updateStrategy.type=OnDelete",
            "surge.enabled=true",
        ],
    ];
    let Some(objects) = rendered(&values.concat()) else {
        return;
    };
    assert_eq!(objects.len(), 6);
    for ((kind, name), object) in objects {
        let mut plain = object.clone();
        if let Some(data) = plain.get_mut("data").and_then(Value::as_object_mut) {
            for text in data.values_mut() {
                *text = json!(text.to_string());
            }
        }
        let understood = match kind.as_str() {
            "ConfigMap" => as_understood::<ConfigMap>(&plain),
            "ClusterRole" => as_understood::<ClusterRole>(&plain),
            "ClusterRoleBinding" => as_understood::<ClusterRoleBinding>(&plain),
            "DaemonSet" => as_understood::<DaemonSet>(&plain),
            "ServiceAccount" => as_understood::<ServiceAccount>(&plain),
            other => panic!("no type for {other} in this test"),
        };
        assert_eq!(understood, plain, "{kind} {name}");
    }
}

#[test]
fn values_reach_the_objects() {
    let values = [
        "image=registry.example/tripod:1",
        "imagePullPolicy=Always",
        "flags={--v=2,--strict-proxy-mode}",
        "resources.limits.memory=200Mi",
        "nodeSelector.pool=edge",
        "imagePullSecrets[0].name=registry",
        "podAnnotations.example\\.com/team=net",
        "affinity.nodeAffinity.x=y",
        "updateStrategy.type=OnDelete",
        "holder.enabled=false",
        "serviceAccount.create=false",
        "rbac.create=false",
    ];
    let Some(objects) = template("helm/tripod", "proxies", &values) else {
        return;
    };
    let names: Vec<&str> = objects.keys().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(names, ["DaemonSet"]);
    let set = objects.values().next().expect("one");
    assert_eq!(set["metadata"]["namespace"], "proxies");
    assert_eq!(set["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let template = &set["spec"]["template"];
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"example.com/team": "net"}));
    let pod = &template["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(pod["affinity"], json!({"nodeAffinity": {"x": "y"}}));
    assert_eq!(
        pod["nodeSelector"],
        json!({"kubernetes.io/os": "linux", "pool": "edge"})
    );
    for container in ["initContainers", "containers"].map(|of| &pod[of][0]) {
        assert_eq!(container["image"], "registry.example/tripod:1");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(
            container["resources"],
            json!({"limits": {"memory": "200Mi"}})
        );
        let command = container["command"].as_array().expect("words");
        assert!(command.ends_with(&[json!("--v=2"), json!("--strict-proxy-mode")]));
    }
}

/// What stays confines itself as kustomize has it, or as is asked for; the init container, which
/// ends, does not.
#[test]
fn programs_confine_themselves() {
    for (value, expected) in [
        ("confine=files", "--confine=files"),
        ("confine=calls", "--confine=calls"),
        // As values of an earlier version are, with which an upgrade may go on.
        ("confine=null", "--confine=files"),
    ] {
        let values = [value, "flags={--v=2}"];
        let Some(objects) = rendered(&values) else {
            return;
        };
        let confined = |set: &str, of: &str| {
            let set = &objects[&("DaemonSet".to_owned(), set.to_owned())];
            let command = set["spec"]["template"]["spec"][of][0]["command"].clone();
            let words: Vec<String> = serde_json::from_value(command).expect("words");
            let flags = words.into_iter().filter(|word| word.contains("confine"));
            flags.collect::<Vec<_>>()
        };
        for set in ["kube-proxy", "tripod-holder"] {
            assert_eq!(confined(set, "containers"), [expected], "{value}: {set}");
        }
        assert!(confined("kube-proxy", "initContainers").is_empty());
    }
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    for (values, expected) in [
        (
            &["mode=ipvs"][..],
            "additional properties 'mode' not allowed",
        ),
        (&["image="], "/image"),
        (&["imagePullPolicy=Sometimes"], "/imagePullPolicy"),
        (&["config.kubeProxy.mode=ipsv"], "/config/kubeProxy/mode"),
        (&["flags={v}"], "/flags/0"),
        (&["confine=all"], "/confine"),
        (&["imagePullSecrets={registry}"], "/imagePullSecrets/0"),
        (&["affinity.nodeAfinity.x=y"], "/affinity"),
        (&["updateStrategy.type=Recreate"], "/updateStrategy/type"),
        (&["monitoring.labels.release=true"], "/monitoring/labels"),
        (
            &["updateStrategy.rollingUpdate.maxSurge=1"],
            "maxSurge needs surge.enabled",
        ),
        (&["config.create=true"], "config.server is needed"),
        (&NEW_CLUSTER[..2], "config.kubeProxy.clusterCIDR is needed"),
    ] {
        let mut arguments = vec!["template", "tripod", "helm/tripod"];
        for value in values {
            arguments.extend(["--set", value]);
        }
        let Some(done) = helm(&arguments) else { return };
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success(), "{values:?}");
        assert!(errors.contains(expected), "{values:?}: {errors}");
    }
}

/// The files that the chart links to are in its archive.
#[test]
fn the_archive_is_complete() {
    let place = std::env::temp_dir().join(format!("tripod-chart-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a temporary folder");
    let to = place.to_str().expect("a path");
    let Some(done) = helm(&["package", "helm/tripod", "--destination", to]) else {
        return;
    };
    assert!(done.status.success(), "{done:?}");
    let archive = format!("{to}/tripod-{}.tgz", env!("CARGO_PKG_VERSION"));
    let added = ["monitoring.enabled=true", "secureMetrics.enabled=true"];
    let values = [&NEW_CLUSTER[..], &added].concat();
    assert_eq!(
        template(&archive, "kube-system", &values),
        rendered(&values)
    );
    let Some(lint) = helm(&["lint", "--strict", &archive]) else {
        return;
    };
    assert!(lint.status.success(), "{lint:?}");
    fs::remove_dir_all(place).expect("it was made");
}

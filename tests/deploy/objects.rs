//! The manifests have the intended meaning, and fit together.

use std::{collections::BTreeSet, fs};

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Capabilities, ConfigMap, Container, PodSpec, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{config_map, daemon_set, documents, folder, only, read};

const FOLDERS: [&str; 2] = ["kustomize/base", "kustomize/new-cluster"];

/// The object as Kubernetes understands it: fields that its type does not have are lost.
pub fn as_understood<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T =
        serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{e}: {object}"));
    serde_json::to_value(typed).expect("it was read")
}

#[test]
fn every_field_is_one_of_its_type() {
    let mut kinds = BTreeSet::new();
    for folder in FOLDERS {
        let kustomization = &documents(&format!("{folder}/kustomization.yaml"))[0];
        let resources: Vec<String> =
            serde_json::from_value(kustomization["resources"].clone()).expect("names");
        for file in resources.iter().filter(|name| name.ends_with(".yaml")) {
            for object in documents(&format!("{folder}/{file}")) {
                let kind = object["kind"].as_str().expect("a kind").to_owned();
                let understood = match kind.as_str() {
                    "ConfigMap" => as_understood::<ConfigMap>(&object),
                    "ClusterRole" => as_understood::<ClusterRole>(&object),
                    "ClusterRoleBinding" => as_understood::<ClusterRoleBinding>(&object),
                    "DaemonSet" => as_understood::<DaemonSet>(&object),
                    "ServiceAccount" => as_understood::<ServiceAccount>(&object),
                    other => panic!("{file}: no type for {other} in this test"),
                };
                assert_eq!(understood, object, "{file}");
                assert!(kinds.insert(kind), "{file}: a kind again");
            }
        }
    }
    assert_eq!(kinds.len(), 5);
}

#[test]
fn kustomizations_name_the_files_that_are_there() {
    for name in FOLDERS {
        let object = &documents(&format!("{name}/kustomization.yaml"))[0];
        let fields = object.as_object().expect("fields").keys();
        let fields: Vec<&String> = fields.collect();
        if name == "kustomize/base" {
            assert_eq!(object["components"], json!(["../holder"]));
        }
        let is_of_base = |field: &&String| ["components", "images"].contains(&&***field);
        let fields: Vec<&String> = fields.into_iter().filter(|f| !is_of_base(f)).collect();
        assert_eq!(fields, ["apiVersion", "kind", "resources"]);
        assert_eq!(object["apiVersion"], "kustomize.config.k8s.io/v1beta1");
        assert_eq!(object["kind"], "Kustomization");
        let named: BTreeSet<String> =
            serde_json::from_value(object["resources"].clone()).expect("names");
        let mut there: BTreeSet<String> = fs::read_dir(folder().join(name))
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().unwrap())
            .filter(|file| file != "kustomization.yaml")
            .collect();
        if name == "kustomize/new-cluster" {
            there.insert("../base".to_owned());
        }
        assert_eq!(named, there, "{name}");
    }
}

fn pod() -> PodSpec {
    daemon_set().spec.unwrap().template.spec.unwrap()
}

fn containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

#[test]
fn names_are_those_of_kubeadm() {
    let set = daemon_set();
    let (meta, spec) = (set.metadata, set.spec.unwrap());
    assert_eq!(meta.name.as_deref(), Some("kube-proxy"));
    assert_eq!(meta.namespace.as_deref(), Some("kube-system"));
    // A selector cannot change, so that taking over requires the same one.
    let labels = json!({"k8s-app": "kube-proxy"});
    assert_eq!(json!(spec.selector), json!({"matchLabels": labels}));
    assert_eq!(json!(spec.template.metadata.unwrap().labels), labels);
    let pod = spec.template.spec.unwrap();
    let [container] = pod.containers.as_slice() else {
        panic!("{} containers", pod.containers.len());
    };
    assert_eq!(container.name, "kube-proxy");
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(
        pod.priority_class_name.as_deref(),
        Some("system-node-critical")
    );
    assert_eq!(json!(pod.tolerations), json!([{"operator": "Exists"}]));
    let account: ServiceAccount = only("kustomize/base/service-account.yaml");
    assert_eq!(pod.service_account_name, account.metadata.name);
    assert_eq!(meta.namespace, account.metadata.namespace);
    let map = config_map().metadata;
    assert_eq!(map.namespace, meta.namespace);
    let volumes = pod.volumes.unwrap();
    let named = volumes.iter().find_map(|volume| volume.config_map.as_ref());
    assert_eq!(named.map(|source| &source.name), map.name.as_ref());
}

#[test]
fn mounts_have_volumes() {
    let pod = pod();
    let volumes = pod.volumes.iter().flatten();
    let volumes: BTreeSet<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    for container in containers(&pod) {
        let mounts = container.volume_mounts.iter().flatten();
        let mounted: BTreeSet<&str> = mounts.map(|mount| mount.name.as_str()).collect();
        let mut needed = volumes.clone();
        if container.name == "init" {
            // It ends before another process could take over from it.
            needed.remove("succession");
        }
        assert_eq!(mounted, needed, "{}", container.name);
    }
}

#[test]
fn what_stays_is_not_privileged() {
    let pod = pod();
    let context = pod.containers[0].security_context.as_ref().unwrap();
    assert_eq!(context.privileged, Some(false));
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.read_only_root_filesystem, Some(true));
    // As for a privileged container; otherwise the node's files could not be written under SELinux.
    let selinux = context.se_linux_options.as_ref();
    let selinux = selinux.and_then(|options| options.type_.as_deref());
    assert_eq!(selinux, Some("spc_t"));
    let capabilities = Capabilities {
        add: Some(
            ["NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"]
                .map(Into::into)
                .into(),
        ),
        drop: Some(vec!["ALL".to_owned()]),
    };
    assert_eq!(context.capabilities, Some(capabilities));
}

#[test]
fn probes_ask_where_the_configuration_serves() {
    let probes = pod().containers.remove(0);
    let text = &config_map().data.unwrap()["config.conf"];
    let decoded = tripod::config::decode::decode(text).unwrap();
    let serves = tripod::config::check(decoded.configuration, decoded.problems);
    let port = serves.unwrap().effective.healthz.unwrap().port();
    for (probe, path) in [
        (probes.liveness_probe, "/livez"),
        (probes.readiness_probe, "/healthz"),
    ] {
        let get = probe.unwrap().http_get.unwrap();
        assert_eq!(get.path.as_deref(), Some(path));
        assert_eq!(get.port, IntOrString::Int(port.into()));
    }
}

#[test]
fn versions_are_those_of_the_program() {
    let chart = &documents("helm/tripod/Chart.yaml")[0];
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let stub = format!("- name: tripod\n  newName: tripod\n  newTag: {version}\n");
    assert!(read("kustomize/base/kustomization.yaml").contains(&stub));
}

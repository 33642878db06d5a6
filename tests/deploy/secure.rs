//! The component that serves metrics over TLS, and the PodMonitor that reads them.

use k8s_openapi::api::{
    core::v1::{Container, Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Subject},
};
use serde_json::{Value, json};

use super::{daemon_set, documents, objects::as_understood};

const COMPONENT: &str = "kustomize/secure-metrics";
const MONITORING: &str = "monitoring/secure";

/// Applies a JSON patch (RFC 6902) of `add` operations, the only ones that are used.
pub fn patched(mut object: Value, file: &str) -> Value {
    let [patch] = <[Value; 1]>::try_from(documents(file)).expect("one document");
    for operation in patch.as_array().expect("operations") {
        let replaces = operation["op"] == "replace";
        assert!(replaces || operation["op"] == "add", "{file}");
        let path = operation["path"].as_str().expect("a path");
        let (parent, last) = path.rsplit_once('/').expect("a path");
        let parent = object
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("{file}: {path}"));
        match (parent, last) {
            (Value::Array(items), "-") => items.push(operation["value"].clone()),
            (Value::Object(fields), name) => {
                let before = fields.insert(name.to_owned(), operation["value"].clone());
                assert_eq!(before.is_some(), replaces, "{file}: {path}");
            }
            (other, _) => panic!("{file}: {path} in {other}"),
        }
    }
    object
}

#[test]
fn the_component_gives_the_container_its_address() {
    let set = serde_json::to_value(daemon_set()).expect("it was read");
    let set = patched(set, &format!("{COMPONENT}/daemon-set.yaml"));
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(as_understood::<Container>(container), *container);
    let flags = container["command"].as_array().expect("a command");
    let flag = flags.last().and_then(Value::as_str).expect("a flag");
    let variable =
        json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    let variables = container["env"].as_array().expect("variables");
    assert_eq!(variables.iter().filter(|one| **one == variable).count(), 1);
    for (ip, address) in [
        ("192.0.2.1", "192.0.2.1:10249"),
        ("2001:db8::1", "[2001:db8::1]:10249"),
    ] {
        let flag = flag.replace("$(HOST_IP)", ip);
        let settings = tripod::cli::read(["tripod".into(), flag.into()], |_| unreachable!());
        let own = settings.expect("it is taken").own;
        assert_eq!(
            own.metrics_secure.map(|at| at.to_string()).as_deref(),
            Some(address)
        );
    }
}

#[test]
fn rights_are_those_of_reviews_and_of_readers() {
    let account = |name: &str| Subject {
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some("kube-system".to_owned()),
        api_group: None,
    };
    let typed = |file: &str| {
        for object in documents(file) {
            let understood = match object["kind"].as_str() {
                Some("ClusterRole") => as_understood::<ClusterRole>(&object),
                Some("ClusterRoleBinding") => as_understood::<ClusterRoleBinding>(&object),
                Some("ServiceAccount") => as_understood::<ServiceAccount>(&object),
                Some("Secret") => as_understood::<Secret>(&object),
                other => panic!("{file}: {other:?}"),
            };
            assert_eq!(understood, object, "{file}");
        }
        documents(file)
    };
    let rbac = typed(&format!("{COMPONENT}/rbac.yaml"));
    let reader = typed(&format!("{MONITORING}/reader.yaml"));
    let binding = |object: &Value| -> ClusterRoleBinding {
        serde_json::from_value(object.clone()).expect("a binding")
    };
    let of_proxy = binding(&rbac[0]);
    assert_eq!(of_proxy.role_ref.name, "system:auth-delegator");
    assert_eq!(of_proxy.subjects, Some(vec![account("kube-proxy")]));
    let of_reader = binding(&reader[2]);
    assert_eq!(
        rbac[1]["metadata"]["name"],
        of_reader.role_ref.name.as_str()
    );
    let rules = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    assert_eq!(rbac[1]["rules"], rules);
    let name = reader[0]["metadata"]["name"].as_str().expect("a name");
    assert_eq!(of_reader.subjects, Some(vec![account(name)]));
    let annotations = &reader[1]["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/service-account.name"], name);
}

/// A user who may open the page may read its data.
#[test]
fn the_status_reader_may_read_what_the_page_reads() {
    let rbac = documents(&format!("{COMPONENT}/rbac.yaml"));
    assert_eq!(rbac[2]["metadata"]["name"], "tripod:status-reader");
    let urls = rbac[2]["rules"][0]["nonResourceURLs"].as_array();
    let urls: Vec<&str> = urls
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let allows = |path: &str| {
        urls.iter().any(|url| match url.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => *url == path,
        })
    };
    let page = include_str!("../../src/serve/page.html");
    let read = page.split("read(\"").skip(1);
    let read: Vec<&str> = read.filter_map(|rest| rest.split('"').next()).collect();
    assert!(read.contains(&"metrics") && read.len() > 3, "{read:?}");
    for path in read.iter().copied().chain(["", "v1/explain"]) {
        assert!(allows(&format!("/{path}")), "/{path} is not in {urls:?}");
    }
}

#[test]
fn the_pod_monitor_reads_over_tls_with_the_readers_token() {
    let [monitor] = <[Value; 1]>::try_from(documents("monitoring/pod-monitor.yaml")).expect("one");
    let monitor = patched(monitor, &format!("{MONITORING}/pod-monitor.yaml"));
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["scheme"], "https");
    let secret = &documents(&format!("{MONITORING}/reader.yaml"))[1]["metadata"]["name"];
    assert_eq!(endpoint["authorization"]["credentials"]["name"], *secret);
    assert_eq!(endpoint["authorization"]["credentials"]["key"], "token");
}

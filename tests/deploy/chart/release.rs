//! Effects on the objects of a cluster when Helm installs and uninstalls the chart.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{NEW_CLUSTER, cluster::Cluster};

/// The command of the chart's README, without a registry, and without the schema of the API server,
/// which this server does not have.
const TAKE_OVER: &str = "upgrade tripod helm/tripod --install --namespace kube-system \
    --set image.repository=tripod --take-ownership --force-conflicts --disable-openapi-validation";
const UNINSTALL: &str = "uninstall tripod --namespace kube-system";

/// The objects of kubeadm, with `metricsBindAddress` in the ConfigMap.
fn kubeadm(metrics: &str) -> [Value; 3] {
    let metadata = json!({"name": "kube-proxy", "namespace": "kube-system"});
    let configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "metricsBindAddress": metrics,
    });
    let template = json!({"spec": {"containers": [{"name": "kube-proxy", "image": "kube-proxy"}]}});
    [
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
            "spec": {"template": template}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"config.conf": configuration.to_string()}}),
    ]
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn uninstall_keeps_the_kube_proxy_of_kubeadm() {
    let cluster = Cluster::start("keep", &kubeadm(""));
    let with_all = format!("{TAKE_OVER} --set monitoring.enabled=true");
    for _ in 0..2 {
        let Some(installed) = cluster.helm(&with_all) else {
            return;
        };
        let notes = installed.expect("it is installed");
        for words in ["uninstall tripod", "rollout undo daemonset/kube-proxy"] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
        assert!(cluster.names().contains("DaemonSet tripod-holder"));
        let uninstalled = cluster.helm(UNINSTALL).expect("Helm is there");
        uninstalled.expect("it is uninstalled");
        // A Tripod that continues to run may still read the objects that it serves.
        let kept = names(&[
            "ClusterRole tripod:kube-proxy",
            "ClusterRoleBinding tripod:kube-proxy",
            "ConfigMap kube-proxy",
            "DaemonSet kube-proxy",
            "ServiceAccount kube-proxy",
        ]);
        assert_eq!(cluster.names(), kept);
        let set = cluster.get("DaemonSet", "kube-proxy");
        let container = &set["spec"]["template"]["spec"]["containers"][0];
        let image = format!("tripod:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(container["image"], image);
        // Afterwards the same command installs it again.
    }
}

#[test]
fn uninstall_deletes_what_replaced_nothing() {
    let own = TAKE_OVER.replace(" --take-ownership", "");
    let new = NEW_CLUSTER.map(|value| format!(" --set {value}")).concat();
    let elsewhere = own.replace("kube-system", "proxies");
    let named = " --set config.existingConfigMap=settings";
    for (install, values, uninstall) in [
        (&own, new.as_str(), UNINSTALL),
        (&elsewhere, named, "uninstall tripod --namespace proxies"),
    ] {
        let cluster = Cluster::start("delete", &[]);
        let Some(installed) = cluster.helm(&format!("{install}{values}")) else {
            return;
        };
        installed.expect("it is installed");
        assert!(cluster.names().contains("DaemonSet kube-proxy"));
        let uninstalled = cluster.helm(uninstall).expect("Helm is there");
        uninstalled.expect("it is uninstalled");
        assert_eq!(cluster.names(), names(&[]), "{install}");
    }
}

/// When it installs, Helm knows the ConfigMap and the DaemonSet of the cluster.
#[test]
fn values_that_do_not_fit_the_cluster_are_refused() {
    let metrics = "ConfigMap kube-system/kube-proxy: metricsBindAddress";
    let new = NEW_CLUSTER.join(",");
    for (address, values, expected) in [
        ("", "monitoring.enabled=true", None),
        ("127.0.0.1:10249", "monitoring.enabled=true", None),
        ("0.0.0.0:10300", "monitoring.enabled=true", None),
        (
            "0.0.0.0:10249",
            "monitoring.enabled=true,monitoring.scheme=http",
            None,
        ),
        (
            "0.0.0.0:10249",
            "monitoring.enabled=true",
            Some(format!("{metrics} 0.0.0.0:10249 includes port 10249")),
        ),
        (
            "",
            "monitoring.enabled=true,monitoring.scheme=http",
            Some(format!(
                "{metrics} 127.0.0.1 can be reached only from the node"
            )),
        ),
        (
            "",
            new.as_str(),
            Some("namespace kube-system has a DaemonSet kube-proxy".to_owned()),
        ),
    ] {
        let cluster = Cluster::start("refuse", &kubeadm(address));
        let before = cluster.names();
        let command = format!("{TAKE_OVER} --set {values}");
        let Some(done) = cluster.helm(&command) else {
            return;
        };
        match (done, expected) {
            (Ok(_), None) => {}
            (Err(why), Some(expected)) => {
                assert!(why.contains(&expected), "{values}: {why}");
                assert_eq!(cluster.names(), before, "nothing was changed");
            }
            (done, expected) => panic!("{address} {values}: {done:?}, not {expected:?}"),
        }
    }
}

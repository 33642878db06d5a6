//! `kubectl tripod`, with a substitute for kubectl that runs commands on the lab's node: the pods
//! of the cluster are in a file.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Printed, started};
use crate::lab::{Lab, Service, tripod_binary};

const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >> "${0%/*}/calls"
case "$*" in
*"get pods"*) cat "${0%/*}/pods" ;;
*"get nodes"*) cat "${0%/*}/nodes" ;;
*"get pod cart-0"*) cat "${0%/*}/pod" ;;
*"config view"*) cat "${0%/*}/kubeconfig" ;;
*"get daemonset kube-proxy"*) cat "${0%/*}/daemonset" ;;
*"exec"*tripod-broken*)
    echo 'error: the pod is gone' >&2
    echo 'command terminated with exit code 1' >&2
    exit 1 ;;
*"exec"*)
    while [ "$1" != -- ]; do shift; done
    shift 2
    exec "$TRIPOD_IN_POD" "$@" ;;
*) exit 1 ;;
esac
"#;

/// A folder with the plugin, and with a substitute for kubectl.
struct Plugin(PathBuf);

impl Plugin {
    fn new(pods: &[Value]) -> Plugin {
        let folder = Path::new("/run/kubectl");
        fs::create_dir_all(folder).expect("a folder");
        symlink(tripod_binary(), folder.join("kubectl-tripod")).expect("a link");
        let kubectl = folder.join("kubectl");
        fs::write(&kubectl, KUBECTL).expect("a file");
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).expect("its mode");
        let nodes = ["broken", "new", "node"];
        let nodes = nodes.map(|name| format!("{name}   Ready   <none>   1d   v1.36.0\n"));
        let plugin = Plugin(folder.into());
        plugin.answer("pods", &json!({"items": pods}));
        fs::write(folder.join("nodes"), nodes.concat()).expect("a file");
        plugin.answer("pod", &pod("cart-0", "node"));
        plugin
    }

    /// Sets kubectl's answer for one kind.
    fn answer(&self, kind: &str, value: &Value) {
        fs::write(self.0.join(kind), value.to_string()).expect("a file");
    }

    fn run(&self, lab: &Lab, arguments: &[&str]) -> Printed {
        let _ = fs::remove_file(self.0.join("calls"));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = lab.node.command(self.0.join("kubectl-tripod"));
        command
            .args(arguments)
            .env("TRIPOD_IN_POD", tripod_binary())
            .env("PATH", format!("{}:{path}", self.0.display()));
        Printed::of(command)
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.0.join("calls")).unwrap_or_default()
    }
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": "kube-proxy"}]},
        "status": {"phase": "Running"},
    })
}

#[test]
fn the_tripod_of_a_node_is_asked_through_kubectl() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _tripod = started(lab, &[]);
        let plugin = Plugin::new(&[pod("tripod-1", "node"), pod("tripod-broken", "broken")]);

        let services = ["services", "default/web", "--node", "node", "--context=c"];
        let printed = plugin.run(lab, &services);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        assert!(printed.text.contains("default/web"), "{printed:?}");
        let exec = "--context=c exec --namespace kube-system tripod-1 --container kube-proxy \
                    -- tripod services default/web\n";
        assert!(plugin.calls().ends_with(exec), "{}", plugin.calls());

        let of_pod = plugin.run(lab, &["status", "--pod", "shop/cart-0", "-o", "json"]);
        assert_eq!(of_pod.json()["node"], json!("node"), "{of_pod:?}");
        let no_service = plugin.run(lab, &["services", "default/nope", "--node=node"]);
        assert_eq!(no_service.status, Some(1), "{no_service:?}");

        for (arguments, why) in [
            (&["status"][..], "name one with --node"),
            (
                &["status", "--node=new"],
                "no pod of Tripod runs on node new",
            ),
            (&["status", "--pod=other"], "kubectl cannot get pod other"),
        ] {
            let refused = plugin.run(lab, arguments);
            assert_eq!(refused.status, Some(2), "{refused:?}");
            assert!(refused.error.contains(why), "{refused:?}");
        }

        let all = plugin.run(lab, &["status", "--all-nodes"]);
        assert_eq!(all.status, Some(1), "{all:?}");
        let lines: Vec<Vec<&str>> = all
            .text
            .lines()
            .map(|line| line.split_whitespace().take(3).collect())
            .collect();
        let expected = [
            ["NODE", "MODE", "STATUS"],
            ["broken", "-", "no"],
            ["new", "-", "no"],
            ["node", "userspace", "healthy"],
        ];
        assert_eq!(lines, expected, "{all:?}");
        assert!(all.text.contains("the pod is gone"), "{all:?}");
        let nodes = "get nodes --no-headers -l kubernetes.io/os!=windows\n";
        assert!(plugin.calls().contains(nodes), "{}", plugin.calls());
        plugin.answer("pods", &json!({"items": [pod("tripod-1", "node")]}));
        assert_eq!(plugin.run(lab, &["diff"]).status, Some(0));
    });
}

#[test]
fn nodes_that_cannot_be_checked_are_faults() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _tripod = started(lab, &[]);
        let own = pod("tripod-1", "node");
        let plugin = Plugin::new(&[own.clone(), pod("tripod-broken", "broken")]);

        let one = plugin.run(lab, &["check", "--node=node", "-o", "json"]);
        assert_eq!(one.status, Some(0), "{one:?}");
        assert_eq!(one.json()["nodes"][0]["node"], "node");

        let all = plugin.run(lab, &["check"]);
        assert_eq!(all.status, Some(1), "{all:?}");
        for (node, why) in [
            ("broken", "the pod is gone"),
            ("new", "no pod of Tripod runs there"),
        ] {
            let is_named = |line: &str| line.contains(node) && line.contains(why);
            assert!(all.text.lines().any(is_named), "{node}: {all:?}");
        }
        assert!(all.text.contains("1 node checked"), "{all:?}");

        for (arguments, why) in [
            (
                ["check", "--node=nope"],
                "no pod of Tripod runs on node nope",
            ),
            (["check", "--make=/nonexistent"], "takes no file here"),
        ] {
            let refused = plugin.run(lab, &arguments);
            assert_eq!(refused.status, Some(2), "{refused:?}");
            assert!(refused.error.contains(why), "{refused:?}");
        }

        plugin.answer("pods", &json!({"items": [pod("tripod-broken", "broken")]}));
        let none = plugin.run(lab, &["check"]);
        assert_eq!(none.status, Some(2), "{none:?}");
        assert!(none.error.contains("the pod is gone"), "{none:?}");

        // The user's kubeconfig reaches the pod.
        plugin.answer("pods", &json!({"items": [own]}));
        let cluster = json!({"name": "it", "cluster": {"server": "http://127.0.0.1:1"}});
        let context = json!({"name": "it", "context": {"cluster": "it", "user": ""}});
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [cluster], "contexts": [context], "users": [{"name": "", "user": {}}],
        });
        plugin.answer("kubeconfig", &kubeconfig);
        let made = plugin.run(
            lab,
            &["check", "--make", "--image=i", "--node=node", "-o", "json"],
        );
        assert_eq!(made.status, Some(1), "{made:?}");
        let fault = &made.json()["faults"][0];
        assert_eq!(fault["object"], "Services made for the check", "{made:?}");
        let why = fault["problem"].as_str().expect("text");
        assert!(why.contains("cannot create namespaces"), "{made:?}");
        let exec = "--container kube-proxy --stdin -- tripod check --output=json --timeout=30s \
                    --make=- --image=i\n";
        assert!(plugin.calls().ends_with(exec), "{}", plugin.calls());
    });
}

#[test]
fn a_node_on_which_the_daemonset_wants_no_pod_is_no_fault() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _tripod = started(lab, &[]);
        let plugin = Plugin::new(&[]);
        let set =
            json!({"kind": "DaemonSet", "name": "kube-proxy", "apiVersion": "apps/v1", "uid": ""});
        let mut owned = pod("tripod-1", "node");
        owned["metadata"]["ownerReferences"] = json!([set]);
        plugin.answer(
            "pods",
            &json!({"items": [owned, pod("tripod-broken", "broken")]}),
        );
        let status = json!({
            "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0,
            "numberReady": 2,
        });
        plugin.answer(
            "daemonset",
            &json!({"metadata": {"name": "kube-proxy"}, "status": status}),
        );
        let unwanted = plugin.run(lab, &["check", "-o", "json"]).json();
        let nodes = |all: &str| {
            unwanted[all]
                .as_array()
                .map(|all| all.iter().map(|one| one["nodes"][0].clone()).collect())
        };
        assert_eq!(nodes("faults"), Some(vec![json!("broken")]), "{unwanted}");
        assert_eq!(nodes("notes"), Some(vec![json!("new")]), "{unwanted}");
    });
}

//! The holder keeps sockets open: it and the proxy see the same folder of the node.

use std::path::Path;

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::PodSpec};
use serde_json::Value;
use tripod::{
    cli::{self, Job},
    confine::Confinement,
};

use super::{daemon_set, documents, objects::as_understood, read, secure::patched};

const HOLDER: &str = "kustomize/holder/holder.yaml";

fn pod_of(set: &Value) -> PodSpec {
    let set: DaemonSet = serde_json::from_value(set.clone()).expect("a DaemonSet");
    let pod = set.spec.expect("a specification").template.spec;
    pod.expect("a pod")
}

/// The path at which the only container, or the first one, mounts the folder of the node.
fn mounted(pod: &PodSpec, on_node: &str) -> String {
    let mut volumes = pod.volumes.iter().flatten();
    let volume = volumes
        .find(|volume| volume.host_path.as_ref().is_some_and(|h| h.path == on_node))
        .expect("a volume");
    let mut mounts = pod.containers[0].volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| mount.name == volume.name);
    mount.expect("a mount").mount_path.clone()
}

#[test]
fn both_are_in_the_manifests() {
    let [holder] = <[Value; 1]>::try_from(documents(HOLDER)).expect("one document");
    assert_eq!(as_understood::<DaemonSet>(&holder), holder);
    let proxy = serde_json::to_value(daemon_set()).expect("it was read");
    let proxy = patched(proxy, "kustomize/holder/daemon-set.yaml");
    assert_eq!(as_understood::<DaemonSet>(&proxy), proxy);
    find_each_other(&holder, &proxy);
}

/// The package is for nodes without a cluster; the chart and kustomize are tested in
/// `chart/kustomize.rs`.
#[test]
fn the_proxy_of_the_package_starts_the_holder() {
    let unit = read("debian/tripod.service");
    let wants = unit.lines().find_map(|line| line.strip_prefix("Wants="));
    let mut wanted = wants.expect("units").split(' ');
    assert!(wanted.any(|unit| unit == "tripod-holder.service"));
}

/// Checks that the pods of two DaemonSets see the holder's socket in the same folder of the node.
pub fn find_each_other(holder: &Value, proxy: &Value) {
    let (holder, proxy) = (pod_of(holder), pod_of(proxy));
    let command = holder.containers[0].command.clone().expect("a command");
    let words = command.into_iter().map(Into::into);
    let job = cli::read(words, |_| unreachable!())
        .expect("it is taken")
        .job;
    let Job::Hold(at_holder) = job else {
        panic!("{job:?}");
    };
    assert_eq!(at_holder.confinement, Confinement::Files);
    let none = cli::read(["tripod".into()], |_| unreachable!());
    let at_proxy = none.expect("it is taken").own.holder_socket;
    assert_eq!(at_proxy.as_ref(), Some(&at_holder.socket));
    let folder = at_holder.socket.parent().expect("a folder");
    for pod in [&holder, &proxy] {
        assert_eq!(Path::new(&mounted(pod, "/run/tripod-holder")), folder);
    }
    let context = |pod: &PodSpec| pod.containers[0].security_context.clone();
    let capabilities = context(&holder).and_then(|context| context.capabilities);
    let capabilities = capabilities.expect("capabilities");
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    assert_eq!(capabilities.add, None);
    // Sockets are passed only between processes of the same user.
    let user = |pod: &PodSpec| context(pod).and_then(|context| context.run_as_user);
    assert_eq!(user(&holder), user(&proxy));
}

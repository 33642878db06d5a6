//! The component that makes the new pod of a node ready before the old one ends.

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{PodSpec, Probe},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use tripod::{
    cli::{self, Ask, Job},
    status_api::SOCKET,
};

use super::{daemon_set, objects::as_understood, secure::patched};

fn set() -> DaemonSet {
    let set = serde_json::to_value(daemon_set()).expect("it was read");
    let set = patched(set, "kustomize/surge/daemon-set.yaml");
    assert_eq!(as_understood::<DaemonSet>(&set), set);
    serde_json::from_value(set).expect("a DaemonSet")
}

fn pod() -> PodSpec {
    let pod = set().spec.expect("a specification").template.spec;
    pod.expect("a pod")
}

/// With `maxSurge`, Kubernetes accepts only 0 for `maxUnavailable`.
#[test]
fn the_new_pod_comes_first() {
    let spec = set().spec.expect("a specification");
    let strategy = spec.update_strategy.expect("a strategy");
    assert_eq!(strategy.type_.as_deref(), Some("RollingUpdate"));
    let rolling = strategy.rolling_update.expect("numbers");
    assert_eq!(rolling.max_surge, Some(IntOrString::Int(1)));
    assert_eq!(rolling.max_unavailable, Some(IntOrString::Int(0)));
    assert!(spec.min_ready_seconds > Some(0));
}

/// A port of a pod on the node's network is one of the node: two pods that name the same
/// one are not scheduled on one node.
#[test]
fn no_container_names_a_port() {
    let pod = pod();
    assert_eq!(pod.host_network, Some(true));
    let containers = pod.init_containers.iter().flatten().chain(&pod.containers);
    for container in containers {
        assert_eq!(container.ports, None, "{}", container.name);
    }
}

/// The other pod may answer on the ports of the node.
#[test]
fn probes_ask_the_pod_itself() {
    let container = &pod().containers[0];
    let asks = |probe: &Option<Probe>| {
        let probe = probe.clone().expect("a probe");
        assert_eq!((probe.http_get, probe.tcp_socket), (None, None));
        let command = probe.exec.and_then(|exec| exec.command).expect("a command");
        let words = command.into_iter().map(Into::into);
        let read = cli::read(words, |_| unreachable!()).expect("it is taken");
        let Job::Ask(Ask::Status(status)) = read.job else {
            panic!("{:?}", read.job);
        };
        assert_eq!(status.common.socket.to_str(), Some(SOCKET));
        status.probe
    };
    let liveness = asks(&container.liveness_probe);
    assert_eq!(liveness, Some(cli::Probe::Liveness));
    let readiness = asks(&container.readiness_probe);
    assert_eq!(readiness, Some(cli::Probe::Readiness));

    // The folder of that socket belongs to the pod; that of the succession to the node.
    let pod = pod();
    let volume = |path: &str| {
        let mut mounts = pod.containers[0].volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| mount.mount_path == path);
        let mut volumes = pod.volumes.iter().flatten();
        let name = &mount.expect("a mount").name;
        volumes
            .find(|volume| volume.name == *name)
            .expect("a volume")
    };
    assert!(volume("/run/tripod").empty_dir.is_some());
    assert!(volume("/run/tripod/succession").host_path.is_some());
}

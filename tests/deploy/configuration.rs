//! The ConfigMap has the intended content.

use kube::config::Kubeconfig;
use tripod::config::{self, DetectLocal, decode};

use super::{config_map, daemon_set};

#[test]
fn it_is_read_without_a_warning() {
    let data = config_map().data.unwrap();
    let decoded = decode::decode(&data["config.conf"]).unwrap();
    assert_eq!(decoded.warnings, [""; 0]);
    let checked = config::check(decoded.configuration, decoded.problems).unwrap();
    assert_eq!(checked.warnings, [""; 0]);
    let DetectLocal::ClusterCidr(cidrs) = &checked.effective.detect_local else {
        panic!("{:?}", checked.effective.detect_local);
    };
    assert_eq!(cidrs.len(), 1);
}

#[test]
fn the_kubeconfig_is_where_it_is_looked_for() {
    let data = config_map().data.unwrap();
    let decoded = decode::decode(&data["config.conf"]).unwrap();
    let path = decoded.configuration.client_connection.kubeconfig;
    let pod = daemon_set().spec.unwrap().template.spec.unwrap();
    let volume = pod.volumes.unwrap();
    let volume = volume.iter().find(|volume| volume.config_map.is_some());
    let volume = &volume.unwrap().name;
    let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
    let mount = mounts.iter().find(|mount| mount.name == *volume).unwrap();
    let file = path.strip_prefix(&mount.mount_path).unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&data[file.trim_start_matches('/')]).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_ref().unwrap();
    let cluster = kubeconfig.clusters[0].cluster.as_ref().unwrap();
    // The kubelet puts them there.
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let token = format!("{account}/token");
    assert_eq!(user.token_file.as_ref(), Some(&token));
    let authority = format!("{account}/ca.crt");
    assert_eq!(cluster.certificate_authority.as_ref(), Some(&authority));
    assert!(cluster.server.is_some());
}

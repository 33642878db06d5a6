//! What the DaemonSet lets the container do is enough to serve, after the init
//! container has done its part.

use super::daemon_set;
use crate::lab::{Lab, Service, Tripod, ask, tripod_binary, udp_ask};

/// As a runtime starts it: no capability but these, none to be had later, and
/// /proc/sys cannot be written to.
const START: &str = r#"
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&
set="$1" && shift &&
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$set" "$0" "$@""#;

fn serves(lab: &mut Lab) {
    let pod = daemon_set().spec.unwrap().template.spec.unwrap();
    let context = pod.containers[0].security_context.clone().unwrap();
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let mut set = "-all".to_owned();
    for capability in capabilities.add.iter().flatten() {
        set.push_str(&format!(",+{}", capability.to_lowercase()));
    }

    lab.add_backends(&["a"]);
    let service = Service::new("hello", 7).with_node_port();
    lab.publish_all(&service);
    let mut init = lab.node.command(tripod_binary());
    let init = init.arg("--init-only").status().expect("running tripod");
    assert!(init.success(), "{init}");
    let mut command = lab.node.command("sh");
    command.args(["-c", START]).arg(tripod_binary()).arg(set);
    let tripod = Tripod::start_as(lab, command);
    let status = std::fs::read_to_string(format!("/proc/{}/status", tripod.pid())).unwrap();
    for address in service.cluster() {
        for host in lab.insiders() {
            assert_eq!(ask(host, address).expect("a call"), "a", "{address}");
        }
        assert_eq!(udp_ask(&lab.client, address).expect("a call"), "a");
    }
    // NET_BIND_SERVICE, NET_ADMIN and NET_RAW alone (linux/capability.h).
    assert!(status.contains("CapEff:\t0000000000003400\n"), "{status}");
    assert_eq!(tripod.said(&["WARN"]), 0, "there are warnings");
}

on_each_capture!(serves);

//! What the DaemonSet lets the container do is enough to serve, after the init
//! container has done its part.

use super::daemon_set;
use crate::lab::{self, Capture, Lab, Service, Share, Tripod, ask, tripod_binary, udp_ask};

/// As a runtime starts it: no capability but these, none to be had later, and
/// /proc/sys cannot be written to.
const START: &str = r#"
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&
set="$1" && shift &&
exec setpriv --no-new-privs --inh-caps=-all --bounding-set="$set" "$0" "$@""#;

/// Adds what makes `command` run Tripod as the container that stays.
fn as_container(command: &mut std::process::Command) {
    let pod = daemon_set().spec.unwrap().template.spec.unwrap();
    let context = pod.containers[0].security_context.clone().unwrap();
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let mut set = "-all".to_owned();
    for capability in capabilities.add.iter().flatten() {
        set.push_str(&format!(",+{}", capability.to_lowercase()));
    }
    command.args(["-c", START]).arg(tripod_binary()).arg(set);
}

/// The init container's part.
fn prepare(lab: &Lab, mode: &str) {
    let mut init = lab.node.command(tripod_binary());
    let init = init.args(["--init-only", mode]).status();
    let init = init.expect("running tripod");
    assert!(init.success(), "{init}");
}

fn serves(lab: &mut Lab) {
    lab.add_backends(&["a"]);
    let service = Service::new("hello", 7).with_node_port();
    lab.publish_all(&service);
    prepare(lab, "--proxy-mode=userspace");
    let mut command = lab.node.command("sh");
    as_container(&mut command);
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

const IPTABLES: &str = "--proxy-mode=iptables";

fn in_iptables_mode(lab: &Lab) -> Tripod {
    let mut command = lab.node.command("sh");
    as_container(&mut command);
    command
        .args([IPTABLES, "--strict-proxy-mode", "--manifests"])
        .arg(lab.manifests())
        .args(["--hostname-override", "node", "--v", "2"])
        .arg("--cluster-cidr=10.244.0.0/24,fd00:244::/64");
    Tripod::start_on(&lab.node, command)
}

fn with_a_service(test: &str, body: fn(&Lab, &Service)) {
    lab::run(test, Share::Beside, || {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);
        body(&lab, &service);
    });
}

#[test]
fn iptables_mode_serves() {
    let test = concat!(module_path!(), "::iptables_mode_serves");
    with_a_service(test, |lab, service| {
        prepare(lab, IPTABLES);
        // Not one without the other.
        let guard = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8";
        assert!(lab.node.show("iptables-save -t filter").contains(guard));
        assert_eq!(lab.node.show(SETTING).trim(), "1");

        let tripod = in_iptables_mode(lab);
        let address = service.cluster()[0];
        assert_eq!(ask(&lab.client, address).expect("a call"), "a");
        let loopback = ([127, 0, 0, 1], service.node_port()).into();
        assert_eq!(ask(&lab.node, loopback).expect("a call"), "a");
        assert_eq!(tripod.said(&["WARN"]), 0, "there are warnings");
    });
}

const SETTING: &str = "cat /proc/sys/net/ipv4/conf/all/route_localnet";

#[test]
fn iptables_mode_serves_what_it_can_without_the_init_container() {
    let test = concat!(
        module_path!(),
        "::iptables_mode_serves_what_it_can_without_the_init_container"
    );
    with_a_service(test, |lab, service| {
        let tripod = in_iptables_mode(lab);
        assert_eq!(ask(&lab.client, service.cluster()[0]).expect("a call"), "a");
        assert_eq!(lab.node.show(SETTING).trim(), "0");
        let told = ["WARN", "loopback", "net.ipv4.conf.all.route_localnet=1"];
        assert_eq!(tripod.said(&told), 1, "{}", tripod.log());
        let rules = lab.node.show("iptables-save");
        assert!(!rules.contains("block incoming localnet"), "{rules}");
    });
}

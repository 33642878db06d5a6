//! Failures of IPv6 do not affect IPv4, and are repaired when their cause ends.

use std::{
    fs, io,
    net::{SocketAddr, UdpSocket},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

use crate::lab::{
    Capture, EndpointChoice, Lab, Service, Tripod, ask, eventually, get, run, tripod_binary, udp,
    udp_say,
};

const FOLDER: &str = "/run/programs";
/// While it exists, ip6tables is refused, or hangs if the file says so.
const FAULT: &str = "/run/fault";

/// The script that replaces ip6tables.
const SCRIPT: &str = r#"#!/bin/sh
name=$(basename "$0")
case $(cat /run/fault 2>/dev/null) in
hangs) exec sleep 600 ;;
fails)
    echo "$name: it is broken" >&2
    exit 1
    ;;
esac
PATH=${PATH#/run/programs:}
exec "$name" "$@"
"#;

/// Much less than a sync period.
const SOON: Duration = Duration::from_secs(10);

/// Replaces each ip6tables by the script.
fn programs() -> String {
    fs::create_dir_all(FOLDER).expect("a folder");
    let script = format!("{FOLDER}/script");
    fs::write(&script, SCRIPT).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    let path = std::env::var("PATH").unwrap_or_default();
    for variant in ["", "-nft", "-legacy"] {
        for what in ["", "-restore", "-save"] {
            let name = format!("ip6tables{variant}{what}");
            if path.split(':').any(|at| Path::new(at).join(&name).exists()) {
                symlink(&script, format!("{FOLDER}/{name}")).expect("a link");
            }
        }
    }
    format!("{FOLDER}:{path}")
}

fn start(lab: &Lab, mode: &str) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command.env("PATH", programs());
    let mode = format!("--proxy-mode={mode}");
    command
        .args([&mode, "--strict-proxy-mode", "--manifests"])
        .arg(lab.manifests())
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .args(["--userspace-capture=redirect", "--v=2"])
        // Periodic repairs must not help.
        .args(["--iptables-sync-period=10m", "--ipvs-sync-period=10m"])
        .args([
            "--iptables-min-sync-period=10ms",
            "--ipvs-min-sync-period=10ms",
        ]);
    Tripod::start_on(&lab.node, command)
}

fn here(names: &[&str]) -> Vec<EndpointChoice> {
    let names = names.iter();
    names
        .map(|name| EndpointChoice::ready(name).on("node"))
        .collect()
}

/// Waits until new connections to `to` are answered by `name`.
fn answered_by(lab: &Lab, name: &str, to: SocketAddr, within: Duration) {
    eventually(&format!("{to} leads to {name}"), within, || {
        match ask(&lab.node, to) {
            Ok(answer) if answer == name => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Waits until a client that keeps its socket is answered by `name`.
fn moves(client: &UdpSocket, name: &str) {
    client
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a timeout");
    let mut call = 0;
    eventually(&format!("the UDP client is led to {name}"), SOON, || {
        call += 1;
        match udp_say(client, &format!("call-{call}")) {
            Ok(answer) if answer == name => Ok(()),
            Ok(other) => Err(other),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err("silence".into()),
            Err(error) => Err(error.to_string()),
        }
    });
}

/// Waits until the health-check node port reports `endpoints` endpoints.
fn counted(lab: &Lab, endpoints: usize) {
    let at = SocketAddr::new(lab.node.addresses[0], 31_000);
    let status = if endpoints > 0 { 200 } else { 503 };
    eventually(&format!("{at} counts {endpoints}"), SOON, || {
        let answer = get(&lab.outside, at, "/").map_err(|error| error.to_string())?;
        let counted = answer.contains(&format!("\"localEndpoints\": {endpoints},"));
        if counted && answer.starts_with(&format!("HTTP/1.1 {status} ")) {
            Ok(())
        } else {
            Err(answer)
        }
    });
}

/// A load balancer's Service, and another one.
fn services() -> (Service, Service) {
    let web = Service::new("web", 1)
        .with_node_port()
        .with_load_balancer()
        .spec("externalTrafficPolicy", "Local")
        .spec("healthCheckNodePort", 31_000);
    (web, Service::new("other", 2))
}

/// Checks that all of IPv4 follows: endpoints, a UDP client, the health-check node port, a new
/// Service.
fn ipv4_follows(lab: &Lab, web: &Service, other: &Service, client: &UdpSocket) {
    let [to, _] = web.cluster();
    lab.publish(other, &["a"]);
    answered_by(lab, "a", other.cluster()[0], SOON);
    lab.publish_endpoints(web, &here(&["b"]));
    answered_by(lab, "b", to, SOON);
    moves(client, "b");
    lab.publish_endpoints(web, &here(&["b", "c"]));
    counted(lab, 2);
    lab.publish_endpoints(web, &[EndpointChoice::ready("c").on("elsewhere")]);
    answered_by(lab, "c", to, SOON);
    moves(client, "c");
    counted(lab, 0);
    lab.publish_endpoints(web, &here(&["c"]));
    counted(lab, 1);
}

/// Checks that failed changes are retried automatically.
fn ipv6_comes_back(lab: &Lab, web: &Service, other: &Service) {
    answered_by(lab, "a", other.cluster()[1], 3 * SOON);
    answered_by(lab, "c", web.cluster()[1], SOON);
}

/// Waits until `said` is logged for IPv6, and checks that it is not logged for IPv4.
fn only_ipv6_fails(tripod: &Tripod, said: &[&str]) {
    eventually(&format!("{said:?} is logged"), SOON, || {
        match tripod.logged(said) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    let log = tripod.log();
    assert_eq!(tripod.logged(&["sync of IPv4 failed"]), 0, "{log}");
}

fn ipv4_goes_on(mode: &str, fault: &str) {
    let mut lab = Lab::new(Capture::Redirect);
    lab.three_backends();
    let (web, other) = services();
    lab.publish_endpoints(&web, &here(&["a"]));
    let tripod = start(&lab, mode);
    let [v4, v6] = web.cluster();
    answered_by(&lab, "a", v4, SOON);
    answered_by(&lab, "a", v6, SOON);
    let client = udp(&lab.node, v4).expect("a socket");
    moves(&client, "a");
    counted(&lab, 1);

    fs::write(FAULT, "fails").expect("a file");
    ipv4_follows(&lab, &web, &other, &client);
    only_ipv6_fails(&tripod, &[fault]);
    fs::remove_file(FAULT).expect("it is there");
    ipv6_comes_back(&lab, &web, &other);
}

#[test]
fn iptables_mode_carries_ipv4_while_ipv6_fails() {
    run(|| ipv4_goes_on("iptables", "sync of IPv6 failed"));
}

#[test]
fn userspace_mode_carries_ipv4_while_ipv6_fails() {
    run(|| ipv4_goes_on("userspace", "sync of IPv6 failed"));
}

/// With IPVS, in a guest kernel.
mod in_guest {
    use super::{
        Capture, Lab, SOON, answered_by, here, ipv4_follows, ipv4_goes_on, ipv6_comes_back,
        only_ipv6_fails, run, services, start, udp,
    };

    #[test]
    #[ignore = "for a guest kernel with IPVS"]
    fn ipvs_mode_carries_ipv4_while_ipv6_fails() {
        run(|| ipv4_goes_on("ipvs", "IPv6 rules"));
    }

    /// An object with the name of one of its sets is of another kind.
    #[test]
    #[ignore = "for a guest kernel with IPVS"]
    fn ipvs_mode_carries_ipv4_while_ipv6_lacks_a_set() {
        run(|| {
            let mut lab = Lab::new(Capture::Redirect);
            lab.three_backends();
            let set = "KUBE-6-CLUSTER-IP";
            lab.node.show(&format!("ipset create {set} hash:mac"));
            let (web, other) = services();
            lab.publish_endpoints(&web, &here(&["a"]));
            let tripod = start(&lab, "ipvs");
            let [v4, _] = web.cluster();
            answered_by(&lab, "a", v4, SOON);
            let client = udp(&lab.node, v4).expect("a socket");
            ipv4_follows(&lab, &web, &other, &client);
            only_ipv6_fails(&tripod, &["sync of IPv6 failed", set]);
            lab.node.show(&format!("ipset destroy {set}"));
            ipv6_comes_back(&lab, &web, &other);
        });
    }
}

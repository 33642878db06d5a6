//! The rights that the DaemonSet gives the container suffice to serve, after the init container has
//! done its part.

use std::time::Duration;

use crate::lab::{
    self, Capture, Group, Lab, Service, Tripod, ask, eventually, guest, in_container,
    init_container, udp_ask,
};
use crate::modes::probe::{KERNEL, kernel};

fn serves(lab: &mut Lab) {
    lab.add_backends(&["a"]);
    let service = Service::new("hello", 7).with_node_port();
    lab.publish_all(&service);
    init_container(&lab.node, "--proxy-mode=userspace");
    let tripod = Tripod::start_as(lab, in_container(&lab.node));
    let status = std::fs::read_to_string(format!("/proc/{}/status", tripod.pid())).unwrap();
    for address in service.cluster() {
        for host in lab.cluster_clients() {
            assert_eq!(ask(host, address).expect("a call"), "a", "{address}");
        }
        assert_eq!(udp_ask(&lab.client, address).expect("a call"), "a");
    }
    // NET_BIND_SERVICE, NET_ADMIN and NET_RAW alone (linux/capability.h).
    assert!(status.contains("CapEff:\t0000000000003400\n"), "{status}");
    assert_eq!(tripod.logged(&["WARN"]), 0, "there are warnings");
}

on_each_capture!(serves);

/// Starts it in this mode, or in the mode that it chooses.
fn start_in(lab: &Lab, mode: Option<&str>) -> Tripod {
    let mut command = in_container(&lab.node);
    command
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--hostname-override", "node", "--v", "2"])
        .arg("--cluster-cidr=10.244.0.0/24,fd00:244::/64")
        // The default of nftables mode is the addresses of the Node object, and there is none.
        .arg("--nodeport-addresses=0.0.0.0/0,::/0")
        .args(mode.map(|mode| format!("--proxy-mode={mode}")));
    Tripod::start_on(&lab.node, command)
}

fn with_a_service(body: impl FnOnce(&Lab, &Service) + Send) {
    lab::run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let service = Service::new("hello", 7).with_node_port();
        lab.publish_all(&service);
        body(&lab, &service);
    });
}

const ROUTE_LOCALNET: &str = "cat /proc/sys/net/ipv4/conf/all/route_localnet";

/// Counts the warnings about features that the kernel of a machine or of a guest lacks.
fn of_this_kernel(tripod: &Tripod) -> usize {
    let hash_size = tripod.logged(&["WARN", "hashsize"]);
    hash_size + tripod.logged(&["WARN", "not confined to its files: no Landlock here"])
}

/// ipvs mode if the kernel supports it, else nftables mode.
#[test]
fn the_best_mode_serves() {
    with_a_service(|lab, service| {
        let ipvs = kernel() == "full";
        init_container(&lab.node, "--v=2");
        let tripod = start_in(lab, None);
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
        let mode = if ipvs { "ipvs" } else { "nftables" };
        let mode = format!("mode={mode}");
        tripod.logs_once(&["starting", &mode]);
        let fallen_back = ["WARN", "running in nftables mode"];
        if !ipvs {
            tripod.logs_once(&fallen_back);
        }
        assert_eq!(tripod.logged(&fallen_back), usize::from(!ipvs));
        // Logged after the missing features.
        tripod.logs(&["INFO serving"]);
        let elsewhere = of_this_kernel(&tripod);
        assert_eq!(tripod.logged(&["WARN"]) - elsewhere, usize::from(!ipvs));
    });
}

#[test]
fn iptables_mode_serves() {
    with_a_service(|lab, service| {
        init_container(&lab.node, "--proxy-mode=iptables");
        // The setting and the rule belong together.
        let guard = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8";
        assert!(lab.node.show("iptables-save -t filter").contains(guard));
        assert_eq!(lab.node.show(ROUTE_LOCALNET).trim(), "1");
        let tripod = start_in(lab, Some("iptables"));
        let loopback = ([127, 0, 0, 1], service.node_port()).into();
        for address in [service.cluster()[0], loopback] {
            assert_eq!(ask(&lab.node, address).expect("a call"), "a", "{address}");
        }
        tripod.logs_once(&["starting", "mode=iptables"]);
        // Logged after the missing features.
        tripod.logs(&["INFO serving"]);
        let elsewhere = of_this_kernel(&tripod);
        assert_eq!(tripod.logged(&["WARN"]), elsewhere, "{}", tripod.log());
    });
}

/// Follows changes of the node's rules.
struct Monitor {
    process: Group,
    markers: u32,
}

impl Monitor {
    const FILE: &str = "/run/monitor";

    fn start(lab: &Lab) -> Monitor {
        let file = std::fs::File::create(Monitor::FILE).expect("a file");
        let mut command = lab.node.command("nft");
        let process = Group::spawn(command.arg("monitor").stdout(file));
        let mut monitor = Monitor {
            process: process.expect("starting nft"),
            markers: 0,
        };
        monitor.so_far(lab);
        monitor
    }

    /// All changes so far.
    fn so_far(&mut self, lab: &Lab) -> String {
        let mut seen = String::new();
        eventually("nft tells of a table", Duration::from_secs(20), || {
            self.markers += 1;
            let marker = format!("marker-{}", self.markers);
            lab.node.show(&format!("nft add table inet {marker}"));
            seen = std::fs::read_to_string(Monitor::FILE).unwrap_or_default();
            if seen.contains(&marker) {
                Ok(())
            } else {
                Err(seen.clone())
            }
        });
        seen
    }
}

/// Findings of the init container are not tried again among the node's own rules.
#[test]
fn nftables_mode_does_not_try_again_what_the_init_container_found() {
    is_not_tried_again("nftables", "table ip tripod", "table ip tripod-probe");
}

#[test]
fn iptables_mode_does_not_try_again_what_the_init_container_found() {
    is_not_tried_again("iptables", "KUBE-SERVICES", "TRIPOD-PROBE");
}

/// `made` shows that the mode serves, and `tried` that an ability was tried.
fn is_not_tried_again(mode: &'static str, made: &'static str, tried: &'static str) {
    with_a_service(move |lab, service| {
        let serves = |tripod: &Tripod| {
            tripod.logs_once(&["starting", &format!("mode={mode}")]);
            assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
        };
        init_container(&lab.node, &format!("--proxy-mode={mode}"));
        let mut monitor = Monitor::start(lab);
        let mut tripod = start_in(lab, Some(mode));
        serves(&tripod);
        tripod.terminate();
        let seen = monitor.so_far(lab);
        assert!(seen.contains(made), "{seen}");
        let found = seen.lines().find(|line| line.contains(tried));
        assert_eq!(found, None);
        assert_eq!(tripod.logged(&["WARN"]), 0, "{}", tripod.log());

        // Findings of another boot are not used, and a message says so.
        let path = "/run/tripod/kernel.json";
        let found = std::fs::read_to_string(path).expect("findings");
        let boot = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(boot).expect("an id");
        assert!(found.contains(boot.trim()), "{found}");
        std::fs::write(path, found.replace(boot.trim(), "another")).expect("writing");
        let tripod = start_in(lab, Some(mode));
        serves(&tripod);
        let words = ["ignoring the content", "they are of boot \"another\""];
        tripod.logs_once(&words);
        assert!(monitor.so_far(lab).contains(tried));
        monitor.process.kill();
    });
}

#[test]
fn without_the_init_container_it_serves_what_it_can() {
    with_a_service(|lab, service| {
        let falls_back = kernel() == "full";
        let tripod = start_in(lab, (!falls_back).then_some("iptables"));
        tripod.logs_once(&["starting", "mode=iptables"]);
        if falls_back {
            let warning = [
                "WARN",
                "ipvs mode cannot run here",
                "net.ipv4.vs.conntrack=1",
            ];
            tripod.logs_once(&warning);
        }
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
        assert_eq!(lab.node.show(ROUTE_LOCALNET).trim(), "0");
        let warning = ["WARN", "loopback", "net.ipv4.conf.all.route_localnet=1"];
        tripod.logs_once(&warning);
        let rules = lab.node.show("iptables-save");
        assert!(!rules.contains("block incoming localnet"), "{rules}");
    });
}

#[test]
fn guest_full_privileges() {
    let tests = [
        "deploy::privileges::the_best_mode_serves",
        "deploy::privileges::without_the_init_container_it_serves_what_it_can",
    ];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

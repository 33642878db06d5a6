//! `tripod diff`: nothing differs once everything is applied, and changes of another program are
//! named.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Printed, SOON, started, started_in, started_in_with, tripod};
use crate::lab::{
    Capture, Host, Lab, Service, Tripod, eventually,
    guest::{Profile, in_guest},
    run, tripod_binary,
};

/// A change by another program, and the words by which `tripod diff` must name it.
pub struct Change {
    /// The command to run, in the namespace of the node.
    pub command: &'static str,
    /// Words of the line that names it.
    pub named: &'static [&'static str],
}

impl Change {
    /// Makes the change over and over until the command `arguments` names it, and exits with
    /// `status`: the proxy may have repaired it before the command asks.
    pub fn is_named(&self, lab: &Lab, arguments: &[&str], status: i32) {
        let Change { command, named } = self;
        let again = format!("while :; do {command}; sleep 0.05; done");
        let mut shell = lab.node.command("sh");
        // Removing something a second time fails, which does not matter.
        shell.args(["-c", &again]).stderr(Stdio::null());
        let mut running = shell.spawn().expect("running sh");
        eventually(&format!("{command} is named"), BESIDE_REPAIRS, || {
            let printed = tripod(&lab.node, arguments);
            let mut lines = printed.text.lines();
            let names = |line: &str| named.iter().all(|words| line.contains(words));
            if lines.any(names) && printed.status == Some(status) {
                Ok(())
            } else {
                Err(format!("{printed:?}"))
            }
        });
        let ended = running.kill().and_then(|()| running.wait());
        ended.expect("the end of sh");
    }
}

fn diff(lab: &Lab) -> Printed {
    tripod(&lab.node, &["diff"])
}

fn nothing_differs(lab: &Lab) {
    eventually("nothing differs", SOON, || match diff(lab) {
        printed if printed.status == Some(0) => Ok(()),
        printed => Err(format!("{printed:?}")),
    });
}

/// How soon `tripod diff` must name a change that is repaired and made again all the time, which
/// keeps a guest's one processor busy.
const BESIDE_REPAIRS: Duration = Duration::from_secs(30);

fn changes_are_named(lab: &Lab, changes: &[Change]) {
    nothing_differs(lab);
    for change in changes {
        change.is_named(lab, &["diff"], 1);
        let json = tripod(&lab.node, &["diff", "--output=json"]).json();
        assert_eq!(json["kind"], "Diff");
        let yaml = tripod(&lab.node, &["diff", "-o", "yaml"]);
        let yaml: Value = serde_saphyr::from_str(&yaml.text).expect("YAML");
        assert_eq!(yaml["kind"], "Diff");
        let wide = tripod(&lab.node, &["diff", "-o", "wide"]);
        assert!(matches!(wide.status, Some(0 | 1)), "{wide:?}");
        assert!(!wide.text.contains("\"kind\""), "{wide:?}");
    }
}

/// Makes `changes` next to a proxy that `start` starts, which serves a Service.
fn beside(capture: Capture, start: impl FnOnce(&Lab) -> Tripod, changes: &[Change]) {
    run(|| {
        let mut lab = Lab::new(capture);
        let web = Service::new("web", 1).with_external_ip();
        lab.add_backends(&["a", "b"]).publish(&web, &["a", "b"]);
        let _running = start(&lab);
        changes_are_named(&lab, changes);
    });
}

fn served(mode: &str, capture: Capture, changes: &[Change]) {
    let start = |lab: &Lab| started_in(lab, mode);
    beside(capture, start, changes);
}

#[test]
fn in_nftables_mode() {
    served(
        "nftables",
        Capture::Redirect,
        &[
            Change {
                command: "nft flush map ip tripod services",
                named: &[
                    "missing",
                    "element 10.96.0.1 . tcp . 80",
                    "default/web:tcp TCP",
                ],
            },
            Change {
                command: "nft delete table ip6 tripod",
                named: &["missing", "table tripod of IPv6"],
            },
            Change {
                command: "nft delete table ip tripod",
                named: &[
                    "missing",
                    "element 10.96.0.1 . tcp . 80",
                    "default/web:tcp TCP",
                ],
            },
            Change {
                command: "nft add chain ip tripod another",
                named: &["unneeded", "chain another"],
            },
            Change {
                command: "nft add rule ip tripod refuse counter",
                named: &["altered", "chain refuse"],
            },
        ],
    );
}

#[test]
fn in_iptables_mode() {
    served(
        "iptables",
        Capture::Redirect,
        &[
            Change {
                command: "iptables -t nat -F KUBE-SERVICES",
                named: &[
                    "missing",
                    "-d 10.96.0.1/32",
                    "table nat",
                    "default/web:tcp TCP",
                ],
            },
            Change {
                command: "iptables -t nat -F KUBE-POSTROUTING",
                named: &["altered", "chain KUBE-POSTROUTING of table nat"],
            },
            Change {
                command: "iptables -t filter -A KUBE-FORWARD -j DROP",
                named: &["altered", "chain KUBE-FORWARD of table filter"],
            },
            Change {
                command: "iptables -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
                named: &["unneeded", "chain KUBE-SVC-AAAAAAAAAAAAAAAA"],
            },
            Change {
                command: "sysctl -w net.ipv4.conf.all.route_localnet=0",
                named: &[
                    "altered",
                    "net.ipv4.conf.all.route_localnet, which is 0, not 1",
                ],
            },
            Change {
                command: "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=60",
                named: &["altered", "close_wait, which is 60, not 3600"],
            },
        ],
    );
}

fn in_userspace_mode(capture: Capture, changes: &[Change]) {
    beside(capture, |lab| started(lab, &[]), changes);
}

#[test]
fn in_userspace_mode_with_rules() {
    in_userspace_mode(
        Capture::Redirect,
        &[Change {
            command: "iptables -t nat -F TRIPOD-USERSPACE",
            named: &[
                "missing",
                "rule -A TRIPOD-USERSPACE",
                "--dport 80",
                "table nat",
            ],
        }],
    );
}

#[test]
fn in_userspace_mode_with_routes() {
    in_userspace_mode(
        Capture::Local,
        &[Change {
            command: "ip rule del priority 77 ipproto tcp dport 80",
            named: &["missing", "IPv4 rule 77: ipproto 6 dport 80"],
        }],
    );
}

/// Lets another program close the listeners at these ports of the node, and checks that `diff`
/// names each with these words.
fn ended_listeners_are_named(lab: &Lab, ports: &[(u16, &[&str])]) {
    nothing_differs(lab);
    for (port, named) in ports {
        let kill = format!("ss --kill -tln sport = {port}");
        let killed = lab.node.command("sh").args(["-c", &kill]).output();
        assert!(killed.expect("running ss").status.success());
        let printed = diff(lab);
        let mut lines = printed.text.lines();
        let names = |line: &str| named.iter().all(|words| line.contains(words));
        assert!(lines.any(names) && printed.status == Some(1), "{printed:?}");
    }
}

#[test]
fn listeners_of_userspace_mode() {
    run(|| {
        let mut lab = Lab::new(Capture::Local);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let running = started(&lab, &[]);
        let listener = "listener 10.96.0.1:80/TCP";
        let named = ["missing", listener, "default/web:tcp TCP"];
        ended_listeners_are_named(&lab, &[(80, &named)]);
        // Closed listeners are not polled.
        running.spends_little_time();
        let to = web.cluster()[0].to_string();
        let explained = tripod(&lab.node, &["explain", "--to", &to]).text;
        assert!(
            explained.contains(&format!("missing  {listener}")),
            "{explained}"
        );
    });
}

#[test]
fn listeners_of_node_ports_on_localhost() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1).with_node_port();
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in_with(&lab, "nftables", &["--nodeport-addresses=localhost"]);
        let to = format!("127.0.0.1:{}", web.node_port());
        let listener = format!("listener {to}/TCP");
        let named = ["missing", &listener, "default/web:tcp TCP"];
        ended_listeners_are_named(&lab, &[(web.node_port(), &named)]);
        let explained = tripod(&lab.node, &["explain", "--to", &to, "--from", "node"]).text;
        assert!(
            explained.contains(&format!("missing  {listener}")),
            "{explained}"
        );
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn in_ipvs_mode() {
    served(
        "ipvs",
        Capture::Redirect,
        &[
            Change {
                command: "ipvsadm -C",
                named: &[
                    "missing",
                    "virtual server 10.96.0.1:80/TCP",
                    "default/web:tcp TCP",
                ],
            },
            Change {
                command: "ip address flush dev kube-ipvs0",
                named: &["missing", "address 10.96.0.1 of link kube-ipvs0"],
            },
            Change {
                command: "ipset flush KUBE-CLUSTER-IP",
                named: &["missing", "member 10.96.0.1,tcp:80 of set KUBE-CLUSTER-IP"],
            },
            Change {
                command: "iptables -t nat -F KUBE-SERVICES",
                named: &["chain KUBE-SERVICES of table nat"],
            },
            Change {
                command: "sysctl -w net.ipv4.vs.conntrack=0",
                named: &["altered", "net.ipv4.vs.conntrack, which is 0, not 1"],
            },
        ],
    );
}

/// Puts a script before each program that writes rules: if it changes rules of `node`, and not
/// those of a scratch namespace, it does not end. Returns the `PATH` for finding them.
fn endless_programs(node: &Host) -> String {
    const FOLDER: &str = "/run/endless";
    let path = std::env::var("PATH").unwrap_or_default();
    fs::create_dir_all(FOLDER).expect("a folder");
    let namespace = node.enter(|| fs::read_link("/proc/thread-self/ns/net"));
    let namespace = namespace.expect("a namespace");
    let script = format!(
        "#!/bin/sh\n\
         case \"$*:$(readlink /proc/self/ns/net)\" in *--noflush*:\"{}\") exec sleep 600 ;; esac\n\
         PATH='{path}' exec \"$(basename \"$0\")\" \"$@\"\n",
        namespace.display(),
    );
    for name in ["iptables-restore", "ip6tables-restore"] {
        let file = format!("{FOLDER}/{name}");
        fs::write(&file, &script).expect("a script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    format!("{FOLDER}:{path}")
}

/// Questions to the mode wait for its syncs. The first may take long; here it does not end.
#[test]
fn nothing_is_asked_of_a_mode_in_its_first_sync() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let mut command = lab.node.command(tripod_binary());
        command
            .env("PATH", endless_programs(&lab.node))
            .args(["--proxy-mode=iptables", "--hostname-override=node"])
            .args(["--conntrack-max-per-core=0", "--manifests"])
            .arg(lab.manifests());
        let running = Tripod::spawn(command);
        eventually("the Services are known", SOON, || {
            match tripod(&lab.node, &["services"]) {
                printed if printed.text.contains("default/web") => Ok(()),
                printed => Err(format!("{printed:?}\n{}", running.log())),
            }
        });
        let to = web.cluster()[0].to_string();
        for arguments in [&["diff"][..], &["explain", "--desired-only", "--to", &to]] {
            let begun = Instant::now();
            let printed = tripod(&lab.node, arguments);
            assert_eq!(printed.status, Some(2), "{printed:?}");
            let why = "error: the first sync is not complete: IPv4 has been in progress for ";
            assert!(printed.error.starts_with(why), "{printed:?}");
            assert!(begun.elapsed() < Duration::from_secs(5), "{arguments:?}");
        }
    });
}

#[test]
fn guest_full_ask_diff() {
    let tests = ["ask::diff::in_ipvs_mode", "ask::explain::in_ipvs_mode"];
    in_guest(Profile::Full, &tests, &[]);
}

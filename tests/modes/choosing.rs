//! The chosen mode, and the reports about it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::probe::{default_mode, kernel, node, state};
use crate::lab::{Capture, Host, Lab, Tripod, eventually, figure, get, run, tripod_binary};

fn start(node: &Host, manifests: &std::path::Path) -> Tripod {
    let mut command = node.command(tripod_binary());
    command
        .arg("--manifests")
        .arg(manifests)
        .args(["--hostname-override=node", "--cluster-cidr=10.244.0.0/24"]);
    Tripod::start_on(node, command)
}

#[test]
fn the_default_is_the_best_that_the_kernel_can_and_why_is_logged() {
    run(|| {
        let lab = Lab::new(Capture::Local);
        let begun = Instant::now();
        let tripod = start(&lab.node, lab.manifests());
        figure("start to ready", format!("{:.1?}", begun.elapsed()));
        let mode = default_mode();
        let at = SocketAddr::from(([127, 0, 0, 1], 10249));
        let answer = get(&lab.node, at, "/proxyMode").expect("an answer");
        assert!(answer.ends_with(mode), "{answer}");
        let status = get(&lab.node, at, "/statusz").expect("an answer");
        let metrics = get(&lab.node, at, "/metrics").expect("an answer");
        assert!(metrics.contains(&format!("tripod_mode{{mode=\"{mode}\"}} 1")));
        let fallback = metrics
            .lines()
            .find(|line| line.starts_with("tripod_mode_fallback{"))
            .expect("the metric");
        let better: &[&str] = match mode {
            "ipvs" => &[],
            "nftables" => &["ipvs"],
            _ => &["ipvs", "nftables", "iptables"],
        };
        let missing = match mode {
            "ipvs" => "",
            "nftables" => "ipvs,dummy",
            _ => {
                "ipvs,dummy,ipset-hash-ip,ipset-hash-ip-port,ipset-hash-ip-port-ip,\
                 ipset-hash-ip-port-net,ipset-bitmap-port,nat,nft"
            }
        };
        // No mode was named, so there is nothing to alert about.
        let expected = format!("tripod_mode_fallback{{reason=\"{missing}\"}} 0");
        assert_eq!(fallback, expected);
        for mode in better {
            let words = format!("{mode} mode cannot run here");
            tripod.logs_once(&["WARN", &words]);
            assert!(status.contains(&words), "{status}");
        }
        assert_eq!(tripod.logged(&["mode cannot run here"]), better.len());
    });
}

/// Runs the command until it ends by itself.
fn ended(mut command: Command) -> (Option<i32>, String) {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .expect("running tripod");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

#[test]
fn a_strict_choice_ends_with_the_table() {
    run(|| {
        if kernel() == "full" {
            return;
        }
        let node = node();
        let before = state(&node);
        let mut command = node.command(tripod_binary());
        command.args(["--proxy-mode=ipvs", "--strict-proxy-mode"]);
        command.args(["--manifests=/run", "--conntrack-max-per-core=0"]);
        let (status, stderr) = ended(command);
        assert_eq!(status, Some(1), "{stderr}");
        for words in [
            "--strict-proxy-mode",
            "IPVS",
            "modprobe ip_vs",
            "userspace ",
        ] {
            assert!(stderr.contains(words), "no {words:?} in:\n{stderr}");
        }
        assert_eq!(before, state(&node));
    });
}

#[test]
fn without_privileges_one_sentence_says_which_are_needed() {
    run(|| {
        let node = node();
        let before = state(&node);
        for (arguments, expected) in [
            (&["--manifests=/run"][..], 1),
            (&["--init-only"], 1),
            (&["cleanup"], 1),
            (&["probe"], 1),
            (&["trace", "10.96.0.1:80"], 2),
            (&["migrate"], 2),
        ] {
            let mut command = node.command("setpriv");
            command
                .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"])
                .arg(tripod_binary())
                .args(arguments);
            let (status, stderr) = ended(command);
            assert_eq!(status, Some(expected), "{arguments:?}: {stderr}");
            let lines = stderr.lines().filter(|line| !line.contains(" INFO "));
            let [line] = &lines.collect::<Vec<_>>()[..] else {
                panic!("{arguments:?}: {stderr}");
            };
            for words in ["needs the privileges of root", "CAP_NET_ADMIN", "sudo"] {
                assert!(line.contains(words), "{arguments:?}: {line}");
            }
        }
        assert_eq!(before, state(&node));
    });
}

/// A PATH on which every iptables program hangs.
fn hanging_programs() -> String {
    let folder = "/run/hanging";
    fs::create_dir_all(folder).expect("a folder");
    for program in ["iptables", "ip6tables"] {
        for variant in ["", "-nft", "-legacy"] {
            for what in ["", "-restore", "-save"] {
                let path = format!("{folder}/{program}{variant}{what}");
                fs::write(&path, "#!/bin/sh\nexec sleep 600\n").expect("a script");
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
            }
        }
    }
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{folder}:{path}")
}

/// The first process of a PID namespace, like that of a container, gets only signals that it
/// handles. This one is still finding out what the kernel can do.
#[test]
fn a_signal_ends_the_first_process_of_a_container_while_it_starts() {
    run(|| {
        let lab = Lab::new(Capture::Local);
        let mut command = lab.node.command("unshare");
        command
            .args(["--pid", "--fork", "--kill-child"])
            .arg(tripod_binary())
            .args(["--proxy-mode=iptables", "--hostname-override=node"])
            .arg("--manifests")
            .arg(lab.manifests())
            .env("PATH", hanging_programs());
        let mut tripod = Tripod::spawn(command);
        let at = SocketAddr::from(([127, 0, 0, 1], 10256));
        eventually("it answers probes", Duration::from_secs(20), || {
            get(&lab.node, at, "/healthz").map_err(|error| error.to_string())
        });
        let pid = tripod.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("the process of unshare");
        let first = children.trim().parse().expect("one child");
        kill(Pid::from_raw(first), Signal::SIGTERM).expect("it runs");
        assert!(tripod.ended().success(), "{}", tripod.log());
        assert_eq!(tripod.logged(&["are applied"]), 0, "{}", tripod.log());
    });
}

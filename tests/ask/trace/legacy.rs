//! `tripod trace` where the rules are in the legacy tables: the kernel tells steps by
//! target TRACE and nfnetlink_log, and is as it was before when the trace ends.

use std::{net::SocketAddr, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Output, Trace, calls_are_followed_in, endpoint, passes};
use crate::{
    ask::{SOON, started, started_in, tripod},
    lab::{Capture, Host, Lab, Service, ask, eventually, run, tripod_binary},
};

/// The programs and the number of each family.
const FAMILIES: [(&str, &str); 2] = [("iptables-legacy", "2"), ("ip6tables-legacy", "10")];

/// Runs a program on the node, which must succeed, and returns what it prints.
fn done(node: &Host, program: &str, arguments: &[&str]) -> String {
    let output = node.command(program).args(arguments).output();
    let output = output.expect("running it");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Has Tripod take the legacy tables, as the kubelet would.
fn hint(lab: &Lab) {
    for (program, _) in FAMILIES {
        let chain = ["-w", "5", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"];
        done(&lab.node, program, &chain);
    }
}

/// What a trace changes: the rules of table raw, and the logger.
fn state(lab: &Lab) -> [String; 2] {
    FAMILIES.map(|(program, number)| {
        let names = done(&lab.node, "cat", &["/proc/net/ip_tables_names"])
            + &done(&lab.node, "cat", &["/proc/net/ip6_tables_names"]);
        let rules = match names.contains("raw") {
            true => done(&lab.node, program, &["-w", "5", "-t", "raw", "-S"]),
            false => String::new(),
        };
        let rules = rules.lines().filter(|line| line.starts_with("-A"));
        let path = format!("/proc/sys/net/netfilter/nf_log/{number}");
        rules.collect::<Vec<_>>().join("\n") + "; " + &done(&lab.node, "cat", &[&path])
    })
}

#[test]
fn in_iptables_mode() {
    let rule = [
        "rule \"default/web:tcp",
        "of table nat (iptables-legacy): jump KUBE-SVC-",
    ];
    let refusing = [
        "rule \"default/web:tcp",
        "of table filter (iptables-legacy): reject",
    ];
    calls_are_followed_in(hint, "iptables", &rule, &refusing);
}

#[test]
fn userspace_mode_relays() {
    published(|lab, to| {
        let _running = started(lab, &[]);
        let trace = Trace::begin(lab, &to.to_string(), &["--count=1"]);
        assert_eq!(trace.start["mode"], "userspace");
        assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        let output = trace.end();
        assert_eq!(output.connections[0]["outcome"], "relayed", "{output:#?}");
        passes(&output.connections[0], &["of table nat (iptables-legacy)"]);
    });
}

/// Runs `body` where Tripod would take the legacy tables, with an address of a Service.
fn published(body: impl FnOnce(&mut Lab, SocketAddr)) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        hint(&lab);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        body(&mut lab, web.cluster()[0]);
    });
}

/// The same in iptables mode, with what a trace finds there.
fn served(body: impl FnOnce(&mut Lab, SocketAddr, [String; 2])) {
    published(|lab, to| {
        let _running = started_in(lab, "iptables");
        let before = state(lab);
        body(lab, to, before);
    });
}

#[test]
fn who_drops_is_named_and_all_is_as_before_at_the_end() {
    served(|lab, to, before| {
        assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        let pod = endpoint(lab, "a", 0);
        let (pod, _) = pod.split_once(':').expect("an address");
        let rule = ["-w", "5", "-I", "FORWARD", "-d", pod, "-j", "DROP"];
        done(&lab.node, "iptables-legacy", &rule);
        let trace = Trace::begin(lab, &to.to_string(), &["--count=1"]);
        assert!(state(lab)[0].contains("-j TRACE"), "{:?}", state(lab));
        assert!(state(lab)[0].contains("; nfnetlink_log"));
        let _call = lab.client.enter(|| super::begin(to));
        let Output { connections, .. } = trace.end();
        assert_eq!(connections[0]["outcome"], "dropped", "{connections:#?}");
        let by = "rule number 1 of chain FORWARD of table filter (iptables-legacy)";
        assert_eq!(connections[0]["by"], by, "{connections:#?}");
        assert_eq!(state(lab), before);
    });
}

#[test]
fn signals_end_it_and_what_a_killed_one_leaves_is_removed() {
    published(|lab, to| {
        let running = started_in(lab, "iptables");
        let before = state(lab);
        let to = to.to_string();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let trace = Trace::begin(lab, &to, &["--count=1000"]);
            assert_ne!(state(lab), before);
            let pid = Pid::from_raw(trace.process.id() as i32);
            kill(pid, signal).expect("it runs");
            trace.end();
            assert_eq!(state(lab), before, "{signal}");
        }
        killed(lab, &to);
        assert_ne!(state(lab), before);
        Trace::begin(lab, &to, &["--timeout=100ms"]).end();
        assert_eq!(state(lab), before, "by another trace");
        killed(lab, &to);
        assert_ne!(state(lab), before);
        // It would put its own rules back meanwhile.
        drop(running);
        let cleanup = tripod(&lab.node, &["--cleanup"]);
        assert_eq!(cleanup.status, Some(0), "{cleanup:?}");
        assert_eq!(state(lab), before, "by a cleanup");
    });
}

/// Begins a trace, and kills it.
fn killed(lab: &Lab, to: &str) {
    let mut trace = Trace::begin(lab, to, &["--count=1000"]);
    trace.process.kill().expect("it runs");
    trace.process.wait().expect("its status");
}

#[test]
fn what_a_killed_one_leaves_is_removed_when_the_proxy_begins() {
    published(|lab, to| {
        let running = started_in(lab, "iptables");
        let before = state(lab);
        killed(lab, &to.to_string());
        assert_ne!(state(lab), before);
        drop(running);
        let _running = started_in(lab, "iptables");
        eventually("the rules of the trace are gone", SOON, || {
            match state(lab) {
                now if now == before => Ok(()),
                now => Err(format!("{now:?}")),
            }
        });
    });
}

#[test]
fn a_second_one_says_that_another_has_the_packets() {
    served(|lab, to, before| {
        let first = Trace::begin(lab, &to.to_string(), &["--count=1"]);
        let second = Trace::begin(lab, &to.to_string(), &["--timeout=100ms"]);
        let unseen = second.start["unseen"].to_string();
        for words in ["rules of iptables-legacy", "group 0 of nfnetlink_log"] {
            assert!(unseen.contains(words), "no {words:?} in {unseen}");
        }
        second.end();
        // The first one goes on.
        assert_eq!(ask(&lab.client, to).expect("an answer"), "a");
        let output = first.end();
        passes(
            &output.connections[0],
            &["(iptables-legacy): jump KUBE-SVC-"],
        );
        assert_eq!(state(lab), before);
    });
}

#[test]
fn it_says_what_is_missing_and_ends_when_nobody_reads() {
    served(|lab, to, before| {
        // Without the programs of the legacy tables.
        let mut command = lab.node.command("sh");
        let empty = "mount -t tmpfs none /usr/sbin && exec \"$0\" \"$@\"";
        command
            .args(["-c", &format!("mount --make-rprivate / && {empty}")])
            .arg(tripod_binary())
            .args(["trace", "--timeout=100ms", "--to", &to.to_string()]);
        let mut isolated = lab.node.command("unshare");
        isolated
            .arg("-m")
            .arg(command.get_program())
            .args(command.get_args());
        let printed = isolated.output().expect("running it");
        let text = String::from_utf8_lossy(&printed.stdout);
        assert!(text.contains("install iptables-legacy"), "{printed:?}");
        let mut trace = lab.node.command(tripod_binary());
        trace
            .args(["trace", "--to", &to.to_string(), "--timeout=30s"])
            .stdout(Stdio::piped());
        let mut trace = trace.spawn().expect("starting tripod");
        drop(trace.stdout.take());
        let status = eventually("it ends", SOON, || {
            let _ = ask(&lab.client, to);
            let status = trace.try_wait().expect("its status");
            status.ok_or_else(|| "it runs".to_owned())
        });
        assert!(status.success(), "{status}");
        assert_eq!(state(lab), before);
    });
}

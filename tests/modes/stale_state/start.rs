//! Starting over leftovers: afterwards there is exactly what others own, and what the same mode has
//! on a clean node.

use std::process::Command;
use std::time::Duration;

use super::super::probe::{kernel, node};
use super::cleanup::clean_up;
use super::foreign::{EXCLUDED, foreign};
use super::state::State;
use super::{engines, left};
use crate::lab::recorded::{Case, FLAGS};
use crate::lab::{Host, Tripod, eventually, run, tripod_binary};

/// Time that a mode may take until it is applied, in a slow guest.
pub const SOON: Duration = Duration::from_secs(60);

/// The Services that are served, and those that left something: partly the same names at other
/// addresses.
const NOW: &str = "10-lb-etp-local-healthcheck";
const THEN: &str = "05-nodeport";

pub const MANIFESTS: &str = "/run/manifests";

fn serve(case: &Case) {
    std::fs::create_dir_all(MANIFESTS).expect("a folder");
    case.write_manifests(MANIFESTS.as_ref());
}

/// Starts a Tripod with these flags, and waits until its rules are applied and leftovers are
/// removed.
pub fn start(node: &Host, flags: &[&str]) -> Tripod {
    start_by(node, flags, |_| ())
}

/// Like [`start`], with `prepare` applied to its command.
pub fn start_by(node: &Host, flags: &[&str], prepare: impl FnOnce(&mut Command)) -> Tripod {
    let mut command = node.command(tripod_binary());
    command
        .args(flags)
        .arg(format!("--manifests={MANIFESTS}"))
        .args(["--strict-proxy-mode", "--v=4", EXCLUDED])
        .arg("--userspace-drain-timeout=1s")
        .args(FLAGS);
    prepare(&mut command);
    let tripod = Tripod::spawn(command);
    eventually("it has cleared up", SOON, || {
        match tripod.logged(&["there are no rules of other modes"]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    tripod
}

/// Starts with `flags` over every possible leftover on this kernel, on a node whose kubelet has its
/// rules in `engine`.
fn over_everything(flags: &[&str], engine: &str) {
    let (now, then) = (left::case(NOW), left::case(THEN));
    let other = engines().iter().find(|other| **other != engine);
    let node = node();
    foreign(&node, engine);
    let before = State::of(&node);
    let round = || {
        let mut tripod = start(&node, flags);
        let state = State::of(&node);
        assert!(tripod.terminate().success());
        clean_up(&node);
        before.assert_same(&State::of(&node), "after cleanup");
        state
    };
    serve(&now);
    let expected = round();

    let kube_proxys = |case, mode, in_engine| {
        left::kube_proxys(&node, case, mode, in_engine, engine);
    };
    if kernel() == "full" {
        // System calls are slow there, so only the cases that need that kernel are tested.
        kube_proxys(&now, "ipvs", engine);
        expected.assert_same(&round(), "over kube-proxy's ipvs mode");
        if flags == ["--proxy-mode=ipvs"] {
            // First, since it cleans up after the others itself.
            serve(&then);
            left::userspace(&node, MANIFESTS, "redirect", engine);
            kube_proxys(&then, "ipvs", engine);
            kube_proxys(&then, "iptables", engine);
            serve(&now);
            expected.assert_same(&round(), "over all modes, of other Services");
        }
        return;
    }
    // kube-proxy served the same Services, and earlier others in another engine.
    kube_proxys(&now, "iptables", engine);
    if let Some(other) = other {
        kube_proxys(&then, "iptables", other);
    }
    left::nftables(&node);
    expected.assert_same(&round(), "over kube-proxy's iptables and nftables modes");

    // Each cleans up after the previous one, of another engine or capture.
    serve(&then);
    left::userspace(&node, MANIFESTS, "local", engine);
    for engine in engines() {
        left::userspace(&node, MANIFESTS, "redirect", engine);
    }
    kube_proxys(&then, "iptables", engine);
    serve(&now);
    expected.assert_same(&round(), "over Tripod's userspace mode");
}

macro_rules! over_everything {
    ($($name:ident: $flags:expr, $kernels:expr, $engine:expr;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if $kernels.contains(&kernel().as_str()) {
                    over_everything(&$flags, $engine);
                }
            });
        }
    )+ };
}

over_everything! {
    ipvs: ["--proxy-mode=ipvs"], ["full"], "legacy";
    iptables_nft: ["--proxy-mode=iptables"], ["host"], "nft";
    iptables_legacy: ["--proxy-mode=iptables"], ["host", "full"], "legacy";
    userspace_redirect: ["--proxy-mode=userspace", "--userspace-capture=redirect"],
        ["host", "full"], engines()[0];
    userspace_local: ["--proxy-mode=userspace", "--userspace-capture=local"],
        ["host"], engines()[0];
}

#[test]
fn an_engine_that_nobody_uses_stays_unused() {
    run(|| {
        if kernel() != "host" {
            return;
        }
        serve(&left::case(NOW));
        let legacy = ["ip_tables_names", "ip6_tables_names"];
        for (engine, other) in [("nft", "legacy"), ("legacy", "nft")] {
            let node = node();
            for of in ["iptables", "ip6tables"] {
                let hint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
                super::restore(&node, engine, of, hint);
            }
            let mut tripod = start(&node, &["--proxy-mode=iptables"]);
            let tables = match other {
                "nft" => node.show("nft list tables"),
                _ => legacy
                    .map(|f| node.show(&format!("cat /proc/net/{f}")))
                    .concat(),
            };
            assert_eq!(tables, "", "{other} next to {engine}");
            tripod.terminate();
        }
    });
}

#[test]
fn nothing_goes_before_there_is_something_to_serve() {
    run(|| {
        let engine = engines()[0];
        let node = node();
        foreign(&node, engine);
        let mode = match kernel().as_str() {
            "full" => "ipvs",
            _ => "iptables",
        };
        left::kube_proxys(&node, &left::case(NOW), mode, engine, engine);
        left::nftables(&node);
        let before = State::of(&node);
        let kubeconfig = "/run/kubeconfig";
        // Nothing listens at that address.
        let text = "{apiVersion: v1, kind: Config, current-context: it, \
                    contexts: [{name: it, context: {cluster: it, user: it}}], \
                    clusters: [{name: it, cluster: {server: 'http://127.0.0.1:1'}}], \
                    users: [{name: it, user: {token: secret}}]}";
        std::fs::write(kubeconfig, text).expect("writing it");
        let modes: &[&str] = match kernel().as_str() {
            "full" => &["ipvs"],
            _ => &["nftables", "iptables", "userspace"],
        };
        for mode in modes {
            let mut command = node.command(tripod_binary());
            command
                .args([&format!("--proxy-mode={mode}"), "--v=4"])
                .arg(format!("--kubeconfig={kubeconfig}"))
                .args(FLAGS);
            let mut tripod = Tripod::spawn(command);
            // Three kinds of objects are watched.
            eventually("it has tried more than once", SOON, || {
                match tripod.logged(&["trying again"]) {
                    0..4 => Err(tripod.log()),
                    _ => Ok(()),
                }
            });
            before.assert_same(&State::of(&node), mode);
            assert!(tripod.terminate().success());
            before.assert_same(&State::of(&node), mode);
        }
    });
}

//! `tripod cleanup` removes Tripod's and kube-proxy's objects, and leaves everything else.

use super::super::probe::{kernel, node};
use super::foreign::{EXCLUDED, foreign};
use super::state::State;
use super::{engines, left};
use crate::lab::{Host, run, tripod_binary};

/// These recorded cases together contain every kind of object that kube-proxy installs.
const CASES: [&str; 5] = [
    "04-session-affinity",
    "05-nodeport",
    "09-lb-source-ranges",
    "10-lb-etp-local-healthcheck",
    "17-dualstack",
];

pub fn clean_up(node: &Host) {
    node.show(&format!("{} cleanup {EXCLUDED}", tripod_binary().display()));
}

#[test]
fn cleanup_leaves_exactly_what_is_others() {
    run(|| {
        let kubelet = engines()[0];
        let node = node();
        foreign(&node, kubelet);
        let before = State::of(&node);
        for (number, name) in CASES.iter().enumerate() {
            let case = left::case(name);
            let mode = match (kernel().as_str(), number) {
                ("full", 1..) => "ipvs",
                _ => "iptables",
            };
            let engine = engines()[number % engines().len()];
            left::kube_proxys(&node, &case, mode, engine, kubelet);
            left::nftables(&node);
            assert!(!before.differences(&State::of(&node)).is_empty());
            clean_up(&node);
            let when = format!("{name}, {mode} in {engine}");
            before.assert_same(&State::of(&node), &when);
        }
        clean_up(&node);
        before.assert_same(&State::of(&node), "twice");
    });
}

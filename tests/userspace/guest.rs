//! The hardest minimal kernel: no netfilter, and no way to get it.

use std::time::Duration;

use crate::lab::{Share, figure, run, skip, uml};

/// Run inside, one after the other: the guest has one processor.
const INSIDE: [&str; 8] = [
    "lab::checks::",
    "userspace::addresses::cluster_ips_answer::local",
    "userspace::addresses::node_ports_answer::local",
    "userspace::addresses::external_and_load_balancer_ips_answer::local",
    "userspace::affinity::clients_stick_to_their_endpoint::local",
    "userspace::affinity::a_client_moves_when_its_endpoint_goes_and_stays_there::local",
    "userspace::refused::a_service_without_endpoints_refuses::local",
    "userspace::capture::nothing_is_left_after_cleanup::local",
];

#[test]
fn guest_bare_userspace() {
    if let Some(reason) = uml::unavailable() {
        return skip(concat!(module_path!(), "::guest_bare_userspace"), &reason);
    }
    // The guest needs no room; the lock of one it does, for its time limit.
    let name = concat!(module_path!(), "::guest_bare_userspace");
    run(name, Share::Alone, || {
        let arguments = [
            &INSIDE[..],
            &[
                "no_netfilter_here",
                "--include-ignored",
                "--test-threads=1",
                "--color=never",
            ],
        ]
        .concat();
        let environment = [("TRIPOD_LAB_CAPTURE", "auto"), ("CI", "true")];
        let outcome = uml::run(
            uml::Profile::Bare,
            &arguments,
            &environment,
            Duration::from_secs(85),
        );
        assert_eq!(
            outcome.status,
            Some(0),
            "the guest said:\n{}",
            outcome.console
        );
        // Each name must have met a test, the laboratory's own included.
        for name in INSIDE.iter().chain(&["no_netfilter_here"]) {
            let met = outcome
                .console
                .lines()
                .any(|l| l.starts_with("test ") && l.contains(name) && l.ends_with("ok"));
            assert!(met, "{name} did not run in the guest:\n{}", outcome.console);
        }
        figure("bare guest, boot and tests", format!("{:?}", outcome.took));
    });
}

#[test]
#[ignore = "for a guest kernel without netfilter"]
fn no_netfilter_here() {
    for tool in ["iptables", "iptables-legacy"] {
        let output = std::process::Command::new(tool)
            .args(["-t", "nat", "-S"])
            .output();
        let output = output.expect("running iptables");
        assert!(!output.status.success(), "{tool} works here: {output:?}");
    }
}

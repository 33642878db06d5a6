//! Userspace mode on other kernels: one without netfilter, the hardest minimal kernel,
//! and one with only the legacy iptables.

use crate::lab::{Capture, Lab, Service, Tripod, ask, guest, run, tripod_binary};

/// Tests that run inside, one after the other: the guest has one processor.
const ON_A_BARE_KERNEL: [&str; 10] = [
    "userspace::guest::no_netfilter_here",
    "userspace::guest::transparent_says_what_is_missing_and_serves",
    "lab::checks::",
    "userspace::addresses::cluster_ips_answer::local",
    "userspace::addresses::node_ports_answer::local",
    "userspace::addresses::external_and_load_balancer_ips_answer::local",
    "userspace::affinity::clients_stick_to_their_endpoint::local",
    "userspace::affinity::a_client_moves_when_its_endpoint_goes_and_stays_there::local",
    "userspace::refused::a_service_without_endpoints_refuses::local",
    "userspace::capture::nothing_is_left_after_cleanup::local",
];

const ON_A_KERNEL_WITH_MODULES: [&str; 5] = [
    "userspace::guest::ipvs_and_legacy_iptables_here",
    "userspace::addresses::cluster_ips_answer::redirect",
    "userspace::refused::a_service_without_endpoints_refuses::redirect",
    "userspace::capture::nothing_is_left_after_cleanup::redirect",
    "userspace::transparent::callers_from_elsewhere_are_seen::redirect",
];

/// Tests for kernels that count socket buffers as memory of the process.
const WITH_CGROUPS_OF_VERSION_2: [&str; 2] = [
    "userspace::overload::backends_that_never_read::local",
    "userspace::overload::clients_that_never_read::local",
];

#[test]
fn guest_full_overload() {
    guest::in_guest(guest::Profile::Full, &WITH_CGROUPS_OF_VERSION_2, &[]);
}

#[test]
fn guest_bare_userspace() {
    in_guest(guest::Profile::Bare, &ON_A_BARE_KERNEL);
}

#[test]
fn guest_full_userspace() {
    in_guest(guest::Profile::Full, &ON_A_KERNEL_WITH_MODULES);
}

/// Runs tests in a guest. Tripod has to find out by itself which capture works there.
fn in_guest(profile: guest::Profile, names: &[&str]) {
    guest::in_guest(profile, names, &[("TRIPOD_LAB_CAPTURE", "auto")]);
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

#[test]
#[ignore = "for a guest kernel without netfilter"]
fn transparent_says_what_is_missing_and_serves() {
    run(|| {
        let mut lab = Lab::new(Capture::Local);
        let web = Service::new("web", 10).with_external_ip();
        lab.three_backends().publish_all(&web);
        let mut command = lab.node.command(tripod_binary());
        command.arg("--userspace-transparent");
        let tripod = Tripod::start_as(&lab, command);
        for family in ["IPv4", "IPv6"] {
            let message = [
                "--userspace-transparent does nothing for",
                family,
                "xt_socket",
            ];
            tripod.logs_once(&message);
        }
        for to in web.external() {
            ask(&lab.outside, to).expect("an answer");
        }
    });
}

#[test]
#[ignore = "for a guest kernel with all of its modules"]
fn ipvs_and_legacy_iptables_here() {
    assert!(std::path::Path::new("/proc/net/ip_vs").exists(), "no IPVS");
    let output = std::process::Command::new("iptables")
        .args(["-t", "nat", "-S"])
        .output();
    assert!(
        output.as_ref().is_ok_and(|output| output.status.success()),
        "{output:?}"
    );
}

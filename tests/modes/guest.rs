//! The tests of modes on other kernels.

use super::probe::KERNEL;
use crate::lab::guest;

#[test]
fn guest_full_modes() {
    let tests = [
        "modes::probe::",
        "modes::choosing::",
        "modes::example::",
        "modes::first_answer::",
        "modes::links::",
        "modes::slow_start::",
        "modes::none_ready::",
        "modes::switching::modes::",
    ];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_stale_state() {
    let tests = ["modes::stale_state::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

/// Those of these environment variables that have a value.
fn asked(names: [&'static str; 2]) -> Vec<(&'static str, String)> {
    let asked = names.map(|name| (name, std::env::var(name).unwrap_or_default()));
    asked
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Runs tests in a guest, with those of these environment variables that have a value.
fn in_full_guest_as_asked(tests: &[&str], names: [&'static str; 2]) {
    let asked = asked(names);
    let asked = asked.iter().map(|(name, value)| (*name, &**value));
    let environment: Vec<(&str, &str)> = asked.chain([(KERNEL, "full")]).collect();
    guest::in_guest(guest::Profile::Full, tests, &environment);
}

#[test]
fn guest_full_convergence() {
    let names = ["TRIPOD_CONVERGENCE", "TRIPOD_CONVERGENCE_SEED"];
    in_full_guest_as_asked(&["modes::convergence::"], names);
}

/// Separate from the other tests of surges because it counts as many hand-overs as asked.
#[test]
fn guest_full_hand_overs() {
    let test = "modes::surge::promises_hold_in_many_hand_overs::ipvs";
    let names = ["TRIPOD_ACCEPTANCE", "TRIPOD_HAND_OVERS"];
    in_full_guest_as_asked(&[test], names);
}

#[test]
fn guest_full_real_calls() {
    let tests = ["simulation::real_calls::ipvs"];
    let asked = asked(["TRIPOD_REAL_CALLS", "TRIPOD_REAL_CALLS_SEED"]);
    let environment: Vec<_> = asked
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    guest::unit_tests_in_guest(guest::Profile::Full, &tests, &environment);
}

#[test]
fn guest_full_migrate() {
    let tests = ["modes::migrate::", "modes::changes::node_ports"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_chosen() {
    let tests = ["modes::chosen::a_service_", "modes::chosen::the_next_"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_takes_over() {
    let tests = ["modes::switching::from_kube_proxy::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_families() {
    let tests = ["modes::families::in_guest::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

/// Tests of the protection of others in ipvs mode: from hostile objects, and by the privileges that
/// Tripod gives up.
#[test]
fn guest_full_hostile() {
    let tests = ["modes::hostile::", "modes::confined::a_mode_keeps"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_crowd() {
    let tests = ["modes::crowd::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_bare_modes() {
    let tests = ["modes::probe::", "modes::choosing::", "modes::example::"];
    guest::in_guest(guest::Profile::Bare, &tests, &[(KERNEL, "bare")]);
}

/// Separate from the others because it removes a module.
#[test]
fn guest_full_without_sctp_match() {
    let tests = ["modes::sctp::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_ejection() {
    let tests = ["modes::ejection::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

#[test]
fn guest_full_surge() {
    let tests = ["modes::surge::"];
    guest::in_guest(guest::Profile::Full, &tests, &[(KERNEL, "full")]);
}

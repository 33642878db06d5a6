//! ipvs mode in a kernel that has IPVS.

use std::time::Duration;

use crate::lab::{Share, figure, run, skip, uml};

#[test]
fn guest_full_ipvs_recordings() {
    let name = concat!(module_path!(), "::guest_full_ipvs_recordings");
    in_guest(name, &["ipvs::vectors::in_guest::"]);
}

#[test]
fn guest_full_ipvs_behaviour() {
    let name = concat!(module_path!(), "::guest_full_ipvs_behaviour");
    in_guest(
        name,
        &[
            "ipvs::adoption::",
            "ipvs::drain::",
            "ipvs::order::",
            "ipvs::repair::",
        ],
    );
}

fn in_guest(test: &str, names: &[&str]) {
    if let Some(reason) = uml::unavailable() {
        return skip(test, &reason);
    }
    run(test, Share::Alone, || {
        let flags = ["--include-ignored", "--test-threads=1", "--color=never"];
        let arguments = [names, &flags].concat();
        let limit = Duration::from_secs(235);
        let outcome = uml::run(uml::Profile::Full, &arguments, &[("CI", "true")], limit);
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        for name in names {
            let met = outcome
                .console
                .lines()
                .any(|l| l.starts_with(&format!("test {name}")) && l.ends_with("ok"));
            assert!(met, "no test {name} in the guest");
        }
        figure(
            &format!("guest with {names:?}"),
            format!("{:?}", outcome.took),
        );
    });
}

//! The guest that the other tests of this folder run in.

use std::time::Duration;

use crate::lab::{Share, figure, run, skip, uml};

const TESTS: [&str; 3] = [
    "ipvs::kernel::links::",
    "ipvs::kernel::load::",
    "ipvs::kernel::servers::",
];

#[test]
fn guest_full_ipvs_kernel() {
    let test = concat!(module_path!(), "::guest_full_ipvs_kernel");
    let tools = ["ipvsadm", "ipset"].into_iter().find(|t| !installed(t));
    let tools = tools.map(|tool| format!("no {tool}: apt-get install ipvsadm ipset"));
    if let Some(reason) = uml::unavailable().or(tools) {
        return skip(test, &reason);
    }
    run(test, Share::Alone, || {
        let flags = ["--include-ignored", "--test-threads=1", "--color=never"];
        let arguments = [&TESTS[..], &flags].concat();
        let limit = Duration::from_secs(200);
        let outcome = uml::run(uml::Profile::Full, &arguments, &[("CI", "true")], limit);
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        for line in outcome.console.lines() {
            if let Some((_, measured)) = line.split_once("FIGURE ") {
                let (name, value) = measured.split_once(": ").unwrap_or((measured, ""));
                figure(&format!("guest, {name}"), value);
            }
        }
        for name in TESTS {
            let start = format!("test {name}");
            let met = outcome.console.lines().any(|line| line.starts_with(&start));
            assert!(met, "no test {name} in the guest");
        }
    });
}

fn installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).exists())
}

//! nftables mode runs no other program.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::with_flags;
use crate::lab::{self, Capture, Lab, Service, Tripod, ask, eventually, tripod_binary};

const SOON: Duration = Duration::from_secs(10);
const CHANGES: usize = 100;

/// A command that runs Tripod on the node and records in `file` which programs Tripod, or a child
/// process, starts. The process is Tripod's; the tracer runs separately.
fn traced(lab: &Lab, file: &str) -> Command {
    let mut command = lab.node.command("strace");
    command
        .args(["-D", "-f", "--quiet=all", "--trace=execve,execveat", "-o"])
        .arg(file)
        .arg(tripod_binary());
    command
}

/// Asserts that no program except Tripod itself was looked up.
fn started_none(file: &str) {
    let trace = fs::read_to_string(file).expect("what strace wrote");
    let started: Vec<_> = trace.lines().filter(|line| line.contains("exec")).collect();
    assert_eq!(started.len(), 1, "{started:#?}");
}

#[test]
fn none_is_started_from_the_start_to_the_cleanup() {
    lab::run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let service = Service::new("web", 1);
        let to = service.cluster()[0];
        let serving = with_flags(&lab, traced(&lab, "/run/serving"));
        let mut tripod = Tripod::start_on(&lab.node, serving);
        let served_by = |name: &str| {
            eventually(name, SOON, || match ask(&lab.client, to) {
                Ok(answer) if answer == name => Ok(()),
                other => Err(format!("{other:?}")),
            });
        };
        for name in ["a", "b"].into_iter().cycle().take(CHANGES) {
            lab.publish(&service, &[name]);
            served_by(name);
        }
        lab.node.show("nft flush ruleset");
        served_by("b");
        tripod.terminate();
        started_none("/run/serving");

        let cleaned = traced(&lab, "/run/cleaning").arg("cleanup").status();
        assert!(cleaned.expect("running strace").success());
        started_none("/run/cleaning");
        assert_eq!(lab.node.show("nft list tables"), "");
    });
}

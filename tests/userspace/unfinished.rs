//! Failed work is retried.

use std::time::Duration;

use super::{SOON, comes_to_fail, comes_to_reach};
use crate::lab::{
    Capture, Lab, ProgramFault, Programs, Service, Tripod, ask, eventually, run, tripod_binary,
    udp_ask,
};

/// Starts Tripod with one local port for a Service, and without repairs that would hide a
/// missing retry.
fn start(lab: &Lab, programs: &Programs) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    programs.come_first(&mut command);
    command
        .args(["--proxy-mode=userspace", "--userspace-capture=redirect"])
        .args(["--proxy-port-range=20000-20000", "--manifests"])
        .arg(lab.manifests())
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .args(["--iptables-sync-period=10m", "--v=2"]);
    Tripod::start_on(&lab.node, command)
}

/// Waits until more than `before` lines of the log have all these words.
fn says_more(tripod: &Tripod, words: &[&str], before: usize) {
    let what = format!("more than {before} lines with {words:?}");
    eventually(&what, 2 * SOON, || match tripod.logged(words) {
        n if n > before => Ok(()),
        n => Err(format!("{n} in:\n{}", tripod.log())),
    });
}

#[test]
fn a_service_without_a_port_is_tried_again_after_capture_has_failed() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let [web, late] = [Service::new("web", 1), Service::new("late", 2)];
        lab.add_backends(&["a"]).publish_all(&web);
        let mut programs = Programs::new();
        let tripod = start(&lab, &programs);
        let [to, _] = web.cluster();
        comes_to_reach("the first Service", &["a"], || ask(&lab.client, to));
        lab.publish_all(&late);
        for protocol in ["TCP", "UDP"] {
            says_more(
                &tripod,
                &["default/late", protocol, "--proxy-port-range"],
                0,
            );
        }

        programs.break_with(ProgramFault::RestoreFails);
        lab.withdraw(&web);
        // More than once for each family, so that the failed part was retried as well.
        eventually("syncs failed again", 2 * SOON, || {
            match tripod.metric(&lab.node, "tripod_sync_failures_total") {
                Some(failed) if failed > 3.0 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        programs.repair();

        for to in late.cluster() {
            let within = Duration::from_secs(20);
            eventually("the Service has a port", within, || {
                let tcp = ask(&lab.client, to).map_err(|e| e.to_string())?;
                let udp = udp_ask(&lab.client, to).map_err(|e| e.to_string())?;
                match [tcp.as_str(), udp.as_str()] {
                    ["a", "a"] => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        for to in web.cluster() {
            comes_to_fail("a Service that went", || ask(&lab.client, to));
        }
    });
}

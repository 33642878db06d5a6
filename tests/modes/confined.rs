//! A Tripod started by root gives up privileges that it does not need, and one of an ordinary user
//! passes its privileges on to the iptables that it starts.

use std::{env::consts::ARCH, fs, os::unix::fs::symlink, thread, time::Duration};

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use super::probe::default_mode;
use crate::lab::{self, Capture, Lab, Service, Tripod, ask, eventually, skip, tripod_binary};

const SOON: Duration = Duration::from_secs(20);

/// NET_BIND_SERVICE, NET_ADMIN and NET_RAW (`linux/capability.h`).
const SERVING: u64 = 0x3400;
/// Kept by userspace mode if it has it.
const SYS_RESOURCE: u64 = 1 << 24;

/// The modes that this kernel can run.
fn modes() -> &'static [&'static str] {
    match default_mode() {
        "ipvs" => &["ipvs"],
        "nftables" => &["nftables", "iptables", "userspace"],
        _ => &["userspace"],
    }
}

/// A field of the status of each thread.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let statuses = threads.filter_map(|thread| {
        // The thread may have ended.
        fs::read_to_string(thread.expect("a thread").path().join("status")).ok()
    });
    let values = statuses.map(|status| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        value
            .unwrap_or_else(|| panic!("no {field} in:\n{status}"))
            .to_owned()
    });
    values.collect()
}

fn sets(pid: u32, field: &str) -> Vec<u64> {
    let values = of_threads(pid, field).into_iter();
    values
        .map(|value| u64::from_str_radix(&value, 16).expect("a set"))
        .collect()
}

fn start(lab: &Lab, mode: &str, flags: &[&str]) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .arg(format!("--proxy-mode={mode}"))
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .arg("--cluster-cidr=10.244.0.0/24,fd00:244::/64")
        .args(flags);
    Tripod::start_on(&lab.node, command)
}

fn lab() -> (Lab, Service) {
    let mut lab = Lab::new(Capture::Redirect);
    lab.add_backends(&["a"]);
    let service = Service::new("hello", 7);
    lab.publish_all(&service);
    (lab, service)
}

#[test]
fn a_mode_keeps_what_it_needs() {
    lab::run(|| {
        let (lab, service) = lab();
        for mode in modes() {
            let mut tripod = start(&lab, mode, &[]);
            assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
            let most = SERVING | SYS_RESOURCE;
            for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                for set in sets(tripod.pid(), field) {
                    let (least, more) = (set & SERVING, set & !most);
                    assert_eq!((least, more), (SERVING, 0), "{mode}: {field} {set:x}");
                }
            }
            let flags = of_threads(tripod.pid(), "NoNewPrivs");
            assert!(flags.iter().all(|flag| flag == "1"), "{mode}: {flags:?}");
            let kept = "capabilities: CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW";
            tripod.logs_once(&[kept]);
            assert_eq!(tripod.logged(&["could not be dropped"]), 0);
            tripod.kill();
        }
    });
}

#[test]
fn a_mode_keeps_everything_where_it_is_asked_to() {
    lab::run(|| {
        let (lab, service) = lab();
        let tripod = start(&lab, modes()[0], &["--confine=none"]);
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
        let own = sets(std::process::id(), "CapPrm");
        for set in sets(tripod.pid(), "CapPrm") {
            assert_eq!(set, own[0]);
        }
    });
}

#[test]
fn a_mode_reaches_the_files_of_its_settings_and_no_others() {
    lab::run(|| {
        let (lab, service) = lab();
        // A link in the folder points outside it.
        let linked = Service::new("linked", 8);
        lab.publish_all(&linked);
        let outside = lab.manifests().with_file_name("outside");
        fs::create_dir(&outside).expect("a folder");
        let name = "linked.json";
        let (target, link) = (outside.join(name), lab.manifests().join(name));
        fs::rename(&link, &target).expect("a file outside");
        symlink(&target, &link).expect("a link");
        for mode in modes() {
            let mut tripod = start(&lab, mode, &["--confine=calls"]);
            for service in [&service, &linked] {
                assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
            }
            tripod.kill();

            let mut tripod = start(&lab, mode, &["--confine=files"]);
            // Logged after the refusals of this kernel.
            tripod.logs(&["INFO serving"]);
            if tripod.logged(&["files: ", "no Landlock"]) > 0 {
                return skip("this kernel has no Landlock");
            }
            assert_eq!(tripod.logged(&["could not be dropped"]), 0);
            eventually("the link is not followed", SOON, || {
                match tripod.logged(&[name, "Permission denied"]) {
                    0 => Err(tripod.log()),
                    _ => Ok(()),
                }
            });
            assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
            // Files added to the folder later are read.
            let later = Service::new("later", 9);
            lab.publish_all(&later);
            eventually("what comes later is served", SOON, || {
                ask(&lab.node, later.cluster()[0]).map_err(|error| error.to_string())
            });
            lab.remove("later.json");
            tripod.kill();
        }
    });
}

/// Forbids Landlock to this thread and everything it starts, like the seccomp profile of a
/// container runtime that does not know its calls.
fn forbid_landlock() {
    let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = ARCH.try_into().expect("a known architecture");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let program: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    apply_filter(&program).expect("applied");
}

#[test]
fn what_is_refused_of_a_confinement_is_a_warning_and_in_the_status() {
    lab::run(|| {
        let (lab, service) = lab();
        let check = || {
            forbid_landlock();
            let tripod = start(&lab, modes()[0], &["--confine=files"]);
            assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
            let words = "Tripod is not confined to its files: no Landlock here; run Linux 5.13";
            tripod.logs_once(&["WARN", words]);
            let status = lab.node.command(tripod_binary()).arg("status").output();
            let status = status.expect("running tripod").stdout;
            let status = String::from_utf8_lossy(&status);
            let line = |line: &str| line.starts_with("without ") && line.contains(words);
            assert!(status.lines().any(line), "{status}");
            assert!(status.contains(" is healthy"), "{status}");
            // The parts that are not refused still apply.
            let filters = of_threads(tripod.pid(), "Seccomp");
            assert!(filters.iter().all(|mode| mode == "2"), "{filters:?}");
            tripod.logs_once(&["programs"]);
        };
        // The filter ends with the thread that has it.
        thread::scope(|scope| scope.spawn(check).join().expect("the test passes"));
    });
}

/// Its supervisor restarts it, and then it may start programs.
#[test]
fn who_may_start_no_programs_ends_to_remove_the_rules_of_a_successor_that_ended() {
    if !modes().contains(&"nftables") {
        return skip("this kernel has no nftables mode");
    }
    lab::run(|| {
        let (lab, service) = lab();
        let chains = || {
            lab.node
                .show("iptables-save -t nat")
                .contains(":KUBE-SERVICES ")
        };
        let mut first = start(&lab, "nftables", &["--confine=calls"]);
        first.logs_once(&["programs: none can be started"]);
        let mut second = start(&lab, "iptables", &["--confine=calls"]);
        eventually("the successor's rules are there", SOON, || {
            chains().then_some(()).ok_or_else(|| second.log())
        });
        second.kill();
        assert!(!first.ended_within(SOON).success());
        let reason = "which iptables has to remove, but this process can no longer start programs";
        eventually("it says why", SOON, || match first.logged(&[reason]) {
            0 => Err(first.log()),
            _ => Ok(()),
        });
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
        let again = start(&lab, "nftables", &["--confine=calls"]);
        again.logs_once(&["programs may be started: rules of another mode"]);
        eventually("the successor's rules are gone", SOON, || {
            (!chains()).then_some(()).ok_or_else(|| again.log())
        });
        assert_eq!(ask(&lab.node, service.cluster()[0]).expect("a call"), "a");
    });
}

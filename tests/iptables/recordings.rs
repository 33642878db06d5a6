//! The rules in the kernel after a sync, compared with those that kube-proxy 1.36 left there.

use tripod::{
    modes::{
        cleanup::{Cleanup, Running},
        iptables,
    },
    services::ServiceMap,
};

use super::rig::{ENGINES, Rig, hint, map_of, sh};
use crate::lab::{
    self,
    recorded::{self, Case, Ruleset},
};

#[test]
fn the_kernel_holds_the_recordings_with_nft() {
    lab::run(|| in_kernel(ENGINES[0]));
}

#[test]
fn the_kernel_holds_the_recordings_with_legacy() {
    lab::run(|| in_kernel(ENGINES[1]));
}

/// Runs all cases in one namespace, so that each begins with the leftovers of the previous one:
/// with an incremental sync if the flags are the same, by adopting otherwise. Each transition is
/// tested in both directions, because the cases run forwards and back.
fn in_kernel(engine: &str) {
    hint(engine);
    let mut wrong = Vec::new();
    let mut cases = recorded::cases();
    let back: Vec<Case> = cases.iter().rev().cloned().collect();
    cases.extend(back);
    let mut before: Option<(Rig, ServiceMap, Vec<String>)> = None;
    for (number, case) in cases.iter().enumerate() {
        let folder = format!("/run/case-{number}");
        std::fs::create_dir_all(&folder).expect("a folder");
        case.write_manifests(folder.as_ref());
        let map = map_of(folder.as_ref(), "lab-node");
        let mut rig = match before.take() {
            // Every third time as if Tripod had been restarted.
            Some((mut rig, old, args)) if args == case.args && number % 3 != 0 => {
                rig.sync(Some(&old), &map);
                rig
            }
            _ => {
                let flags = recorded::FLAGS.into_iter();
                let flags: Vec<&str> = flags.chain(case.args.iter().map(String::as_str)).collect();
                let mut rig = Rig::new(&flags);
                assert!(rig.sync(None, &map).failed.is_empty());
                rig
            }
        };
        for (file, program) in [
            ("iptables-save.txt", "iptables"),
            ("ip6tables-save.txt", "ip6tables"),
        ] {
            let saved = Ruleset::parse(&sh(&format!("{program}-{engine}-save")));
            let saved = saved.without(|name| name.chain == "KUBE-IPTABLES-HINT");
            let expected = Ruleset::parse(&case.read(&format!("iptables/{file}")));
            let mut found = expected.differences(&saved);
            // The kubelet may own this rule, with the same text: it stays.
            found.retain(|line| !line.starts_with("filter KUBE-FIREWALL: more:"));
            wrong.extend(
                found
                    .iter()
                    .map(|line| format!("{number} {} {file}: {line}", case.name)),
            );
        }
        rig.sync(None, &map);
        if rig.written() > 0.0 {
            wrong.push(format!("{}: written although all was right", case.name));
        }
        before = Some((rig, map, case.args.clone()));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    let (rig, ..) = before.expect("cases");
    for _ in 0..2 {
        let cleaned = rig
            .runtime
            .block_on(iptables::Installed.cleanup(&Running::default()));
        cleaned.expect("a clean-up");
        for program in ["iptables", "ip6tables"] {
            let left = sh(&format!("{program}-{engine}-save"));
            let ours = left.lines().filter(|line| line.contains("KUBE-"));
            // With a kubelet, KUBE-FIREWALL belongs to the kubelet.
            let ours: Vec<&str> = ours
                .filter(|line| !line.contains("KUBE-IPTABLES-HINT"))
                .filter(|line| !line.contains("KUBE-FIREWALL"))
                .collect();
            assert_eq!(ours, [""; 0]);
        }
    }
}

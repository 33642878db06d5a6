//! `tripod render` compared with the state that kube-proxy 1.36 left in the kernel.

use std::process::Command;

use super::recorded::{self as state, State};
use crate::lab::{
    recorded::{self, Case, Folder, Ruleset},
    tripod_binary,
};

/// The state that several consecutive Tripods leave on a node of the guest.
mod in_guest {
    use std::{collections::BTreeMap, fs, time::Duration};

    use super::*;
    use crate::lab::{Host, Tripod, eventually, run};

    /// Cases with the same flags are run one after the other in one folder, so that the leftovers
    /// of the previous one must be removed as well.
    #[test]
    #[ignore = "for a guest kernel with IPVS"]
    fn synced_state_equals_the_recordings() {
        run(|| {
            let mut by_flags: BTreeMap<Vec<String>, Vec<Case>> = BTreeMap::new();
            for case in recorded::cases() {
                by_flags.entry(case.args.clone()).or_default().push(case);
            }
            for (flags, cases) in by_flags {
                follow(&flags, &cases);
            }
        });
    }

    fn follow(flags: &[String], cases: &[Case]) {
        let address = "192.168.77.2".parse().expect("an address");
        let host = Host::new("node", address, "fd00:192:168:77::2".parse().expect("one"));
        host.ip(&[
            "link add eth0 type dummy",
            "link set eth0 up",
            "addr add 192.168.77.2/24 dev eth0",
            "addr add fd00:192:168:77::2/64 dev eth0 nodad",
        ]);
        let folder = Folder::new("synced");
        cases[0].write_manifests(&folder.0);
        let mut command = host.command(tripod_binary());
        command
            .args(["--proxy-mode=ipvs", "--strict-proxy-mode", "--manifests"])
            .arg(&folder.0)
            .arg("--ipvs-min-sync-period=10ms")
            .args(recorded::FLAGS)
            .args(flags);
        let _tripod = Tripod::start_on(&host, command);
        for case in cases {
            replace(case, &folder);
            let recorded = State::recorded(case);
            eventually(&case.name, Duration::from_secs(30), || {
                // Cheaper than reading everything, and usually still incomplete.
                let servers = state::servers(&host.show("ipvsadm -Sn"));
                if servers != recorded.servers {
                    return Err(format!("{servers:?}, not {:?}", recorded.servers));
                }
                let found = recorded.differences(&State::of(&host));
                let wrong: Vec<String> = unexpected(case, found).collect();
                if wrong.is_empty() {
                    Ok(())
                } else {
                    Err(wrong.join("\n"))
                }
            });
        }
    }

    /// Replaces the objects of another case by those of `case`, in one step.
    fn replace(case: &Case, folder: &Folder) {
        let aside = Folder::new("aside");
        case.write_manifests(&aside.0);
        let file = "objects.yaml";
        fs::rename(aside.0.join(file), folder.0.join(file)).expect("renaming");
    }
}

/// Deliberate differences of Tripod: case, a word of each difference, reason.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    (
        "15-ignored",
        "--match-set KUBE-CLUSTER-IP dst,dst -j",
        "the recording leaves out the API server's own Service, but not the rules for its cluster IP",
    ),
    (
        "11-external-ips",
        "--match-set KUBE-EXTERNAL-IP dst,dst -m",
        "without br_netfilter no packet ever comes in through a bridge's port, so that is not asked",
    ),
];

#[test]
fn rendered_state_equals_the_recordings() {
    let mut wrong = Vec::new();
    for case in recorded::cases() {
        let found = State::recorded(&case).differences(&rendered(&case, &[]));
        wrong.extend(unexpected(&case, found));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the differences that are no exceptions, each with the case's name.
fn unexpected(case: &Case, found: Vec<String>) -> impl Iterator<Item = String> {
    let excepted = |line: &String| {
        let mut exceptions = EXCEPTIONS.iter();
        exceptions.any(|(name, word, _)| *name == case.name && line.contains(word))
    };
    let name = case.name.clone();
    found
        .into_iter()
        .filter(move |line| !excepted(line))
        .map(move |line| format!("{name}: {line}"))
        .collect::<Vec<_>>()
        .into_iter()
}

/// As in kube-proxy's `NewNodePortAddresses`.
#[test]
fn a_family_that_nodeport_addresses_do_not_name_is_served_whole() {
    let mut cases = recorded::cases().into_iter();
    let dual = cases.find(|case| case.name == "17-dualstack");
    let dual = dual.expect("the case");
    for of_one_family in ["192.168.77.0/24", "fd00:192:168:77::/64"] {
        let given = rendered(&dual, &["--nodeport-addresses", of_one_family]);
        let found = State::recorded(&dual).differences(&given);
        assert!(found.is_empty(), "{of_one_family}: {}", found.join("\n"));
    }
}

/// Renders a case, with flags in addition to those of its recording.
fn rendered(case: &Case, more: &[&str]) -> State {
    let folder = Folder::new(&case.name);
    case.write_manifests(&folder.0);
    let output = Command::new(tripod_binary())
        .args(["render", "--proxy-mode=ipvs", "--manifests"])
        .arg(&folder.0)
        .args(recorded::FLAGS)
        .args(&case.args)
        .args(more)
        .output()
        .expect("running tripod");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", case.name);
    let text = String::from_utf8(output.stdout).expect("text");
    let part = |program: &str| {
        let start = format!("# {program}\n");
        let (_, rest) = text.split_once(&start).expect(program);
        rest.split("# ").next().unwrap_or_default().to_owned()
    };
    let addresses = part("ip -batch -");
    let addresses = addresses.lines().filter_map(|line| {
        let address = line.strip_prefix("addr add ")?.split(' ').next()?;
        let family = if address.contains(':') {
            "inet6"
        } else {
            "inet"
        };
        Some(format!("{family} {address}\n"))
    });
    State {
        servers: state::servers(&part("ipvsadm -R")),
        sets: state::sets(&part("ipset restore")),
        addresses: state::addresses(&addresses.collect::<String>()),
        rules: ["iptables-restore --noflush", "ip6tables-restore --noflush"]
            .map(|program| Ruleset::parse(&part(program))),
    }
}

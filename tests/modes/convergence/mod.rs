//! From any state of the kernel, one full sync reaches the state that the mode has on a clean node,
//! and keeps everything of other programs; another one writes nothing.
//!
//! The node's past is random: other Services that some mode served until the process was killed,
//! sometimes during its first sync; leftovers of kube-proxy; and changes to any of these.
//! `TRIPOD_CONVERGENCE=400` tests that many cases, `TRIPOD_CONVERGENCE_SEED=7` other ones than
//! usual; the usual ones are the same in each run.

mod damage;
mod map;
mod seen;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use self::damage::{Foreign, damage};
use self::seen::{RecordedRestores, Seen, written};
use super::probe::kernel;
use super::stale_state::foreign::{EXCLUDED, foreign};
use super::stale_state::left;
use super::stale_state::start::{MANIFESTS, SOON, start, start_by};
use crate::lab::recorded::{self, FLAGS};
use crate::lab::{Host, Tripod, eventually, run, tripod_binary};

/// A mode, with its capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Ipvs,
    Nftables,
    Iptables,
    Redirect,
    Local,
}

impl Mode {
    /// The modes that this kernel can run.
    fn all() -> &'static [Mode] {
        match kernel().as_str() {
            "full" => &[Mode::Ipvs, Mode::Iptables, Mode::Redirect],
            _ => &[Mode::Nftables, Mode::Iptables, Mode::Redirect, Mode::Local],
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Ipvs => &["--proxy-mode=ipvs"],
            Mode::Nftables => &["--proxy-mode=nftables"],
            Mode::Iptables => &["--proxy-mode=iptables"],
            Mode::Redirect => &["--proxy-mode=userspace", "--userspace-capture=redirect"],
            Mode::Local => &["--proxy-mode=userspace", "--userspace-capture=local"],
        }
    }

    /// The protocols of Services that the mode serves.
    fn protocols(self) -> &'static [&'static str] {
        match self {
            Mode::Redirect | Mode::Local => &["TCP", "UDP"],
            Mode::Ipvs | Mode::Nftables | Mode::Iptables => &["TCP", "UDP", "SCTP"],
        }
    }

    /// Its name in the log.
    fn name(self) -> &'static str {
        let flag = self.flags()[0];
        flag.split_once('=').map_or(flag, |(_, name)| name)
    }
}

/// Something that happened on a node.
#[derive(Clone, Debug)]
enum Past {
    /// A mode served Services until it was killed: after its first sync, or this many milliseconds
    /// after its start.
    Served(usize, Vec<u128>, Option<u64>),
    /// kube-proxy left a recorded state there, of iptables mode (or ipvs mode in a kernel
    /// that has it), or of nftables mode.
    KubeProxy(usize, bool),
    /// Something was changed.
    Damage(u128),
}

fn services() -> impl Strategy<Value = Vec<u128>> {
    proptest::collection::vec(any::<u128>(), 0..5)
}

fn past() -> impl Strategy<Value = Vec<Past>> {
    let killed = proptest::option::weighted(0.4, 0_u64..600);
    let served = (0_usize..8, services(), killed);
    let one = prop_oneof![
        2 => served.prop_map(|(mode, map, when)| Past::Served(mode, map, when)),
        1 => (0_usize..24, any::<bool>()).prop_map(|(case, n)| Past::KubeProxy(case, n)),
        5 => any::<u128>().prop_map(Past::Damage),
    ];
    proptest::collection::vec(one, 1..8)
}

fn serve(mode: Mode, services: &[u128]) {
    std::fs::create_dir_all(MANIFESTS).expect("a folder");
    let node = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/node.yaml");
    std::fs::copy(node, format!("{MANIFESTS}/node.yaml")).expect("the Node");
    let aside = format!("{MANIFESTS}/.map.new");
    std::fs::write(&aside, map::manifests(services, mode.protocols())).expect("manifests");
    std::fs::rename(&aside, format!("{MANIFESTS}/map.json")).expect("manifests");
}

impl Past {
    fn happen(&self, node: &Host, foreign: &Foreign, engine: &str, first: bool) {
        match self {
            Past::Served(mode, services, killed) => {
                let mode = Mode::all()[mode % Mode::all().len()];
                serve(mode, services);
                let mut command = node.command(tripod_binary());
                command
                    .args(mode.flags())
                    .arg(format!("--manifests={MANIFESTS}"))
                    .args(["--v=4", EXCLUDED])
                    .args(FLAGS);
                let mut tripod = Tripod::spawn(command);
                match killed {
                    // The moment is random: nothing is awaited.
                    Some(after) => std::thread::sleep(Duration::from_millis(*after)),
                    None => eventually("it is applied", SOON, || {
                        match tripod.logged(&["synced", mode.name()]) {
                            0 => Err(tripod.log()),
                            _ => Ok(()),
                        }
                    }),
                }
                tripod.kill();
            }
            Past::KubeProxy(..) if !first => {}
            Past::KubeProxy(_, true) if kernel() != "full" => left::nftables(node),
            Past::KubeProxy(case, other) => {
                let mode = match (kernel().as_str(), other) {
                    ("full", true) => "ipvs",
                    _ => "iptables",
                };
                let case = &recorded::cases()[*case];
                left::kube_proxys(node, case, mode, engine, engine);
            }
            Past::Damage(number) => damage(node, foreign, *number),
        }
    }
}

/// The number of full syncs of `family` that have ended.
fn full_syncs(tripod: &Tripod, family: &str) -> usize {
    tripod.logged(&["synced", "full=true", &format!("family={family}")])
}

/// A node with only other programs' objects, whose kubelet has its rules in the engine `kubelet`.
fn node_of_others(name: &str, kubelet: &str) -> Host {
    let node = Host::new(name, [192, 0, 2, 10].into(), std::net::Ipv6Addr::LOCALHOST);
    foreign(&node, kubelet);
    node
}

/// Starts `mode` for Services `now` on a node with only other programs' objects, and on
/// one with this past, and compares them.
fn converges(mode: Mode, kubelet: &str, now: &[u128], past: &[Past]) -> Result<(), TestCaseError> {
    let fail = |what: &str, found: &[String]| match found {
        [] => Ok(()),
        found => Err(TestCaseError::fail(format!(
            "{what}:\n{}",
            found.join("\n")
        ))),
    };
    let flags = [
        mode.flags(),
        &["--iptables-sync-period=1s", "--ipvs-sync-period=1s"],
    ]
    .concat();
    serve(mode, now);
    let clean = node_of_others("clean", kubelet);
    let foreign = Foreign::of(&clean);
    let tripod = start(&clean, &flags);
    let expected = Seen::of(&clean);
    drop(tripod);
    drop(clean);

    let node = node_of_others("node", kubelet);
    for (number, past) in past.iter().enumerate() {
        past.happen(&node, &foreign, kubelet, number == 0);
    }
    serve(mode, now);
    let restores = RecordedRestores::new();
    let tripod = start_by(&node, &flags, |command| restores.come_first(command));
    fail(
        "not as on a clean node",
        &expected.differences(&Seen::of(&node)),
    )?;
    let diff = node.command(tripod_binary()).arg("diff").output();
    let diff = diff.expect("running tripod diff");
    if !diff.status.success() {
        let text = String::from_utf8_lossy(&diff.stdout).into_owned();
        fail("tripod diff", &[text])?;
    }

    let before = written(&node);
    for family in ["IPv4", "IPv6"] {
        let synced = full_syncs(&tripod, family);
        eventually("a further full sync", SOON, || {
            if full_syncs(&tripod, family) > synced {
                Ok(())
            } else {
                Err(tripod.log())
            }
        });
    }
    let after = written(&node);
    if before != after {
        let gone = before.iter().filter(|line| !after.contains(line));
        let new = after.iter().filter(|line| !before.contains(line));
        let found: Vec<String> = gone.chain(new).cloned().collect();
        fail("a further full sync wrote, or removed", &found)?;
    }
    fail(
        "a further full sync changed",
        &expected.differences(&Seen::of(&node)),
    )
}

/// Tests cases that are the same in each run, unless the environment requests others.
fn tried(mode: Mode, kubelet: &str) {
    let number = |name: &str, usual: u32| {
        let value = std::env::var(name).ok();
        value.map_or(usual, |text| text.parse().expect("a number"))
    };
    let usual = if kernel() == "full" { 2 } else { 6 };
    let cases = number("TRIPOD_CONVERGENCE", usual);
    let number = number("TRIPOD_CONVERGENCE_SEED", 1);
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&number.to_le_bytes());
    let config = Config {
        cases,
        max_shrink_iters: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let held = runner.run(&(services(), past()), |(now, past)| {
        converges(mode, kubelet, &now, &past)
    });
    if let Err(error) = held {
        panic!("{error}\nagain by TRIPOD_CONVERGENCE={cases} TRIPOD_CONVERGENCE_SEED={number}");
    }
}

macro_rules! converges {
    ($($name:ident: $mode:expr, $kernels:expr, $engine:expr;)+) => { $(
        #[test]
        fn $name() {
            run(|| {
                if $kernels.contains(&kernel().as_str()) {
                    tried($mode, $engine);
                }
            });
        }
    )+ };
}

converges! {
    ipvs: Mode::Ipvs, ["full"], "legacy";
    nftables: Mode::Nftables, ["host"], "nft";
    iptables_nft: Mode::Iptables, ["host"], "nft";
    iptables_legacy: Mode::Iptables, ["host"], "legacy";
    userspace_redirect: Mode::Redirect, ["host"], "nft";
    userspace_local: Mode::Local, ["host"], "nft";
}

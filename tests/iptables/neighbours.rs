//! Rules of other programs in the same tables.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tripod::services::{ServiceMap, ServicePort};

use super::rig::{Rig, hint, service, sh};
use crate::lab::{self};

/// Shortest pause between two rules of the other writer.
const PAUSE: Duration = Duration::from_millis(25);

/// Minimum number of rules that the other writer adds while Tripod writes. On a busy machine it
/// adds few in a round.
const FOREIGN: usize = 50;

/// Returns a pause that is longer than reading all rules takes.
fn pause(iptables: &str) -> Duration {
    let begun = Instant::now();
    sh(&format!("{iptables}-save"));
    PAUSE.max(3 * begun.elapsed())
}

#[test]
fn nothing_foreign_is_lost_with_nft() {
    lab::run(|| race("nft"));
}

#[test]
fn nothing_foreign_is_lost_with_legacy() {
    lab::run(|| race("legacy"));
}

/// Returns the Services `from..to`; the number of endpoints follows from each one's number.
fn some(from: u8, to: u8) -> ServiceMap {
    let one = |number: u8| -> ServicePort {
        let endpoints: Vec<_> = (1..=number % 4)
            .map(|e| ([10, 244, number, e], 80))
            .collect();
        service(&format!("s{number}"), [10, 96, 0, number], 80, &endpoints)
    };
    (from..to).map(one).collect()
}

fn race(engine: &str) {
    hint(engine);
    let iptables = format!("iptables-{engine}");
    sh(&format!(
        "{iptables} -w -t nat -N FOREIGN; {iptables} -w -N FOREIGN"
    ));
    let (done, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (one, other) = (some(1, 20), some(8, 30));
    let mut rig = Rig::new(&["--cluster-cidr=10.244.0.0/16"]);
    rig.sync(None, &one);
    let pause = pause(&iptables);
    // The rules that were added, by table.
    let added = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut added = Vec::new();
            for number in 0u32.. {
                if done.load(Relaxed) {
                    break;
                }
                // iptables-nft-save starts again whenever rules change while it reads,
                // and never ends while another process writes without a pause.
                if engine == "nft" {
                    std::thread::sleep(pause);
                }
                let table = ["nat", "filter"][number as usize % 2];
                let chain = ["FOREIGN", "OUTPUT"][number as usize / 2 % 2];
                let address = format!("172.16.{}.{}/32", number / 250, number % 250);
                let mut command = Command::new(&iptables);
                command.args(["-w", "10", "-t", table, "-A", chain, "-s", &address]);
                let status = command.args(["-j", "RETURN"]).status().expect("iptables");
                if status.success() {
                    added.push((table, format!("-A {chain} -s {address} -j RETURN")));
                    written.store(added.len(), Relaxed);
                }
            }
            added
        });
        for round in 0.. {
            if round >= 100 && written.load(Relaxed) >= FOREIGN {
                break;
            }
            let (old, new) = if round % 2 == 0 {
                (&one, &other)
            } else {
                (&other, &one)
            };
            let report = rig.sync((round % 10 != 9).then_some(old), new);
            assert!(report.failed.is_empty(), "{:?}", report.failed);
        }
        done.store(true, Relaxed);
        writer.join().expect("the writer")
    });
    for table in ["nat", "filter"] {
        let saved = sh(&format!("{iptables}-save -t {table}"));
        let mut lines = saved.lines();
        for (_, rule) in added.iter().filter(|(of, _)| *of == table) {
            let chain = rule.contains("OUTPUT").then_some(&saved);
            let found = match chain {
                Some(all) => all.lines().any(|line| line == rule),
                None => lines.any(|line| line == rule),
            };
            assert!(found, "{table}: {rule} is lost, or out of order");
        }
    }
    // Our rules are right nevertheless.
    rig.sync(None, &one);
    assert_eq!(rig.written(), 0.0);
}

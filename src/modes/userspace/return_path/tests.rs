//! Against the real kernel, in a network namespace of the test's own thread.

use std::process::Command;

use net::PerFamily;
use testing::{block_on, in_namespace, sh};

use super::*;
use crate::{
    config::DetectLocal,
    kernel::probe::{Examination, Kernel},
    modes::userspace::proxy::cluster_local::ClusterLocal,
};

const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

/// All our objects in the namespace's kernel, and the foreign rule.
fn traces() -> String {
    let lines = sh("iptables-save -t mangle
         ip6tables-save -t mangle
         ip rule
         ip -6 rule
         ip route show table 1414791168 || true
         ip -6 route show table 1414791168 || true");
    let noise = |line: &&str| line.starts_with(['#', ':', '*']) || *line == "COMMIT";
    let lines: Vec<_> = lines.lines().filter(|line| !noise(line)).collect();
    lines.join("\n")
}

fn transparent() -> Arc<Transparent> {
    let cluster_local = Arc::new(ClusterLocal::new(DetectLocal::NodeCidr));
    Arc::new(Transparent::new(cluster_local))
}

fn showing_clients(transparent: &Arc<Transparent>) -> ReturnPath {
    let kernel = Kernel::examine(&Examination::default());
    ReturnPath::new(Purpose::ShowClients, Arc::clone(transparent), &kernel)
}

#[test]
fn the_way_of_answers_comes_is_repaired_and_goes() {
    in_namespace(|| {
        sh("iptables -t mangle -A PREROUTING -i eth9 -j MARK --set-mark 1");
        let before = traces();

        let transparent = transparent();
        let mut return_path = showing_clients(&transparent);
        let messages = block_on(return_path.sync(BOTH));
        assert_eq!(messages.len(), 2, "{messages:?}");
        let sees = |message: &Message| {
            message
                .as_ref()
                .is_ok_and(|n| n.contains("see the client's address"))
        };
        assert!(messages.iter().all(sees), "{messages:?}");
        assert!(Family::ALL.iter().all(|f| transparent.is_shown(*f)));
        let there = traces();
        let both_families_have = |traces: &str, text: &str, foreign: usize| {
            assert_eq!(
                traces.matches(text).count() - foreign,
                2,
                "{text}: {traces}"
            );
        };
        both_families_have(&there, "-m socket --transparent", 0);
        both_families_have(&there, "fwmark 0x54505448", 0);
        both_families_have(&there, "local ", before.matches("local ").count());

        assert_eq!(block_on(return_path.sync(BOTH)), []);
        assert_eq!(traces(), there, "nothing was wrong");
        for damage in ["iptables -t mangle -F", "ip -6 rule del pref 76"] {
            let mut words = damage.split(' ');
            let status = Command::new(words.next().unwrap()).args(words).status();
            assert!(status.unwrap().success());
        }
        assert_eq!(block_on(return_path.sync(BOTH)), []);
        let repaired = traces();
        both_families_have(&repaired, "-m socket --transparent", 0);
        both_families_have(&repaired, "fwmark 0x54505448", 0);

        // A process without the flag removes the leftovers of one with it.
        let mut other = ReturnPath::new(Purpose::RemoveStale, transparent, &Kernel::default());
        assert_eq!(block_on(other.sync(BOTH)), []);
        let foreign = before.lines().filter(|line| !line.contains("eth9"));
        assert_eq!(traces(), foreign.collect::<Vec<_>>().join("\n"));
        block_on(cleanup()).expect("nothing to do");
    });
}

#[test]
fn a_kernel_that_would_drop_the_answers_is_named() {
    in_namespace(|| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/src_valid_mark", "1").unwrap();
        let transparent = transparent();
        let messages = block_on(showing_clients(&transparent).sync(BOTH));
        let why = messages.iter().find_map(|message| message.as_ref().err());
        let why = why.unwrap();
        assert!(
            why.contains("IPv4") && why.contains("src_valid_mark is 1"),
            "{why}"
        );
        assert!(!transparent.is_shown(Family::V4));
        assert!(transparent.is_shown(Family::V6));
    });
}

#[test]
fn what_is_wrong_is_repaired_and_what_is_right_left_alone() {
    let jump = format!("-A PREROUTING -j {CHAIN}");
    let own =
        format!("-A {CHAIN} -m socket --transparent -j MARK --set-xmark {MARK:#x}/0xffffffff");
    let foreign = "-A PREROUTING -i eth1 -j MARK --set-xmark 0x1/0xffffffff";
    let declared = format!(":{CHAIN} - [0:0]");
    let batch = |saved: &[&str]| {
        let mut observed = Observed::new(OWNED.interest);
        observed.line(Table::Mangle, ":PREROUTING ACCEPT [0:0]");
        let lines = saved.iter();
        lines.for_each(|line| observed.line(Table::Mangle, line));
        repair(&observed, Family::V4).to_string()
    };
    assert_eq!(batch(&[&declared, foreign, &jump, &own]), "");
    let odd = format!("-A PREROUTING -p tcp -j {CHAIN}");
    let [without_jump, without_odd] = [&jump, &odd].map(|rule| rule.replace("-A", "-D"));
    let cases: [(&[&str], &[&str]); 5] = [
        (&[foreign], &[&declared, &own, &jump]),
        (&[&declared, &jump], &[&declared, &own]),
        (&[&declared, &own], &[&jump]),
        (&[&declared, &jump, &own, &jump], &[&without_jump]),
        (
            &[&declared, &odd, &own, &own],
            &[&declared, &own, &jump, &without_odd],
        ),
    ];
    for (saved, expected) in cases {
        let batch = batch(saved);
        let commands = batch.lines();
        let commands = commands.filter(|line| !line.starts_with('*') && *line != "COMMIT");
        assert_eq!(commands.collect::<Vec<_>>(), expected, "{saved:?}");
    }
}

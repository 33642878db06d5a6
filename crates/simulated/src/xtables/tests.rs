//! The model against the programs of this machine: random programs leave the same and are
//! refused alike.

use std::process::{Command, Stdio};

use net::Family;
use nftables::Rules;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use testing::{cases, in_namespace};
use xtables::Engine;

use crate::{State, xtables::Batch};

/// How many random programs there are for each engine and family.
const CASES: u32 = 12;
/// Chains that jump only to later ones, so that there is no circle.
const CHAINS: [&str; 3] = ["A", "B", "C"];

/// Returns a rule of `family`, in the words of iptables-save.
fn rule(family: Family, choice: u8) -> String {
    let (ip, net, mask) = match family {
        Family::V4 => ("10.0.0.1/32", "10.9.0.0/16", "255.255.255.255"),
        Family::V6 => (
            "fd00::1/128",
            "fd00:9::/32",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ),
    };
    match choice % 10 {
        0 => format!("-d {ip} -p tcp -m comment --comment \"a/b c\" -m tcp --dport 80 -j ACCEPT"),
        1 => format!("! -s {net} -m comment --comment plain-word -j RETURN"),
        2 => "-m mark --mark 0x4000/0x4000 -j ACCEPT".to_owned(),
        3 => "-j MARK --set-xmark 0x4000/0x4000".to_owned(),
        4 => "-m addrtype --dst-type LOCAL -j RETURN".to_owned(),
        5 => "-m statistic --mode random --probability 0.50000000000 -j RETURN".to_owned(),
        6 => format!("-m recent --set --name LIST --mask {mask} --rsource -j RETURN"),
        7 => format!(
            "-m recent --rcheck --seconds 10800 --reap --name LIST --mask {mask} --rsource -j RETURN"
        ),
        8 => "-p udp -m udp --dport 1:9".to_owned(),
        _ => "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT".to_owned(),
    }
}

/// Returns the line that these numbers choose.
fn line(family: Family, (what, one, other): (u8, u8, u8)) -> String {
    let at = usize::from(one % 3);
    let chain = CHAINS[at];
    let jump = match CHAINS.get(at + 1 + usize::from(other % 2)) {
        Some(to) => format!("-j {to}"),
        None => rule(family, other),
    };
    match what % 16 {
        0 | 1 => format!(":{chain} - [0:0]"),
        2 => format!("-N {chain}"),
        3 => format!("-X {chain}"),
        4 => format!("-F {chain}"),
        5..=7 => format!("-A {chain} {}", rule(family, other)),
        8 => format!("-I {chain} {}", rule(family, other)),
        9 => format!("-I {chain} {} {}", 1 + other % 3, rule(family, other)),
        10 => format!("-R {chain} {} {}", 1 + other % 3, rule(family, other)),
        11 | 12 => format!("-D {chain} {}", rule(family, other)),
        13 => format!("-D {chain} {}", 1 + other % 3),
        14 => format!("-A OUTPUT {jump}"),
        _ => format!("-A {chain} {jump}"),
    }
}

/// Runs a program, and returns its output and the number of the line that it blames; `None`: it
/// succeeds.
fn run(program: &str, arguments: &[&str], input: &str) -> (String, Option<String>) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("iptables is installed");
    let mut stdin = child.stdin.take().expect("a pipe");
    let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (printed, (!output.status.success()).then_some(errors))
}

/// Reads the number of the line that the error blames.
fn blamed(error: &str) -> Option<u32> {
    let (_, after) = error.split_once("line")?;
    let after = after.trim_start_matches([':', ' ']);
    let end = after.find(|c: char| !c.is_ascii_digit());
    after[..end.unwrap_or(after.len())].parse().ok()
}

/// The rules in the output of iptables-save.
fn rules(saved: &str) -> Vec<String> {
    let lines = saved.lines().filter(|line| !line.starts_with('#'));
    let bare = lines.map(|line| match line.strip_prefix(':') {
        // Packets that were counted.
        Some(chain) => format!(":{}", chain.split(" [").next().unwrap_or_default()),
        None => line.trim_end().to_owned(),
    });
    bare.collect()
}

fn compare(engine: Engine, family: Family, runner: &mut TestRunner) {
    let step = (any::<u8>(), any::<u8>(), any::<u8>());
    let batch = (any::<bool>(), prop::collection::vec(step, 1..6));
    let program = prop::collection::vec(batch, 4..16);
    let variant = match engine {
        Engine::Legacy => "legacy",
        Engine::NfTables => "nft",
    };
    let name = xtables::program_prefix(family);
    let [restore, save] = ["restore", "save"].map(|what| format!("{name}-{variant}-{what}"));
    for _ in 0..cases(CASES) {
        let program = program.new_tree(runner).expect("a program").current();
        let mut state = State::default();
        state.xtables.engine = engine;
        for table in ["nat", "filter"] {
            let (_, failed) = run(&restore, &["-w", "5"], &format!("*{table}\nCOMMIT\n"));
            assert_eq!(failed, None);
        }
        let mut generations = Rules::open().expect("a socket");
        let mut generation = || generations.generation().expect("a generation");
        for (in_nat, steps) in &program {
            let before = generation();
            let table = if *in_nat { "nat" } else { "filter" };
            let lines = steps.iter().map(|step| line(family, *step) + "\n");
            let text = format!("*{table}\n{}COMMIT\n", lines.collect::<String>());
            let (_, refused) = run(&restore, &["--noflush", "-w", "5"], &text);
            let mut batch = Batch::new(family, &text);
            let ran = state
                .xtables
                .run_table(&mut batch, &state.accounts, &state.sets);
            let expected = refused.as_ref().map(|error| blamed(error));
            let refusal = ran.err().map(|refusal| refusal.to_string());
            let found = refusal.as_ref().map(|error| blamed(error));
            // With nf_tables, the model and the program may blame different lines.
            let is_alike = match engine {
                Engine::Legacy => expected == found,
                Engine::NfTables => expected.is_some() == found.is_some(),
            };
            assert!(is_alike, "{text}{refused:?}\n{refusal:?}");
            let made = !state.xtables.take_changes().is_empty();
            if engine == Engine::NfTables {
                assert_eq!(generation() - before, u32::from(made), "{text}{refused:?}");
            }
            let (saved, _) = run(&save, &["-t", table], "");
            let here = state.xtables.saved(family, Some(table));
            assert_eq!(rules(&saved), rules(&here), "{engine:?} {text}{refused:?}");
        }
    }
}

#[test]
fn random_programs_do_the_same_as_the_real_ones() {
    in_namespace(|| {
        let mut runner = TestRunner::deterministic();
        for engine in [Engine::Legacy, Engine::NfTables] {
            for family in Family::ALL {
                compare(engine, family, &mut runner);
            }
        }
    });
}

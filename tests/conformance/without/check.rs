//! Checks of variants, in addition to the cases.

use super::things::Thing;
use super::{Then, Variant, variants, words};
use crate::conformance::FAILED;
use crate::conformance::columns::{Column, Kernel, Tools};
use crate::conformance::network::Network;
use crate::conformance::run::{Run, run_in};
use crate::lab::{Tripod, get, tripod_binary};

/// All modes, each before the one that it falls back to.
const MODES: [&str; 4] = ["ipvs", "nftables", "iptables", "userspace"];
/// The feature that nftables mode lacks in the guest.
const NO_NF_TABLES: &str = "IPv4 nf_tables (";
/// Begins the line of a rule in the output of nft.
const IN_CHAIN: &str = "\t\t";
/// Begins the line of a set's type, which the kernel does not read.
const TYPE: &str = "\t\ttype";

/// Runs one Tripod after another on this kernel; returns words and cells.
pub fn run_here(column: &Column) -> Vec<(String, String)> {
    let network = Network::new();
    let mut cells = Vec::new();
    let today: Vec<_> = words(column).collect();
    let of_column = variants().filter(|variant| variant.column.name == column.name);
    for variant in of_column.filter(|variant| today.contains(&variant.thing.word)) {
        let word = variant.thing.word;
        let start = std::time::Instant::now();
        let as_column = variant.as_column();
        let seen = run_in(&network, &as_column, |case| variant.has_to_do_with(case));
        let mut fine = !seen.is_empty();
        for (case, verdict) in &seen {
            for line in verdict {
                println!("FAILED without {word}: {case}: {line}");
                fine = false;
            }
        }
        println!(
            "without {word}: {} cases in {:.1?}",
            seen.len(),
            start.elapsed()
        );
        let cell = if fine {
            variant.cell()
        } else {
            FAILED.to_owned()
        };
        cells.push((word.to_owned(), cell));
        let program = tripod_binary();
        network.node.show(&format!("{} cleanup", program.display()));
    }
    cells
}

impl Run<'_> {
    fn variant(&self) -> Option<Variant> {
        let column = self.column;
        variants().find(|variant| {
            variant.column.name == column.name && Some(variant.thing.word) == column.without
        })
    }

    /// Checks that it names the missing feature, and the remedy.
    pub fn check_words(&self, tripod: &Tripod) {
        let Some(Variant { thing, then, .. }) = self.variant() else {
            return;
        };
        let Thing {
            word,
            what,
            get: how,
            ..
        } = thing;
        let lack = format!("{what} (excluded by --without; {how})");
        let at = ([127, 0, 0, 1], 10249).into();
        let page = |path| get(&self.network.node, at, path).expect("an answer");
        let left_out = format!("excluded by --without: {word}");
        assert_eq!(tripod.logged(&["INFO", &left_out]), 1, "{left_out}");
        let (asked, runs) = (self.column.asked, self.column.mode);
        let from_asked = MODES.iter().skip_while(|mode| **mode != asked);
        let passed_over: Vec<_> = from_asked.take_while(|mode| **mode != runs).collect();
        let has_nf_tables = self.column.kernel == Kernel::Host;
        for mode in &passed_over {
            let lacks_nf_tables = **mode == "nftables" && !has_nf_tables;
            let lack = if lacks_nf_tables { NO_NF_TABLES } else { &lack };
            let sentence = format!("{mode} mode cannot run here: it needs {lack}");
            let line = format!("running in {runs} mode, as {sentence}");
            assert_eq!(
                tripod.logged(&["WARN", &line]),
                1,
                "{line}:\n{}",
                tripod.log()
            );
            assert!(page("/statusz").contains(&sentence), "{sentence}");
        }
        let (reason, value) = match &passed_over[..] {
            [] => (String::new(), 0),
            over if over.contains(&&"nftables") && !has_nf_tables => (format!("{word},nft"), 1),
            _ => ((*word).to_owned(), 1),
        };
        let metric = format!("tripod_mode_fallback{{reason=\"{reason}\"}} {value}");
        let metrics = page("/metrics");
        assert!(metrics.contains(&metric), "no {metric} in\n{metrics}");
        match then {
            // Each Service that requests a scheduler gets an Event.
            Then::Adapts if word.starts_with("ipvs-") => {}
            Then::Adapts => {
                let lines = tripod.logged(&["WARN", &format!("runs without {lack}")]);
                assert_eq!(lines, 1, "{lack}:\n{}", tripod.log());
            }
            Then::OtherWay(way) => {
                let lines = tripod.logged(&[&format!("IPv4: {way}, because "), "--without"]);
                assert_eq!(lines, 1, "{way}:\n{}", tripod.log());
            }
            Then::FallsBack(_) => {}
        }
    }

    /// Checks that rules use the remaining features, and none that was left out.
    pub fn check_rules(&self, all: bool) {
        let variant = self.variant();
        let saved = self.saved();
        let uses = |rules: &str| {
            let mut table = "";
            saved.lines().any(|line| {
                if line.starts_with('*') {
                    table = line;
                }
                let of_nft = line.starts_with(IN_CHAIN) && !line.starts_with(TYPE);
                let is_rule = line.starts_with("-A") || of_nft;
                is_rule && (line.contains(rules) || table == rules)
            })
        };
        if let Some(rules) = variant.as_ref().and_then(|variant| variant.thing.rules) {
            assert!(!uses(rules), "{rules} in\n{saved}");
        }
        // With all cases, each feature is visible in some rule.
        if self.column.without.is_none() && all {
            let adapting = variants().filter(|variant| {
                variant.column.name == self.column.name && matches!(variant.then, Then::Adapts)
            });
            for rules in adapting.filter_map(|variant| variant.thing.rules) {
                assert!(uses(rules), "no {rules} in\n{saved}");
            }
        }
    }

    /// All rules of the node.
    fn saved(&self) -> String {
        let mut saved = String::new();
        if self.column.mode == "nftables" {
            saved += &self.network.node.show("nft list ruleset");
        }
        for tools in [Tools::Nft, Tools::Legacy] {
            // nf_tables cannot be queried in the guest.
            if self.column.kernel == Kernel::Host || tools == Tools::Legacy {
                for program in ["iptables-save", "ip6tables-save"] {
                    let line = format!("{} {program}", tools.program());
                    saved += &self.network.node.show(&line);
                }
            }
        }
        saved
    }
}

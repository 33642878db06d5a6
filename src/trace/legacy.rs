//! Steps of packets through the legacy tables. The kernel reports only the number of a
//! rule: what that rule says is read from the table.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use net::Family;
use nftables::{RuleSummary, TraceTarget, TracedStep, Verdict};
use xtables::{
    Error, Reached, TraceError, Traced, TracedRule, Tracer, Xtables,
    info::{self, Size},
    words::{self, Line},
};

/// Tables are read again after this time, since rules may have been replaced by others of the
/// same size; tables whose size has changed are read at once, …
const FRESH: Duration = Duration::from_secs(1);
/// … but reading takes at most 1/`SHARE` of the time: large tables take long.
const SHARE: u32 = 10;
/// The tables that may exist: requesting another would be an error.
const TABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];
/// The names of targets that end a packet's way through a table, whatever they do with
/// it.
const ACCEPTING: [&str; 5] = ["DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"];
/// Targets after which the packet goes on to the next rule.
const CONTINUING: [&str; 7] = ["MARK", "CONNMARK", "LOG", "NFLOG", "CT", "TRACE", "TCPMSS"];

/// Follows packets through the legacy tables.
pub(super) struct Legacy {
    tracer: Tracer,
    tables: HashMap<String, ReadTable>,
}

/// A step, with what its rule says.
pub(super) struct LegacyStep {
    pub traced: Traced,
    pub step: TracedStep,
    pub rule: Option<RuleSummary>,
}

/// A table as it was read.
struct ReadTable {
    table: Contents,
    /// Its size before the reading.
    size: Option<Size>,
    begun: Instant,
    took: Duration,
}

/// The chains of a table.
#[derive(Debug, Default)]
struct Contents(HashMap<String, Chain>);

#[derive(Debug, Default)]
struct Chain {
    /// Whether its policy is to drop; `None`: it is not a built-in chain.
    drops: Option<bool>,
    /// Its rules in the words of `iptables-save`.
    rules: Vec<String>,
}

/// Returns the legacy tables of `family` that exist.
pub(super) fn tables(family: Family) -> Vec<String> {
    let names = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    let names = std::fs::read_to_string(names).unwrap_or_default();
    names.split_ascii_whitespace().map(str::to_owned).collect()
}

impl Legacy {
    /// Begins to trace; it must be [ended](Legacy::end).
    ///
    /// # Errors
    /// Says what is missing.
    pub(super) async fn open(target: &TraceTarget) -> Result<Legacy, TraceError> {
        Ok(Legacy {
            tracer: Tracer::open(target).await?,
            tables: HashMap::new(),
        })
    }

    pub(super) async fn arrived(&self) -> io::Result<()> {
        self.tracer.arrived().await
    }

    /// Removes the rule that traces.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(super) async fn end(self) -> Result<(), Error> {
        self.tracer.end().await
    }

    /// Adds the steps that have arrived to `steps`. Returns whether some were lost.
    ///
    /// # Errors
    /// When the socket fails.
    pub(super) async fn drain(&mut self, steps: &mut Vec<LegacyStep>) -> io::Result<bool> {
        let mut all = Vec::new();
        let lost = self.tracer.drain(|traced| all.push(traced))?;
        for traced in all {
            let place = &traced.rule;
            let (step, rule) = match self.current(&place.table).await {
                Some(table) => table.at(place),
                None => unread(place),
            };
            // The rule that traces is ours.
            if rule.as_ref().and_then(|rule| rule.target.as_deref()) != Some("TRACE") {
                steps.push(LegacyStep { traced, step, rule });
            }
        }
        Ok(lost)
    }

    /// Returns what a table holds, which is read again if it may have changed; `None`: it
    /// cannot be read, or has changed and is too large to be read again this soon.
    async fn current(&mut self, name: &str) -> Option<&Contents> {
        if !TABLES.contains(&name) {
            return None;
        }
        let xtables = self.tracer.xtables();
        let size = info::size(xtables.family(), name).ok();
        let is_due = self.tables.get(name).is_none_or(|read| {
            let age = read.begun.elapsed();
            age >= read.took * SHARE && (age >= FRESH || read.size != size)
        });
        if is_due {
            let begun = Instant::now();
            let table = Contents::read(xtables, name).await;
            let read = ReadTable {
                table: table.unwrap_or_default(),
                size,
                begun,
                took: begun.elapsed(),
            };
            self.tables.insert(name.to_owned(), read);
        }
        let read = self.tables.get(name);
        read.filter(|read| read.size == size)
            .map(|read| &read.table)
    }
}

impl Contents {
    async fn read(xtables: &Xtables, name: &str) -> Result<Contents, Error> {
        let mut contents = Contents::default();
        xtables.read(Some(name), |line| contents.line(line)).await?;
        Ok(contents)
    }

    /// Adds a line of `iptables-save`.
    fn line(&mut self, line: &str) {
        match Line::parse(line) {
            Some(Line::Chain(name)) => {
                let chain = self.0.entry(name.to_owned()).or_default();
                chain.drops = match line.split(' ').nth(1) {
                    Some("DROP") => Some(true),
                    Some("ACCEPT") => Some(false),
                    _ => None,
                };
            }
            Some(Line::Rule { chain, words }) => {
                let chain = self.0.entry(chain.to_owned()).or_default();
                chain.rules.push(words.to_owned());
            }
            None => {}
        }
    }

    /// Returns what happened at `place`, and what the rule there says.
    fn at(&self, place: &TracedRule) -> (TracedStep, Option<RuleSummary>) {
        let Some(chain) = self.0.get(&place.chain) else {
            return unread(place);
        };
        let index = place.number.checked_sub(1);
        match index.and_then(|index| chain.rules.get(index)) {
            Some(words) => {
                let verdict = self.verdict(words);
                let handle = place.number as u64;
                let step = TracedStep::Rule { handle, verdict };
                (step, Some(summary(words)))
            }
            // The table has fewer rules by now.
            None if place.reached == Reached::Rule => unread(place),
            None => match chain.drops {
                Some(drops) => (TracedStep::Policy { drops }, None),
                None => (TracedStep::End, None),
            },
        }
    }

    /// Returns what happens to a packet that the rule matches; `None`: an extension
    /// decides.
    fn verdict(&self, words: &str) -> Option<Verdict> {
        let Some(target) = words::target(words) else {
            return Some(Verdict::Continue);
        };
        match target {
            "ACCEPT" => Some(Verdict::Accept),
            "DROP" | "REJECT" => Some(Verdict::Drop),
            "RETURN" => Some(Verdict::Return),
            chain if self.0.contains_key(chain) => {
                let goes = words::values(words, "-g").next().is_some();
                let verdict = if goes { Verdict::Goto } else { Verdict::Jump };
                Some(verdict(chain.into()))
            }
            name if ACCEPTING.contains(&name) => Some(Verdict::Accept),
            name if CONTINUING.contains(&name) => Some(Verdict::Continue),
            _ => None,
        }
    }
}

/// Returns the step at a place whose content is not known.
fn unread(place: &TracedRule) -> (TracedStep, Option<RuleSummary>) {
    let handle = place.number as u64;
    let verdict = None;
    (TracedStep::Rule { handle, verdict }, None)
}

/// Returns what a rule in the words of `iptables-save` says.
fn summary(words: &str) -> RuleSummary {
    let target = words::target(words);
    RuleSummary {
        comment: words::values(words, "--comment").next(),
        sets: words::values(words, "--match-set").collect(),
        refuses: target == Some("REJECT"),
        // Chains and verdicts of nf_tables are not named twice.
        target: target.filter(|name| is_extension(name)).map(str::to_owned),
    }
}

fn is_extension(name: &str) -> bool {
    name == "REJECT" || ACCEPTING.contains(&name) || CONTINUING.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAT: &str = "\
*nat
:PREROUTING ACCEPT [0:0]
:FORWARD DROP [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -m comment --comment \"default/web:tcp cluster IP\" -j KUBE-SVC-A
-A KUBE-SERVICES -m set --match-set TRIPOD-V4 dst,dst -g KUBE-SVC-A
-A KUBE-SERVICES -m comment --comment \"default/no has no endpoints\" -j REJECT --reject-with icmp-port-unreachable
-A KUBE-SVC-A -p tcp -m tcp -j DNAT --to-destination 10.244.0.11:8080
-A KUBE-SVC-A -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SVC-A -s 10.0.0.0/8
-A KUBE-SVC-A -j NFQUEUE --queue-num 1
-A KUBE-SVC-A -j DROP
COMMIT
";

    fn at(chain: &str, number: usize) -> (TracedStep, Option<RuleSummary>) {
        let mut contents = Contents::default();
        NAT.lines().for_each(|line| contents.line(line));
        contents.at(&TracedRule {
            table: "nat".to_owned(),
            chain: chain.to_owned(),
            number,
            reached: Reached::End,
        })
    }

    #[test]
    fn a_rule_that_is_gone_is_no_end() {
        let mut contents = Contents::default();
        NAT.lines().for_each(|line| contents.line(line));
        let place = TracedRule {
            table: "nat".to_owned(),
            chain: "PREROUTING".to_owned(),
            number: 2,
            reached: Reached::Rule,
        };
        assert_eq!(contents.at(&place), unread(&place));
    }

    #[test]
    fn rules_are_found_by_their_number() {
        let jump = || Some(Verdict::Jump("KUBE-SVC-A".into()));
        let goto = || Some(Verdict::Goto("KUBE-SVC-A".into()));
        let web = Some("default/web:tcp cluster IP");
        let no = Some("default/no has no endpoints");
        for (chain, number, verdict, comment, target) in [
            ("KUBE-SERVICES", 1, jump(), web, None),
            ("KUBE-SERVICES", 2, goto(), None, None),
            ("KUBE-SERVICES", 3, Some(Verdict::Drop), no, Some("REJECT")),
            ("KUBE-SVC-A", 1, Some(Verdict::Accept), None, Some("DNAT")),
            ("KUBE-SVC-A", 2, Some(Verdict::Continue), None, Some("MARK")),
            ("KUBE-SVC-A", 3, Some(Verdict::Continue), None, None),
            ("KUBE-SVC-A", 4, None, None, None),
            ("KUBE-SVC-A", 5, Some(Verdict::Drop), None, None),
        ] {
            let (step, rule) = at(chain, number);
            let handle = number as u64;
            assert_eq!(
                step,
                TracedStep::Rule { handle, verdict },
                "{chain} {number}"
            );
            let rule = rule.expect("a rule");
            assert_eq!(rule.comment.as_deref(), comment, "{chain} {number}");
            assert_eq!(rule.target.as_deref(), target, "{chain} {number}");
            assert_eq!(rule.refuses, target == Some("REJECT"));
        }
        let (_, rule) = at("KUBE-SERVICES", 2);
        assert_eq!(rule.expect("a rule").sets, ["TRIPOD-V4"]);
    }

    #[test]
    fn what_comes_after_the_last_rule_is_the_end_of_the_chain() {
        assert_eq!(at("PREROUTING", 2).0, TracedStep::Policy { drops: false });
        assert_eq!(at("FORWARD", 1).0, TracedStep::Policy { drops: true });
        assert_eq!(at("KUBE-SERVICES", 4).0, TracedStep::End);
        // For rules that changed meanwhile nothing is invented.
        for (chain, number) in [("GONE", 1), ("GONE", 0)] {
            let handle = number as u64;
            let verdict = None;
            let unknown = (TracedStep::Rule { handle, verdict }, None);
            assert_eq!(at(chain, number), unknown);
        }
    }
}

//! How iptables-restore treats its input (`iptables/iptables-restore.c` says when it commits; which
//! line is blamed was tried with version 1.8.9).

use std::{collections::BTreeSet, fmt, sync::Arc};

use net::Family;
use netlink::Request;
use xtables::Engine;

use super::{
    Chain, Table, Xtables, known,
    rule::{Rule, Target, Unread, words},
};
use crate::{accounts::Accounts, ipset::Sets, nftables::Ruleset};

/// Input that is read table by table.
pub(crate) struct Batch<'a> {
    family: Family,
    lines: Vec<&'a str>,
    at: usize,
    /// The number of a line that is refused, counted from 0.
    refused: Option<usize>,
}

/// Why a program ends before its input does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The program finds fault with that line, counted from 1.
    Line(usize),
    /// It does not understand the line.
    Unread(usize, Unread),
    /// The kernel refuses the line.
    Kernel(usize, &'static str),
    /// The kernel does not delete a chain that rules jump to.
    InUse(usize, String),
    /// There is no such table.
    NoTable(usize, String),
    /// The input ends within a table.
    NoCommit(usize),
}

impl Refusal {
    /// Returns the status with which the program exits.
    pub(crate) fn status(&self) -> i32 {
        match self {
            Refusal::Line(_) | Refusal::NoCommit(_) => 1,
            Refusal::Unread(..) | Refusal::NoTable(..) => 2,
            Refusal::Kernel(..) | Refusal::InUse(..) => 4,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Line(line) => write!(f, "line {line} failed"),
            Refusal::Kernel(line, why) => {
                write!(
                    f,
                    "\nline {line}: RULE_APPEND failed ({why}): rule in chain"
                )
            }
            Refusal::InUse(line, chain) => write!(
                f,
                "\nline {line}: CHAIN_DEL failed (Device or resource busy): chain {chain}"
            ),
            Refusal::NoCommit(line) => write!(f, "COMMIT expected at line {line}"),
            Refusal::NoTable(line, table) => {
                write!(
                    f,
                    "unable to initialize table '{table}'\nError occurred at line: {line}"
                )
            }
            Refusal::Unread(line, unread) => {
                match unread {
                    Unread::Option(option) => write!(f, "unknown option \"{option}\"")?,
                    Unread::Match(name) => {
                        writeln!(f, "Couldn't load match `{name}':No such file or directory")?;
                    }
                    Unread::Target(name) => {
                        writeln!(f, "Couldn't load target `{name}':No such file or directory")?;
                    }
                    Unread::Value(value) => write!(f, "bad value for {value}")?,
                }
                write!(f, "\nError occurred at line: {line}")
            }
        }
    }
}

impl<'a> Batch<'a> {
    /// Takes the input of iptables-restore, or ip6tables-restore.
    pub(crate) fn new(family: Family, text: &'a str) -> Batch<'a> {
        Batch {
            family,
            lines: text.lines().collect(),
            at: 0,
            refused: None,
        }
    }

    /// Makes one of the lines be refused, by its number modulo how many there are.
    pub(crate) fn refuse_line(&mut self, at: usize) {
        self.refused = Some(at % self.lines.len().max(1));
    }

    /// Returns the next line, with its number from 1.
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let line = self.lines.get(self.at)?;
        self.at += 1;
        Some((self.at, line))
    }
}

impl Xtables {
    /// Applies the next table of a batch. Returns false if there was none.
    pub(crate) fn run_table(
        &mut self,
        batch: &mut Batch<'_>,
        accounts: &Accounts,
        sets: &Sets,
    ) -> Result<bool, Refusal> {
        let family = batch.family;
        let mut table: Option<(&'static str, Table)> = None;
        let mut changes = Vec::new();
        while let Some((number, line)) = batch.next() {
            if batch.refused == Some(number - 1) {
                return Err(match self.engine {
                    Engine::Legacy => Refusal::Line(number),
                    Engine::NfTables => Refusal::Kernel(number, "Invalid argument"),
                });
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match (&mut table, line.strip_prefix('*')) {
                (None, Some(name)) => {
                    let (known, _) =
                        known(name).ok_or_else(|| Refusal::NoTable(number, name.to_owned()))?;
                    let there = self.table_mut(family, known).cloned();
                    table = Some((known, there.unwrap_or_default()));
                }
                (Some((name, table)), _) if line == "COMMIT" => {
                    self.verify(name, table, (accounts, sets), number)?;
                    self.tables.insert((family, *name), Arc::new(table.clone()));
                    self.changes.append(&mut changes);
                    self.changed();
                    return Ok(true);
                }
                (Some((name, table)), None) => {
                    let mut change = Change {
                        xtables: self,
                        name,
                        table,
                        family,
                        number,
                        changes: &mut changes,
                    };
                    change.line(line)?;
                }
                _ => return Err(Refusal::Line(number)),
            }
        }
        match table {
            Some(_) => Err(Refusal::NoCommit(batch.at + 1)),
            None => Ok(false),
        }
    }

    /// Checks for the faults that the legacy engine finds when a table is complete.
    fn verify(
        &self,
        name: &str,
        table: &Table,
        (accounts, sets): (&Accounts, &Sets),
        line: usize,
    ) -> Result<(), Refusal> {
        let refused = Err(match self.engine {
            Engine::Legacy => Refusal::Line(line),
            Engine::NfTables => Refusal::Kernel(line, "Invalid argument"),
        });
        let rules = table.chains.values().flat_map(|chain| &chain.rules);
        let mut counters = rules.clone().flat_map(|rule| rule.accounts());
        if counters.any(|account| !accounts.contain(account)) {
            return refused;
        }
        let mut names = rules.clone().flat_map(|rule| rule.sets());
        if names.any(|name| !sets.has(name)) {
            return refused;
        }
        let of_nat = |target: &Target| {
            matches!(
                target,
                Target::Dnat(_) | Target::Redirect(_) | Target::Masquerade
            )
        };
        if name != "nat" && rules.clone().any(|rule| of_nat(&rule.target)) {
            return refused;
        }
        if name != "filter" && rules.clone().any(|rule| rule.target == Target::Reject) {
            return refused;
        }
        for (base, _) in table.chains.iter().filter(|(_, chain)| chain.is_base) {
            if has_loop(table, base, &mut Vec::new(), &mut BTreeSet::new()) {
                return refused;
            }
            let reached = table.reached(base);
            let fits = |target: &Target| match target {
                Target::Masquerade => base == "POSTROUTING",
                Target::Dnat(_) | Target::Redirect(_) => base == "PREROUTING" || base == "OUTPUT",
                _ => true,
            };
            let mut rules = reached.iter().flat_map(|chain| &table.chains[*chain].rules);
            if rules.any(|rule| !fits(&rule.target)) {
                return refused;
            }
        }
        Ok(())
    }
}

/// Returns whether rules jump from a chain, which `way` has reached, back to a chain on
/// that way. Chains that are `passed` are known not to.
fn has_loop<'a>(
    table: &'a Table,
    name: &'a str,
    way: &mut Vec<&'a str>,
    passed: &mut BTreeSet<&'a str>,
) -> bool {
    if way.contains(&name) {
        return true;
    }
    let Some(chain) = table.chains.get(name).filter(|_| !passed.contains(name)) else {
        return false;
    };
    way.push(name);
    let mut leads = chain.rules.iter().filter_map(|rule| rule.leads_to());
    let found = leads.any(|next| has_loop(table, next, way, passed));
    way.pop();
    passed.insert(name);
    found
}

/// A line that changes a table.
struct Change<'a> {
    xtables: &'a mut Xtables,
    /// The name of the table.
    name: &'static str,
    table: &'a mut Table,
    family: Family,
    number: usize,
    /// How nf_tables notifies of each step, also of those that others undo. It has no new
    /// generation where there is none (`nf_tables_commit`).
    changes: &'a mut Vec<Request>,
}

impl Change<'_> {
    fn line(&mut self, line: &str) -> Result<(), Refusal> {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            match self.table.chains.get_mut(name) {
                Some(chain) if chain.is_base => {}
                Some(_) => self.empty(name)?,
                None => self.make(name),
            }
            return Ok(());
        }
        let words = words(line);
        let words: &[String] = &words;
        let (Some(command), Some(name)) = (words.first(), words.get(1)) else {
            return Err(Refusal::Line(self.number));
        };
        let rest = &words[2..];
        match command.as_str() {
            "-N" if !self.table.chains.contains_key(name) => {
                self.make(name);
                Ok(())
            }
            "-X" => self.delete_chain(name),
            "-F" => self.empty(name),
            "-A" => {
                let rule = self.rule(rest)?;
                self.accepted(&rule)?;
                self.chain(name)?.rules.push(Arc::clone(&rule));
                self.changes_rule(name, &rule);
                Ok(())
            }
            "-I" => {
                let (at, rest) = place(rest);
                let rule = self.rule(rest)?;
                self.accepted(&rule)?;
                let refused = self.refused();
                let rules = &mut self.chain(name)?.rules;
                let at = at.unwrap_or(1) - 1;
                if at > rules.len() {
                    return Err(refused);
                }
                rules.insert(at, Arc::clone(&rule));
                self.changes_rule(name, &rule);
                Ok(())
            }
            "-R" => {
                let (at, rest) = place(rest);
                let rule = self.rule(rest)?;
                self.accepted(&rule)?;
                let refused = self.refused();
                let rules = self.chain(name)?.rules.iter_mut();
                let there = at.and_then(|at| rules.into_iter().nth(at - 1));
                let before = std::mem::replace(there.ok_or(refused)?, Arc::clone(&rule));
                self.changes_rule(name, &before);
                self.changes_rule(name, &rule);
                Ok(())
            }
            "-D" => self.delete(name, rest),
            _ => Err(self.refused()),
        }
    }

    fn delete_chain(&mut self, name: &str) -> Result<(), Refusal> {
        let chain = self.chain(name)?;
        let is_used = chain.is_base || !chain.rules.is_empty();
        if is_used || self.table.references(name) > 0 {
            return Err(match self.xtables.engine {
                Engine::Legacy => self.refused(),
                Engine::NfTables => Refusal::InUse(self.number, name.to_owned()),
            });
        }
        self.table.chains.remove(name);
        self.changes_chain(name);
        Ok(())
    }

    /// Takes away the rule with this number or of these words.
    fn delete(&mut self, name: &str, words: &[String]) -> Result<(), Refusal> {
        let (at, rest) = place(words);
        let rule = match at {
            Some(_) => None,
            None => Some(self.rule(rest)?),
        };
        let refused = self.refused();
        let rules = &mut self.chain(name)?.rules;
        let found = match at {
            Some(at) => Some(at - 1).filter(|at| *at < rules.len()),
            None => rules.iter().position(|there| Some(there) == rule.as_ref()),
        };
        let rule = rules.remove(found.ok_or(refused)?);
        self.changes_rule(name, &rule);
        Ok(())
    }

    /// Takes the rules of a chain away.
    fn empty(&mut self, name: &str) -> Result<(), Refusal> {
        for rule in std::mem::take(&mut self.chain(name)?.rules) {
            self.changes_rule(name, &rule);
        }
        Ok(())
    }

    fn changes_chain(&mut self, chain: &str) {
        let changed = Ruleset::notification(self.family, self.name, chain, None);
        self.changes.push(changed);
    }

    fn changes_rule(&mut self, chain: &str, rule: &Rule) {
        let leads_to = Some(rule.leads_to());
        let changed = Ruleset::notification(self.family, self.name, chain, leads_to);
        self.changes.push(changed);
    }

    fn refused(&self) -> Refusal {
        Refusal::Line(self.number)
    }

    fn make(&mut self, name: &str) {
        self.xtables.handles += 1;
        let chain = Chain {
            is_base: false,
            handle: self.xtables.handles,
            rules: Vec::new(),
        };
        self.table.chains.insert(name.to_owned(), chain);
        self.changes_chain(name);
    }

    fn chain(&mut self, name: &str) -> Result<&mut Chain, Refusal> {
        let refused = self.refused();
        self.table.chains.get_mut(name).ok_or(refused)
    }

    fn rule(&self, words: &[String]) -> Result<Arc<Rule>, Refusal> {
        let chains = &self.table.chains;
        let rule = Rule::parse(words, self.family, |name| chains.contains_key(name));
        let rule = rule.map_err(|unread| Refusal::Unread(self.number, unread))?;
        let to_base = rule.leads_to().is_some_and(|name| chains[name].is_base);
        if to_base {
            return Err(self.refused());
        }
        Ok(Arc::new(rule))
    }

    /// Checks whether the kernel takes a rule.
    fn accepted(&self, rule: &Rule) -> Result<(), Refusal> {
        let refused = self.xtables.refused.as_ref();
        if refused.is_some_and(|text| rule.text.contains(text.as_str())) {
            return Err(match self.xtables.engine {
                Engine::Legacy => self.refused(),
                Engine::NfTables => Refusal::Kernel(self.number, "Invalid argument"),
            });
        }
        Ok(())
    }
}

/// Splits words after the number of a rule with which they may begin.
fn place(words: &[String]) -> (Option<usize>, &[String]) {
    let number = words.first().and_then(|word| word.parse().ok());
    match number.filter(|number| *number > 0) {
        Some(number) => (Some(number), &words[1..]),
        None => (None, words),
    }
}

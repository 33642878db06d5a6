//! Removing chains from a table that others have rules in too.

use std::collections::HashSet;

use super::{
    Engine, Error, Family, Xtables,
    rule::{BASE_CHAINS, Table},
};
use crate::kernel::nftables;

/// Chains that iptables-nft-restore is given to remove at once. The time that it
/// takes grows with the square of their number.
const AT_ONCE: usize = 1_000;

/// What stays when rules are removed: those of a mode that runs.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    engines: Vec<(Family, Engine)>,
    chains: Chains,
}

#[derive(Clone, Copy, Debug, Default)]
enum Chains {
    #[default]
    All,
    These(&'static [(Table, &'static str)]),
}

impl Kept {
    /// Nothing stays.
    pub fn nothing() -> Kept {
        Kept::default()
    }

    /// All that is in these engines stays.
    pub fn all(engines: Vec<(Family, Engine)>) -> Kept {
        let chains = Chains::All;
        Kept { engines, chains }
    }

    /// In these engines, chains of these names stay, with what leads to them.
    pub fn chains(engines: Vec<(Family, Engine)>, names: &'static [(Table, &'static str)]) -> Kept {
        let chains = Chains::These(names);
        Kept { engines, chains }
    }

    /// The chains that stay in an engine; `None`: it is not to be touched.
    pub fn within(
        &self,
        family: Family,
        engine: Engine,
    ) -> Option<&'static [(Table, &'static str)]> {
        match self.chains {
            _ if !self.engines.contains(&(family, engine)) => Some(&[]),
            Chains::All => None,
            Chains::These(names) => Some(names),
        }
    }
}

/// The chains of a table that are to go, and what leads to them. Of a table
/// with a hundred thousand rules no more is kept than that.
#[derive(Debug)]
pub struct Leftovers<F> {
    table: Table,
    ours: F,
    chains: Vec<String>,
    /// Rules of the kernel's chains that lead to them.
    jumps: Vec<String>,
    /// Those that somebody else's rule leads to.
    held: HashSet<String>,
}

impl<F: Fn(&str) -> bool> Leftovers<F> {
    /// Of `table`; `ours` tells by their names the chains that are to go.
    pub fn new(table: Table, ours: F) -> Leftovers<F> {
        Leftovers {
            table,
            ours,
            chains: Vec::new(),
            jumps: Vec::new(),
            held: HashSet::new(),
        }
    }

    /// Reads them from `xtables`.
    ///
    /// # Errors
    /// What the program said.
    pub async fn read(mut self, xtables: &Xtables) -> Result<Leftovers<F>, Error> {
        let table = self.table.name();
        xtables.read(table, |line| self.line(line)).await?;
        Ok(self)
    }

    /// Takes in a line of `iptables-save`.
    pub fn line(&mut self, line: &str) {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            if (self.ours)(name) {
                self.chains.push(name.to_owned());
            }
        } else if let Some(rule) = line.strip_prefix("-A ")
            && let Some((chain, words)) = rule.split_once(' ')
            && !(self.ours)(chain)
            && let Some(target) = target(words).filter(|target| (self.ours)(target))
        {
            // Rules of the kernel's chains that lead to us are ours.
            if BASE_CHAINS.contains(&chain) {
                self.jumps.push(rule.to_owned());
            } else {
                self.held.insert(target.to_owned());
            }
        }
    }

    /// Leaves the chain of this name, and what leads to it.
    pub fn leave(&mut self, name: &str) {
        self.chains.retain(|chain| chain != name);
        let leads = |rule: &str| {
            let words = rule.split_once(' ').map_or("", |(_, words)| words);
            target(words) == Some(name)
        };
        self.jumps.retain(|rule| !leads(rule));
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Input of `iptables-restore` that removes what leads to the chains, but
    /// not them; empty if nothing does.
    pub fn unlinking(&self) -> String {
        if self.jumps.is_empty() {
            return String::new();
        }
        self.input(&self.unlinked())
    }

    /// Input of `iptables-restore` that removes the chains and what leads to
    /// them; empty if there are none. A chain that somebody else's rule leads
    /// to is only emptied, for that rule is not ours to remove.
    pub fn removal(&self) -> String {
        if self.chains.is_empty() {
            return String::new();
        }
        let rules = self.unlinked();
        let (emptied, deleted) = (emptied(&self.chains), deleted(self.free()));
        self.input(&format!("{emptied}{rules}{deleted}"))
    }

    /// As [`removal`](Self::removal) where `engine` can do it at once; else in
    /// steps, one after the other, of which the first has nothing lead to the
    /// chains any more. There is always a first.
    pub fn steps(&self, engine: Engine) -> Vec<String> {
        if engine == Engine::Legacy || self.chains.len() <= AT_ONCE {
            return vec![self.removal()];
        }
        let free: Vec<&String> = self.free().collect();
        let emptying = self.chains.chunks(AT_ONCE).map(emptied);
        let deleting = free
            .chunks(AT_ONCE)
            .map(|free| deleted(free.iter().copied()));
        let lines = emptying.chain(deleting);
        let later = lines.map(|lines| self.input(&lines));
        std::iter::once(self.unlinking()).chain(later).collect()
    }

    fn input(&self, lines: &str) -> String {
        format!("*{}\n{lines}COMMIT\n", self.table)
    }

    fn unlinked(&self) -> String {
        let deletion = |rule| format!("-D {rule}\n");
        self.jumps.iter().map(deletion).collect()
    }

    fn free(&self) -> impl Iterator<Item = &String> {
        self.chains
            .iter()
            .filter(|chain| !self.held.contains(*chain))
    }
}

fn emptied(chains: &[String]) -> String {
    chains
        .iter()
        .map(|chain| format!(":{chain} - [0:0]\n"))
        .collect()
}

fn deleted<'a>(chains: impl Iterator<Item = &'a String>) -> String {
    chains.map(|chain| format!("-X {chain}\n")).collect()
}

/// Whether there are chains in tables of `family` that `ours` tells by their
/// names, other than what is `kept`. Cheap where the kernel lists chains without
/// their rules; what cannot be looked at holds none.
pub async fn any(family: Family, kept: &Kept, ours: impl Fn(Table, &str) -> bool) -> bool {
    for (xtables, engine) in Xtables::engines(family).await {
        let Some(kept) = kept.within(family, engine) else {
            continue;
        };
        let ours = |table, chain: &str| ours(table, chain) && !kept.contains(&(table, chain));
        if engine == Engine::NfTables {
            if holds(family, ours).unwrap_or(false) {
                return true;
            }
            continue;
        }
        for table in Table::ALL {
            if !engine.has_table(family, table.name()) {
                continue;
            }
            let read = Leftovers::new(table, |chain: &str| ours(table, chain));
            let read = read.read(&xtables).await;
            if read.is_ok_and(|leftovers| !leftovers.is_empty()) {
                return true;
            }
        }
    }
    false
}

/// What to make of a table that could not be read when what `ours` tells by
/// their names was to be removed from it: one that holds nothing of ours is
/// none of our business.
///
/// # Errors
/// With `error` otherwise.
pub fn unread(
    error: Error,
    (family, engine): (Family, Engine),
    ours: impl Fn(Table, &str) -> bool,
) -> Result<(), Error> {
    let concerns_us = match engine {
        Engine::NfTables => holds(family, ours).unwrap_or(false),
        // The kernel says that the table is there, and no more.
        Engine::Legacy => true,
    };
    match concerns_us || error.is_permission() {
        true => Err(error),
        false => Ok(()),
    }
}

/// Whether the programs of `family` reach all chains that `ours` tells by their
/// names, other than what is `kept`. Those of the legacy engine cannot be asked
/// for without its program.
///
/// # Errors
/// When they do not.
pub fn within_reach(
    family: Family,
    programs: &[(Xtables, Engine)],
    kept: &Kept,
    ours: impl Fn(Table, &str) -> bool,
) -> Result<(), Error> {
    let engine = Engine::NfTables;
    let Some(kept) = kept.within(family, engine) else {
        return Ok(());
    };
    let there = programs.iter().any(|(_, of)| *of == engine);
    let ours = |table, chain: &str| ours(table, chain) && !kept.contains(&(table, chain));
    match !there && holds(family, ours).unwrap_or(false) {
        true => Err(Error::Absent { family }),
        false => Ok(()),
    }
}

/// Whether nf_tables has such chains, whatever programs there are; `None`: it
/// cannot be asked.
fn holds(family: Family, ours: impl Fn(Table, &str) -> bool) -> Option<bool> {
    let mut found = false;
    let mut look = |chain: nftables::Chain| {
        found |=
            Table::named(&chain.table).is_some_and(|table| !chain.base && ours(table, &chain.name));
    };
    let mut rules = nftables::Rules::open().ok()?;
    rules.chains(family, &mut look).ok()?;
    Some(found)
}

/// The chain or target that a rule leads to, by `-j` or `-g`, in the words of
/// `iptables-save`.
pub fn target(words: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    let mut bare = words.split(|c| {
        let space = c == ' ' && !quoted;
        quoted ^= c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        space
    });
    let mut found = None;
    while let Some(word) = bare.next() {
        if matches!(word, "-j" | "-g") {
            found = bare.next();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_rules_and_what_they_lead_to_stay() {
        let ours = |chain: &str| chain.starts_with("KUBE-");
        let mut leftovers = Leftovers::new(Table::Nat, ours);
        assert!(leftovers.is_empty());
        assert_eq!(
            (leftovers.removal(), leftovers.unlinking()),
            Default::default()
        );
        for line in [
            ":OUTPUT ACCEPT [0:0]",
            ":MINE - [0:0]",
            ":KUBE-A - [0:0]",
            ":KUBE-B - [0:0]",
            ":KUBE-C - [0:0]",
            "-A OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A",
            "-A OUTPUT -m comment --comment \"not -j KUBE-A\" -j MINE",
            "-A OUTPUT -g MINE",
            "-A MINE -j KUBE-B",
            "-A MINE -g KUBE-C",
            "-A KUBE-A -j KUBE-B",
        ] {
            leftovers.line(line);
        }
        assert_eq!(
            leftovers.unlinking(),
            "*nat\n-D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\nCOMMIT\n"
        );
        assert_eq!(
            leftovers.removal(),
            "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n:KUBE-C - [0:0]\n\
             -D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\n-X KUBE-A\nCOMMIT\n"
        );
    }

    #[test]
    fn a_chain_that_is_left_keeps_what_leads_to_it() {
        let mut leftovers = Leftovers::new(Table::Filter, |chain: &str| chain.len() == 1);
        for line in [":A - [0:0]", ":B - [0:0]", "-A INPUT -j A", "-A INPUT -j B"] {
            leftovers.line(line);
        }
        leftovers.leave("A");
        assert_eq!(
            leftovers.removal(),
            "*filter\n:B - [0:0]\n-D INPUT -j B\n-X B\nCOMMIT\n"
        );
        leftovers.leave("B");
        assert_eq!(leftovers.removal(), "");
    }

    #[test]
    fn many_chains_go_in_steps_once_nothing_leads_to_them() {
        let mut leftovers = Leftovers::new(Table::Nat, |chain: &str| chain.starts_with('K'));
        for line in [":FOREIGN - [0:0]", "-A OUTPUT -j K0", "-A FOREIGN -j K1"] {
            leftovers.line(line);
        }
        for i in 0..AT_ONCE {
            leftovers.line(&format!(":K{i} - [0:0]"));
        }
        let whole = leftovers.steps(Engine::NfTables);
        assert_eq!(whole, [leftovers.removal()]);
        leftovers.line(":KLAST - [0:0]");
        assert_eq!(leftovers.steps(Engine::Legacy), [leftovers.removal()]);
        let steps = leftovers.steps(Engine::NfTables);
        let (first, later) = steps.split_first().unwrap();
        assert_eq!(*first, leftovers.unlinking());
        let sizes: Vec<usize> = later.iter().map(|step| step.lines().count() - 2).collect();
        assert_eq!(sizes, [AT_ONCE, 1, AT_ONCE]);
        let lines = |step: &String| step.lines().map(str::to_owned).collect::<Vec<_>>();
        let mut in_steps: Vec<String> = steps.iter().flat_map(lines).collect();
        let mut at_once = lines(&leftovers.removal());
        in_steps.retain(|line| !["*nat", "COMMIT"].contains(&line.as_str()));
        at_once.retain(|line| !["*nat", "COMMIT"].contains(&line.as_str()));
        in_steps.sort();
        at_once.sort();
        assert_eq!(in_steps, at_once);
    }

    #[test]
    fn the_target_is_found_beside_comments() {
        let cases = [
            ("-j KUBE-SERVICES", Some("KUBE-SERVICES")),
            ("-p tcp -g A", Some("A")),
            ("-m comment --comment \"x -j B\" -j A", Some("A")),
            ("-m comment --comment \"x \\\" -j B\"", None),
            (
                "-j REJECT --reject-with icmp-port-unreachable",
                Some("REJECT"),
            ),
            ("-j", None),
            ("", None),
        ];
        for (words, wanted) in cases {
            assert_eq!(target(words), wanted, "{words}");
        }
    }

    #[test]
    fn what_stays_depends_on_the_engine() {
        let own = vec![(Family::V4, Engine::Legacy)];
        let shared: &[_] = &[(Table::Nat, "KUBE-SERVICES")];
        for (kept, here) in [
            (Kept::nothing(), Some(&[][..])),
            (Kept::all(own.clone()), None),
            (
                Kept::chains(own, &[(Table::Nat, "KUBE-SERVICES")]),
                Some(shared),
            ),
        ] {
            assert_eq!(kept.within(Family::V4, Engine::Legacy), here);
            assert_eq!(kept.within(Family::V4, Engine::NfTables), Some(&[][..]));
            assert_eq!(kept.within(Family::V6, Engine::Legacy), Some(&[][..]));
        }
    }

    #[test]
    fn chains_that_no_program_reaches_are_not_said_to_be_removed() {
        crate::kernel::namespace::in_namespace(|| {
            let nft = |args: &str| {
                let mut command = std::process::Command::new("iptables-nft");
                let status = command.args(args.split(' ')).status();
                assert!(status.unwrap().success(), "{args}");
            };
            let ours = |table, chain: &str| (table, chain) == (Table::Nat, "KUBE-SERVICES");
            let reached = |kept: &Kept| within_reach(Family::V4, &[], kept, ours);
            nft("-t filter -N KUBE-SERVICES");
            nft("-t nat -N KUBE-SERVICE");
            assert!(reached(&Kept::nothing()).is_ok());
            nft("-t nat -N KUBE-SERVICES");
            let error = reached(&Kept::nothing()).unwrap_err();
            assert!(matches!(error, Error::Absent { .. }), "{error}");
            let own = vec![(Family::V4, Engine::NfTables)];
            assert!(reached(&Kept::all(own.clone())).is_ok());
            let shared = Kept::chains(own, &[(Table::Nat, "KUBE-SERVICES")]);
            assert!(reached(&shared).is_ok());
        });
    }
}

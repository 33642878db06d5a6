//! The rules of one family, in the kernel.

use std::borrow::Cow;

use xtables::{
    Error,
    desired::RuleSet,
    difference::difference,
    observed::Observed,
    rule::Table,
    run::Writer,
    transaction::{Phase, Transaction},
    words::{Line, target},
};

use super::outline::Outline;
use crate::modes::{Difference, ipvs::plan::interest};

/// How often rules are written in a row if another program changes them in between.
const ATTEMPTS: usize = 3;

/// Fate of the rules that were applied before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// They are still applied.
    InForce,
    /// Some of them are known to be gone.
    Lost,
}

/// The outcome of [`Tables::ensure`].
#[derive(Debug, Default)]
pub struct Ensured {
    /// Rules that other programs had changed, and that were repaired.
    pub repaired: Vec<String>,
    /// Why table mangle could not be read: its rules are not known.
    pub unread: Option<Error>,
}

/// The tables of iptables or ip6tables, and our rules in them.
#[derive(Debug)]
pub struct Tables {
    writer: Writer,
    /// The rules that were applied, when that was last known.
    in_force: Option<RuleSet>,
    /// The rules of a failed write; some of them may be applied.
    attempted: Option<RuleSet>,
    /// The fate of the rules that were applied before.
    previous: Previous,
    /// Content of the tables right after rules were written, where the program words them otherwise
    /// than we do.
    reworded: Option<Reworded>,
    /// Changes that wait until the virtual servers are there: iptables mode serves the traffic
    /// until then, through a chain of the same name.
    later: Option<Takeover>,
}

#[derive(Debug)]
struct Reworded {
    rules: RuleSet,
    observed: Observed,
}

#[derive(Debug)]
struct Takeover {
    /// The changes, of which those of [`Phase::Translate`] are not made yet.
    transaction: Transaction<()>,
    rules: RuleSet,
}

impl Tables {
    /// Returns the tables that `writer` reads and writes.
    pub fn new(writer: Writer) -> Tables {
        Tables {
            writer,
            in_force: None,
            attempted: None,
            previous: Previous::InForce,
            reworded: None,
            later: None,
        }
    }

    /// The fate of the rules that were applied before, as far as they could not be put back.
    pub fn previous(&self) -> Previous {
        self.previous
    }

    /// Returns true if [`take_over`](Self::take_over) has something to do.
    pub fn takes_over_later(&self) -> bool {
        self.later.is_some()
    }

    /// Reads the tables, and applies `rules` where they differ. Each table takes effect in one
    /// step. If table mangle cannot be read, the rules of the others are applied.
    ///
    /// # Errors
    /// When the program failed; the next call reads the tables again.
    pub async fn ensure(&mut self, mut rules: RuleSet) -> Result<Ensured, Error> {
        match self.ensure_all(rules.clone()).await {
            Ok(repaired) => Ok(Ensured {
                repaired,
                unread: None,
            }),
            Err(unread) if unread.is_about_mangle() => {
                let known = [&mut self.in_force, &mut self.attempted];
                known.into_iter().flatten().for_each(leave_out_mangle);
                if self.reworded.take_if(|it| has_mangle(&it.rules)).is_some() {
                    self.in_force = None;
                }
                leave_out_mangle(&mut rules);
                let repaired = self.ensure_all(rules).await?;
                Ok(Ensured {
                    repaired,
                    unread: Some(unread),
                })
            }
            Err(error) => Err(error),
        }
    }

    /// As [`ensure`](Self::ensure), in tables that can all be read. Returns what was applied
    /// before and was changed by another program.
    async fn ensure_all(&mut self, rules: RuleSet) -> Result<Vec<String>, Error> {
        let mut is_iptables_mode = false;
        let observed = self
            .observe(&rules, |table, line| {
                is_iptables_mode |= leads_to_iptables_mode(table, line);
            })
            .await?;
        let changed = self.changed(&observed);
        self.previous = if changed.is_empty() {
            Previous::InForce
        } else {
            Previous::Lost
        };
        let transaction = self.difference(&observed, &rules);
        if transaction.is_empty() || self.is_reworded(&rules, &observed) {
            self.is_in_force(rules);
            return Ok(Vec::new());
        }
        self.attempted = Some(rules.clone());
        if is_iptables_mode {
            let now = [Phase::Close, Phase::Open];
            self.writer.run_phases(&transaction, &now).await?;
            self.later = Some(Takeover {
                transaction,
                rules: rules.clone(),
            });
            self.is_in_force(rules);
            return Ok(Vec::new());
        }
        self.write(&transaction, &Phase::ALL, rules).await?;
        Ok(changed)
    }

    /// Returns how the tables differ from `rules`, as far as they can be read. Changes nothing.
    ///
    /// # Errors
    /// When the program failed.
    pub async fn compare(&self, rules: &RuleSet) -> Result<Vec<Difference>, Error> {
        let observed = self.observe(rules, |_, _| {}).await;
        let (rules, observed) = match observed {
            Err(unread) if unread.is_about_mangle() => {
                let mut readable = rules.clone();
                leave_out_mangle(&mut readable);
                let others = [Table::Filter, Table::Nat];
                let observed = self.writer.observe(interest, &others, |_, _| {}).await?;
                (Cow::Owned(readable), observed)
            }
            observed => (Cow::Borrowed(rules), observed?),
        };
        let rules = &*rules;
        if self.is_reworded(rules, &observed) {
            return Ok(Vec::new());
        }
        let family = self.writer.family();
        let chains = observed.chains();
        let transaction = self.difference(&observed, rules);
        let steps = transaction.groups.iter().flat_map(|group| &group.ops);
        let differences = steps.map(|op| Difference::of_step(None, op, &chains, family));
        Ok(differences.collect())
    }

    /// Takes the traffic over from iptables mode, if it has it: virtual servers
    /// and addresses are there now.
    ///
    /// # Errors
    /// When the program failed; the next call of [`ensure`](Self::ensure) reads and
    /// repairs.
    pub async fn take_over(&mut self) -> Result<(), Error> {
        match self.later.take() {
            Some(Takeover { transaction, rules }) => {
                self.in_force = None;
                self.attempted = Some(rules.clone());
                self.write(&transaction, &[Phase::Translate], rules).await
            }
            None => Ok(()),
        }
    }

    /// Returns which of the applied rules are no longer there, unless a failed write may have
    /// caused that.
    fn changed(&self, observed: &Observed) -> Vec<String> {
        let unlike = |rules: &RuleSet| self.difference(observed, rules).repaired();
        let before = self.in_force.as_ref();
        let mut changed = match before.filter(|before| !self.is_reworded(before, observed)) {
            Some(before) => unlike(before),
            None => return Vec::new(),
        };
        if let Some(attempted) = &self.attempted {
            let neither = unlike(attempted);
            changed.retain(|what| neither.contains(what));
        }
        changed
    }

    fn difference(&self, observed: &Observed, rules: &RuleSet) -> Transaction<()> {
        difference(observed, rules, self.writer.family())
    }

    fn is_in_force(&mut self, rules: RuleSet) {
        self.in_force = Some(rules);
        self.attempted = None;
        self.previous = Previous::InForce;
    }

    /// Runs these phases of `transaction`, after which `rules` are applied, and reads how the
    /// program words them.
    ///
    /// A change by another program in between must not be taken for the program's wording: it would
    /// count as applied from then on. So such rules are written again.
    async fn write(
        &mut self,
        transaction: &Transaction<()>,
        phases: &[Phase],
        rules: RuleSet,
    ) -> Result<(), Error> {
        self.writer.run_phases(transaction, phases).await?;
        self.reworded = None;
        for _ in 0..ATTEMPTS {
            let mut outline = Outline::of(&rules, self.writer.family());
            let observed = self.observe(&rules, |table, line| outline.line(table, line));
            let observed = observed.await?;
            let left = self.difference(&observed, &rules);
            if left.is_empty() {
                self.is_in_force(rules);
                return Ok(());
            }
            if outline.is_found() {
                self.reworded = Some(Reworded {
                    rules: rules.clone(),
                    observed,
                });
                self.is_in_force(rules);
                return Ok(());
            }
            self.writer.run_phases(&left, &Phase::ALL).await?;
        }
        Err(Error::Failed {
            program: self.writer.program().to_owned(),
            message: format!(
                "rules were written {ATTEMPTS} times, and another program changed them each time \
                 before they were read; stop the program that changes chains of Services"
            ),
            line: None,
            is_killed: false,
        })
    }

    /// Returns true if the tables hold `rules` as the program words them.
    fn is_reworded(&self, rules: &RuleSet, observed: &Observed) -> bool {
        let reworded = self.reworded.as_ref();
        reworded.is_some_and(|written| written.rules == *rules && written.observed == *observed)
    }

    /// Reads the tables that have chains of `rules`, or had them before. Every line is
    /// shown to `also`.
    async fn observe(
        &self,
        rules: &RuleSet,
        also: impl FnMut(Table, &str),
    ) -> Result<Observed, Error> {
        let all = [Some(rules), self.in_force.as_ref(), self.attempted.as_ref()];
        let mut tables = Table::ALL.to_vec();
        tables.retain(|table| {
            let mut chains = all.into_iter().flatten().flat_map(|rules| &rules.chains);
            chains.any(|chain| chain.table == *table)
        });
        self.writer.observe(interest, &tables, also).await
    }
}

fn has_mangle(rules: &RuleSet) -> bool {
    let mut chains = rules.chains.iter();
    chains.any(|chain| chain.table == Table::Mangle)
}

fn leave_out_mangle(rules: &mut RuleSet) {
    rules.chains.retain(|chain| chain.table != Table::Mangle);
    rules.jumps.retain(|jump| jump.table != Table::Mangle);
}

/// Returns true for a rule that has traffic of Services jump to chains of iptables mode.
fn leads_to_iptables_mode(table: Table, line: &str) -> bool {
    let leads = |words| target(words).is_some_and(|target| target.starts_with("KUBE-SVC-"));
    table == Table::Nat
        && matches!(
            Line::parse(line),
            Some(Line::Rule { chain: "KUBE-SERVICES", words }) if leads(words)
        )
}

#[cfg(test)]
mod tests {
    use net::Family;
    use testing::{block_on, in_namespace, sh, skip};
    use xtables::{
        Engine, Xtables,
        desired::{FixedChain, Jump, Place},
        rule::{Rule, Target},
    };

    use super::*;

    /// Rules that iptables has no words for, in a chain that it would use.
    const OF_NFT: &str = "nft 'add table ip mangle
        add chain ip mangle PREROUTING { type filter hook prerouting priority -150; }
        add rule ip mangle PREROUTING meta mark set numgen inc mod 2'";

    fn rules() -> RuleSet {
        let places = [
            (Table::Mangle, "TRIPOD-NOT-FROM-NODE"),
            (Table::Filter, "KUBE-IPVS-FILTER"),
            (Table::Nat, "KUBE-SERVICES"),
        ];
        let chain = |(table, name)| {
            let rule = Rule::new().target(Target::Return);
            FixedChain::exactly(table, name, vec![rule])
        };
        let jump = |(table, name)| Jump {
            table,
            from: "OUTPUT",
            rule: Rule::new().jump(name),
            place: Place::InOrder,
        };
        RuleSet {
            chains: places.map(chain).into(),
            jumps: places.map(jump).into(),
        }
    }

    #[test]
    fn a_mangle_table_that_cannot_be_read_stops_no_others() {
        in_namespace(|| {
            block_on(async {
                let engines = Xtables::engines(Family::V4).await;
                let Some(writer) = engines.writer(Engine::NfTables) else {
                    return skip("iptables-nft is not installed");
                };
                let mut tables = Tables::new(writer.clone());
                let first = tables.ensure(rules()).await.unwrap();
                assert!(first.unread.is_none(), "{first:?}");
                sh(OF_NFT);
                sh("iptables-nft -t nat -F KUBE-SERVICES");
                let named = tables.compare(&rules()).await.unwrap();
                assert_eq!(named.len(), 1, "{named:?}");
                let second = tables.ensure(rules()).await.unwrap();
                assert!(second.unread.is_some(), "{second:?}");
                assert_eq!(second.repaired.len(), 1, "{second:?}");
                assert!(tables.compare(&rules()).await.unwrap().is_empty());

                sh("nft flush chain ip mangle PREROUTING");
                let third = tables.ensure(rules()).await.unwrap();
                assert!(third.unread.is_none(), "{third:?}");
                assert!(tables.compare(&rules()).await.unwrap().is_empty());
            });
        });
    }
}

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

use crate::modes::{Difference, ipvs::plan::interest};

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
    /// Changes that wait until the virtual servers are there: iptables mode serves the traffic
    /// until then, through a chain of the same name.
    later: Option<Takeover>,
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
        let mut is_iptables_mode = false;
        let also = |table, line: &str| is_iptables_mode |= leads_to_iptables_mode(table, line);
        let (observed, unread) = self.observe(&rules, also).await?;
        if unread.is_some() {
            let known = [
                Some(&mut rules),
                self.in_force.as_mut(),
                self.attempted.as_mut(),
            ];
            let known = known.into_iter().flatten();
            known.for_each(|rules| rules.leave_out(Table::Mangle));
        }
        let changed = self.changed(&observed);
        self.previous = if changed.is_empty() {
            Previous::InForce
        } else {
            Previous::Lost
        };
        let transaction = self.difference(&observed, &rules);
        let mut repaired = Vec::new();
        if !transaction.is_empty() {
            self.attempted = Some(rules.clone());
            if is_iptables_mode {
                let now = [Phase::Close, Phase::Open];
                self.writer.run_phases(&transaction, &now).await?;
                let rules = rules.clone();
                self.later = Some(Takeover { transaction, rules });
            } else {
                self.writer.run_phases(&transaction, &Phase::ALL).await?;
                repaired = changed;
            }
        }
        self.is_in_force(rules);
        Ok(Ensured { repaired, unread })
    }

    /// Returns how the tables differ from `rules`, as far as they can be read. Changes nothing.
    ///
    /// # Errors
    /// When the program failed.
    pub async fn compare(&self, rules: &RuleSet) -> Result<Vec<Difference>, Error> {
        let (observed, unread) = self.observe(rules, |_, _| {}).await?;
        let mut rules = Cow::Borrowed(rules);
        if unread.is_some() {
            rules.to_mut().leave_out(Table::Mangle);
        }
        let family = self.writer.family();
        let chains = observed.chains();
        let transaction = self.difference(&observed, &rules);
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
                let phases = [Phase::Translate];
                self.writer.run_phases(&transaction, &phases).await?;
                self.is_in_force(rules);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns which of the applied rules are no longer there, unless a failed write may have
    /// caused that.
    fn changed(&self, observed: &Observed) -> Vec<String> {
        let unlike = |rules: &RuleSet| self.difference(observed, rules).repaired();
        let mut changed = self.in_force.as_ref().map(unlike).unwrap_or_default();
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

    /// Reads the tables that have chains of `rules`, or had them before; also returns why table
    /// mangle was not read. Every line is shown to `also`.
    async fn observe(
        &self,
        rules: &RuleSet,
        also: impl FnMut(Table, &str),
    ) -> Result<(Observed, Option<Error>), Error> {
        let all = [Some(rules), self.in_force.as_ref(), self.attempted.as_ref()];
        let mut tables = Table::ALL.to_vec();
        tables.retain(|table| {
            let mut chains = all.into_iter().flatten().flat_map(|rules| &rules.chains);
            chains.any(|chain| chain.table == *table)
        });
        self.writer.observe_readable(interest, &tables, also).await
    }
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
    use ipvs::ipset::IpSets;
    use net::{Family, PerFamily};
    use testing::{block_on, in_namespace, sh, skip};
    use xtables::{
        Engine, Xtables,
        desired::{FixedChain, Jump, Place},
        features::Features,
        rule::{Rule, Target},
    };

    use super::*;
    use crate::modes::{
        detect_local::DetectLocal,
        ipvs::plan::{self, NodeContext, NonEmptySets},
    };

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

    /// Otherwise each full sync would write the rules again.
    #[test]
    fn each_program_words_the_rules_as_we_do() {
        in_namespace(|| {
            let made = IpSets::open().and_then(|mut sets| {
                let mut all = Family::ALL.into_iter().flat_map(|family| {
                    let all = NonEmptySets::all().into_iter();
                    all.map(move |set| set.kernel_set(family))
                });
                all.try_for_each(|set| sets.create(&set))
            });
            if let Err(error) = made {
                return skip(format!("no sets: {error}"));
            }
            for (family, masquerade_all) in
                Family::ALL.map(|one| [(one, false), (one, true)]).concat()
            {
                let node = NodeContext {
                    masquerade_all,
                    masquerade_mark: 0x4000,
                    detect_local: PerFamily::each(|_| DetectLocal::Through("cali+".to_owned())),
                    ..NodeContext::default()
                };
                let rules = plan::rules(family, &node, &Features::all(), NonEmptySets::all());
                block_on(async {
                    let engines = Xtables::engines(family).await;
                    for engine in [Engine::NfTables, Engine::Legacy] {
                        let Some(writer) = engines.writer(engine) else {
                            continue;
                        };
                        let mut tables = Tables::new(writer.clone());
                        tables.ensure(rules.clone()).await.unwrap();
                        let left = tables.compare(&rules).await.unwrap();
                        assert!(left.is_empty(), "{family}, {engine:?}: {left:?}");
                        let again = tables.ensure(rules.clone()).await.unwrap();
                        assert_eq!(again.repaired, [""; 0], "{family}, {engine:?}");
                    }
                });
            }
        });
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

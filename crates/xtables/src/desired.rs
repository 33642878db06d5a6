//! Desired contents of tables: our own chains, rules in chains that many owners share, and jumps
//! from the kernel's own chains.

use std::borrow::Cow;

use super::rule::{Rule, Table};

/// A chain with all its rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain's name, at most 28 characters.
    pub name: String,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule in a chain that has other rules, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The chain's table.
    pub table: Table,
    /// The name of the chain.
    pub chain: String,
    /// The rule, which may stand there more than once.
    pub rule: Rule,
}

/// Rules and chains of one owner, among others who share chains with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRules {
    /// Chains of its own, each before the chains that jump to it.
    pub chains: Vec<Chain>,
    /// Its rules in shared chains, before their [closing](Contents::Shared)
    /// rules. Those in one chain keep their order; those of different owners
    /// never match the same packet, so that their order is free.
    pub entries: Vec<Entry>,
    /// The way to shared chains that exist only while some owner needs them: jumps from one shared
    /// chain to another, anywhere before the closing rules. Each jump exists once, with the chain
    /// that only it jumps to, while at least one owner has it. It comes after the jump to the chain
    /// that it is in.
    pub steps: Vec<Entry>,
}

/// Rules that do not depend on owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSet {
    /// Each before the chains that jump to it.
    pub chains: Vec<FixedChain>,
    /// Jumps from the kernel's chains, in the order from top to bottom.
    pub jumps: Vec<Jump>,
}

impl RuleSet {
    /// Removes everything that is in `table`.
    pub fn leave_out(&mut self, table: Table) {
        self.chains.retain(|chain| chain.table != table);
        self.jumps.retain(|jump| jump.table != table);
    }
}

/// A chain that does not depend on owners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedChain {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain's name, at most 28 characters.
    pub name: Cow<'static, str>,
    /// The rules of the chain.
    pub contents: Contents,
}

/// The desired rules of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Contents {
    /// These rules and no others.
    Exactly(Vec<Rule>),
    /// The entries of all owners, and then these.
    Shared {
        /// Closing rules, in order.
        closing: Vec<Rule>,
    },
    /// At least these: another program has the chain too, and rules in it.
    AtLeast(Vec<Rule>),
}

/// A jump from a chain of the kernel's own to one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Jump {
    /// Table of both chains.
    pub table: Table,
    /// The kernel's chain.
    pub from: &'static str,
    /// The whole rule.
    pub rule: Rule,
    /// Where it stands.
    pub place: Place,
}

/// Where in its chain a jump stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Among our jumps of that chain in the order of [`RuleSet::jumps`]; a jump that is missing, or
    /// stands too low, is put at the top.
    InOrder,
    /// Anywhere; a missing jump is put at the top.
    Top,
    /// Anywhere; a missing jump is put at the end.
    End,
}

impl FixedChain {
    /// Returns a chain that holds these rules and no others.
    pub fn exactly(table: Table, name: &'static str, rules: Vec<Rule>) -> FixedChain {
        FixedChain {
            table,
            name: name.into(),
            contents: Contents::Exactly(rules),
        }
    }
}

impl Contents {
    /// Returns the rules, in the order in which they come to an empty chain.
    pub fn rules(&self) -> &[Rule] {
        match self {
            Contents::Exactly(rules) | Contents::AtLeast(rules) => rules,
            Contents::Shared { closing } => closing,
        }
    }
}

impl OwnerRules {
    /// The rules that `step` needs: the chain that it jumps to, and the jump.
    pub fn of_step(step: &Entry) -> OwnerRules {
        let chain = |to: &str| Chain {
            table: step.table,
            name: to.to_owned(),
            rules: Vec::new(),
        };
        OwnerRules {
            chains: step.rule.leads_to().map(chain).into_iter().collect(),
            entries: vec![step.clone()],
            steps: Vec::new(),
        }
    }
}

//! What tables are to hold: chains of ours, rules in chains that many share, and
//! jumps from the kernel's own chains.

use std::borrow::Cow;

use super::rule::{Rule, Table, Target};

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

/// A rule in a chain that has others beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The chain's table.
    pub table: Table,
    /// The name of the chain.
    pub chain: String,
    /// The rule, which may stand there more than once.
    pub rule: Rule,
}

/// What one owner needs, among others who share chains with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRules {
    /// Chains of its own, each before the chains that jump to it.
    pub chains: Vec<Chain>,
    /// Its rules in shared chains, before their [closing](Contents::Shared)
    /// rules. Those in one chain keep their order; those of different owners
    /// never match the same packet, so that their order is free.
    pub entries: Vec<Entry>,
    /// The way to shared chains that are there only while some owner needs them:
    /// each step once, and after the one that leads to it.
    pub steps: Vec<Step>,
}

/// A jump from a shared chain to another one. Both the jump and the chain that it
/// leads to are there while at least one owner has this step, and gone afterwards.
/// Steps stand anywhere before the closing rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Table of both chains.
    pub table: Table,
    /// Where the jump is.
    pub chain: String,
    /// The whole rule, which jumps to that chain.
    pub rule: Rule,
    /// The chain that it leads to; no other step leads there.
    pub to: String,
}

/// What does not depend on owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleSet {
    /// Each before the chains that jump to it.
    pub chains: Vec<FixedChain>,
    /// Jumps from the kernel's chains, in the order from top to bottom.
    pub jumps: Vec<Jump>,
}

/// A chain that does not depend on owners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedChain {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain's name, at most 28 characters.
    pub name: Cow<'static, str>,
    /// What is in it.
    pub contents: Contents,
}

/// What is to be in a chain.
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
    /// Among our jumps of that chain in the order of [`RuleSet::jumps`]; one that
    /// is missing, or stands too low, goes to the top.
    InOrder,
    /// Wherever it is; one that is missing goes to the top.
    Top,
    /// Wherever it is; one that is missing goes to the end.
    End,
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

impl Step {
    /// Returns what it takes: the chain that it leads to, and the jump.
    pub fn rules(&self) -> OwnerRules {
        let chain = Chain {
            table: self.table,
            name: self.to.clone(),
            rules: Vec::new(),
        };
        let jump = Entry {
            table: self.table,
            chain: self.chain.clone(),
            rule: self.rule.clone(),
        };
        OwnerRules {
            chains: vec![chain],
            entries: vec![jump],
            steps: Vec::new(),
        }
    }
}

impl Jump {
    /// Returns the jump as a rule in its chain.
    pub fn entry(&self) -> Entry {
        Entry {
            table: self.table,
            chain: self.from.to_owned(),
            rule: self.rule.clone(),
        }
    }

    /// Returns the chain that it leads to.
    pub fn to(&self) -> Option<&str> {
        match &self.rule.target {
            Some(Target::Jump(to)) => Some(to),
            _ => None,
        }
    }
}

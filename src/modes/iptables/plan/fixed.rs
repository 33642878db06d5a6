//! What does not depend on Services.

use super::{Chain, Entry, Options};
use crate::kernel::xtables::rule::{Rule, Table};

/// A jump from a chain of the kernel's own to one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Jump {
    /// Table of both chains.
    pub table: Table,
    /// The kernel's chain.
    pub from: &'static str,
    /// The whole rule.
    pub rule: Rule,
}

/// What does not depend on Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Chains with their rules, each before the chains that jump to it.
    /// Those that ServicePorts share are among them, without rules.
    pub chains: Vec<Chain>,
    /// Jumps from the kernel's chains, in the order from top to bottom in
    /// which kube-proxy leaves them. One that is missing goes to the top of
    /// its chain; to get this order, begin with the last.
    pub jumps: Vec<Jump>,
    /// Closing rules of shared chains, after everything else in them.
    pub tails: Vec<Entry>,
    /// Counters of nfacct that the rules of this plan and of any ServicePort
    /// use, which must exist before.
    pub accounts: Vec<&'static str>,
}

/// What does not depend on Services.
pub fn fixed(_options: &Options) -> Fixed {
    Fixed::default()
}

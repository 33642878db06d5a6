//! From ServicePorts to rules: what iptables and ip6tables are to hold, with
//! kube-proxy's chains, by kube-proxy's names (`pkg/proxy/iptables`, 1.36).
//!
//! Pure: nothing here reads the kernel or remembers anything. A ServicePort's
//! rules depend on it and on the [`Options`] alone, never on other Services,
//! so a change concerns what [`service_port`] gives for the ports that changed.
//!
//! Three kinds of things come out:
//! - chains of a ServicePort's own, which are written whole;
//! - [`Entry`]s in chains that all share (KUBE-SERVICES and the like);
//! - [`Step`]s on the way to a shared chain of the [index](Dispatch::Indexed).
//!   Ports that need the same step give equal ones: it is there as long as
//!   somebody needs it.

mod backends;
mod balance;
mod fixed;
mod index;
mod lost;
pub mod names;
mod options;
mod service;

pub use self::{
    fixed::{Fixed, Jump, fixed, loopback_guard},
    lost::{Impossible, Loss, impossible, lost},
    options::{Dispatch, DispatchChoice, Options, is_large_cluster},
    service::{is_possible, service_port},
};
use crate::kernel::xtables::rule::{Rule, Table};
pub use crate::modes::detect_local::DetectLocal;

/// A chain with all its rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its table.
    pub table: Table,
    /// Its name, at most 28 characters.
    pub name: String,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule in a chain that ServicePorts share. The rules of one ServicePort in
/// one chain keep their order; those of different ServicePorts never match the
/// same packet, so their order is free. All stand before the chain's
/// [tails](Fixed::tails).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The chain's table.
    pub table: Table,
    /// The chain: one of [`Fixed::chains`], or one that a [`Step`] leads to.
    pub chain: String,
    /// The rule.
    pub rule: Rule,
}

/// A jump from a shared chain to a chain of the index. Both the jump and the
/// chain it leads to are there while at least one ServicePort has this step,
/// and gone afterwards: count them. Steps stand anywhere before the tails.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Table of both chains.
    pub table: Table,
    /// Where the jump is: one of [`Fixed::chains`], or where the step before
    /// this one leads.
    pub chain: String,
    /// The jump.
    pub rule: Rule,
    /// The chain that it leads to; no other step leads there.
    pub to: String,
}

/// What one ServicePort needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    /// Chains of its own, each before the chains that jump to it.
    pub chains: Vec<Chain>,
    /// Its rules in shared chains.
    pub entries: Vec<Entry>,
    /// How those are reached: each once, and after the one that leads to it.
    pub steps: Vec<Step>,
}

#[cfg(test)]
mod tests;

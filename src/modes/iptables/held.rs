//! What is in force.

use std::{borrow::Borrow, hash::Hash, hash::Hasher, sync::Arc};

use hashbrown::{HashMap, HashSet};

use super::{counters::Rules, plan::Options};
use crate::{
    kernel::xtables::{
        desired::{OwnerRules, Step},
        difference::between,
        rule::Table,
        transaction::Op,
    },
    net::Family,
    services::{ServicePort, ServicePortName},
};

/// What is in force. Nothing of the rules themselves is kept: they follow from
/// the ServicePort, which the service map holds anyway, and the options.
pub struct Held {
    pub options: Options,
    pub ports: HashSet<ByName>,
    /// How many ServicePorts take each step of the index.
    pub steps: Steps,
    pub endpoints: usize,
    pub rules: Rules,
}

/// A ServicePort, found by its name.
pub struct ByName(pub Arc<ServicePort>);

impl Borrow<ServicePortName> for ByName {
    fn borrow(&self) -> &ServicePortName {
        &self.0.name
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

/// How many ServicePorts take each step of the index, by its table and the
/// chain that it leads to.
pub type Steps = HashMap<(Table, String), usize>;

/// Counts steps, and gives what comes with the first and goes with the last
/// ServicePort that takes one.
pub fn step_ops(
    counts: &mut Steps,
    changed: HashMap<(Table, String), (Step, isize)>,
    family: Family,
) -> (Vec<Op>, Vec<Op>) {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for (key, (step, difference)) in changed {
        let before = counts.get(&key).copied().unwrap_or(0);
        let after = before.saturating_add_signed(difference);
        if before == 0 && after > 0 {
            first.extend(between(&OwnerRules::default(), &step.rules(), family));
        } else if before > 0 && after == 0 {
            last.extend(between(&step.rules(), &OwnerRules::default(), family));
        }
        if after == 0 {
            counts.remove(&key);
        } else {
            counts.insert(key, after);
        }
    }
    (first, last)
}

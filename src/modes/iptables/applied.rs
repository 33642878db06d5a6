//! The applied state.

use std::sync::Arc;

use net::Family;
use xtables::{desired::Entry, rule::Table};

use super::{count::RuleCount, large, plan::Options};
use crate::{
    modes::references::References,
    services::{ServiceMap, ServicePort, ServicePortName, ServicePorts},
};

/// The applied state. The rules themselves are not stored: they follow from the ServicePort, which
/// the service map holds anyway, and the options.
pub struct Applied {
    /// The options that the rules depend on.
    pub options: Options,
    /// How many rules there are.
    pub rules: RuleCount,
    ports: ServicePorts,
    /// How many ServicePorts take the step that jumps to a chain of the index.
    pub steps: References<IndexChain>,
    endpoints: usize,
}

/// A chain of the index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexChain {
    table: Table,
    name: String,
}

impl IndexChain {
    /// Returns the chain that `step` jumps to.
    pub fn after(step: &Entry) -> IndexChain {
        let (table, to) = (step.table, step.rule.leads_to());
        let name = to.unwrap_or_default().to_owned();
        IndexChain { table, name }
    }
}

/// How much there is of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// How many ServicePorts there are.
    pub ports: usize,
    /// How many endpoints all of them have.
    pub endpoints: usize,
}

impl Size {
    /// Returns how much there is of `family` in `map`.
    pub fn of(map: &ServiceMap, family: Family) -> Size {
        let mut size = Size {
            ports: 0,
            endpoints: 0,
        };
        for port in map.of_family(family) {
            size.ports += 1;
            size.endpoints += port.endpoints.all.len();
        }
        size
    }
}

impl Applied {
    /// Returns a value without ServicePorts, with `rules` that do not depend on any.
    pub fn new(options: Options, rules: RuleCount) -> Applied {
        Applied {
            options,
            rules,
            ports: ServicePorts::default(),
            steps: References::default(),
            endpoints: 0,
        }
    }

    /// Returns the ServicePort of this name, as it was applied.
    pub fn port(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name)
    }

    /// Names of all ServicePorts.
    pub fn names(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// Records that `port` is applied.
    pub fn insert(&mut self, port: Arc<ServicePort>) {
        self.endpoints += port.endpoints.all.len();
        let before = self.ports.insert(port.name.clone(), port);
        self.subtract(before);
    }

    /// Records that the ServicePort of this name is not applied any more.
    pub fn remove(&mut self, name: &ServicePortName) {
        let before = self.ports.remove(name);
        self.subtract(before);
    }

    fn subtract(&mut self, before: Option<Arc<ServicePort>>) {
        let endpoints = before.map_or(0, |port| port.endpoints.all.len());
        self.endpoints = self.endpoints.saturating_sub(endpoints);
    }

    /// Counts one more user of each of `steps`. Returns those whose first it is.
    pub fn take_steps(&mut self, steps: Vec<Entry>) -> Vec<Entry> {
        let is_first = |step: &Entry| self.steps.add(IndexChain::after(step));
        steps.into_iter().filter(is_first).collect()
    }

    /// Returns how much there will be once those of `map` are applied that
    /// `changed`. Each is named once. There is not less while one of them takes a step that adds
    /// or removes `most` endpoints: all rules would be compared, and all chains go at once.
    pub fn size_after<'a>(
        &self,
        map: &ServiceMap,
        changed: impl Iterator<Item = &'a ServicePortName>,
        most: usize,
    ) -> Size {
        let mut has_step = false;
        let endpoints = |port: &Arc<ServicePort>| port.endpoints.all.len();
        let mut size = Size {
            ports: self.ports.len(),
            endpoints: self.endpoints,
        };
        let of_family = |name: &&ServicePortName| name.family == self.options.family;
        for name in changed.filter(of_family) {
            let (old, new) = (self.port(name), map.get(name));
            if let Some(old) = old {
                size.ports -= 1;
                size.endpoints = size.endpoints.saturating_sub(endpoints(old));
            }
            if let Some(new) = new {
                size.ports += 1;
                size.endpoints += endpoints(new);
            }
            has_step |= large::has_step(old.map(|old| &**old), new.map(|new| &**new), most);
        }
        if has_step {
            size.endpoints = size.endpoints.max(self.endpoints);
        }
        size
    }
}

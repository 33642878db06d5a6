//! The ServicePorts that the mode serves, and what they need of this node's
//! kernel.

mod needs;

use std::sync::Arc;

use hashbrown::HashMap;
use net::Family;

pub use self::needs::{Dirty, Needs, Serving};
use super::plan::{self, NodeContext, ServicePlan};
use crate::services::{ServicePort, ServicePortName};

/// The ServicePorts that the mode serves, and what they need of this node's
/// kernel.
#[derive(Debug, Default)]
pub struct Desired {
    node: NodeContext,
    ports: HashMap<ServicePortName, Arc<ServicePort>>,
    needs: Needs,
}

impl Desired {
    /// Returns a value without ServicePorts, for this `node`.
    pub fn new(node: NodeContext) -> Desired {
        Desired {
            node,
            ..Desired::default()
        }
    }

    /// Returns what plans depend on besides the ServicePorts.
    pub fn node(&self) -> &NodeContext {
        &self.node
    }

    /// Changes what plans depend on. Returns true if it was another one before: then
    /// all ServicePorts are forgotten.
    pub fn set_node(&mut self, node: NodeContext) -> bool {
        let differs = node != self.node;
        if differs {
            *self = Desired::new(node);
        }
        differs
    }

    /// Has Services avoid these schedulers too, as far as they are planned from now on.
    pub fn add_missing_schedulers(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        self.node.missing_schedulers.extend(names);
    }

    /// Replaces the ServicePort `name` by `new`, and adds what changes by that to
    /// `dirty`. Returns its plan; an empty one where `new` is `None`.
    pub fn update(
        &mut self,
        name: &ServicePortName,
        new: Option<&Arc<ServicePort>>,
        dirty: &mut Dirty,
    ) -> ServicePlan {
        let plan = |port: Option<&Arc<ServicePort>>| {
            port.map_or_else(ServicePlan::default, |port| plan::plan(port, &self.node))
        };
        let old = self.ports.get(name);
        let new_plan = plan(new);
        let same = old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(old, new));
        if !same {
            let old_plan = plan(old);
            self.needs.replace(name, &old_plan, &new_plan, dirty);
        }
        match new {
            Some(new) => self.ports.insert(name.clone(), Arc::clone(new)),
            None => self.ports.remove(name),
        };
        new_plan
    }

    /// Returns what all ServicePorts need together.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Names of the ServicePorts, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// Returns the ServicePorts of `family`, in no particular order.
    pub fn ports(&self, family: Family) -> impl Iterator<Item = &Arc<ServicePort>> {
        let ports = self.ports.values();
        ports.filter(move |port| port.name.family == family)
    }

    /// Returns the ServicePort of that name.
    pub fn port(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name)
    }

    pub fn plan(&self, port: &ServicePort) -> ServicePlan {
        plan::plan(port, &self.node)
    }
}

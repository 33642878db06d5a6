//! The ServicePorts that the mode serves, and their needs in this node's kernel.

mod needs;

use std::sync::Arc;

use hashbrown::HashMap;
use net::Family;

pub use self::needs::{Dirty, Needs, Serving};
use super::plan::{self, NodeContext, ServicePlan};
use crate::services::{ServicePort, ServicePortName};

/// The ServicePorts that the mode serves, and their needs in this node's kernel.
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

    /// The properties of the node that plans depend on.
    pub fn node(&self) -> &NodeContext {
        &self.node
    }

    /// Changes the properties that plans depend on. Returns true if they differ from the former
    /// ones: then all ServicePorts are forgotten.
    pub fn set_node(&mut self, node: NodeContext) -> bool {
        let differs = node != self.node;
        if differs {
            *self = Desired::new(node);
        }
        differs
    }

    /// Makes Services avoid these schedulers too, if they are planned from now on.
    pub fn add_missing_schedulers(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        self.node.missing_schedulers.extend(names);
    }

    /// Replaces the ServicePort `name` by `new`, and adds the resulting changes to `dirty`. Returns
    /// its plan; an empty one if `new` is `None`.
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

    /// The objects that all ServicePorts need together.
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

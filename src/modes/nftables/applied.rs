//! The applied state: the ServicePorts from which the contents of a table follow.

use std::sync::Arc;

use hashbrown::HashMap;
use nftables::{Element, Set};

use super::plan::{
    ClientMap, Options, ServiceElements, SetId, Sets, SharedChain, SharedElement, Slots, plan,
};
use crate::{
    modes::references::References,
    services::{ServicePort, ServicePortName},
};

/// Name of Tripod's tables, one of each family.
pub const TABLE: &str = "tripod";

/// Content of a table, represented by the ServicePorts from which it follows.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The options that it was made with.
    pub options: Options,
    /// The ServicePorts that have been applied.
    pub ports: HashMap<ServicePortName, AppliedPort>,
    /// How many ServicePorts need each element that several may need.
    pub shared: References<SharedElement>,
    /// How many ServicePorts need each chain.
    pub chains: References<SharedChain>,
}

/// An element that the table should have.
#[derive(Debug)]
pub struct OwnedElement<'a> {
    /// The ServicePort that it is for alone, if any.
    pub owner: Option<&'a ServicePortName>,
    /// The set that it is in.
    pub set: SetId,
    /// The element itself.
    pub element: Element,
}

/// A ServicePort as it was applied.
#[derive(Clone, Debug)]
pub struct AppliedPort {
    port: Arc<ServicePort>,
    /// Where its endpoints are, if not where those of a new one would be.
    slots: Option<Box<Slots>>,
}

impl AppliedPort {
    /// Returns `port`, whose endpoints stay in the slots that they had `before`.
    pub fn new(port: &Arc<ServicePort>, before: Option<&AppliedPort>) -> AppliedPort {
        let slots = before.and_then(|before| {
            let slots = Slots::after(port, &before.slots());
            (slots != Slots::new(port)).then(|| Box::new(slots))
        });
        AppliedPort {
            port: Arc::clone(port),
            slots,
        }
    }

    fn slots(&self) -> Slots {
        match &self.slots {
            Some(slots) => (**slots).clone(),
            None => Slots::new(&self.port),
        }
    }

    /// The elements that the table should have for it.
    pub fn elements(&self, options: &Options) -> ServiceElements {
        plan(&self.port, &self.slots(), options)
    }
}

impl Applied {
    /// Returns a value with nothing except the fixed part.
    pub fn new(options: Options) -> Applied {
        Applied {
            options,
            ports: HashMap::new(),
            shared: References::default(),
            chains: References::default(),
        }
    }

    /// The ServicePort as it was applied.
    pub fn get(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name).map(|applied| &applied.port)
    }

    /// The slots of the endpoints of an applied ServicePort.
    pub fn slots(&self, name: &ServicePortName) -> Option<Slots> {
        self.ports.get(name).map(AppliedPort::slots)
    }

    /// Names of the applied ServicePorts.
    pub fn names(&self) -> impl Iterator<Item = &ServicePortName> {
        self.ports.keys()
    }

    /// The maps of clients that the table has, each with the chain that writes it.
    pub fn client_maps(&self) -> impl Iterator<Item = (&ClientMap, &SharedChain)> {
        self.chains.iter().filter_map(|chain| match chain {
            SharedChain::Remember(map, _) => Some((map, chain)),
            _ => None,
        })
    }

    /// The sets of the table that have elements which follow from ServicePorts.
    pub fn sets<'a>(&'a self, sets: &'a Sets) -> impl Iterator<Item = (SetId, &'a Arc<Set>)> {
        let has_ranges = self.chains.count(&SharedChain::RangeHooks) > 0;
        let of_ranges = sets.of_ranges().filter(move |_| has_ranges);
        sets.of(&self.options).chain(of_ranges)
    }

    /// The elements that the table should have, except those that do not depend on ServicePorts.
    pub fn elements(&self) -> impl Iterator<Item = OwnedElement<'_>> {
        let own = self.ports.iter().flat_map(|(name, port)| {
            let own = port.elements(&self.options).own.into_iter();
            own.map(move |(set, element)| OwnedElement {
                owner: Some(name),
                set,
                element,
            })
        });
        let shared = self.shared.iter().map(|shared| {
            let (set, element) = shared.element();
            OwnedElement {
                owner: None,
                set,
                element,
            }
        });
        own.chain(shared)
    }
}

//! The service map that all modes share: what the objects of the cluster mean
//! for this node.
//!
//! `watch` feeds [`Event`]s; a batch of them goes through [`Tracker::apply`],
//! which folds them into the [`ServiceMap`] and answers with the [`Changes`].
//! This module knows nothing of modes or kernels.

use std::sync::Arc;

mod endpoint;
mod port;

pub use endpoint::{Endpoint, Endpoints};
pub use port::{
    IpFamily, Protocol, ServiceName, ServicePort, ServicePortName, SessionAffinity, TrafficPolicy,
};

/// Every ServicePort that this node should serve.
#[derive(Clone, Debug, Default)]
pub struct ServiceMap {
    ports: hashbrown::HashMap<ServicePortName, Arc<ServicePort>>,
}

impl ServiceMap {
    /// The ServicePort of that name, if the node should serve it.
    pub fn get(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name)
    }

    /// All ServicePorts, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServicePort>> {
        self.ports.values()
    }
}

/// What differs in a [`ServiceMap`] since the last success of a mode.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// ServicePorts that came, changed or went.
    pub ports: hashbrown::HashSet<ServicePortName>,
    /// Everything is to be compared with the kernel: at start, for repair and
    /// at each sync period.
    pub full: bool,
}

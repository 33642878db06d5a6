//! What is known of the traffic of a ServicePort.

use std::{collections::HashSet, fmt, net::SocketAddr, pin::Pin, sync::Arc};

use hashbrown::HashMap;

use super::DialsAsked;
use crate::{
    services::ServicePort,
    status_api::{DialList, Limited, Traffic},
};

/// Knows what traffic ServicePorts carry.
pub trait TrafficSource: fmt::Debug + Send + Sync {
    /// Returns what to wait for before [`of`](Self::of) is called; `None`: nothing.
    fn refresh(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        None
    }
    /// Returns tries of this process to reach endpoints, or why they cannot be followed; `None`:
    /// it makes no connections to endpoints.
    fn dials(&self, _: &DialsAsked) -> Option<Result<DialList, String>> {
        None
    }
    /// Returns what is known of each of `ports`, in their order.
    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic>;
}

/// What is known of the traffic of a ServicePort.
#[derive(Clone, Debug, Default)]
pub struct PortTraffic {
    /// Traffic of the whole ServicePort; `None`: it is not known.
    pub of_port: Option<Traffic>,
    /// Traffic of each endpoint, by its address.
    pub endpoints: HashMap<SocketAddr, Traffic>,
    /// Endpoints that did not answer lately.
    pub ejected: HashSet<SocketAddr>,
    /// How often limits of its Service kept connections or datagrams out; `None`: the mode has no
    /// limits.
    pub limited: Option<Limited>,
}

impl PortTraffic {
    /// Adds traffic to that of the endpoint at `address`.
    pub fn add(&mut self, address: SocketAddr, carried: Traffic) {
        let sum = self.endpoints.entry(address);
        sum.and_modify(|sum| *sum = sum.plus(carried))
            .or_insert(carried);
    }

    /// Adds traffic to that of the whole ServicePort.
    pub fn add_of_port(&mut self, carried: Traffic) {
        self.of_port = Some(self.of_port.map_or(carried, |sum| sum.plus(carried)));
    }
}

//! The traffic of a ServicePort, as far as it is known.

use std::{collections::HashSet, fmt, net::SocketAddr, pin::Pin, sync::Arc};

use hashbrown::HashMap;

use super::DialsAsked;
use crate::{
    services::{ServicePort, ServicePortName},
    status_api::{DialList, Limited, Traffic},
};

/// Provides the traffic of ServicePorts.
pub trait TrafficSource: fmt::Debug + Send + Sync {
    /// Returns a future to wait for before [`of`](Self::of) is called; `None` if there is nothing
    /// to wait for.
    fn refresh(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        None
    }
    /// Returns attempts of this process to reach endpoints, or why they cannot be followed; `None`
    /// if it makes no connections to endpoints.
    fn dials(&self, _: &DialsAsked) -> Option<Result<DialList, String>> {
        None
    }
    /// The endpoints of `port` that only the mode leaves out, because they did not answer lately.
    fn ejected(&self, _: &ServicePort) -> HashSet<SocketAddr> {
        HashSet::new()
    }
    /// Returns the ServicePort for which calls of the first one to an endpoint come back to this
    /// process; `None` if they do not, or the kernel makes them.
    fn comes_back(&self, _: &ServicePortName, _: SocketAddr) -> Option<ServicePortName> {
        None
    }
    /// Returns the known traffic of each of `ports`, in their order.
    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic>;
}

/// The known traffic of a ServicePort.
#[derive(Clone, Debug, Default)]
pub struct PortTraffic {
    /// Traffic of the whole ServicePort; `None` if unknown.
    pub of_port: Option<Traffic>,
    /// Traffic of each endpoint, by its address.
    pub endpoints: HashMap<SocketAddr, Traffic>,
    /// Number of connections or datagrams rejected by limits of its Service; `None` if the mode has
    /// no limits.
    pub limited: Option<Limited>,
}

impl FromIterator<(SocketAddr, Traffic)> for PortTraffic {
    /// Sums the traffic of these endpoints to that of the whole ServicePort.
    fn from_iter<I: IntoIterator<Item = (SocketAddr, Traffic)>>(endpoints: I) -> PortTraffic {
        let mut sum = PortTraffic::default();
        for (address, traffic) in endpoints {
            sum.add(address, traffic);
            sum.add_of_port(traffic);
        }
        sum
    }
}

impl PortTraffic {
    /// Adds traffic to that of the endpoint at `address`.
    pub fn add(&mut self, address: SocketAddr, traffic: Traffic) {
        let sum = self.endpoints.entry(address);
        sum.and_modify(|sum| *sum = sum.plus(traffic))
            .or_insert(traffic);
    }

    /// Adds traffic to that of the whole ServicePort.
    pub fn add_of_port(&mut self, traffic: Traffic) {
        self.of_port = Some(self.of_port.map_or(traffic, |sum| sum.plus(traffic)));
    }
}

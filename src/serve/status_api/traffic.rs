//! What is known of the traffic of a ServicePort.

use std::{collections::HashSet, fmt, net::SocketAddr};

use hashbrown::HashMap;

use crate::{services::ServicePort, status_api::Traffic};

/// Knows what ServicePorts carry.
pub trait TrafficSource: fmt::Debug + Send + Sync {
    /// Returns what is known of `port`.
    fn of(&self, port: &ServicePort) -> PortTraffic;
}

/// What is known of the traffic of a ServicePort.
#[derive(Clone, Debug, Default)]
pub struct PortTraffic {
    /// Of all that it carried.
    pub of_port: Option<Traffic>,
    /// Of what each endpoint carried.
    pub endpoints: HashMap<SocketAddr, Traffic>,
    /// Endpoints that did not answer lately.
    pub ejected: HashSet<SocketAddr>,
}

impl PortTraffic {
    /// Adds what the endpoint at `address` carried.
    pub fn add(&mut self, address: SocketAddr, carried: Traffic) {
        let sum = match self.endpoints.get(&address) {
            Some(before) => before.plus(carried),
            None => carried,
        };
        self.endpoints.insert(address, sum);
    }

    /// Adds what all addresses of a kind carried.
    pub fn add_of_port(&mut self, carried: Traffic) {
        self.of_port = Some(match self.of_port {
            Some(before) => before.plus(carried),
            None => carried,
        });
    }
}

//! What a batch of events made different.

use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashSet;

use super::{Endpoint, Protocol, ServicePort, ServicePortName};

/// What differs in a [`ServiceMap`](super::ServiceMap) since the last success
/// of a mode.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// ServicePorts that came, changed or went.
    pub ports: HashSet<ServicePortName>,
    /// Everything is to be compared with the kernel: at start, for repair and
    /// at each sync period.
    pub full: bool,
    /// UDP flows that the kernel would go on sending where nothing answers.
    pub stale_udp: StaleUdp,
}

/// UDP flows whose connection-tracking entries outlive what they lead to: a
/// client that keeps its socket keeps its entry, so nothing but deleting it
/// makes the client's next packet follow the new rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StaleUdp {
    /// Endpoints that no longer serve, each with the ServicePort as it was
    /// when they did: flows from its addresses to that endpoint are stale.
    pub endpoints: Vec<(Arc<ServicePort>, SocketAddr)>,
    /// ServicePorts as they were before they lost an address (cluster,
    /// external or load-balancer IP), their port or their node port: flows to
    /// what they lost are stale.
    pub addresses: Vec<(Arc<ServicePort>, LostAddresses)>,
    /// ServicePorts that are new, or have something to reach and before had
    /// nothing or less addresses: flows to their addresses that were recorded
    /// meanwhile, or before this process began, lead elsewhere than to what
    /// serves now.
    pub revived: Vec<ServicePortName>,
}

/// Where a ServicePort no longer answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostAddresses {
    /// Addresses and ports on which it was served.
    pub services: Vec<SocketAddr>,
    /// The node port on which it was served.
    pub node_port: Option<u16>,
}

impl Changes {
    /// Adds what changed after these changes, for a mode that could not apply
    /// them before the next ones came.
    pub fn merge(&mut self, later: Changes) {
        self.ports.extend(later.ports);
        self.full |= later.full;
        self.stale_udp.endpoints.extend(later.stale_udp.endpoints);
        self.stale_udp.addresses.extend(later.stale_udp.addresses);
        self.stale_udp.revived.extend(later.stale_udp.revived);
    }

    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && !self.full && self.stale_udp == StaleUdp::default()
    }

    /// Records that a ServicePort went from `old` to `new`.
    pub(super) fn record(
        &mut self,
        old: Option<&Arc<ServicePort>>,
        new: Option<&Arc<ServicePort>>,
    ) {
        let Some(name) = old.or(new).map(|port| &port.name) else {
            return;
        };
        self.ports.insert(name.clone());
        if name.protocol == Protocol::Udp {
            self.stale_udp.record(old, new);
        }
    }
}

impl StaleUdp {
    fn record(&mut self, old: Option<&Arc<ServicePort>>, new: Option<&Arc<ServicePort>>) {
        if let Some(old) = old {
            let all = new.map_or(&[][..], |new| &new.endpoints.all);
            // Nothing was ever sent to an endpoint that did not serve.
            for gone in old.endpoints.all.iter().filter(|old| old.serving) {
                if !serves(all, gone.address) {
                    self.endpoints.push((Arc::clone(old), gone.address));
                }
            }
            let lost = missing(old, new.map(|new| &**new));
            if lost != LostAddresses::default() {
                self.addresses.push((Arc::clone(old), lost));
            }
        }
        let reaches = |port: Option<&Arc<ServicePort>>| {
            port.is_some_and(|port| !port.endpoints.all_reachable.is_empty())
        };
        if let Some(new) = new {
            // Who called a node port or address before it was ours was refused
            // by others, and goes on asking them.
            let gained = || missing(new, old.map(|old| &**old)) != LostAddresses::default();
            let revived = reaches(Some(new)) && (!reaches(old) || gained());
            if old.is_none() || revived {
                self.revived.push(new.name.clone());
            }
        }
    }
}

fn serves(endpoints: &[Endpoint], address: SocketAddr) -> bool {
    endpoints
        .binary_search_by(|endpoint| endpoint.address.cmp(&address))
        .is_ok_and(|at| endpoints[at].serving)
}

/// Where `one` is served and `other` is not.
fn missing(one: &ServicePort, other: Option<&ServicePort>) -> LostAddresses {
    let addresses = |port: &ServicePort| -> Vec<SocketAddr> {
        let addresses = port.addresses();
        addresses.map(|ip| SocketAddr::new(ip, port.port)).collect()
    };
    let common = other.map(addresses).unwrap_or_default();
    let mut services = addresses(one);
    services.retain(|address| !common.contains(address));
    LostAddresses {
        services,
        node_port: one
            .node_port
            .filter(|port| other.and_then(|other| other.node_port) != Some(*port)),
    }
}

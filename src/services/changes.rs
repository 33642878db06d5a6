//! Changes of the service map by a batch of events.

use std::{net::SocketAddr, sync::Arc};

use hashbrown::{HashMap, HashSet};
use net::{PerFamily, Protocol};

use super::{Endpoint, ServiceMap, ServicePort, ServicePortName};

/// The changes of a [`ServiceMap`](super::ServiceMap) since the last success of a mode.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// ServicePorts that were added, changed or removed.
    pub ports: HashSet<ServicePortName>,
    /// Whether everything must be compared with the kernel: at the start, for repair and at each
    /// sync period.
    pub full: bool,
    /// Whether failed ServicePorts are tried again, even if they did not change.
    pub retry: bool,
    /// Whether the state of the kernel was written by another Tripod, which has ended: differences
    /// are no damage.
    pub taken_back: bool,
    /// UDP flows that the kernel would continue to send to addresses without a serving endpoint.
    pub stale_udp: StaleUdp,
    /// ServicePorts of other protocols that became reachable, or reachable at more addresses:
    /// connections to them that began earlier, and were not answered, go elsewhere.
    pub begun: HashSet<ServicePortName>,
}

/// UDP flows whose connection-tracking entries outlive the endpoint or address that they translate
/// to: an entry stays as long as the client continues to use its socket, so only its deletion makes
/// the client's next packet follow the new rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StaleUdp {
    /// Endpoints that no longer serve: flows from addresses of the ServicePort to that endpoint are
    /// stale.
    pub endpoints: Vec<StaleEndpoint>,
    /// ServicePorts that lost an address (cluster, external or load-balancer IP), their port or
    /// their node port: flows to these are stale.
    pub addresses: Vec<StaleAddresses>,
    /// ServicePorts that are new, gained reachable endpoints after having none, or gained
    /// addresses: flows to their addresses that were recorded meanwhile, or before this process
    /// started, go elsewhere than to the endpoints that serve now.
    pub revived: Vec<ServicePortName>,
}

/// An endpoint that no longer serves.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleEndpoint {
    /// The ServicePort as it was when the endpoint served.
    pub port: Arc<ServicePort>,
    /// Address and port of the endpoint.
    pub address: SocketAddr,
}

/// The addresses and ports that a ServicePort lost.
#[derive(Clone, Debug, PartialEq)]
pub struct StaleAddresses {
    /// The ServicePort as it was before.
    pub port: Arc<ServicePort>,
    /// Addresses and ports at which it is no longer served.
    pub lost: LostAddresses,
}

/// Addresses and ports at which a ServicePort is no longer served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LostAddresses {
    /// Addresses and ports on which it was served.
    pub services: Vec<SocketAddr>,
    /// The node port on which it was served; `None` if it lost none.
    pub node_port: Option<u16>,
}

impl Changes {
    /// Adds later changes, for a mode that could not apply the earlier ones before the later ones
    /// came.
    pub fn merge(&mut self, later: Changes) {
        self.ports.extend(later.ports);
        self.full |= later.full;
        self.retry |= later.retry;
        self.taken_back |= later.taken_back;
        self.stale_udp.merge(later.stale_udp);
        self.begun.extend(later.begun);
    }

    /// Splits these changes by family. `full` and `retry` concern both.
    pub fn by_family(self) -> PerFamily<Changes> {
        let mut families = PerFamily::each(|_| Changes {
            full: self.full,
            retry: self.retry,
            taken_back: self.taken_back,
            ..Changes::default()
        });
        for name in self.ports {
            families.get_mut(name.family).ports.insert(name);
        }
        for name in self.begun {
            families.get_mut(name.family).begun.insert(name);
        }
        let StaleUdp {
            endpoints,
            addresses,
            revived,
        } = self.stale_udp;
        for endpoint in endpoints {
            let stale = &mut families.get_mut(endpoint.port.name.family).stale_udp;
            stale.endpoints.push(endpoint);
        }
        for lost in addresses {
            let stale = &mut families.get_mut(lost.port.name.family).stale_udp;
            stale.addresses.push(lost);
        }
        for name in revived {
            let stale = &mut families.get_mut(name.family).stale_udp;
            stale.revived.push(name);
        }
        families
    }

    /// Limits the changes that wait for a failing family, which must not grow without limit in any
    /// case; `map` is the desired state.
    pub fn bound(&mut self, map: &ServiceMap) {
        // Some are names of ServicePorts that were added and removed in the meantime.
        if self.ports.len() > map.len() + MOST_WAITING {
            self.ports.clear();
            self.full = true;
        }
        if self.begun.len() > map.len() + MOST_WAITING {
            self.begun.retain(|name| map.get(name).is_some());
        }
        self.stale_udp.bound(map);
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let nothing_changed = self.ports.is_empty() && self.begun.is_empty();
        nothing_changed && !self.full && !self.retry && self.stale_udp == StaleUdp::default()
    }

    /// Records that a ServicePort changed from `old` to `new`.
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
        } else {
            let begun = new.filter(|new| begins_to_be_served(old, new));
            self.begun.extend(begun.map(|port| port.name.clone()));
        }
    }
}

/// Maximum number of names of waiting ServicePorts beyond those that exist, and of waiting UDP
/// flows, before they are condensed.
const MOST_WAITING: usize = 10_000;

/// Maximum number of waiting endpoints of one ServicePort; beyond that all its flows are compared
/// with the endpoints that serve.
const MOST_OF_ONE_PORT: usize = 100;

impl StaleUdp {
    fn merge(&mut self, later: StaleUdp) {
        self.endpoints.extend(later.endpoints);
        self.addresses.extend(later.addresses);
        self.revived.extend(later.revived);
    }

    /// Condenses the waiting flows if there are many. For a ServicePort in `map`, all flows to
    /// endpoints that do not serve are stale, so its endpoints need not be listed. For others the
    /// oldest are dropped: their flows end by themselves unless the client continues to send to a
    /// Service that is gone.
    fn bound(&mut self, map: &ServiceMap) {
        if self.endpoints.len() + self.addresses.len() + self.revived.len() <= MOST_WAITING {
            return;
        }
        let mut counts: HashMap<ServicePortName, usize> = HashMap::new();
        for StaleEndpoint { port, .. } in &self.endpoints {
            *counts.entry(port.name.clone()).or_default() += 1;
        }
        counts.retain(|name, count| *count > MOST_OF_ONE_PORT && map.get(name).is_some());
        self.endpoints
            .retain(|stale| !counts.contains_key(&stale.port.name));
        self.revived.extend(counts.into_keys());
        self.revived.retain(|name| map.get(name).is_some());
        self.revived.sort_unstable();
        self.revived.dedup();
        let mut seen = HashSet::new();
        // The latest first: it has the last state of the Service.
        self.endpoints.reverse();
        self.endpoints
            .retain(|stale| seen.insert((stale.port.name.clone(), stale.address)));
        self.endpoints.truncate(MOST_WAITING);
        self.endpoints.reverse();
        let mut seen = HashSet::new();
        self.addresses.reverse();
        self.addresses
            .retain(|stale| seen.insert((stale.port.name.clone(), stale.lost.clone())));
        self.addresses.truncate(MOST_WAITING);
        self.addresses.reverse();
    }

    fn record(&mut self, old: Option<&Arc<ServicePort>>, new: Option<&Arc<ServicePort>>) {
        if let Some(old) = old {
            let all = new.map_or(&[][..], |new| &new.endpoints.all);
            for gone in old.endpoints.all.iter().filter(|old| old.may_have_flows()) {
                if !may_have_flows(all, gone.address) {
                    self.endpoints.push(StaleEndpoint {
                        port: Arc::clone(old),
                        address: gone.address,
                    });
                }
            }
            let lost = missing(old, new.map(|new| &**new));
            if lost != LostAddresses::default() {
                self.addresses.push(StaleAddresses {
                    port: Arc::clone(old),
                    lost,
                });
            }
        }
        if let Some(new) = new
            && (old.is_none() || begins_to_be_served(old, new))
        {
            self.revived.push(new.name.clone());
        }
    }
}

/// Returns true if `new` became reachable from here, or reachable at more addresses. A client that
/// called a node port or address before it was served here was refused elsewhere, and its flow
/// still goes there.
fn begins_to_be_served(old: Option<&Arc<ServicePort>>, new: &Arc<ServicePort>) -> bool {
    let reaches = |port: &Arc<ServicePort>| port.endpoints.any_taken_here();
    let gained = || missing(new, old.map(|old| &**old)) != LostAddresses::default();
    reaches(new) && (!old.is_some_and(reaches) || gained())
}

fn may_have_flows(endpoints: &[Endpoint], address: SocketAddr) -> bool {
    endpoints
        .binary_search_by(|endpoint| endpoint.address.cmp(&address))
        .is_ok_and(|at| endpoints[at].may_have_flows())
}

/// Returns the addresses at which `one` is served and `other` is not.
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

//! Health-check node ports of Services (`spec.healthCheckNodePort`): where load balancers ask
//! whether this node has endpoints of a Service whose external traffic policy is Local.
//!
//! This file counts endpoints; `ports` has the listeners.

mod ports;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
};

use hashbrown::HashMap;
use net::{Family, PerFamily};
use prometheus::Registry;
use tokio::sync::watch;

pub use self::ports::{HealthListeners, Refused};
use crate::{
    events::Recorder,
    log_once::LogOnce,
    runner::{AfterSync, health::Health},
    serve::listeners::Listeners,
    services::{Changes, Endpoint, ServiceMap, ServiceName, ServicePort, ServicePortName},
};

/// The health checks to serve, and the addresses to serve them at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Desired {
    /// Addresses at which each port is served; a wildcard is every address of
    /// the node.
    addresses: BTreeSet<IpAddr>,
    checks: BTreeMap<ServiceName, Check>,
}

/// The health check of one Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Check {
    port: u16,
    /// Endpoints of each family on this node that take new connections; `None` if the Service has
    /// no addresses of that family.
    local_endpoints: PerFamily<Option<usize>>,
}

/// The contribution of one ServicePort to the health check of its Service.
#[derive(Debug)]
struct Part {
    port: u16,
    local: BTreeSet<IpAddr>,
}

/// Follows the service map, and opens and closes the ports.
pub struct ServiceHealth {
    addresses: Box<dyn FnMut() -> io::Result<BTreeSet<IpAddr>> + Send>,
    parts: HashMap<ServiceName, BTreeMap<ServicePortName, Part>>,
    desired: watch::Sender<Desired>,
    sockets: HealthListeners,
    /// Logs once why the addresses could not be listed.
    unlisted: LogOnce,
}

impl ServiceHealth {
    /// Starts without any port. `addresses` lists the addresses that serve node ports now, and is
    /// called at each full sync; while it fails, the last addresses stay; a wildcard stands for
    /// every address of both families; `listeners` are those of this process. All ports are closed
    /// when this is dropped. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn start(
        addresses: impl FnMut() -> io::Result<BTreeSet<IpAddr>> + Send + 'static,
        listeners: Listeners,
        health: Arc<Health>,
        events: Recorder,
        registry: &Registry,
    ) -> prometheus::Result<ServiceHealth> {
        let (desired, receiver) = watch::channel(Desired::default());
        let sockets = HealthListeners::register(receiver, registry)?;
        let ports = ports::Ports {
            sockets: sockets.clone(),
            listeners,
            connections: Arc::default(),
            health,
            events,
        };
        tokio::spawn(ports.maintain());
        Ok(ServiceHealth {
            addresses: Box::new(addresses),
            parts: HashMap::new(),
            desired,
            sockets,
            unlisted: LogOnce::default(),
        })
    }

    /// Returns a view of the health checks that are not served.
    pub fn listeners(&self) -> HealthListeners {
        self.sockets.clone()
    }

    /// Updates both families of a ServicePort after one of them was applied: their endpoints are
    /// the same pods, and load balancers must learn which of them are gone even if the other family
    /// fails.
    fn update_both(&mut self, name: &ServicePortName, map: &ServiceMap) -> bool {
        let mut concerned = false;
        for family in Family::ALL {
            let name = name.in_family(family);
            concerned |= self.update(&name, map.get(&name).map(|port| &**port));
        }
        concerned
    }

    /// Updates the contribution of `port`. Returns whether it has, or had, a health-check port.
    fn update(&mut self, name: &ServicePortName, port: Option<&ServicePort>) -> bool {
        let service = &name.service;
        if let Some(part) = port.and_then(part) {
            let parts = self.parts.entry(service.clone()).or_default();
            parts.insert(name.clone(), part);
            return true;
        }
        let Some(parts) = self.parts.get_mut(service) else {
            return false;
        };
        let had = parts.remove(name).is_some();
        if parts.is_empty() {
            self.parts.remove(service);
        }
        had
    }

    /// Returns the addresses to serve at now; `None` if they cannot be listed, which is logged.
    fn listed(&mut self) -> Option<BTreeSet<IpAddr>> {
        match (self.addresses)() {
            Ok(addresses) => {
                if self.unlisted.end() {
                    tracing::info!(
                        "health-check node ports follow the addresses of this node again"
                    );
                }
                Some(addresses)
            }
            Err(error) => {
                if self.unlisted.differs(&error.to_string()) {
                    tracing::error!(
                        "health-check node ports stay at the addresses of the last full sync; the \
                         addresses of this node are listed again at the next one: {error}"
                    );
                }
                None
            }
        }
    }

    fn checks(&self) -> BTreeMap<ServiceName, Check> {
        let checks = self.parts.iter().filter_map(|(service, parts)| {
            let port = parts.values().next()?.port;
            let check = Check {
                port,
                local_endpoints: PerFamily::each(|family| local_endpoints(parts, family)),
            };
            Some((service.clone(), check))
        });
        checks.collect()
    }
}

fn part(port: &ServicePort) -> Option<Part> {
    Some(Part {
        port: port.health_check_node_port?,
        local: ready_here(port),
    })
}

/// Returns the addresses of the endpoints that health checks count.
pub(super) fn ready_here(port: &ServicePort) -> BTreeSet<IpAddr> {
    let endpoints = port.endpoints.all.iter();
    // An endpoint of weight 0 gets no new connections.
    let takes = |one: &&Endpoint| one.local && one.ready && one.weight > 0;
    let local = endpoints.filter(takes);
    local.map(|endpoint| endpoint.address.ip()).collect()
}

/// Counts the local endpoints of `family`, if the Service has addresses of that family. Those of a
/// Service with several ports are the same pods: an address counts once.
fn local_endpoints(parts: &BTreeMap<ServicePortName, Part>, family: Family) -> Option<usize> {
    let parts = parts.iter().filter(|(name, _)| name.family == family);
    let mut parts = parts.map(|(_, part)| &part.local).peekable();
    parts.peek()?;
    Some(parts.flatten().collect::<BTreeSet<_>>().len())
}

impl AfterSync for ServiceHealth {
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes) {
        let mut concerned = changes.full;
        if changes.full {
            let checked = map.iter();
            let checked = checked.filter(|port| port.health_check_node_port.is_some());
            let known = self.parts.values().flat_map(BTreeMap::keys);
            let names = checked.map(|port| &port.name).chain(known);
            let names = names.filter(|name| name.family == family).cloned();
            for name in names.collect::<BTreeSet<_>>() {
                self.update_both(&name, map);
            }
        } else {
            for name in &changes.ports {
                concerned |= self.update_both(name, map);
            }
        }
        if !concerned {
            return;
        }
        let addresses = changes.full.then(|| self.listed()).flatten();
        let checks = self.checks();
        self.desired.send_if_modified(|desired| {
            let now = Desired {
                addresses: addresses.unwrap_or_else(|| std::mem::take(&mut desired.addresses)),
                checks,
            };
            let before = std::mem::replace(desired, now);
            before != *desired
        });
    }
}

#[cfg(test)]
mod tests;

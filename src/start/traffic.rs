//! Traffic that each mode forwarded, as far as known.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    slice,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use ipvs::{Forwarding, Ipvs, ListedReal, ServerId, Totals};
use net::{Family, Protocol};
use parking_lot::Mutex;
use tokio::{sync::Mutex as AsyncMutex, time::timeout};

use super::{addresses, mode::AnyMode};
use crate::{
    modes::{
        iptables, nftables,
        userspace::{self, Dials, Loads},
    },
    node::NodePorts,
    serve::{DialsAsked, PortTraffic, TrafficSource},
    services::{Namespaces, ServicePort, ServicePortName},
    status_api::{self, DialList, Limited, Traffic, VERSION},
};

/// How long an answer waits until the counts of iptables mode are read; then it uses the previous
/// ones.
const PATIENCE: Duration = Duration::from_secs(2);

/// The source of traffic counts of `mode`; nftables and iptables mode count for Services in the
/// namespaces `counted`. `loads` are those of userspace mode next to a mode of the kernel.
pub(super) fn source(
    mode: &AnyMode,
    node_ports: &Arc<NodePorts>,
    counted: &Namespaces,
    loads: &Arc<OnceLock<Loads>>,
) -> Arc<dyn TrafficSource> {
    let kernel: Option<Arc<dyn TrafficSource>> = match mode {
        AnyMode::Ipvs(_) => Some(Arc::new(VirtualServers {
            node_ports: Arc::clone(node_ports),
            ipvs: Mutex::new(None),
        })),
        AnyMode::Userspace(mode) => return Arc::new(Relayed(mode.loads())),
        AnyMode::Nftables(_) => Some(Arc::new(Elements {
            counted: counted.clone(),
            traffic: Mutex::new(None),
        })),
        AnyMode::Iptables(mode) if !counted.is_empty() => {
            Some(Arc::new(Chains::new(mode.traffic(counted.clone()))))
        }
        AnyMode::Iptables(_) => None,
    };
    let loads = Arc::clone(loads);
    Arc::new(Both { kernel, loads })
}

/// The counts of a mode of the kernel, if there are any, and the connections that are relayed next to it.
#[derive(Debug)]
struct Both {
    kernel: Option<Arc<dyn TrafficSource>>,
    loads: Arc<OnceLock<Loads>>,
}

impl Both {
    fn relayed(&self) -> Option<Relayed> {
        self.loads.get().cloned().map(Relayed)
    }
}

impl TrafficSource for Both {
    fn refresh(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.kernel.as_ref()?.refresh()
    }

    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic> {
        let none = || vec![PortTraffic::default(); ports.len()];
        let kernel = self.kernel.as_ref();
        let mut all = kernel.map_or_else(none, |kernel| kernel.of(ports));
        if let Some(relayed) = self.relayed() {
            for (known, of_port) in all.iter_mut().zip(relayed.of(ports)) {
                if !of_port.endpoints.is_empty() {
                    *known = of_port;
                }
            }
        }
        all
    }

    fn ejected(&self, port: &ServicePort) -> HashSet<SocketAddr> {
        let relayed = self.relayed();
        relayed.map_or_else(HashSet::new, |relayed| relayed.ejected(port))
    }

    fn comes_back(&self, port: &ServicePortName, endpoint: SocketAddr) -> Option<ServicePortName> {
        self.relayed()?.comes_back(port, endpoint)
    }

    fn dials(&self, asked: &DialsAsked) -> Option<Result<DialList, String>> {
        self.relayed()?.dials(asked)
    }
}

/// Rules of iptables mode that count connections.
#[derive(Debug)]
struct Chains {
    traffic: Arc<AsyncMutex<iptables::Traffic>>,
    counts: iptables::Counts,
}

impl Chains {
    fn new(traffic: iptables::Traffic) -> Chains {
        let counts = traffic.counts();
        let traffic = Arc::new(AsyncMutex::new(traffic));
        Chains { traffic, counts }
    }
}

impl TrafficSource for Chains {
    fn refresh(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let traffic = Arc::clone(&self.traffic);
        // The program may take long, or hang: it continues for later requests.
        let reading = tokio::spawn(async move {
            if let Err(error) = traffic.lock().await.refresh().await {
                tracing::debug!("cannot read the traffic of some Services: {error}");
            }
        });
        Some(Box::pin(async move {
            let _ = timeout(PATIENCE, reading).await;
        }))
    }

    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic> {
        let of_port = |endpoints: HashMap<SocketAddr, u64>| {
            let endpoints = endpoints.into_iter().map(|(endpoint, connections)| {
                let traffic = Traffic {
                    connections: Some(connections),
                    ..Traffic::default()
                };
                (endpoint, traffic)
            });
            endpoints.collect()
        };
        self.counts.of(ports).into_iter().map(of_port).collect()
    }
}

/// Elements and rules of nf_tables that count.
struct Elements {
    counted: Namespaces,
    /// Opened at the first request, and again after a failure.
    traffic: Mutex<Option<nftables::Traffic>>,
}

impl fmt::Debug for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Elements")
    }
}

impl TrafficSource for Elements {
    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic> {
        let mut open = self.traffic.lock();
        if open.is_none() {
            *open = nftables::Traffic::open(self.counted.clone()).ok();
        }
        let Some(traffic) = open.as_mut() else {
            return vec![PortTraffic::default(); ports.len()];
        };
        let read = traffic.of(ports);
        if let Err(error) = read.outcome {
            tracing::debug!("cannot read the traffic of some Services: {error}");
            *open = None;
        }
        let of_port = |(endpoints, over_limit): (HashMap<_, _>, Option<nftables::OverLimit>)| {
            let endpoints =
                endpoints
                    .into_iter()
                    .map(|(endpoint, counted): (_, nftables::EndpointTraffic)| {
                        let traffic = Traffic {
                            active: None,
                            connections: Some(counted.connections),
                            bytes_in: Some(counted.from_clients),
                            bytes_out: Some(counted.to_clients),
                        };
                        (endpoint, traffic)
                    });
            let mut traffic: PortTraffic = endpoints.collect();
            traffic.limited = over_limit.map(|over| Limited {
                service: over.of_service,
                client: over.of_client,
            });
            traffic
        };
        let ports = read.endpoints.into_iter().zip(read.over_limit);
        ports.map(of_port).collect()
    }
}

/// The connections that userspace mode relays.
#[derive(Debug)]
struct Relayed(Loads);

impl TrafficSource for Relayed {
    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic> {
        ports.iter().map(|port| self.of_port(port)).collect()
    }

    fn ejected(&self, port: &ServicePort) -> HashSet<SocketAddr> {
        self.0.ejected(&port.name).into_iter().collect()
    }

    fn comes_back(&self, port: &ServicePortName, endpoint: SocketAddr) -> Option<ServicePortName> {
        self.0.comes_back(port, endpoint)
    }

    fn dials(&self, asked: &DialsAsked) -> Option<Result<DialList, String>> {
        let DialsAsked {
            service_port,
            protocol,
            after,
        } = asked;
        let dials = self.0.dials();
        let found = dials.follow(service_port, *protocol, *after, Instant::now());
        let list = |found: Dials| DialList {
            api_version: VERSION.to_owned(),
            kind: "DialList".to_owned(),
            items: found.items.into_iter().map(dial).collect(),
            next: found.next,
            lost: found.lost,
        };
        Some(found.map(list).map_err(|error| error.to_string()))
    }
}

impl Relayed {
    fn of_port(&self, port: &ServicePort) -> PortTraffic {
        let mut traffic: PortTraffic = self.0.of(&port.name).into_iter().collect();
        traffic.limited = self.0.limited(&port.name);
        traffic
    }
}

fn dial(dial: userspace::Dial) -> status_api::Dial {
    status_api::Dial {
        client: dial.client.to_string(),
        endpoint: dial.endpoint.to_string(),
        from: dial.from.map(|from| from.to_string()),
        error: dial.error,
    }
}

/// The counters of IPVS.
struct VirtualServers {
    node_ports: Arc<NodePorts>,
    /// Opened at the first request, and again after a failure.
    ipvs: Mutex<Option<Ipvs>>,
}

impl fmt::Debug for VirtualServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VirtualServers")
    }
}

impl TrafficSource for VirtualServers {
    fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<PortTraffic> {
        let mut open = self.ipvs.lock();
        if open.is_none() {
            *open = Ipvs::open().ok();
        }
        let Some(ipvs) = open.as_mut() else {
            return vec![PortTraffic::default(); ports.len()];
        };
        let own = if ports.iter().any(|port| port.node_port.is_some()) {
            addresses::serving(&self.node_ports.served()).unwrap_or_default()
        } else {
            BTreeSet::new()
        };
        let ports = ports.iter();
        ports.map(|port| of_port(ipvs, port, &own)).collect()
    }
}

fn of_port(ipvs: &mut Ipvs, port: &ServicePort, own: &BTreeSet<IpAddr>) -> PortTraffic {
    let mut traffic = PortTraffic::default();
    for address in frontends(port, own) {
        let id = ServerId {
            protocol: port.name.protocol,
            address,
        };
        // A virtual server that does not exist has no known traffic.
        let Ok(reals) = ipvs.list_real(&id) else {
            continue;
        };
        let totals = ipvs.totals(&id).ok().flatten();
        traffic.add_of_port(traffic_of(&reals, id.protocol, totals));
        for real in &reals {
            let of_real = traffic_of(slice::from_ref(real), id.protocol, real.totals);
            traffic.add(real.server.address, of_real);
        }
    }
    traffic
}

/// The addresses at which clients reach `port` on a node with `own` addresses.
fn frontends(port: &ServicePort, own: &BTreeSet<IpAddr>) -> Vec<SocketAddr> {
    let at = |ip| SocketAddr::new(ip, port.port);
    let mut frontends: Vec<_> = port.addresses().map(at).collect();
    if let Some(number) = port.node_port {
        let own = own.iter().filter(|ip| Family::of(ip) == port.name.family);
        frontends.extend(own.map(|ip| SocketAddr::new(*ip, number)));
    }
    frontends.sort_unstable();
    frontends.dedup();
    frontends
}

/// Number of open connections, or of known UDP clients: IPVS counts the latter among the inactive
/// ones.
fn active(real: &ListedReal, protocol: Protocol) -> u64 {
    u64::from(match protocol {
        Protocol::Udp => real.inactive,
        Protocol::Tcp | Protocol::Sctp => real.active,
    })
}

/// Returns whether answers pass through this node.
fn comes_back(forwarding: Forwarding) -> bool {
    match forwarding {
        Forwarding::Masquerade | Forwarding::Local => true,
        Forwarding::Tunnel | Forwarding::DirectRoute => false,
    }
}

/// Traffic of `reals`, whose sum is `totals`.
fn traffic_of(reals: &[ListedReal], protocol: Protocol, totals: Option<Totals>) -> Traffic {
    let returns = reals.iter().all(|real| comes_back(real.server.forwarding));
    Traffic {
        active: Some(reals.iter().map(|real| active(real, protocol)).sum()),
        connections: totals.map(|totals| totals.connections),
        bytes_in: totals.map(|totals| totals.bytes_in),
        bytes_out: totals.filter(|_| returns).map(|totals| totals.bytes_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::{endpoint, endpoints, service_port};

    #[tokio::test]
    async fn a_client_gets_what_is_known_while_it_is_read_for_another_one() {
        let counted = Namespaces::new([Namespaces::ALL.to_owned()]);
        let chains = Chains::new(iptables::Traffic::new(Vec::new(), counted));
        let mut port = service_port("web:http", [10, 96, 0, 1]);
        port.endpoints = endpoints([endpoint(([10, 1, 0, 1], 80))]);
        chains.counts.known(&port, 5);
        let port = Arc::new(port);
        let _another = chains.traffic.lock().await;
        let of_port = chains.of(&[&port])[0].of_port;
        assert_eq!(of_port.and_then(|traffic| traffic.connections), Some(5));
    }
}

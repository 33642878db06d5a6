//! Chooses the addresses that are called; pure.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::{
    services::NotUsed,
    status_api::{Address, Endpoint, ServicePort},
};

/// An address of a ServicePort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target<'a> {
    pub port: &'a ServicePort,
    pub address: &'a Address,
}

/// Properties of an address of which at least one is called, if there is one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    address: &'a str,
    family: &'a str,
    protocol: &'a str,
    policy: &'a str,
    has_affinity: bool,
    has_endpoints: bool,
    has_health_check: bool,
}

/// Returns at most `most` addresses, kind by kind in turn. Other nodes call others, so that together
/// they call more.
pub fn sample<'a>(ports: &'a [ServicePort], node: &str, most: usize) -> Vec<Target<'a>> {
    let mut kinds: BTreeMap<Kind<'_>, Vec<(u64, Target<'_>)>> = BTreeMap::new();
    for port in ports.iter().filter(|port| is_callable(port)) {
        let single = |address: &&Address| address.last_port.is_none() && address.unserved.is_none();
        for address in port.addresses.iter().filter(single) {
            let kind = Kind {
                address: &address.kind,
                family: &port.family,
                protocol: &port.protocol,
                policy: match &*address.kind {
                    "clusterIP" => &port.internal_traffic_policy,
                    _ => &port.external_traffic_policy,
                },
                has_affinity: port.affinity_seconds.is_some(),
                has_endpoints: port.no_endpoints.is_none(),
                has_health_check: port.health_check.is_some(),
            };
            let order = hash(&(node, &port.namespace, &port.name, &port.port));
            let target = Target { port, address };
            kinds.entry(kind).or_default().push((order, target));
        }
    }
    for of_kind in kinds.values_mut() {
        of_kind.sort_by_key(|(order, _)| *order);
    }
    let longest = kinds.values().map(Vec::len).max().unwrap_or_default();
    let turns = (0..longest).flat_map(|turn| kinds.values().filter_map(move |all| all.get(turn)));
    turns.take(most).map(|(_, target)| *target).collect()
}

/// Returns whether a call shows whether a server answers, without a request that it may not know.
fn is_callable(port: &ServicePort) -> bool {
    match &*port.protocol {
        "TCP" => true,
        "UDP" => {
            let is_dns = |address: &Address| address.port == 53 && address.kind != "nodePort";
            port.addresses.iter().any(is_dns)
        }
        _ => false,
    }
}

/// Returns whether an endpoint must answer. One that was ejected does not, and it is still ready.
pub fn is_called(endpoint: &Endpoint) -> bool {
    let is_ejected = || endpoint.why == Some(NotUsed::Ejected.to_string());
    endpoint.in_use || is_ejected()
}

/// Names a ServicePort.
pub fn name(port: &ServicePort) -> String {
    let colon = if port.port.is_empty() { "" } else { ":" };
    format!("{}/{}{colon}{}", port.namespace, port.name, port.port)
}

/// Returns a hash of these ServicePorts and endpoints that is the same on each node.
pub fn digest(ports: &[ServicePort]) -> String {
    let mut hashes: Vec<u64> = ports.iter().map(of_port).collect();
    hashes.sort_unstable();
    format!("{:016x}", hash(&hashes))
}

fn of_port(port: &ServicePort) -> u64 {
    let addresses = port.addresses.iter();
    let addresses: Vec<_> = addresses
        .map(|one| (&one.kind, &one.ip, one.port))
        .collect();
    let endpoints = port.endpoints.iter().map(|endpoint| &endpoint.address);
    let name = (&port.namespace, &port.name, &port.port);
    let endpoints: Vec<_> = endpoints.collect();
    hash(&(name, &port.protocol, &port.family, addresses, endpoints))
}

/// The keys of `DefaultHasher::new` are the same in each process.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

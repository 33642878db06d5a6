//! Builds the ServicePorts of one Service from its objects.

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::Family;
use tokio::time::Instant;

use super::{
    Absence, Endpoint, EndpointSlice, Service, ServicePort, ServicePortName, TrafficPolicy,
    extensions::DEFAULT_WEIGHT,
    last_ready::InUse,
    owners::AddressOwnership,
    select::{Candidate, NodeWeights, ThisNode, Uses, select},
    service::{Port, Serving},
    slice::{SliceEndpoint, SlicePort},
    slow_start::Starts,
};

/// Maximum number of endpoints of one Service, counted for each of its ports: an object can name
/// thousands of ports, and each has all endpoints of an EndpointSlice.
const MOST_ENDPOINTS: usize = 262_144;

/// The history of endpoints, on which their use depends as well as on the objects.
pub(super) struct Changing<'a> {
    /// The shares of endpoints that became ready; `None`: they have their weights at once.
    pub(super) starts: Option<&'a Starts>,
    /// Endpoints that count as ready, as none is.
    pub(super) last_ready: InUse,
}

impl Changing<'_> {
    /// Returns when this will be different although no object changes; `None`: never.
    pub(super) fn next(&self) -> Option<Instant> {
        let grown = self.starts.and_then(|starts| starts.next);
        grown.into_iter().chain(self.last_ready.until).min()
    }
}

/// Maximum number of entries that all tables of consistent hashing of one Service have together.
const MOST_HASH_ENTRIES: usize = 262_144;

/// Builds the ServicePorts of `service`: one for each port and family, with the addresses that they
/// own. Endpoints that are `ejected` take no new connections.
pub(super) fn service_ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    node: &ThisNode,
    weights: &NodeWeights,
    ownership: &AddressOwnership,
    ejected: &BTreeSet<SocketAddr>,
    changing: &Changing<'_>,
) -> Vec<ServicePort> {
    let Ok(serving) = &service.serving else {
        return Vec::new();
    };
    let any_last_ready = !changing.last_ready.endpoints.is_empty();
    let mut left = MOST_ENDPOINTS;
    let mut made = Vec::with_capacity(serving.cluster_ips.len() * serving.ports.len());
    for cluster_ip in &serving.cluster_ips {
        let family = Family::of(cluster_ip);
        for (number, port) in serving.ports.iter().enumerate() {
            let mut service_port = without_endpoints(service, serving, port, *cluster_ip);
            ownership.leave_owned(&service.name, number, &mut service_port);
            if serving.is_closed(family) {
                close_external_ips(&mut service_port);
            }
            let mut candidates = candidates(port, family, slices.clone(), node, weights, changing);
            let are_too_many = candidates.len() > left;
            candidates.truncate(left);
            left -= candidates.len();
            let ejected = if service_port.may_eject(any_last_ready) {
                ejected
            } else {
                &BTreeSet::new()
            };
            let mut endpoints = select(candidates, uses(&service_port), node, ejected);
            endpoints.are_too_many = are_too_many;
            endpoints.forbidden = forbidden(port, family, slices.clone());
            if endpoints.all.is_empty() && endpoints.forbidden.is_empty() {
                let absence = Absence::of(port, family, slices.clone(), service.selector);
                endpoints.absence = Some(Box::new(absence));
            }
            service_port.endpoints = Arc::new(endpoints);
            made.push(service_port);
        }
    }
    made
}

fn without_endpoints(
    service: &Service,
    serving: &Serving,
    port: &Port,
    cluster_ip: IpAddr,
) -> ServicePort {
    let family = Family::of(&cluster_ip);
    let of_family = |ips: &[IpAddr]| {
        let ips = ips.iter().filter(|ip| Family::of(ip) == family);
        ips.copied().collect()
    };
    let ranges = serving.load_balancer_source_ranges.iter();
    ServicePort {
        name: ServicePortName::new(&service.name, port, family),
        cluster_ip: Some(cluster_ip),
        port: port.port,
        last_port: port.last_port,
        node_port: port.node_port,
        external_ips: of_family(&serving.external_ips),
        load_balancer_ips: of_family(&serving.load_balancer_ips),
        load_balancer_source_ranges: ranges
            .filter(|range| Family::of(&range.addr()) == family)
            .copied()
            .collect(),
        session_affinity: serving.session_affinity,
        internal_traffic_policy: serving.internal_traffic_policy,
        external_traffic_policy: serving.external_traffic_policy,
        // It belongs to the Service as a whole, of which a range is an addition.
        health_check_node_port: serving
            .health_check_node_port
            .filter(|_| port.last_port.is_none()),
        most_hash_entries: most_hash_entries(serving),
        preferences: service.preferences.clone(),
        endpoints: Arc::default(),
        conflicts: Box::default(),
    }
}

/// Returns how many entries each table of consistent hashing may have, so that those of all ports and
/// addresses of a Service have a limit together.
fn most_hash_entries(serving: &Serving) -> u32 {
    let addresses = [
        &serving.cluster_ips,
        &serving.external_ips,
        &serving.load_balancer_ips,
    ];
    // Each port may have a node port in each family.
    let addresses = addresses.map(|ips| ips.len()).iter().sum::<usize>() + 2;
    let tables = addresses * serving.ports.len();
    u32::try_from(MOST_HASH_ENTRIES / tables.max(1)).unwrap_or(u32::MAX)
}

/// Closes the external IPs like the load-balancer IPs, which are closed to everyone: where both are
/// the same, modes would admit clients at the external IP.
fn close_external_ips(port: &mut ServicePort) {
    let external = std::mem::take(&mut port.external_ips);
    let mut closed = std::mem::take(&mut port.load_balancer_ips).into_vec();
    for ip in external {
        if !closed.contains(&ip) {
            closed.push(ip);
        }
    }
    port.load_balancer_ips = closed.into();
}

fn uses(port: &ServicePort) -> Uses {
    let accessible = port.is_accessible();
    let internal_local = port.internal_traffic_policy == TrafficPolicy::Local;
    let external_local = port.external_traffic_policy == TrafficPolicy::Local;
    Uses {
        cluster: !internal_local || accessible,
        local: internal_local || (external_local && accessible),
    }
}

fn candidates<'a>(
    port: &Port,
    family: Family,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    node: &ThisNode,
    weights: &NodeWeights,
    changing: &Changing<'_>,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for slice in slices {
        for target_port in targets(port, slice) {
            for endpoint in &slice.endpoints {
                if Family::of(&endpoint.address) != family {
                    continue;
                }
                let last_ready = changing.last_ready.endpoints.contains(&endpoint.identity);
                found.push(Candidate {
                    endpoint: Endpoint {
                        address: SocketAddr::new(endpoint.address, target_port),
                        local: endpoint.node_name.as_ref() == Some(&node.name),
                        ready: endpoint.ready || last_ready,
                        serving: endpoint.serving,
                        terminating: endpoint.terminating,
                        weight: weight(slice, endpoint, weights),
                        last_ready,
                        grown: changing
                            .starts
                            .map(|starts| starts.grown(endpoint.identity))
                            .unwrap_or_default(),
                        node_name: endpoint.node_name.clone(),
                    },
                    hints: endpoint.hints.as_deref(),
                });
            }
        }
    }
    // An endpoint that moves from slice to slice is briefly in both, and an address may belong to a
    // new pod on another node while a slice still has the old one. The copy that takes connections
    // wins, regardless of the order of the slices, so that it does not flap meanwhile; among equal
    // ones that of this node, as in kube-proxy (`addEndpoints` in endpointslicecache.go).
    found.sort_by_key(|Candidate { endpoint, .. }| {
        let merit = (
            endpoint.ready,
            endpoint.serving,
            !endpoint.terminating,
            endpoint.local,
            endpoint.weight,
        );
        (endpoint.address, Reverse(merit))
    });
    found.dedup_by_key(|candidate| candidate.endpoint.address);
    found
}

/// Selects the ports of `slice` by which its endpoints serve `port`. A range is served by all
/// endpoints, at the ports that clients call, for which 0 stands.
fn targets<'a>(port: &'a Port, slice: &'a EndpointSlice) -> impl Iterator<Item = u16> {
    let is_range = port.last_port.is_some();
    let serves = move |other: &&SlicePort| {
        !is_range && other.name == port.name && other.protocol == port.protocol
    };
    let named = slice.ports.iter().filter(serves).map(|target| target.port);
    named.chain(is_range.then_some(0))
}

/// Returns the endpoints that are left out because of their addresses, sorted, without duplicates.
fn forbidden<'a>(
    port: &Port,
    family: Family,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> Box<[SocketAddr]> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let of_family = |ip: &&IpAddr| Family::of(ip) == family;
        for ip in slice.forbidden.iter().filter(of_family) {
            found.extend(targets(port, slice).map(|target_port| SocketAddr::new(*ip, target_port)));
        }
    }
    found.into_iter().collect()
}

/// Returns the endpoint's weight: that of its slice, else that of its node,
/// else the default.
fn weight(slice: &EndpointSlice, endpoint: &SliceEndpoint, weights: &NodeWeights) -> u16 {
    let of_node = || weights.get(endpoint.node_name.as_ref()?).copied();
    slice.weight.or_else(of_node).unwrap_or(DEFAULT_WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{Loopback, ServiceMap, Tracker};

    /// Returns whether the ServicePort has the set for policy Cluster, and that for policy Local.
    fn sets(spec: &str, status: &str) -> (bool, bool) {
        let service = format!(
            "{{metadata: {{name: a}}, spec: {{clusterIP: 10.0.0.1, {spec}}}, status: {{{status}}}}}"
        );
        let slice = "{metadata: {name: s, labels: {kubernetes.io/service-name: a}}, \
                     addressType: IPv4, ports: [{port: 80}], \
                     endpoints: [{addresses: [10.1.0.1], nodeName: here}]}";
        let names = &mut crate::services::Names::default();
        let service = serde_saphyr::from_str(&service).expect("yaml");
        let service = Service::reduce(&service, names).expect("good").object;
        let slice = serde_saphyr::from_str(slice).expect("yaml");
        let slice = EndpointSlice::reduce(&slice, Loopback::Refused, names)
            .expect("good")
            .object;
        let mut tracker = Tracker::new("here");
        tracker.apply([
            crate::services::Event::Changed(crate::services::Object::Service(Arc::new(service))),
            crate::services::Event::Changed(crate::services::Object::EndpointSlice(Arc::new(
                slice,
            ))),
        ]);
        let port = ServiceMap::iter(tracker.map()).next().expect("one port");
        (
            !port.endpoints.cluster.is_empty(),
            !port.endpoints.local.is_empty(),
        )
    }

    /// The load-balancer IP is closed even if it is also an external IP.
    #[test]
    fn source_ranges_of_nobody_close_external_ips() {
        let service = "{metadata: {name: a}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, \
                       ports: [{port: 80}], externalIPs: [192.0.2.1, 192.0.2.2], \
                       loadBalancerSourceRanges: [all]}, \
                       status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}}";
        let service = serde_saphyr::from_str(service).expect("yaml");
        let service = Service::reduce(&service, &mut crate::services::Names::default());
        let service = service.expect("it is served").object;
        let mut tracker = Tracker::new("here");
        tracker.apply([crate::services::Event::Changed(
            crate::services::Object::Service(Arc::new(service)),
        )]);
        let port = ServiceMap::iter(tracker.map()).next().expect("one port");
        assert_eq!(port.cluster_ip, Some([10, 0, 0, 1].into()));
        assert!(port.external_ips.is_empty());
        let closed = [[192, 0, 2, 2], [192, 0, 2, 1]].map(IpAddr::from);
        assert_eq!(*port.load_balancer_ips, closed);
        let ranges: Vec<_> = port.load_balancer_source_ranges.iter().collect();
        assert_eq!(ranges.len(), 1, "{ranges:?}");
    }

    #[test]
    fn policies_and_ways_in_decide_which_sets_there_are() {
        let plain = "ports: [{port: 80}]";
        let node_port = "type: NodePort, ports: [{port: 80, nodePort: 30080}]";
        let external = "ports: [{port: 80}], externalIPs: [192.0.2.1]";
        let balancer = "type: LoadBalancer, ports: [{port: 80}]";
        let ingress = "loadBalancer: {ingress: [{ip: 192.0.2.2}]}";
        let cases = [
            (plain, "", "", (true, false)),
            (plain, ", internalTrafficPolicy: Local", "", (false, true)),
            (plain, ", externalTrafficPolicy: Local", "", (true, false)),
            // Traffic to its other addresses still has policy Cluster.
            (
                node_port,
                ", internalTrafficPolicy: Local",
                "",
                (true, true),
            ),
            (external, ", internalTrafficPolicy: Local", "", (true, true)),
            (
                balancer,
                ", internalTrafficPolicy: Local",
                ingress,
                (true, true),
            ),
            (
                balancer,
                ", internalTrafficPolicy: Local",
                "",
                (false, true),
            ),
            // Pods and the node short-circuit an external policy of Local.
            (
                node_port,
                ", externalTrafficPolicy: Local",
                "",
                (true, true),
            ),
            (
                balancer,
                ", externalTrafficPolicy: Local",
                ingress,
                (true, true),
            ),
            (
                balancer,
                ", externalTrafficPolicy: Local",
                "",
                (true, false),
            ),
        ];
        for (ways, policy, status, expected) in cases {
            assert_eq!(
                sets(&format!("{ways}{policy}"), status),
                expected,
                "{ways}{policy} {status}"
            );
        }
    }
}

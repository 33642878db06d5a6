//! The filter of a TCP listener: it drops the packets of callers that would not be served.
//!
//! Callers that pass are checked again after they are accepted, so a filter may pass too many
//! callers, but never too few. UDP needs no filter: datagrams that are not forwarded are not
//! answered.

use net::Family;

use super::super::proxy::{cluster_local::ClusterLocal, group::Routing};
use crate::kernel::socket::filter::{Filter, Test};

/// Tests for the node's own addresses: see `ClusterLocal`.
fn node_itself() -> [Test; 3] {
    let [v4, v6] = Family::ALL.map(|family| Test::Within(family.loopback()));
    [Test::Itself, v4, v6]
}

/// The filter that passes callers of `family` that may call a group with this `routing`.
pub fn filter(family: Family, routing: &Routing, clients: &ClusterLocal) -> Filter {
    let mut sections = Vec::new();
    let ranges = &routing.allowed;
    if !ranges.is_empty() {
        let mut tests: Vec<_> = ranges.iter().copied().map(Test::Within).collect();
        if clients.is_node_within(ranges) {
            tests.extend(node_itself());
        }
        sections.push(tests);
    }
    let servers = routing.backends.servers();
    if routing.cluster_local.is_some()
        && servers.iter().all(|server| server.weight == 0)
        && let Some(networks) = clients.networks()
    {
        let mut tests: Vec<_> = networks.into_iter().map(Test::Within).collect();
        tests.extend(node_itself());
        sections.push(tests);
    }
    Filter::new(family, &sections)
}

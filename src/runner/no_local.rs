//! Counts ServicePorts whose traffic policy is Local and that have no endpoint
//! on this node.

use std::collections::HashSet;

use net::Family;

use super::{
    AfterSync,
    metrics::{Metrics, Policy},
};
use crate::services::{Changes, ServiceMap, ServicePort, ServicePortName, TrafficPolicy};

/// Tracks changes of the service map, and sets the gauges of [`Metrics`].
#[derive(Debug)]
pub(super) struct NoLocalEndpoints {
    metrics: Metrics,
    without: HashSet<(ServicePortName, Policy)>,
}

impl NoLocalEndpoints {
    pub(super) fn new(metrics: Metrics) -> NoLocalEndpoints {
        NoLocalEndpoints {
            metrics,
            without: HashSet::new(),
        }
    }

    fn update(&mut self, name: &ServicePortName, port: Option<&ServicePort>) {
        for policy in Policy::ALL {
            let key = (name.clone(), policy);
            if port.is_some_and(|port| has_nothing_local(port, policy)) {
                self.without.insert(key);
            } else {
                self.without.remove(&key);
            }
        }
    }
}

/// Returns true if endpoints exist but the policy forbids using them.
fn has_nothing_local(port: &ServicePort, policy: Policy) -> bool {
    let used = match policy {
        Policy::Internal => true,
        Policy::External => {
            port.node_port.is_some()
                || !port.external_ips.is_empty()
                || !port.load_balancer_ips.is_empty()
        }
    };
    used && policy.of(port) == TrafficPolicy::Local
        && port.endpoints.local.is_empty()
        && port.endpoints.has_any
}

impl AfterSync for NoLocalEndpoints {
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes) {
        if changes.full {
            self.without.retain(|(name, _)| name.family != family);
            for port in map.of_family(family) {
                self.update(&port.name, Some(port));
            }
        } else {
            for name in &changes.ports {
                self.update(name, map.get(name).map(|port| &**port));
            }
        }
        for policy in Policy::ALL {
            let of = |(name, p): &&(ServicePortName, Policy)| name.family == family && *p == policy;
            let count = self.without.iter().filter(of).count();
            self.metrics.set_no_local_endpoints(family, policy, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::services::{Endpoints, service_ports::service_port};

    fn port() -> ServicePort {
        ServicePort {
            node_port: Some(30_000),
            internal_traffic_policy: TrafficPolicy::Local,
            external_traffic_policy: TrafficPolicy::Local,
            endpoints: Arc::new(Endpoints {
                has_any: true,
                ..Endpoints::default()
            }),
            ..service_port("web", [10, 0, 0, 1])
        }
    }

    #[test]
    fn traffic_has_no_endpoints_where_its_policy_is_local_and_they_are_elsewhere() {
        let endpoints = |change: fn(&mut Endpoints)| {
            let mut endpoints = Endpoints {
                has_any: true,
                ..Endpoints::default()
            };
            change(&mut endpoints);
            Arc::new(endpoints)
        };
        let elsewhere = port();
        let here = ServicePort {
            endpoints: endpoints(|e| e.local = Box::new([0])),
            ..port()
        };
        let nowhere = ServicePort {
            endpoints: endpoints(|e| e.has_any = false),
            ..port()
        };
        let internal_cluster = ServicePort {
            internal_traffic_policy: TrafficPolicy::Cluster,
            ..port()
        };
        let external_cluster = ServicePort {
            external_traffic_policy: TrafficPolicy::Cluster,
            ..port()
        };
        let inside_only = ServicePort {
            node_port: None,
            ..port()
        };
        for (port, internal, external) in [
            (elsewhere, true, true),
            (here, false, false),
            (nowhere, false, false),
            (internal_cluster, false, true),
            (external_cluster, true, false),
            (inside_only, true, false),
        ] {
            assert_eq!(
                has_nothing_local(&port, Policy::Internal),
                internal,
                "{port:?}"
            );
            assert_eq!(
                has_nothing_local(&port, Policy::External),
                external,
                "{port:?}"
            );
        }
    }
}

//! Counts ServicePorts whose traffic policy leaves them nothing to send to on
//! this node.

use std::collections::HashSet;

use super::{
    AfterSync,
    health::FAMILIES,
    metrics::{Metrics, Policy},
};
use crate::services::{Changes, ServiceMap, ServicePort, ServicePortName, TrafficPolicy};

/// Follows the service map by what changed, and tells [`Metrics`].
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

    fn look_at(&mut self, name: &ServicePortName, port: Option<&ServicePort>) {
        for policy in Policy::ALL {
            let key = (name.clone(), policy);
            if port.is_some_and(|port| lacks(port, policy)) {
                self.without.insert(key);
            } else {
                self.without.remove(&key);
            }
        }
    }
}

/// Endpoints exist, and the policy forbids to use them.
fn lacks(port: &ServicePort, policy: Policy) -> bool {
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
    fn synced(&mut self, map: &ServiceMap, changes: &Changes) {
        if changes.full {
            self.without.clear();
            for port in map.iter() {
                self.look_at(&port.name, Some(port));
            }
        } else {
            for name in &changes.ports {
                self.look_at(name, map.get(name).map(|port| &**port));
            }
        }
        for family in FAMILIES {
            for policy in Policy::ALL {
                let of =
                    |(name, p): &&(ServicePortName, Policy)| name.family == family && *p == policy;
                let count = self.without.iter().filter(of).count();
                self.metrics.set_no_local_endpoints(family, policy, count);
            }
        }
    }
}

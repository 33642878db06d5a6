//! Number of addresses with listeners when all Services are served.

use hashbrown::HashMap;

use crate::{
    modes::userspace::plan::{
        GroupPlan,
        listen::{self, NodeContext},
    },
    services::ServicePortName,
};

/// Number of addresses of each ServicePort, whether or not it has endpoints now.
#[derive(Debug, Default)]
pub(super) struct Expected {
    of_ports: HashMap<ServicePortName, usize>,
    addresses: usize,
}

impl Expected {
    /// Total number of addresses.
    pub(super) fn addresses(&self) -> usize {
        self.addresses
    }

    /// Records the plans of `port`; a removed one has none.
    pub(super) fn update(
        &mut self,
        port: &ServicePortName,
        plans: &[GroupPlan],
        node: &NodeContext,
    ) {
        let addresses = plans.iter().map(|plan| listen::addresses(plan, node)).sum();
        let before = if addresses == 0 {
            self.of_ports.remove(port)
        } else {
            self.of_ports.insert(port.clone(), addresses)
        };
        self.addresses = self.addresses + addresses - before.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net::{Family, Frontend, PerFamily, Protocol};

    use super::*;
    use crate::{
        modes::userspace::capture::Method, node::Served, services::service_ports::port_name,
    };

    #[test]
    fn under_local_capture_each_address_of_the_node_counts() {
        let service = Frontend::service(Protocol::Tcp, [10, 96, 0, 1].into(), 80);
        let node_port = Frontend::node_port(Protocol::Tcp, Family::V4, 30_080);
        let plan = |frontends: &[_]| vec![GroupPlan::of_cluster_ip("web:http", frontends, vec![])];
        let (web, other) = (port_name("web:http"), port_name("other:http"));
        for (method, addresses) in [(Method::Redirect, [1, 2, 2]), (Method::Local, [4, 5, 2])] {
            let node = NodeContext {
                methods: PerFamily::each(|_| method),
                addresses: (1..=3).map(|last| [192, 0, 2, last].into()).collect(),
                node_ports: Arc::new(Served::All),
                opens_listeners: true,
            };
            let mut expected = Expected::default();
            let mut update = |port, plans: &[GroupPlan]| {
                expected.update(port, plans, &node);
                expected.addresses()
            };
            let first = update(&web, &plan(&[service, node_port]));
            let both = update(&other, &plan(&[service]));
            let fewer = update(&web, &plan(&[service]));
            assert_eq!([first, both, fewer], addresses, "{method:?}");
            update(&web, &[]);
            assert_eq!(update(&other, &[]), 0, "{method:?}");
        }
    }
}

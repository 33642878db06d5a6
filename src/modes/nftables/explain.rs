//! How packets find their way in nftables mode.

use super::{Nftables, plan};
use crate::{
    kernel::netlink::Error,
    modes::explain::{Behaviour, Explain, Loopback, OtherPorts, Pods, Selection},
    net::{Family, ModeName},
    node,
    services::{Changes, ServiceMap, ServicePort},
};

impl Explain for Nftables {
    fn behaviour(&mut self, map: &ServiceMap, _: Family) -> Result<Behaviour, Error> {
        let this_node = map.this_node().map(|node| &**node);
        Ok(Behaviour {
            mode: ModeName::Nftables,
            pods: Pods::new(&self.setup.configured.detect_local, this_node),
            own: node::addresses::own()?,
            served: self.setup.node_ports.served(),
            loopback: Loopback::Relayed(self.setup.node_ports.loopback().to_vec()),
            other_ports: OtherPorts::RefusedAtClusterIps,
            // Weights are slots; rr takes one slot after the other.
            selection: |port, _| match port.preferences().scheduler.as_deref() {
                Some("sh") => Selection::Hashed,
                _ => Selection::Weighted,
            },
            scheduler: String::new(),
            dropped_networks: map.service_networks().to_vec(),
        })
    }

    fn objects(&mut self, map: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let family: Family = port.name.family;
        let Some(served) = self.families.get(family) else {
            return Vec::new();
        };
        let options = served.options(&self.setup, map, &Changes::default());
        let sets = plan::Sets::new(family);
        let elements = served.table.elements(port, &options).into_iter();
        elements
            .map(|(set, element)| element.named(sets.get(set)))
            .collect()
    }
}

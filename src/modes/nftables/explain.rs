//! How packets find their way in nftables mode.

use net::Family;
use netlink::Error;

use super::{Nftables, plan};
use crate::{
    config::ModeName,
    kernel::probe::NftPart,
    modes::explain::{
        Behaviour, Carrier, Explain, Loopback, OtherPorts, Pods, Properties, Rules, Selection,
    },
    node,
    services::{Changes, ServiceMap, ServicePort},
};

/// Behaviour of nftables mode that is the same on every node.
pub(in crate::modes) const PROPERTIES: Properties = Properties {
    mode: ModeName::Nftables,
    carrier: Carrier::Rules,
    // Sets of ranges are looked up before all else.
    external_ips_first: false,
    refuses_own: true,
    refuses_unserved: false,
};

impl Explain for Nftables {
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, Error> {
        let served = self.families.get(family).as_ref().ok();
        let options = served.map(|of| of.options(&self.setup, map, &Changes::default()));
        let this_node = map.this_node();
        Ok(Behaviour {
            properties: &PROPERTIES,
            unserved: options.is_none().then(Behaviour::unable),
            pods: Pods::new(&self.setup.configured.detect_local, this_node),
            own: node::addresses::own()?,
            node_ip: options.as_ref().and_then(|options| options.node_ip),
            has_service_addresses: false,
            served: self.setup.node_ports.served(),
            loopback: Loopback::Relayed(self.setup.node_ports.loopback().to_vec()),
            other_ports: OtherPorts::RefusedAtClusterIps,
            rules: options.as_ref().map_or_else(Rules::complete, rules),
            dropped_networks: map.service_networks().to_vec(),
        })
    }

    fn selection(&self, port: &ServicePort) -> Selection {
        let served = self.families.get(port.name.family).as_ref().ok();
        match served.map(|of| plan::scheduler(port, &of.features)) {
            Some(plan::Scheduler::Hash(_)) => Selection::Hashed,
            // Weights are slots; rr takes one slot after the other.
            _ => Selection::Weighted,
        }
    }

    fn objects(&mut self, map: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let family: Family = port.name.family;
        let Ok(served) = self.families.get(family) else {
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

fn rules(options: &plan::Options) -> Rules {
    let features = &options.features;
    Rules {
        refuse: features.contains(NftPart::Reject),
        remember: features.contains(NftPart::DynamicMaps),
        countable: match features.contains(NftPart::ConnectionCounts) {
            true => plan::MOST_CONNECTIONS,
            false => 0,
        },
        pass_marked: false,
        known: (!features.contains(NftPart::Fib)).then(|| options.node_addresses.clone()),
        ranges: features.contains(NftPart::Fib),
        refused_on_loopback: options.refused_on_loopback.clone(),
    }
}

//! How packets find their way in ipvs mode.

use net::Family;
use netlink::Error;

use super::{Ipvs, objects};
use crate::{
    config::ModeName,
    modes::explain::{
        Behaviour, Carrier, Explain, Loopback, OtherPorts, Pods, Properties, Rules, Selection,
    },
    node,
    services::{ServiceMap, ServicePort},
};

/// Behaviour of ipvs mode that is the same on every node.
pub(in crate::modes) const PROPERTIES: Properties = Properties {
    mode: ModeName::Ipvs,
    carrier: Carrier::Ipvs,
    // Sets of ranges are looked up before all else.
    external_ips_first: false,
    refuses_own: true,
    refuses_unserved: false,
};

impl Explain for Ipvs {
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, Error> {
        let this_node = map.this_node();
        Ok(Behaviour {
            properties: &PROPERTIES,
            unserved: self.families.get(family).rules().unserved().cloned(),
            pods: Pods::new(&self.options.detect_local, this_node),
            own: node::addresses::own()?,
            node_ip: *self.desired.node().node_ip.get(family),
            has_service_addresses: true,
            served: self.node_ports.served(),
            loopback: Loopback::Relayed(self.node_ports.loopback().to_vec()),
            other_ports: OtherPorts::RefusedEverywhere,
            rules: Rules {
                countable: 0,
                ..Rules::complete()
            },
            dropped_networks: Vec::new(),
        })
    }

    fn selection(&self, port: &ServicePort) -> Selection {
        let plan = self.desired.plan(port);
        // All of its virtual servers have the same, which the kernel has.
        let server = plan.servers.first();
        server.map_or(Selection::Equal, |server| {
            Selection::of_scheduler(&server.scheduler)
        })
    }

    fn objects(&mut self, _: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let plan = self.desired.plan(port);
        let mut names = Vec::new();
        for server in &plan.servers {
            let frontend = &server.frontend;
            names.push(objects::virtual_server(frontend));
            let reals = server.reals.iter();
            names.extend(reals.map(|real| objects::real_server(real.address, frontend)));
        }
        names.extend(plan.addresses.iter().map(objects::address));
        names.extend(plan.members.iter().map(objects::member));
        names
    }
}

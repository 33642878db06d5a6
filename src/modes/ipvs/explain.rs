//! How packets find their way in ipvs mode.

use super::{Ipvs, objects};
use crate::{
    kernel::netlink::Error,
    modes::explain::{Behaviour, Explain, Loopback, OtherPorts, Pods, Selection},
    net::{Family, ModeName},
    node,
    services::{ServiceMap, ServicePort},
};

impl Explain for Ipvs {
    fn behaviour(&mut self, map: &ServiceMap, _: Family) -> Result<Behaviour, Error> {
        let this_node = map.this_node().map(|node| &**node);
        Ok(Behaviour {
            mode: ModeName::Ipvs,
            pods: Pods::new(&self.options.detect_local, this_node),
            own: node::addresses::own()?,
            served: self.node_ports.served(),
            loopback: Loopback::Relayed(self.node_ports.loopback().to_vec()),
            other_ports: OtherPorts::RefusedEverywhere,
            selection: |port, default| Selection::of_scheduler(port.scheduler(default)),
            scheduler: self.options.scheduler.to_string(),
            dropped_networks: Vec::new(),
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

//! How packets find their way in ipvs mode.

use super::{Ipvs, plan::LINK};
use crate::{
    kernel::netlink::Error,
    modes::explain::{Behaviour, Loopback, OtherPorts, Pods, Selection},
    net::ModeName,
    node,
    services::{ServiceMap, ServicePort},
};

impl Ipvs {
    /// Returns how packets find their way.
    ///
    /// # Errors
    /// When the node's addresses cannot be listed.
    pub(super) fn behaviour(&self, map: &ServiceMap) -> Result<Behaviour, Error> {
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

    /// Returns the virtual servers of `port` with their real servers, the addresses and
    /// the members of sets.
    pub(super) fn objects(&self, port: &ServicePort) -> Vec<String> {
        let plan = self.desired.plan(port);
        let mut objects = Vec::new();
        for server in &plan.servers {
            objects.push(format!("virtual server {}", server.frontend));
            let reals = server.reals.iter();
            objects.extend(reals.map(|real| {
                let address = real.address;
                format!(
                    "real server {address} of virtual server {}",
                    server.frontend
                )
            }));
        }
        let addresses = plan.addresses.iter();
        objects.extend(addresses.map(|ip| format!("address {ip} of link {LINK}")));
        objects.extend(plan.members.iter().map(|member| {
            let set = member.set.name(member.family);
            format!("member {} of set {set}", member.element)
        }));
        objects
    }
}

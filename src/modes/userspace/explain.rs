//! Paths of packets in userspace mode.

use std::net::SocketAddr;

use hashbrown::HashSet;
use net::{Family, Frontend};
use netlink::Error;

use super::{Userspace, capture::Method, plan};
use crate::{
    config::ModeName,
    modes::explain::{
        Behaviour, Carrier, Explain, Loopback, OtherPorts, Pods, Properties, Rules, Selection,
    },
    node,
    services::{ServiceMap, ServicePort},
};

/// Properties of userspace mode, which are the same on every node.
pub(in crate::modes) const PROPERTIES: Properties = Properties {
    mode: ModeName::Userspace,
    carrier: Carrier::Sockets,
    // Its sockets come first.
    external_ips_first: true,
    refuses_own: true,
    refuses_unserved: false,
};

impl Explain for Userspace {
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, Error> {
        let this_node = map.this_node();
        let options = &self.executor.shared().options;
        let methods = self.capture.methods();
        let method = *methods.get(family);
        Ok(Behaviour {
            properties: &PROPERTIES,
            unserved: self.unserved.why(family).cloned(),
            pods: Pods::new(&options.detect_local, this_node),
            own: node::addresses::own()?,
            node_ip: None,
            has_service_addresses: method == Method::Local,
            served: options.node_ports.served(),
            loopback: if self.capture.redirects_loopback(family) {
                Loopback::Redirected
            } else {
                Loopback::Sockets
            },
            other_ports: match method {
                Method::Redirect => OtherPorts::PassOn,
                Method::Local => OtherPorts::RefusedAtClusterIps,
            },
            rules: Rules {
                pass_marked: self.capture.lets_marked_pass(family),
                ..Rules::complete()
            },
            dropped_networks: Vec::new(),
        })
    }

    fn selection(&self, port: &ServicePort) -> Selection {
        let scheduler = plan::scheduler(port, self.executor.shared().options.scheduler);
        let scheduler = scheduler.unwrap_or_else(|used| used.instead);
        Selection::of_scheduler(scheduler.as_str())
    }

    fn ejected(&self, port: &ServicePort) -> HashSet<SocketAddr> {
        self.executor.loads().ejected(&port.name)
    }

    fn objects(&mut self, _: &ServiceMap, port: &ServicePort) -> Vec<String> {
        let groups = plan::plan(port, self.executor.shared().options.scheduler);
        let frontends: Vec<Frontend> = groups.into_iter().flat_map(|g| g.frontends).collect();
        let mut objects = self.executor.listeners(&port.name);
        for frontend in frontends {
            for object in self.capture.objects(&frontend) {
                // Frontends share some objects.
                if !objects.contains(&object) {
                    objects.push(object);
                }
            }
        }
        objects
    }
}

//! Plans the kernel objects of ServicePorts: virtual servers, members of sets, addresses of the
//! dummy link, and the rules around them, as kube-proxy's ipvs mode has them (`pkg/proxy/ipvs`,
//! 1.36).
//!
//! Pure: nothing here reads the kernel or keeps state. The plan of a ServicePort depends on it and
//! on the [`NodeContext`] alone; the [`rules`] depend on the context and on which sets have
//! members.

mod node_context;
mod options;
mod rules;
mod servers;
mod sets;
#[cfg(test)]
mod tests;
mod unsupported;

use std::net::IpAddr;

pub use ipvs::ServerId;
use ipvs::ipset::Element;
use net::{Family, Protocol};

pub use self::{
    node_context::NodeContext,
    options::{LINK, Options, ROUND_ROBIN, is_excluded},
    rules::{MATCHED_IN_MANGLE, NonEmptySets, interest, rules},
    servers::{VirtualServer, asked_scheduler, may_be_tried},
    sets::{Member, Set},
    unsupported::unsupported,
};
use self::{servers::SchedulingParameters, sets::storable};
pub use crate::modes::detect_local::DetectLocal;
use crate::services::{Endpoint, Forwarding, ServicePort, TrafficPolicy};

/// The objects that one ServicePort needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Virtual servers, each frontend once.
    pub servers: Vec<VirtualServer>,
    /// Members of sets, sorted, each once.
    pub members: Vec<Member>,
    /// Addresses of the dummy link, sorted, each once.
    pub addresses: Vec<IpAddr>,
}

impl ServicePlan {
    /// Returns true if it has a virtual server at `frontend`.
    pub fn serves(&self, frontend: &ServerId) -> bool {
        let mut servers = self.servers.iter();
        servers.any(|server| server.frontend == *frontend)
    }
}

/// Plans the objects that `port` needs on this node. A range of ports is not served.
pub fn plan(port: &ServicePort, node: &NodeContext) -> ServicePlan {
    let mut plan = Builder::new(port, node).plan;
    plan.members.sort_unstable();
    plan.members.dedup();
    plan.addresses.sort_unstable();
    plan.addresses.dedup();
    plan
}

struct Builder<'a> {
    port: &'a ServicePort,
    node: &'a NodeContext,
    parameters: SchedulingParameters<'a>,
    plan: ServicePlan,
    /// Why packets are rewritten at frontends although the Service asks for something else.
    not_direct: Vec<String>,
}

impl<'a> Builder<'a> {
    /// Returns everything that `port` needs, in no particular order.
    fn new(port: &'a ServicePort, node: &'a NodeContext) -> Builder<'a> {
        let mut builder = Builder {
            port,
            node,
            parameters: SchedulingParameters::new(port, node),
            plan: ServicePlan::default(),
            not_direct: Vec::new(),
        };
        if port.is_range() {
            return builder;
        }
        builder.loop_back();
        builder.cluster_ip();
        for &ip in &port.external_ips {
            builder.external_ip(ip);
        }
        for &ip in &port.load_balancer_ips {
            builder.load_balancer_ip(ip);
        }
        if let Some(node_port) = port.node_port {
            builder.node_port(node_port);
        }
        if let Some(port) = port.health_check_node_port {
            builder.member(Set::HealthCheckNodePort, Element::Port(port));
        }
        builder
    }

    fn family(&self) -> Family {
        self.port.name.family
    }

    fn protocol(&self) -> Protocol {
        self.port.name.protocol
    }

    fn ip_port(&self, ip: IpAddr, port: u16) -> Element {
        Element::ip_port(ip, self.protocol().number(), port)
    }

    fn member(&mut self, set: Set, element: Element) {
        let member = Member {
            set,
            family: self.family(),
            element,
        };
        self.plan.members.push(member);
    }

    /// An endpoint here that calls itself through a Service would get answers from
    /// itself directly, so its source is masqueraded.
    fn loop_back(&mut self) {
        let port = self.port;
        for endpoint in port.endpoints.all.iter().filter(|endpoint| endpoint.local) {
            let ip = endpoint.address.ip();
            let element = Element::IpPortIp {
                ip,
                protocol: self.protocol().number(),
                port: endpoint.address.port(),
                other: ip,
            };
            self.member(Set::LoopBack, element);
        }
    }

    fn cluster_ip(&mut self) {
        let Some(ip) = self.port.cluster_ip else {
            return;
        };
        let element = self.ip_port(ip, self.port.port);
        self.member(Set::ClusterIp, element);
        self.serve(ip, self.port.port, &servers::internal_endpoints(self.port));
        self.bind(ip);
    }

    fn external_ip(&mut self, ip: IpAddr) {
        let element = self.ip_port(ip, self.port.port);
        let set = if self.is_local() {
            Set::ExternalIpLocal
        } else {
            Set::ExternalIp
        };
        self.member(set, element);
        self.serve(ip, self.port.port, &servers::external_endpoints(self.port));
        self.bind_unless_own(ip);
    }

    fn load_balancer_ip(&mut self, ip: IpAddr) {
        let (protocol, port) = (self.protocol().number(), self.port.port);
        let element = Element::ip_port(ip, protocol, port);
        self.member(Set::LoadBalancer, element);
        if self.is_local() {
            self.member(Set::LoadBalancerLocal, element);
        }
        let ranges = &self.port.load_balancer_source_ranges;
        if !ranges.is_empty() {
            self.member(Set::Firewall, element);
            for range in ranges.iter().copied().flat_map(storable) {
                let admitted = Element::IpPortNet {
                    ip,
                    protocol,
                    port,
                    net: range,
                };
                self.member(Set::SourceCidr, admitted);
            }
            // When the node calls a load balancer, its source is the load balancer's
            // own address, because that is on the dummy link.
            let node = self.node.node_ip.get(self.family());
            if node.is_some_and(|node| ranges.iter().any(|range| range.contains(&node))) {
                let admitted = Element::IpPortIp {
                    ip,
                    protocol,
                    port,
                    other: ip,
                };
                self.member(Set::SourceIp, admitted);
            } else {
                self.member(Set::NotFromNode, element);
            }
        }
        self.serve(ip, port, &servers::external_endpoints(self.port));
        self.bind_unless_own(ip);
    }

    fn node_port(&mut self, node_port: u16) {
        let (node, port) = (self.node, self.port);
        let family = self.family();
        let served = || {
            let served = node.node_ports.iter().copied();
            let served = served.filter(move |ip| Family::of(ip) == family);
            served.filter(|ip| !port.node_port_excluded().any(|lost| lost == *ip))
        };
        if served().next().is_none() {
            return;
        }
        let protocol = self.protocol();
        let local = self.is_local().then_some(TrafficPolicy::Local);
        for policy in [TrafficPolicy::Cluster].into_iter().chain(local) {
            let set = Set::node_ports(protocol, policy);
            if protocol == Protocol::Sctp {
                for ip in served() {
                    self.member(set, self.ip_port(ip, node_port));
                }
            } else {
                self.member(set, Element::Port(node_port));
            }
        }
        let endpoints = servers::external_endpoints(port);
        for ip in served() {
            self.serve(ip, node_port, &endpoints);
        }
    }

    fn is_local(&self) -> bool {
        self.port.external_traffic_policy == TrafficPolicy::Local
    }

    /// Adds a virtual server that sends to `endpoints` at an address and port, unless
    /// there is one already.
    fn serve(&mut self, address: IpAddr, port: u16, endpoints: &[&Endpoint]) {
        let frontend = ServerId::new((address, port), self.protocol());
        if self.plan.serves(&frontend) {
            return;
        }
        let direct = self.parameters.direct(&frontend, endpoints);
        let direct = direct.unwrap_or_else(|why| {
            self.not_direct.push(why);
            None
        });
        let server = self.parameters.server(frontend, endpoints, direct);
        let element = self.ip_port(address, port);
        if direct.is_some() {
            self.member(Set::Direct, element);
        }
        if self.port.preferences().forwarding == Some(Forwarding::FullNat) {
            self.member(Set::FullNat, element);
        }
        self.plan.servers.push(server);
    }

    fn bind(&mut self, ip: IpAddr) {
        self.plan.addresses.push(ip);
        self.member(Set::ServiceIps, Element::Ip(ip));
    }

    /// An address that the node has on another link must not get a second
    /// place: the kernel would send answers from the wrong one.
    fn bind_unless_own(&mut self, ip: IpAddr) {
        if !self.node.addresses.contains(&ip) {
            self.bind(ip);
        }
    }
}

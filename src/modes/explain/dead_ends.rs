//! Endpoints that get no such packet, or none that reaches a server: they have the address of a
//! Service, or did not answer lately.

use std::net::SocketAddr;

use hashbrown::HashMap;
use net::{Family, Protocol};

use super::{
    Carrier, OtherPorts, Verdict,
    decide::{NO_REFUSAL, Way},
};
use crate::services::{
    AddressKind, Endpoint, NotUsed, ServiceAddresses, ServicePort, ServicePortName,
};

impl Way<'_> {
    /// Returns those of the endpoints `chosen` that have the address of a Service, as far as
    /// packets which are sent there do not reach a server: rules leave packets to other addresses
    /// than cluster IPs to the network, which may have a load balancer at them.
    fn dead_ends(
        &self,
        port: &ServicePort,
        chosen: &[&Endpoint],
    ) -> HashMap<SocketAddr, (ServicePortName, AddressKind)> {
        let protocol = self.packet.protocol;
        let carrier = self.behaviour.properties.carrier;
        let addresses = ServiceAddresses::of(self.map.iter());
        let owner = |address| {
            addresses.owner(protocol, address).or_else(|| {
                self.node_port_at(address)
                    .filter(|_| carrier == Carrier::Sockets)
            })
        };
        let found = chosen.iter().filter_map(|endpoint| {
            let (name, kind) = owner(endpoint.address)?;
            let is_dead = match (carrier, kind) {
                (_, AddressKind::ClusterIp) | (Carrier::Ipvs, _) => true,
                (Carrier::Rules, _) => false,
                (Carrier::Sockets, AddressKind::ExternalIp | AddressKind::LoadBalancerIp) => {
                    self.comes_back(port, name, endpoint.address)
                }
                (Carrier::Sockets, _) => true,
            };
            is_dead.then(|| (endpoint.address, (name.clone(), kind)))
        });
        found.collect()
    }

    /// Returns whether calls of `port` to `address`, an external or load-balancer IP of `owner`,
    /// come back to this process.
    fn comes_back(&self, port: &ServicePort, owner: &ServicePortName, address: SocketAddr) -> bool {
        let behaviour = self.behaviour;
        // With local capture, sockets listen there.
        let is_listened_at =
            behaviour.has_service_addresses && behaviour.own.contains(&address.ip());
        *owner == port.name || is_listened_at || !behaviour.rules.pass_marked
    }

    /// Returns the ServicePort whose node port `address` is.
    pub(super) fn node_port_at(
        &self,
        address: SocketAddr,
    ) -> Option<(&ServicePortName, AddressKind)> {
        let ip = address.ip();
        if !self.behaviour.own.contains(&ip) || !self.behaviour.served.contains(&ip) {
            return None;
        }
        let mut ports = self.map.of_family(Family::of(&ip));
        let port = ports.find(|port| {
            port.name.protocol == self.packet.protocol && port.node_port == Some(address.port())
        })?;
        Some((&port.name, AddressKind::NodePort))
    }

    /// Returns those of `chosen` that packets are sent to, and records why others get none; `None`:
    /// that decides about the packet.
    pub(super) fn leave_out<'e>(
        &mut self,
        port: &ServicePort,
        chosen: &[&'e Endpoint],
    ) -> Option<Vec<&'e Endpoint>> {
        let dead = self.dead_ends(port, chosen);
        let is_live = |endpoint: &&&Endpoint| !dead.contains_key(&endpoint.address);
        let live: Vec<&Endpoint> = chosen.iter().filter(is_live).copied().collect();
        if live.is_empty() {
            self.end_at_services(&dead);
            return None;
        }
        if self.behaviour.properties.carrier != Carrier::Sockets {
            // Rules and IPVS do not know.
            return Some(chosen.to_vec());
        }
        self.pass_over_dead(&dead);
        let ejected = (self.ejected)(port);
        let is_out = |endpoint: &&Endpoint| ejected.contains(&endpoint.address);
        let (out, taking): (Vec<&Endpoint>, Vec<&Endpoint>) =
            live.iter().copied().partition(is_out);
        if taking.is_empty() {
            return Some(live);
        }
        let why = NotUsed::Ejected.to_string();
        let out = out
            .into_iter()
            .map(|endpoint| (endpoint.address, why.clone()));
        self.explanation.passed_over.extend(out);
        Some(taking)
    }

    fn pass_over_dead(&mut self, dead: &HashMap<SocketAddr, (ServicePortName, AddressKind)>) {
        let mut dead: Vec<_> = dead.iter().collect();
        dead.sort_unstable();
        for (address, (name, _)) in dead {
            let why = name.has_address_of_endpoint();
            self.step(format!("endpoint {address} is not used: {why}"));
            self.explanation.passed_over.push((*address, why));
        }
    }

    /// All endpoints have addresses of Services.
    fn end_at_services(&mut self, dead: &HashMap<SocketAddr, (ServicePortName, AddressKind)>) {
        self.pass_over_dead(dead);
        let none = match dead.len() {
            1 => "the only endpoint has the address of a Service".to_owned(),
            count => format!("all {count} endpoints have addresses of Services"),
        };
        self.explanation.no_endpoints = Some(none.clone());
        let behaviour = self.behaviour;
        let why = format!("no endpoint takes connections: {none}");
        let verdict = match (behaviour.properties.carrier, behaviour.other_ports) {
            (Carrier::Sockets, _) if self.packet.protocol == Protocol::Udp => Verdict::Dropped,
            (Carrier::Sockets, _) => Verdict::Refused,
            (_, OtherPorts::PassOn) => {
                let why = format!("{why}: it is sent there, and then routed as usual");
                return self.end(Verdict::NotServed, why);
            }
            _ if !behaviour.rules.refuse => {
                return self.end(Verdict::Dropped, format!("{why}; {NO_REFUSAL}"));
            }
            _ => Verdict::Refused,
        };
        self.end(verdict, why);
    }
}

//! Owners of destinations.

use std::{net::IpAddr, sync::Arc};

use net::{Family, Protocol};

use super::{Behaviour, OtherPorts, Packet};
use crate::services::{AddressKind, ServiceMap, ServicePort};

/// Owner of a destination.
pub(super) enum Frontend<'a> {
    /// The ServicePort that owns it, and which kind of address of it that is.
    Of(&'a Arc<ServicePort>, AddressKind),
    /// A port that no Service has, of a service address of this ServicePort.
    OtherPort(&'a Arc<ServicePort>, AddressKind),
    /// The health-check node port of this ServicePort, which Tripod answers itself.
    HealthCheck(&'a Arc<ServicePort>),
    /// An address, or a port of the node, that no Service has.
    None,
}

/// Returns which kind of address of `port` `ip` is, apart from node ports.
fn role(port: &ServicePort, ip: IpAddr) -> Option<AddressKind> {
    if port.cluster_ip == Some(ip) {
        Some(AddressKind::ClusterIp)
    } else if port.external_ips.contains(&ip) {
        Some(AddressKind::ExternalIp)
    } else if port.load_balancer_ips.contains(&ip) {
        Some(AddressKind::LoadBalancerIp)
    } else {
        None
    }
}

/// Returns whether `ip` is one of the node's own addresses.
pub(super) fn is_own(behaviour: &Behaviour, ip: IpAddr) -> bool {
    ip.is_loopback() || behaviour.own.contains(&ip)
}

/// Finds the owner of the destination of `packet`. Service addresses come before node ports, and an
/// address that two Services name belongs to its owner alone. Ranges of ports come last, and are not
/// served at addresses of the node.
pub(super) fn of<'a>(map: &'a ServiceMap, behaviour: &Behaviour, packet: &Packet) -> Frontend<'a> {
    let (ip, number) = (packet.to.ip(), packet.to.port());
    let family = Family::of(&ip);
    let ports = || map.of_family(family);
    let (mut other, mut range) = (Frontend::None, None);
    for port in ports() {
        let Some(role) = role(port, ip) else { continue };
        if port.is_range() && !behaviour.rules.ranges {
            continue;
        }
        if port.ports().contains(&number) && port.name.protocol == packet.protocol {
            let found = Frontend::Of(port, role);
            if !port.is_range() {
                return found;
            }
            range = Some(found);
        }
        if matches!(other, Frontend::None) || role == AddressKind::ClusterIp {
            other = Frontend::OtherPort(port, role);
        }
    }
    let has = |of: Option<u16>| of == Some(number);
    // Health checks are HTTP, so that the port is free over other protocols.
    let is_tcp = packet.protocol == Protocol::Tcp;
    let check = || ports().find(|port| is_tcp && has(port.health_check_node_port));
    if is_own(behaviour, ip) {
        let mut node_ports = ports().filter(|port| {
            has(port.node_port)
                && port.name.protocol == packet.protocol
                && !port.node_port_excluded().any(|excluded| excluded == ip)
        });
        if let Some(port) = node_ports.next() {
            return Frontend::Of(port, AddressKind::NodePort);
        }
        // Its other ports are the node's own affair.
        return check().map_or(Frontend::None, Frontend::HealthCheck);
    }
    if let Some(range) = range {
        return range;
    }
    match (other, behaviour.other_ports) {
        // The rule that lets health checks pass does not look at addresses, like kube-proxy's.
        (Frontend::OtherPort(port, role), OtherPorts::RefusedEverywhere) => {
            check().map_or(Frontend::OtherPort(port, role), Frontend::HealthCheck)
        }
        (other, _) => other,
    }
}

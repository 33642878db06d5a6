//! The addresses of a Service as a destination of explained packets.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use hyper::StatusCode;
use net::{Family, Protocol};

use super::services::unknown;
use crate::{
    runner::question::Caller,
    services::{ServicePort, ServicePorts},
    status_api::NamedService,
};

/// Why the Service has no address for such a packet.
#[derive(Debug)]
pub(super) struct Unresolved {
    /// Status of the answer.
    pub(super) status: StatusCode,
    /// The reason, and the ports of the Service.
    pub(super) why: String,
}

/// Returns the cluster IPs of `service`, each with the named port and its protocol; if the caller
/// is an address, only those of its IP family.
///
/// # Errors
/// When there is none, or the Service has several ports and none is named.
pub(super) fn cluster_ips(
    service: &NamedService,
    protocol: Option<Protocol>,
    from: Caller,
    ports: &ServicePorts,
) -> Result<Vec<(SocketAddr, Protocol)>, Unresolved> {
    let NamedService {
        namespace, name, ..
    } = service;
    let bad = |why| Unresolved {
        status: StatusCode::BAD_REQUEST,
        why: format!("Service {namespace}/{name} {why}"),
    };
    let mut all: Vec<&ServicePort> = ports
        .values()
        .filter(|port| {
            let of = &port.name.service;
            *of.namespace == **namespace && *of.name == **name
        })
        .map(|port| &**port)
        .collect();
    if all.is_empty() {
        return Err(Unresolved {
            status: StatusCode::NOT_FOUND,
            why: unknown(namespace, name, ports),
        });
    }
    all.sort_by_key(|port| port.name.family);
    // The number of the port that is asked about, of a range any of its ports.
    let number = |port: &ServicePort| {
        let asked = service.port.as_ref().and_then(|asked| asked.parse().ok());
        asked.filter(|asked| port.ports().contains(asked))
    };
    let is_asked = |port: &&ServicePort| {
        let is = |asked: &String| **asked == *port.name.port || number(port).is_some();
        protocol.is_none_or(|asked| asked == port.name.protocol)
            && service.port.as_ref().is_none_or(is)
    };
    let mut asked: Vec<&ServicePort> = all.iter().copied().filter(is_asked).collect();
    // An exact port is an exception within a range.
    if asked.iter().any(|port| !port.is_range()) {
        asked.retain(|port| !port.is_range() || service.port.is_none());
    }
    let words = distinct(&asked);
    if words.is_empty() {
        let all = distinct(&all).join(", ");
        return Err(bad(format!("has no such port: it has {all}")));
    }
    if words.len() > 1 {
        return Err(bad(format!(
            "has several ports; name one of them, as in {namespace}/{name}:PORT or \
             {namespace}/{name}:PORT/udp: it has {}",
            words.join(", ")
        )));
    }
    let cluster_ip = |port: &&ServicePort| {
        let number = number(port).unwrap_or(port.port);
        Some((port.cluster_ip?, number, port.name.protocol))
    };
    let found: Vec<_> = asked.iter().filter_map(cluster_ip).collect();
    let Some((first, ..)) = found.first() else {
        let conflicts = asked.iter().flat_map(|port| &port.conflicts);
        let conflicts: Vec<_> = conflicts.map(ToString::to_string).collect();
        let conflicts = conflicts.join("; ");
        return Err(bad(format!("is served at no cluster IP: {conflicts}")));
    };
    let is_reached = |ip: &IpAddr| match from {
        Caller::At(from) => Family::of(&from) == Family::of(ip),
        Caller::Pod | Caller::Node | Caller::Outside => true,
    };
    let reached = found.iter().filter(|(ip, ..)| is_reached(ip));
    let reached = reached.map(|&(ip, port, protocol)| (SocketAddr::new(ip, port), protocol));
    let reached: Vec<_> = reached.collect();
    if reached.is_empty() {
        return Err(bad(format!(
            "has a cluster IP of another IP family than the caller: {first}"
        )));
    }
    Ok(reached)
}

/// Returns name, number and protocol of each port, which exists once for each IP family.
fn distinct(ports: &[&ServicePort]) -> Vec<String> {
    let names: BTreeSet<_> = ports
        .iter()
        .map(|port| {
            let name = if port.is_range() { "" } else { &port.name.port };
            (name, port.ports().into_inner(), port.name.protocol.name())
        })
        .collect();
    let words = names.into_iter().map(|(name, (first, last), protocol)| {
        let ports = if first == last {
            format!("{first}/{protocol}")
        } else {
            format!("{first}-{last}/{protocol}")
        };
        match name {
            "" => ports,
            name => format!("{name} ({ports})"),
        }
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        services::{
            AddressKind, Conflict, ServiceMap,
            service_ports::{port_name, service_port},
        },
        status_api::{Addressee, Destination},
    };

    fn port(name: &str, protocol: Protocol, ip: &str, number: u16) -> ServicePort {
        let port = service_port(&format!("shop/{name}"), ip.parse::<IpAddr>().unwrap());
        ServicePort {
            name: port.name.over(protocol),
            port: number,
            ..port
        }
    }

    /// Returns the same port after it lost its cluster IP to another Service.
    fn lost(port: &ServicePort) -> ServicePort {
        let conflict = Conflict {
            kind: AddressKind::ClusterIp,
            ip: port.cluster_ip,
            protocol: port.name.protocol,
            port: port.port,
            last_port: None,
            owner: port_name("default/b"),
            owner_kind: AddressKind::ClusterIp,
        };
        ServicePort {
            cluster_ip: None,
            conflicts: [conflict].into(),
            ..port.clone()
        }
    }

    /// Resolves `to` to addresses, or says why there is none.
    fn resolved(ports: &[ServicePort], to: &str, from: Caller) -> Result<String, String> {
        let to = Destination::read(to).unwrap();
        let Addressee::Service(service) = to.addressee else {
            panic!("an address");
        };
        let mut all = Protocol::ALL.into_iter();
        let is_named = |one: &Protocol| {
            let name = to.protocol.as_deref().unwrap_or_default();
            one.name().eq_ignore_ascii_case(name)
        };
        let protocol = all.find(is_named);
        let map: ServiceMap = ports.iter().cloned().collect();
        let found = cluster_ips(&service, protocol, from, map.ports());
        let found = found.map_err(|unresolved| unresolved.why)?.into_iter();
        let found = found.map(|(to, protocol)| format!("{to}/{protocol}"));
        Ok(found.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn one_port_of_a_service_is_meant_and_all_of_its_cluster_ips() {
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let at = |ip: &str| Caller::At(ip.parse().unwrap());
        let one = [
            port("web", tcp, "fd00::1", 80),
            port("web", tcp, "10.96.0.1", 80),
        ];
        let half = [one[1].clone(), lost(&one[0])];
        let none = [lost(&one[1])];
        let dns = [
            port("dns:dns", udp, "10.96.0.2", 53),
            port("dns:dns-tcp", tcp, "10.96.0.2", 53),
            port("dns:metrics", tcp, "10.96.0.2", 9153),
        ];
        let both = Ok("10.96.0.1:80/TCP [fd00::1]:80/TCP");
        let first = Ok("10.96.0.1:80/TCP");
        let of_dns = Ok("10.96.0.2:53/UDP");
        let all = "it has dns (53/UDP), dns-tcp (53/TCP), metrics (9153/TCP)";
        for (ports, to, from, expected) in [
            (&one[..], "shop/web", Caller::Pod, both),
            (&one, "shop/web:80/tcp", Caller::Node, both),
            (&one, "shop/web", at("10.244.0.1"), first),
            // Another Service has its cluster IP of one family.
            (&half, "shop/web", Caller::Pod, first),
            (&dns, "shop/dns:dns", Caller::Pod, of_dns),
            (&dns, "shop/dns:53/udp", Caller::Outside, of_dns),
            (&dns, "shop/dns/udp", Caller::Pod, of_dns),
            (&dns, "shop/dns", Caller::Pod, Err(all)),
            (
                &dns,
                "shop/dns:53",
                Caller::Pod,
                Err(
                    "name one of them, as in shop/dns:PORT or shop/dns:PORT/udp: it has dns (53/UDP), \
                     dns-tcp (53/TCP)",
                ),
            ),
            (
                &dns,
                "shop/dns:30053",
                Caller::Pod,
                Err("Service shop/dns has no such port: it has dns (53/UDP), dns-tcp"),
            ),
            (
                &one,
                "shop/web:http",
                Caller::Pod,
                Err("no such port: it has 80/TCP"),
            ),
            (
                &dns,
                "shop/dns:dns",
                at("fd00::9"),
                Err("of another IP family than the caller: 10.96.0.2"),
            ),
            (
                &none,
                "shop/web",
                Caller::Pod,
                Err("Service shop/web is served at no cluster IP: "),
            ),
            (&none, "shop/web", Caller::Pod, Err("default/b")),
            (&one, "web", Caller::Pod, Err("there is shop/web")),
        ] {
            match (resolved(ports, to, from), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{to}"),
                (Err(why), Err(words)) => assert!(why.contains(words), "{to}: {why}"),
                (found, expected) => panic!("{to}: {found:?}, expected {expected:?}"),
            }
        }
    }
}

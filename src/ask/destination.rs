//! Which addresses a Service has that packets are asked about.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use super::{
    connection::{Connection, Failure},
    services::{self, Selected},
};
use crate::{
    cli::{Destination, NamedService},
    status_api::ServicePort,
};

/// Returns the addresses that `destination` means, each with its port and the protocol in
/// small letters: of a Service its cluster IPs, those of the family of `from` alone.
///
/// # Errors
/// Why there is none: what the proxy answers, or that the Service has no such port, or
/// several.
pub(super) async fn resolve(
    connection: &Connection<'_>,
    destination: &Destination,
    from: Option<IpAddr>,
) -> Result<Vec<(SocketAddr, String)>, Failure> {
    let service = match destination {
        Destination::Address(to, protocol) => return Ok(vec![(*to, protocol.clone())]),
        Destination::Service(service) => service,
    };
    let selected = Selected::new(Some(&service.namespace), Some(&service.name));
    let ports = services::all(connection, &selected).await?.items;
    addresses(service, &ports, from).map_err(Failure::Refused)
}

/// Returns the cluster IPs of a Service that has these `ports`.
fn addresses(
    service: &NamedService,
    ports: &[ServicePort],
    from: Option<IpAddr>,
) -> Result<Vec<(SocketAddr, String)>, String> {
    let NamedService {
        namespace, name, ..
    } = service;
    let asked: Vec<&ServicePort> = ports
        .iter()
        .filter(|port| is_asked(service, port))
        .collect();
    match &*distinct(asked.iter().copied()) {
        [] => {
            let all = distinct(ports).join(", ");
            return Err(format!(
                "Service {namespace}/{name} has no such port: it has {all}"
            ));
        }
        [_] => {}
        several => {
            return Err(format!(
                "Service {namespace}/{name} has several ports, of which one is to be named, as in \
                 --to {namespace}/{name}:PORT or {namespace}/{name}:PORT/udp: it has {}",
                several.join(", ")
            ));
        }
    }
    let clusters = asked.iter().flat_map(|port| {
        let addresses = port.addresses.iter();
        let addresses = addresses.filter(|address| address.kind == "clusterIP");
        addresses.filter_map(|address| {
            let ip = address.ip.as_deref()?.parse::<IpAddr>().ok()?;
            let protocol = port.protocol.to_ascii_lowercase();
            Some((SocketAddr::new(ip, address.port), protocol))
        })
    });
    let clusters: Vec<_> = clusters.collect();
    if clusters.is_empty() {
        let others = asked.iter().flat_map(|port| &port.conflicts);
        let others: Vec<&str> = others.map(String::as_str).collect();
        return Err(format!(
            "Service {namespace}/{name} is served at no cluster IP: {}",
            others.join("; ")
        ));
    }
    let is_reached = |to: &SocketAddr| from.is_none_or(|from| from.is_ipv4() == to.is_ipv4());
    let reached: Vec<_> = clusters
        .iter()
        .filter(|(to, _)| is_reached(to))
        .cloned()
        .collect();
    match (&*reached, &*clusters) {
        ([], [(other, _), ..]) => Err(format!(
            "--from is an address of another IP family than the cluster IP of Service \
             {namespace}/{name}, {}",
            other.ip()
        )),
        _ => Ok(reached),
    }
}

fn is_asked(service: &NamedService, port: &ServicePort) -> bool {
    let is_protocol = |protocol: &String| protocol.eq_ignore_ascii_case(&port.protocol);
    let is_port = |asked: &String| {
        *asked == port.port || number(port).is_some_and(|number| number.to_string() == *asked)
    };
    service.protocol.as_ref().is_none_or(is_protocol) && service.port.as_ref().is_none_or(is_port)
}

/// Returns the port at its own addresses; `None`: it has none but those of nodes.
fn number(port: &ServicePort) -> Option<u16> {
    let mut addresses = port.addresses.iter();
    let own = addresses.find(|address| address.ip.is_some())?;
    Some(own.port)
}

/// Returns name, number and protocol of each port, which is there once for each IP family;
/// in one of them it may have lost its addresses, and with them its number.
fn distinct<'a>(ports: impl IntoIterator<Item = &'a ServicePort>) -> Vec<String> {
    let mut numbers: BTreeMap<(&str, &str), Option<u16>> = BTreeMap::new();
    for port in ports {
        let known = numbers.entry((&port.port, &port.protocol)).or_default();
        *known = known.or_else(|| number(port));
    }
    let words = numbers.into_iter().map(|((name, protocol), number)| {
        let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let number = format!("{number}/{protocol}");
        match name {
            "" => number,
            name => format!("{name} ({number})"),
        }
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn port(name: &str, protocol: &str, ip: &str, number: u16, conflicts: &[&str]) -> ServicePort {
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        let addresses: Value = match ip {
            "" => json!([]),
            ip => json!([{"kind": "clusterIP", "ip": ip, "port": number},
                         {"kind": "nodePort", "ip": null, "port": 30_053}]),
        };
        let port = json!({
            "namespace": "shop", "name": "web", "port": name, "protocol": protocol,
            "family": family, "addresses": addresses, "scheduler": "rr",
            "affinitySeconds": null, "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Cluster", "sourceRanges": [], "endpoints": [],
            "failing": null, "unsupported": [], "conflicts": conflicts, "traffic": null,
        });
        serde_json::from_value(port).unwrap()
    }

    fn resolved(
        ports: &[ServicePort],
        port: Option<&str>,
        protocol: Option<&str>,
        from: Option<&str>,
    ) -> Result<String, String> {
        let service = NamedService {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port: port.map(str::to_owned),
            protocol: protocol.map(str::to_owned),
        };
        let from = from.map(|from| from.parse().unwrap());
        let found = addresses(&service, ports, from)?.into_iter();
        let found = found.map(|(to, protocol)| format!("{to}/{protocol}"));
        Ok(found.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn one_port_of_a_service_is_meant_and_all_of_its_cluster_ips() {
        let one = [
            port("", "TCP", "10.96.0.1", 80, &[]),
            port("", "TCP", "fd00::1", 80, &[]),
        ];
        let both = Ok("10.96.0.1:80/tcp [fd00::1]:80/tcp".to_owned());
        assert_eq!(resolved(&one, None, None, None), both);
        assert_eq!(resolved(&one, Some("80"), Some("tcp"), None), both);
        let first = Ok("10.96.0.1:80/tcp".to_owned());
        assert_eq!(resolved(&one, None, None, Some("10.244.0.1")), first);
        // Another Service has its cluster IP of one family.
        let half = [one[0].clone(), port("", "TCP", "", 80, &["lost"])];
        assert_eq!(resolved(&half, None, None, None), first);
        let dns = [
            port("dns", "UDP", "10.96.0.2", 53, &[]),
            port("dns-tcp", "TCP", "10.96.0.2", 53, &[]),
            port("metrics", "TCP", "10.96.0.2", 9153, &[]),
        ];
        let udp = Ok("10.96.0.2:53/udp".to_owned());
        for (port, protocol) in [
            (Some("dns"), None),
            (Some("53"), Some("udp")),
            (None, Some("udp")),
        ] {
            assert_eq!(resolved(&dns, port, protocol, None), udp, "{port:?}");
        }
        let lost = [port("", "TCP", "", 80, &["10.96.0.3 is of default/b"])];
        for (ports, port, from, expected) in [
            (
                &dns[..],
                None,
                None,
                "it has dns (53/UDP), dns-tcp (53/TCP), metrics (9153/TCP)",
            ),
            (
                &dns,
                Some("53"),
                None,
                "it has dns (53/UDP), dns-tcp (53/TCP)",
            ),
            (
                &dns,
                Some("30053"),
                None,
                "no such port: it has dns (53/UDP), dns-tcp",
            ),
            (&one, Some("http"), None, "no such port: it has 80/TCP"),
            (
                &dns,
                Some("dns"),
                Some("fd00::9"),
                "Service shop/web, 10.96.0.2",
            ),
            (
                &lost,
                None,
                None,
                "no cluster IP: 10.96.0.3 is of default/b",
            ),
        ] {
            let why = resolved(ports, port, None, from).unwrap_err();
            assert!(why.contains(expected), "{why}, not {expected}");
        }
    }
}

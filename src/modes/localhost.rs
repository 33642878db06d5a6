//! Node ports at 127.0.0.1 and ::1 in modes of the kernel (KEP-6032).
//!
//! A packet to a loopback address does not leave loopback: translating it takes `route_localnet`,
//! which exposes the node's own services to its neighbours, and is impossible with IPv6. So sockets
//! of this process listen there, if `--nodeport-addresses` names loopback, and connections are
//! relayed as in userspace mode.

use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use net::{Family, PerFamily, Protocol};

use super::{
    Asked, Compared, Explanation, Outcomes, Packet, Reason, SyncReport, unsupported,
    userspace::{self, NodePortRelay},
};
use crate::services::{ServiceMap, ServicePort};

/// Returns why the node port of `port` is not served on loopback addresses; `None`: it is, or it
/// has none.
fn reasons(port: &ServicePort) -> Option<Reason> {
    let protocol = port.name.protocol;
    let number = port.node_port.filter(|_| protocol != Protocol::Tcp)?;
    let why = format!(
        "only TCP is relayed there, so that {protocol} port {number} is refused; userspace mode \
         relays UDP, too"
    );
    Some(Reason::new("a node port on localhost", why))
}

/// Writes, as comments, where node ports would be listened on at the loopback
/// `addresses`, and where connections would go.
///
/// # Errors
/// Only those of `text`.
pub fn render(map: &ServiceMap, addresses: &[IpAddr], text: &mut impl Write) -> fmt::Result {
    let ports = map.sorted();
    for address in addresses {
        let family = Family::of(address);
        for port in ports.iter().filter(|port| port.name.family == family) {
            let Some((number, endpoints)) = userspace::relayed(port) else {
                continue;
            };
            let at = SocketAddr::new(*address, number);
            write!(text, "# listen {at} for {}:", port.name)?;
            for endpoint in &endpoints {
                write!(text, " {endpoint}")?;
            }
            let none = if endpoints.is_empty() { " refused" } else { "" };
            writeln!(text, "{none}")?;
        }
    }
    Ok(())
}

/// Completes the `outcomes` of a sync with the reports on node ports that are `relayed`.
pub fn report(
    relayed: PerFamily<Option<SyncReport>>,
    map: &ServiceMap,
    asked: Asked<'_>,
    outcomes: &mut Outcomes,
) {
    for (family, relayed) in relayed {
        // A family whose sync failed as a whole will be asked for again.
        let (Some(relayed), Some(Ok(report)), Some(changes)) = (
            relayed,
            outcomes.get_mut(family).as_mut(),
            asked.get(family),
        ) else {
            continue;
        };
        report.failed.add_all(&relayed.failed);
        report.unfinished.extend(relayed.unfinished);
        report
            .unsupported
            .extend(unsupported::of_changed(family, map, changes, reasons));
    }
}

/// Adds the missing listeners of `relay` to the differences that were found.
pub fn compare(relay: &NodePortRelay, compared: Compared) -> Compared {
    compared.map(|family, found| {
        let found = found?.map(|mut found| {
            found.extend(relay.missing_listeners(family));
            found
        });
        Some(found)
    })
}

/// Adds the listeners of `relay` to the explanation of a `packet` that reaches them.
pub fn explain(relay: &NodePortRelay, packet: &Packet, explanation: &mut Explanation) {
    if packet.to.ip().is_loopback()
        && let Some((port, _)) = &explanation.served_by
    {
        explanation.objects.extend(relay.listeners(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{
        Changes, Endpoint, TrafficPolicy,
        service_ports::{endpoint, endpoints, service_port},
    };

    fn web() -> ServicePort {
        let here = Endpoint {
            local: true,
            ..endpoint(([10, 244, 0, 1], 8080))
        };
        ServicePort {
            node_port: Some(30_080),
            endpoints: endpoints([here, endpoint(([10, 244, 1, 2], 8080))]),
            ..service_port("web:http", [10, 96, 0, 1])
        }
    }

    fn over(protocol: Protocol) -> ServicePort {
        let name = web().name.over(protocol);
        ServicePort { name, ..web() }
    }

    #[test]
    fn what_would_be_listened_on_is_shown() {
        let without_endpoints = ServicePort {
            node_port: Some(30_081),
            ..service_port("none", [10, 96, 0, 2])
        };
        let local = ServicePort {
            name: service_port("local:http", [10, 96, 0, 3]).name,
            external_traffic_policy: TrafficPolicy::Local,
            ..web()
        };
        let inside = service_port("inside", [10, 96, 0, 4]);
        let udp = over(Protocol::Udp);
        let map: ServiceMap = [web(), without_endpoints, local, inside, udp]
            .into_iter()
            .collect();
        let rendered = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap());
            let mut text = String::new();
            render(&map, &addresses.collect::<Vec<_>>(), &mut text).unwrap();
            text
        };
        let expected = "# listen 127.0.0.1:30080 for default/local:http: 10.244.0.1:8080\n\
                        # listen 127.0.0.1:30081 for default/none: refused\n\
                        # listen 127.0.0.1:30080 for default/web:http: 10.244.0.1:8080 \
                        10.244.1.2:8080\n";
        assert_eq!(rendered(&["127.0.0.1", "::1"]), expected);
        assert_eq!(rendered(&["::1"]), "");
        assert_eq!(rendered(&[]), "");
    }

    #[test]
    fn what_is_not_relayed_is_reported_for_what_was_asked() {
        let map: ServiceMap = [web(), over(Protocol::Udp), over(Protocol::Sctp)]
            .into_iter()
            .collect();
        let reported = |family, changes: &Changes| -> Vec<Protocol> {
            let all = unsupported::of_changed(family, &map, changes, reasons).into_iter();
            let mut all: Vec<_> = all.map(|unsupported| unsupported.port.protocol).collect();
            all.sort_unstable();
            all
        };
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        let both = [Protocol::Udp, Protocol::Sctp];
        assert_eq!(reported(Family::V4, &full), both);
        assert_eq!(reported(Family::V6, &full), []);
        let mut some = Changes::default();
        some.ports.insert(over(Protocol::Udp).name);
        some.ports.insert(web().name);
        assert_eq!(reported(Family::V4, &some), [Protocol::Udp]);
    }
}

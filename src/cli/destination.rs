//! Where packets are sent: the flag `--to` of `tripod explain` and `tripod trace`.

use std::net::SocketAddr;

use clap::Arg;

/// Where packets are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An address with its port; the protocol is `tcp`, `udp` or `sctp`.
    Address(SocketAddr, String),
    /// The cluster IPs of a Service.
    Service(NamedService),
}

/// A Service, and one of its ports as far as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Number or name of the port; `None`: it has only one.
    pub port: Option<String>,
    /// `tcp`, `udp` or `sctp`; `None`: that of the port.
    pub protocol: Option<String>,
}

/// Longest name of a Service, a namespace or a port (`DNS1123LabelMaxLength` of
/// `k8s.io/apimachinery/pkg/util/validation`).
const LONGEST: usize = 63;

/// The flag that names the destination of packets.
pub(super) fn arg() -> Arg {
    Arg::new("to")
        .long("to")
        .value_name("ADDRESS:PORT|[NAMESPACE/]SERVICE[:PORT][/udp]")
        .required(true)
        .value_parser(parse)
        .help(
            "The packet's destination: an address with its port, where IPv6 addresses stand in \
             brackets, or a Service, with number or name of a port where it has several",
        )
}

/// Returns the destination that `text` names. What ends with a protocol is no Service of
/// that name.
pub(super) fn parse(text: &str) -> Result<Destination, String> {
    let protocol = text.rsplit_once('/').and_then(|(rest, last)| {
        let protocol = last.to_ascii_lowercase();
        matches!(&*protocol, "tcp" | "udp" | "sctp").then_some((rest, protocol))
    });
    let (rest, protocol) = match protocol {
        Some((rest, protocol)) => (rest, Some(protocol)),
        None => (text, None),
    };
    if let Ok(address) = rest.parse::<SocketAddr>()
        && address.port() > 0
    {
        let protocol = protocol.unwrap_or_else(|| "tcp".to_owned());
        // What is sent to an IPv4 address that is written as one of IPv6 is IPv4 (RFC 4291,
        // 2.5.5.2).
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        return Ok(Destination::Address(address, protocol));
    }
    let service = service(rest, protocol).ok_or(
        "it must be an address with its port, like 10.96.0.10:80, [fd00::10]:80 or \
         10.96.0.10:53/udp, or a Service, like web, shop/web or shop/web:http",
    )?;
    Ok(Destination::Service(service))
}

fn service(text: &str, protocol: Option<String>) -> Option<NamedService> {
    let (namespace, service) = text.split_once('/').unwrap_or(("default", text));
    let (name, port) = match service.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (service, None),
    };
    // Neither has the dots of an address (`ValidateServiceName` of
    // `pkg/apis/core/validation`, RFC 6335).
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=LONGEST).contains(&label.len()) && label.bytes().all(plain)
    };
    let all = [namespace, name].into_iter().chain(port);
    all.into_iter().all(is_label).then(|| NamedService {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        port: port.map(str::to_owned),
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_services_are_told_apart() {
        let address = |to: &str, protocol: &str| {
            Ok(Destination::Address(
                to.parse().unwrap(),
                protocol.to_owned(),
            ))
        };
        let service = |namespace: &str, name: &str, port: Option<&str>, protocol: Option<&str>| {
            Ok(Destination::Service(NamedService {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port: port.map(str::to_owned),
                protocol: protocol.map(str::to_owned),
            }))
        };
        for (text, expected) in [
            ("10.96.0.10:80", address("10.96.0.10:80", "tcp")),
            ("10.96.0.10:53/UDP", address("10.96.0.10:53", "udp")),
            ("[::ffff:10.96.0.10]:80", address("10.96.0.10:80", "tcp")),
            ("[fd00::10]:80/sctp", address("[fd00::10]:80", "sctp")),
            ("web", service("default", "web", None, None)),
            ("web:http", service("default", "web", Some("http"), None)),
            ("shop/web", service("shop", "web", None, None)),
            (
                "web:53/udp",
                service("default", "web", Some("53"), Some("udp")),
            ),
            ("web/udp", service("default", "web", None, Some("udp"))),
            ("shop/web/tcp", service("shop", "web", None, Some("tcp"))),
            (
                "shop/web:80/tcp",
                service("shop", "web", Some("80"), Some("tcp")),
            ),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for text in [
            "",
            "10.96.0.10",
            "10.96.0.10:0",
            "10.96.0.10/udp",
            "fd00::10:80",
            "[fd00::10]",
            "shop/web/http",
            "shop/",
            "/web",
            "web:",
            "web.shop.svc:80",
            "web:80?from=node",
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains("shop/web:http"), "{text}: {why}");
        }
    }
}

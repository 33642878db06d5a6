//! Destinations of packets, in the notation of the API's parameter `to` and of the flag `--to` of
//! `tripod explain` and `tripod trace`.

use std::{fmt, net::SocketAddr};

/// Destination of packets: an address or a Service, with an optional protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address, or the Service whose cluster IPs are meant.
    pub addressee: Addressee,
    /// `tcp`, `udp` or `sctp`; `None` if the text names no protocol.
    pub protocol: Option<String>,
}

/// An address, or the Service whose cluster IPs are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// An address with its port.
    Address(SocketAddr),
    /// The cluster IPs of a Service.
    Service(NamedService),
}

/// A Service, and one of its ports if it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Number or name of the port; if `None`, the Service must have only one.
    pub port: Option<String>,
}

/// Longest name of a Service, a namespace or a port (`DNS1123LabelMaxLength` of
/// `k8s.io/apimachinery/pkg/util/validation`).
const LONGEST: usize = 63;

impl Destination {
    /// Parses the destination in `text`. A last part that is a protocol is never taken for the name
    /// of a Service or port.
    ///
    /// # Errors
    /// Says how it must be written.
    pub fn read(text: &str) -> Result<Destination, String> {
        let protocol = text.rsplit_once('/').and_then(|(rest, last)| {
            let protocol = last.to_ascii_lowercase();
            matches!(&*protocol, "tcp" | "udp" | "sctp").then_some((rest, protocol))
        });
        let (rest, protocol) = match protocol {
            Some((rest, protocol)) => (rest, Some(protocol)),
            None => (text, None),
        };
        let addressee = address(rest).map(Addressee::Address);
        let addressee = addressee.or_else(|| service(rest).map(Addressee::Service));
        let addressee = addressee.ok_or(
            "it must be an address with its port, like 10.96.0.10:80, [fd00::10]:80 or \
             10.96.0.10:53/udp, or a Service, like web, shop/web or shop/web:http",
        )?;
        Ok(Destination {
            addressee,
            protocol,
        })
    }
}

/// Writes it without the protocol.
impl fmt::Display for Addressee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addressee::Address(to) => write!(f, "{to}"),
            Addressee::Service(NamedService {
                namespace,
                name,
                port,
            }) => {
                write!(f, "{namespace}/{name}")?;
                port.as_ref().map_or(Ok(()), |port| write!(f, ":{port}"))
            }
        }
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let address = text.parse::<SocketAddr>().ok()?;
    // Packets to an IPv4-mapped IPv6 address are IPv4 packets (RFC 4291, 2.5.5.2).
    (address.port() > 0).then(|| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn service(text: &str) -> Option<NamedService> {
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_services_are_told_apart() {
        let destination = |addressee, protocol: Option<&str>| {
            Ok(Destination {
                addressee,
                protocol: protocol.map(str::to_owned),
            })
        };
        let address = |to: &str, protocol: Option<&str>| {
            destination(Addressee::Address(to.parse().unwrap()), protocol)
        };
        let service = |namespace: &str, name: &str, port: Option<&str>, protocol: Option<&str>| {
            let service = NamedService {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port: port.map(str::to_owned),
            };
            destination(Addressee::Service(service), protocol)
        };
        for (text, expected) in [
            ("10.96.0.10:80", address("10.96.0.10:80", None)),
            ("10.96.0.10:53/UDP", address("10.96.0.10:53", Some("udp"))),
            ("[::ffff:10.96.0.10]:80", address("10.96.0.10:80", None)),
            ("[fd00::10]:80/sctp", address("[fd00::10]:80", Some("sctp"))),
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
            assert_eq!(Destination::read(text), expected, "{text}");
            let addressee = expected.unwrap().addressee;
            let again = Destination::read(&addressee.to_string()).unwrap();
            assert_eq!(again.addressee, addressee, "{text}");
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
            let why = Destination::read(text).unwrap_err();
            assert!(why.contains("shop/web:http"), "{text}: {why}");
        }
    }
}

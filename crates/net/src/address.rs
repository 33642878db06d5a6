//! Reading addresses as Kubernetes reads them.
//!
//! Stored objects may hold IPv4 addresses with leading zeros, which the API
//! has always taken as decimal, and IPv4-mapped IPv6 addresses, which it takes
//! as IPv4 (KEP-4858 lists both). Rust's parser knows neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Returns the IP address that `text` holds, an IPv4-mapped one as IPv4; `None` if it holds none.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(ip.to_canonical()),
        Err(_) => parse_padded_v4(text).map(IpAddr::V4),
    }
}

fn parse_padded_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// Returns the network that `text` holds in CIDR notation, with its host bits cleared; `None` if it
/// holds none.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let mapped = address.contains(':');
    let ip = parse_ip(address)?;
    let length = match (mapped, ip) {
        (true, IpAddr::V4(_)) => length.checked_sub(96)?,
        _ => length,
    };
    IpNet::new(ip, length).ok().map(|net| net.trunc())
}

/// Returns whether `ip` can be one end of a connection at all.
pub fn is_unusable(ip: &IpAddr) -> bool {
    ip.is_unspecified() || ip.is_multicast() || *ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Returns whether the API server forbids the address as an external IP because
/// a Service with it could take over the node's own traffic.
pub fn is_special(ip: &IpAddr) -> bool {
    is_unusable(ip)
        || ip.is_loopback()
        || match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

/// Identity of a client: its IPv4 address, or the /64 network of its IPv6 address, in which any
/// host can use as many addresses as it likes (RFC 4291 section 2.5.1).
pub fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_the_api_reads_them() {
        let cases = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.08", Some("10.0.0.8")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("fe80::1%eth0", None),
            ("10.0.0", None),
            ("10.0.0.256", None),
            ("10.0.0.1.2", None),
            ("10.0.0.+1", None),
            ("", None),
            ("None", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|ip| ip.parse().expect("table"));
            assert_eq!(parse_ip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn cidrs_as_the_api_reads_them() {
        let cases = [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("010.0.0.0/8", Some("10.0.0.0/8")),
            ("fd00::1/64", Some("fd00::/64")),
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("::ffff:10.0.0.0/8", None),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("10.0.0.0", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0/", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|net| net.parse().expect("table"));
            assert_eq!(parse_cidr(text), expected, "{text:?}");
        }
    }
}

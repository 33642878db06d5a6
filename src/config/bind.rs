//! Addresses to serve on, as kube-proxy accepts them: `IP:port`, or only an IP for the
//! default port.

use std::net::SocketAddr;

use net::address::parse_ip;

/// The default port of `/healthz`.
pub const HEALTHZ_PORT: u16 = 10256;
/// The default port of `/metrics`.
pub const METRICS_PORT: u16 = 10249;

const NOTATION: &str =
    "write an IP address, with a port or without, like 0.0.0.0:10256 or [::]:10256";

/// Returns `text` with `port` if it is only an IP address; any other text is returned as
/// it is.
pub fn with_port(text: &str, port: u16) -> String {
    match parse_ip(text) {
        Some(_) if text.contains(':') => format!("[{text}]:{port}"),
        Some(_) => format!("{text}:{port}"),
        None => text.to_owned(),
    }
}

/// Reads `IP:port`.
///
/// # Errors
/// When it is anything else, including a host name or port 0; the error describes the fault.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = split(text).ok_or(NOTATION)?;
    let ip = parse_ip(host).ok_or_else(|| format!("{host:?} is not an IP address"))?;
    match port.parse::<u16>() {
        Ok(port @ 1..) if !port_is_signed(text) => Ok(SocketAddr::new(ip, port)),
        _ => Err(format!("{port:?} is not a port from 1 to 65535")),
    }
}

/// Checks that a flag can have this value: an IP address, `IP:port`, or
/// nothing.
///
/// # Errors
/// When it is anything else; the error describes the fault.
pub fn check_flag(text: &str) -> Result<(), String> {
    if text.is_empty() || parse_ip(text).is_some() {
        return Ok(());
    }
    parse(text).map(|_| ())
}

fn port_is_signed(text: &str) -> bool {
    text.rsplit(':')
        .next()
        .is_some_and(|port| port.starts_with('+'))
}

/// Splits host and port. IPv6 addresses need brackets, IPv4 addresses may have them (Go's
/// `net.SplitHostPort`).
fn split(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => text.split_once(':').filter(|(_, port)| !port.contains(':')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_serve_on() {
        for (text, address) in [
            ("0.0.0.0", "0.0.0.0:10256"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("010.0.0.1:80", "10.0.0.1:80"),
            ("::", "[::]:10256"),
            ("[::1]:10249", "[::1]:10249"),
        ] {
            check_flag(text).expect(text);
            let found = parse(&with_port(text, HEALTHZ_PORT)).expect(text);
            assert_eq!(found.to_string(), address);
        }
        check_flag("").expect("nowhere");
        for text in [
            "localhost:80",
            "10249",
            ":80",
            "1.2.3.4:",
            "1.2.3.4:0",
            "1.2.3.4:65536",
            "1.2.3.4:+1",
            "::1:x",
            "[::1]",
            "[::1",
            "[::1]80",
        ] {
            assert!(check_flag(text).is_err(), "{text}");
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

//! The header that names the client to endpoints: version 2 of the PROXY
//! protocol (`proxy-protocol.txt` of HAProxy, section 2.2).

use std::{
    io,
    net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsFd,
};

use nix::sys::socket::{
    getsockopt,
    sockopt::{Ip6tOriginalDst, OriginalDst},
};
use socket2::SockRef;

/// The signature, with which no other protocol starts.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY: on behalf of another.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header of a TCP connection that `client` opened to `called`. If only one of them is IPv4,
/// both are written as IPv6, with the IPv4 one mapped (RFC 4291 section 2.5.5.2).
pub fn header(client: SocketAddr, called: SocketAddr) -> Vec<u8> {
    let (kind, addresses) = match (client.ip().to_canonical(), called.ip().to_canonical()) {
        (IpAddr::V4(client), IpAddr::V4(called)) => (
            TCP_OVER_IPV4,
            [client.octets().as_slice(), &called.octets()].concat(),
        ),
        (client, called) => (
            TCP_OVER_IPV6,
            [sixteen(client).as_slice(), &sixteen(called)].concat(),
        ),
    };
    let ports = [client.port(), called.port()]
        .map(u16::to_be_bytes)
        .concat();
    // 12 or 36.
    let length = (addresses.len() + ports.len()) as u16;
    let mut header = SIGNATURE.to_vec();
    header.extend([VERSION_AND_COMMAND, kind]);
    header.extend(length.to_be_bytes());
    header.extend(addresses);
    header.extend(ports);
    header
}

fn sixteen(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address that the client of an accepted connection called: the one before nat rules, if there
/// are any (`SO_ORIGINAL_DST`), else the socket's own.
///
/// # Errors
/// When the socket no longer has an address.
pub fn called(accepted: &impl AsFd) -> io::Result<SocketAddr> {
    let own = SockRef::from(accepted).local_addr()?.as_socket();
    let own = own.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let original = match own {
        SocketAddr::V4(_) => getsockopt(accepted, OriginalDst).map(|a| {
            let ip = u32::from_be(a.sin_addr.s_addr);
            SocketAddrV4::new(ip.into(), u16::from_be(a.sin_port)).into()
        }),
        SocketAddr::V6(_) => getsockopt(accepted, Ip6tOriginalDst).map(|a| {
            let ip = a.sin6_addr.s6_addr;
            SocketAddrV6::new(ip.into(), u16::from_be(a.sin6_port), 0, 0).into()
        }),
    };
    // There is no connection tracking, or no entry for this connection.
    Ok(original.unwrap_or(own))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// Reads a header as a backend does; the rest is the client's data.
    fn decode(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
        let (fixed, rest) = bytes.split_at_checked(16)?;
        if fixed[..12] != SIGNATURE || fixed[12] != 0x21 {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let (body, rest) = rest.split_at_checked(length)?;
        let size = match fixed[13] {
            0x11 => 4,
            0x21 => 16,
            _ => return None,
        };
        let ip = |bytes: &[u8]| match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok(),
            _ => <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok(),
        };
        let address = |n: usize| {
            let ports = 2 * size + 2 * n;
            let port = u16::from_be_bytes([*body.get(ports)?, *body.get(ports + 1)?]);
            let ip = ip(body.get(n * size..(n + 1) * size)?)?;
            Some(SocketAddr::new(ip, port))
        };
        Some((address(0)?, address(1)?, rest))
    }

    #[test]
    fn headers_byte_by_byte() {
        let v4 = "0d0a0d0a000d0a515549540a 21 11 000c";
        let v6 = "0d0a0d0a000d0a515549540a 21 21 0024";
        let zeros = |n: usize| "00".repeat(n);
        let from_v4 = format!("{v4} c0000201 0a600001 0100 0050");
        let (mapped, two) = (zeros(10) + "ffffc0000201", format!("fd00{}02", zeros(13)));
        let long = format!("{v6} 20010db8{}01 {two} ffff 01bb", zeros(11));
        let mixed = format!("{v6} {mapped} {two} 0001 0002");
        let mixed_back = format!("{v6} {two} {mapped} 0002 0001");
        let cases = [
            ("192.0.2.1:256", "10.96.0.1:80", from_v4.clone()),
            ("[2001:db8::1]:65535", "[fd00::2]:443", long),
            // Mixed, in both directions.
            ("192.0.2.1:1", "[fd00::2]:2", mixed),
            ("[fd00::2]:2", "192.0.2.1:1", mixed_back),
            // The form in which a dual-stack socket represents IPv4.
            ("[::ffff:192.0.2.1]:256", "10.96.0.1:80", from_v4),
        ];
        for (client, called, expected) in cases {
            let header = header(client.parse().unwrap(), called.parse().unwrap());
            let hex: String = header.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(hex, expected.replace(' ', ""), "{client} to {called}");
        }
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits))),
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn a_backend_reads_what_was_written(
            client in address(),
            called in address(),
            sent in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = header(client, called);
            bytes.extend(&sent);
            let (source, destination, rest) = decode(&bytes).unwrap();
            let canonical = |a: SocketAddr| (a.ip().to_canonical(), a.port());
            prop_assert_eq!(canonical(source), canonical(client));
            prop_assert_eq!(canonical(destination), canonical(called));
            prop_assert_eq!(source.is_ipv4(), destination.is_ipv4());
            prop_assert_eq!(rest, sent);
        }
    }
}

//! TCP segments that this node sends in the place of an endpoint.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use net::{Family, octets};
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// Number of octets of a TCP header without options (RFC 9293, 3.1).
const LENGTH: u8 = 20;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;
/// Time to live, or hop limit.
const HOPS: u8 = 64;
/// The number of the protocol.
const TCP: u8 = netlink::conntrack::flows::TCP;

/// What a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// It answers a SYN that its receiver did not send. A receiver that has an open connection says
    /// which octet it expects (RFC 5961, 4).
    SynAck,
    /// It ends the connection; with the number of the octet that its receiver expects.
    Reset(u32),
}

/// Sends segments from the addresses of others; takes CAP_NET_RAW.
#[derive(Debug)]
pub struct Sender(Socket);

impl Sender {
    /// Returns a sender to addresses of `family`.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn open(family: Family) -> io::Result<Sender> {
        let domain = Domain::for_address((family.unspecified(), 0).into());
        // Its packets have their IP header with them: raw(7).
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
        socket.set_nonblocking(true)?;
        Ok(Sender(socket))
    }

    /// Sends a segment. The kernel routes and translates it as one that `from` had sent.
    ///
    /// # Errors
    /// Those of sendto(2).
    pub fn send(&self, from: SocketAddr, to: SocketAddr, says: Says) -> io::Result<()> {
        let to_host = SocketAddr::new(to.ip(), 0);
        self.0.send_to(&packet(from, to, says), &to_host.into())?;
        Ok(())
    }
}

/// Returns an IP packet with a segment. The kernel completes the header of IPv4.
fn packet(from: SocketAddr, to: SocketAddr, says: Says) -> Vec<u8> {
    let mut packet = match from.ip() {
        // RFC 791: version and lengths, no fragment, then the time to live.
        IpAddr::V4(_) => vec![0x45, 0, 0, 20 + LENGTH, 0, 0, 0, 0, HOPS, TCP, 0, 0],
        // RFC 8200: version, length of what follows the header, and its protocol.
        IpAddr::V6(_) => vec![0x60, 0, 0, 0, 0, LENGTH, TCP, HOPS],
    };
    for ip in [from.ip(), to.ip()] {
        packet.extend(octets(&ip));
    }
    packet.extend(segment(from, to, says));
    packet
}

fn segment(from: SocketAddr, to: SocketAddr, says: Says) -> Vec<u8> {
    let (sequence, acknowledged, flags) = match says {
        Says::SynAck => (1, 1, SYN | ACK),
        Says::Reset(expected) => (expected, 0, RST),
    };
    let mut segment = Vec::with_capacity(LENGTH.into());
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(u32::to_be_bytes(sequence));
    segment.extend(u32::to_be_bytes(acknowledged));
    // The length of the header in words, flags, window, checksum, urgent pointer.
    segment.extend([(LENGTH / 4) << 4, flags, 0, 0, 0, 0, 0, 0]);
    let pseudo_header = [
        octets(&from.ip()),
        octets(&to.ip()),
        vec![0, TCP, 0, LENGTH],
    ];
    let checksum = checksum(&[pseudo_header.concat(), segment.clone()].concat());
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// The checksum of an even number of octets (RFC 1071).
fn checksum(octets: &[u8]) -> u16 {
    let words = octets.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of a header with its checksum is 0 (RFC 1071).
    #[test]
    fn segments_have_a_valid_checksum() {
        for (from, to) in [
            ("10.1.0.7:8080", "192.0.2.1:40000"),
            ("[fd01::7]:8080", "[2001:db8::1]:40000"),
        ] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            for (says, sequence, flags) in [
                (Says::SynAck, 1_u32, SYN | ACK),
                (Says::Reset(0xffff_fff0), 0xffff_fff0, RST),
            ] {
                let packet = packet(from, to, says);
                let tcp = &packet[packet.len() - usize::from(LENGTH)..];
                let addresses = [octets(&from.ip()), octets(&to.ip())].concat();
                let summed = [addresses, vec![0, TCP, 0, LENGTH], tcp.to_vec()].concat();
                assert_eq!(checksum(&summed), 0, "{from} {says:?}");
                assert_eq!(tcp[4..8], sequence.to_be_bytes());
                assert_eq!(tcp[13], flags);
            }
        }
    }
}

//! The kernel's messages about the way of a traced packet (`meta nftrace`): `enum
//! nft_trace_attributes` of `linux/netfilter/nf_tables.h`.

use std::net::{IpAddr, SocketAddr};

use netlink::{Attribute, Malformed, Message};
use nix::libc;

use super::{HEADER, kind, verdict::Verdict};

const TRACE: u16 = kind(libc::NFT_MSG_TRACE);

// enum nft_trace_attributes
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const ID: u16 = 6;
const NETWORK_HEADER: u16 = 8;
const TRANSPORT_HEADER: u16 = 9;
const INPUT: u16 = 10;
const OUTPUT: u16 = 12;
const POLICY: u16 = 16;
// enum nft_trace_types
const OF_POLICY: u32 = 1;
const OF_RULE: u32 = 3;

/// The flag ACK of a TCP header (RFC 9293, 3.1).
const ACK: u8 = 1 << 4;

/// A step of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Which packet it is of; another may have the same number later.
    pub id: u32,
    /// The chain that it is in.
    pub chain: TracedChain,
    /// The event in that chain.
    pub step: Step,
    /// Headers of the packet, which come with the first step of each base chain; `None`: this step
    /// has none.
    pub packet: Option<Headers>,
    /// Index of the interface through which it arrived; `None`: not given, as for packets of this
    /// node.
    pub input: Option<u32>,
    /// Index of the interface through which it is sent; `None`: not given, or not yet decided.
    pub output: Option<u32>,
}

/// A chain, by its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TracedChain {
    /// The family of its table, `NFPROTO_*`.
    pub family: u8,
    /// Name of its table.
    pub table: String,
    /// The name, unique in that table.
    pub name: String,
}

/// Event of a packet in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A rule matched it.
    Rule {
        /// The rule's number in its table.
        handle: u64,
        /// Verdict of the rule; `None`: one that is not known here, such as queue.
        verdict: Option<Verdict>,
    },
    /// It came to the end of a base chain, which passes or drops it.
    Policy {
        /// Whether the packet is dropped.
        drops: bool,
    },
    /// It came to the end of another chain.
    End,
}

/// Addresses and ports from the headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Protocol number, `IPPROTO_*`.
    pub protocol: u8,
    /// Source of the packet.
    pub source: SocketAddr,
    /// Destination of the packet.
    pub destination: SocketAddr,
    /// Number of the octet that its sender expects next (RFC 9293, 3.1); `None`: it is no TCP packet
    /// that acknowledges something.
    pub acknowledges: Option<u32>,
}

impl Trace {
    /// Returns the step that a notification has; `None` where it is not about a packet's
    /// way.
    pub fn read(message: Message<'_>) -> Result<Option<Trace>, Malformed> {
        if message.kind != TRACE {
            return Ok(None);
        }
        let [family, ..] = message.header::<HEADER>()?;
        let mut trace = Trace {
            id: 0,
            chain: TracedChain {
                family,
                table: String::new(),
                name: String::new(),
            },
            step: Step::End,
            packet: None,
            input: None,
            output: None,
        };
        let (mut kind, mut handle, mut verdict, mut policy) = (0, 0, None, None);
        let (mut network, mut transport): (&[u8], &[u8]) = (&[], &[]);
        for attribute in message.attributes(HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                TABLE => attribute.text()?.clone_into(&mut trace.chain.table),
                CHAIN => attribute.text()?.clone_into(&mut trace.chain.name),
                RULE_HANDLE => handle = attribute.be64()?,
                TYPE => kind = attribute.be32()?,
                VERDICT => verdict = known(attribute),
                ID => trace.id = attribute.be32()?,
                NETWORK_HEADER => network = attribute.payload,
                TRANSPORT_HEADER => transport = attribute.payload,
                INPUT => trace.input = Some(attribute.be32()?),
                OUTPUT => trace.output = Some(attribute.be32()?),
                POLICY => policy = Some(attribute.be32()?),
                _ => {}
            }
        }
        trace.packet = headers(network, transport);
        trace.step = match kind {
            OF_RULE => Step::Rule { handle, verdict },
            OF_POLICY => Step::Policy {
                drops: policy == Some(0),
            },
            _ => Step::End,
        };
        Ok(Some(trace))
    }
}

fn known(attribute: Attribute<'_>) -> Option<Verdict> {
    Verdict::read(attribute).ok()
}

/// Reads the headers; `None`: they are missing, cut off, or of a protocol without ports. Extension
/// headers of IPv6 are not followed.
fn headers(network: &[u8], transport: &[u8]) -> Option<Headers> {
    let octets = |at: usize| network.get(at..at + 4)?.try_into().ok();
    let wide = |at: usize| network.get(at..at + 16)?.try_into().ok();
    let v4 = |at| octets(at).map(|octets: [u8; 4]| IpAddr::from(octets));
    let v6 = |at| wide(at).map(|octets: [u8; 16]| IpAddr::from(octets));
    // RFC 791 and RFC 8200.
    let (protocol, source, destination) = match network.first()? >> 4 {
        4 => (*network.get(9)?, v4(12)?, v4(16)?),
        6 => (*network.get(6)?, v6(8)?, v6(24)?),
        _ => return None,
    };
    let port = |at: usize| {
        let octets: [u8; 2] = transport.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_be_bytes(octets))
    };
    let acknowledges = || {
        let octets: [u8; 4] = transport.get(8..12)?.try_into().ok()?;
        let is_acknowledgement = transport.get(13)? & ACK != 0;
        is_acknowledgement.then(|| u32::from_be_bytes(octets))
    };
    Some(Headers {
        protocol,
        source: SocketAddr::new(source, port(0)?),
        destination: SocketAddr::new(destination, port(2)?),
        acknowledges: (i32::from(protocol) == libc::IPPROTO_TCP)
            .then(acknowledges)
            .flatten(),
    })
}

#[cfg(test)]
mod tests {
    use netlink::{Messages, Request};

    use super::*;

    /// The headers of a TCP packet over IPv4.
    fn v4() -> ([u8; 20], [u8; 8]) {
        let mut network = [0; 20];
        network[0] = 0x45;
        network[9] = 6;
        network[12..16].copy_from_slice(&[10, 244, 0, 9]);
        network[16..20].copy_from_slice(&[10, 96, 0, 1]);
        (network, [0x9c, 0xba, 0, 80, 0, 0, 0, 0])
    }

    fn read(request: Request) -> Option<Trace> {
        let mut wire = Vec::new();
        request.write(&mut wire, 0, 0);
        let message = Messages::new(&wire).next().unwrap().unwrap();
        Trace::read(message).unwrap()
    }

    fn begin(kind: u16, of: u32) -> Request {
        Request::new(kind, 0, "trace", "")
            .nfgenmsg(2)
            .text(TABLE, "nat")
            .text(CHAIN, "KUBE-SERVICES")
            .be32(ID, 7)
            .be32(TYPE, of)
    }

    #[test]
    fn a_rule_is_read_with_its_packet() {
        let (network, transport) = v4();
        let request = begin(TRACE, OF_RULE)
            .be64(RULE_HANDLE, 42)
            .nested(VERDICT, |r| r.be32(1, -3i32 as u32).text(2, "KUBE-SVC-A"))
            .attribute(NETWORK_HEADER, &network)
            .attribute(TRANSPORT_HEADER, &transport)
            .be32(INPUT, 3);
        let expected = Trace {
            id: 7,
            chain: TracedChain {
                family: 2,
                table: "nat".to_owned(),
                name: "KUBE-SERVICES".to_owned(),
            },
            step: Step::Rule {
                handle: 42,
                verdict: Some(Verdict::Jump("KUBE-SVC-A".into())),
            },
            packet: Some(Headers {
                protocol: 6,
                source: "10.244.0.9:40122".parse().unwrap(),
                destination: "10.96.0.1:80".parse().unwrap(),
                acknowledges: None,
            }),
            input: Some(3),
            output: None,
        };
        assert_eq!(read(request), Some(expected));
    }

    #[test]
    fn ends_of_chains_and_other_messages() {
        let step = |request| read(request).map(|trace| trace.step);
        let dropped = begin(TRACE, OF_POLICY).be32(POLICY, 0);
        assert_eq!(step(dropped), Some(Step::Policy { drops: true }));
        let passed = begin(TRACE, OF_POLICY).be32(POLICY, 1);
        assert_eq!(step(passed), Some(Step::Policy { drops: false }));
        assert_eq!(step(begin(TRACE, 2)), Some(Step::End));
        assert_eq!(step(begin(TRACE - 1, OF_RULE)), None);
        // NF_QUEUE is no verdict that has a name here.
        let queued = begin(TRACE, OF_RULE).nested(VERDICT, |r| r.be32(1, 3));
        let unknown = Step::Rule {
            handle: 0,
            verdict: None,
        };
        assert_eq!(step(queued), Some(unknown));
    }

    #[test]
    fn headers_that_are_cut_off_are_none() {
        let (network, transport) = v4();
        assert!(headers(&network, &transport).is_some());
        assert_eq!(headers(&network[..19], &transport), None);
        assert_eq!(headers(&network, &transport[..3]), None);
        assert_eq!(headers(&[], &transport), None);
        let mut v6 = [0; 40];
        (v6[0], v6[6], v6[23], v6[39]) = (0x60, 17, 1, 2);
        let found = headers(&v6, &transport).unwrap();
        assert_eq!(found.destination, "[::2]:80".parse().unwrap());
        assert_eq!(
            (found.protocol, found.source.ip()),
            (17, "::1".parse().unwrap())
        );
    }
}

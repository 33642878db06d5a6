//! What the kernel says of the way of a packet that target TRACE marked, through the
//! legacy tables: a message of nfnetlink_log (`linux/netfilter/nfnetlink_log.h`) whose
//! prefix names a rule (`trace_packet` of `net/ipv4/netfilter/ip_tables.c`).

use netlink::{Malformed, Message};
use nftables::Headers;
use nix::libc;

const PACKET: u16 = (libc::NFNL_SUBSYS_ULOG << 8 | libc::NFULNL_MSG_PACKET) as u16;
/// Bytes of `struct nfgenmsg`.
const HEADER: usize = 4;
const INPUT: u16 = libc::NFULA_IFINDEX_INDEV as u16;
const PAYLOAD: u16 = libc::NFULA_PAYLOAD as u16;
const PREFIX: u16 = libc::NFULA_PREFIX as u16;

/// What a packet met in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The packet as it was then.
    pub packet: Headers,
    /// Index of the interface through which it arrived; `None`: this node sent it.
    pub input: Option<u32>,
    /// The rule or chain that the packet reached.
    pub rule: TracedRule,
}

/// A rule, or the end of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRule {
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Number of the rule in its chain, from 1. The end of a chain is the rule after the
    /// last.
    pub number: usize,
    /// What the kernel says that the packet reached there.
    pub reached: Reached,
}

/// What the kernel says that a packet reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// A rule of the chain, whose number is its position.
    Rule,
    /// The end of a chain, or an unconditional rule with a verdict: the number alone
    /// distinguishes them.
    End,
}

impl TracedRule {
    /// Returns the rule that a prefix names, as `TRACE: nat:KUBE-SERVICES:rule:7 `;
    /// `None`: it is the prefix of something else.
    pub fn parse(prefix: &str) -> Option<TracedRule> {
        let (table, rest) = prefix.strip_prefix("TRACE: ")?.split_once(':')?;
        // The name of a chain may have colons.
        let (rest, number) = rest.trim_end().rsplit_once(':')?;
        let (chain, kind) = rest.rsplit_once(':')?;
        let reached = match kind {
            "rule" => Reached::Rule,
            "return" | "policy" => Reached::End,
            _ => return None,
        };
        let is_named = !table.is_empty() && !chain.is_empty();
        is_named.then_some(())?;
        Some(TracedRule {
            table: table.to_owned(),
            chain: chain.to_owned(),
            number: number.parse().ok()?,
            reached,
        })
    }
}

impl Traced {
    /// Returns what a message says; `None` where it is not about the way of a packet with
    /// ports.
    pub fn read(message: Message<'_>) -> Result<Option<Traced>, Malformed> {
        if message.kind != PACKET {
            return Ok(None);
        }
        let (mut input, mut rule, mut payload): (_, _, &[u8]) = (None, None, &[]);
        for attribute in message.attributes(HEADER) {
            let attribute = attribute?;
            match attribute.kind {
                INPUT => input = Some(attribute.be32()?),
                PAYLOAD => payload = attribute.payload,
                PREFIX => rule = TracedRule::parse(attribute.text()?),
                _ => {}
            }
        }
        let read = rule.zip(Headers::of_packet(payload));
        Ok(read.map(|(rule, packet)| Traced {
            packet,
            input,
            rule,
        }))
    }
}

#[cfg(test)]
mod tests {
    use netlink::{Messages, Request};
    use proptest::prelude::*;

    use super::*;

    /// A TCP packet over IPv4 from 10.244.0.9:40122 to 10.96.0.1:80, its header with
    /// `options` words of options.
    fn packet(options: u8) -> Vec<u8> {
        let mut packet = vec![0; 20 + 4 * usize::from(options)];
        packet[0] = 0x45 + options;
        packet[9] = 6;
        packet[12..16].copy_from_slice(&[10, 244, 0, 9]);
        packet[16..20].copy_from_slice(&[10, 96, 0, 1]);
        packet.extend([0x9c, 0xba, 0, 80, 0, 0, 0, 0]);
        packet
    }

    fn read(request: Request) -> Result<Option<Traced>, Malformed> {
        let mut wire = Vec::new();
        request.write(&mut wire, 0, 0);
        Traced::read(Messages::new(&wire).next().unwrap().unwrap())
    }

    fn message(kind: u16, prefix: &str, payload: &[u8]) -> Request {
        Request::new(kind, 0, "trace", "")
            .nfgenmsg(2)
            .be32(INPUT, 3)
            .text(PREFIX, prefix)
            .attribute(PAYLOAD, payload)
    }

    #[test]
    fn a_packet_is_read_with_the_rule_that_it_met() {
        let expected = Traced {
            packet: Headers {
                protocol: 6,
                source: "10.244.0.9:40122".parse().unwrap(),
                destination: "10.96.0.1:80".parse().unwrap(),
            },
            input: Some(3),
            rule: TracedRule {
                table: "nat".to_owned(),
                chain: "KUBE-SERVICES".to_owned(),
                number: 7,
                reached: Reached::Rule,
            },
        };
        let prefix = "TRACE: nat:KUBE-SERVICES:rule:7 ";
        for options in [0, 3] {
            let found = read(message(PACKET, prefix, &packet(options)));
            assert_eq!(found, Ok(Some(expected.clone())), "{options}");
        }
        // Another message, another prefix, and packets that are cut off.
        assert_eq!(read(message(PACKET + 1, prefix, &packet(0))), Ok(None));
        assert_eq!(read(message(PACKET, "dropped: ", &packet(0))), Ok(None));
        for length in [0, 1, 19, 23] {
            let cut = &packet(0)[..length];
            assert_eq!(read(message(PACKET, prefix, cut)), Ok(None), "{length}");
        }
        let mut headless = packet(0);
        headless[0] = 0x41;
        assert_eq!(read(message(PACKET, prefix, &headless)), Ok(None));
    }

    #[test]
    fn a_packet_of_ipv6_is_read() {
        let mut packet = vec![0; 48];
        (packet[0], packet[6], packet[23], packet[39]) = (0x60, 17, 1, 2);
        (packet[41], packet[43]) = (7, 53);
        let found = read(message(PACKET, "TRACE: raw:OUTPUT:policy:2 ", &packet));
        let found = found.unwrap().expect("a packet");
        let expected = Headers {
            protocol: 17,
            source: "[::1]:7".parse().unwrap(),
            destination: "[::2]:53".parse().unwrap(),
        };
        assert_eq!(found.packet, expected);
    }

    #[test]
    fn prefixes_name_rules_and_ends_of_chains() {
        use Reached::{End, Rule};
        for (prefix, expected) in [
            (
                "TRACE: nat:PREROUTING:rule:1 ",
                Some(("nat", "PREROUTING", 1, Rule)),
            ),
            (
                "TRACE: filter:A:B:return:12 ",
                Some(("filter", "A:B", 12, End)),
            ),
            (
                "TRACE: filter:FORWARD:policy:3",
                Some(("filter", "FORWARD", 3, End)),
            ),
            ("TRACE: nat:A:other:1 ", None),
            ("TRACE: nat:A:rule:one ", None),
            ("TRACE: nat:A:rule:-1 ", None),
            ("TRACE: nat:A:rule:99999999999999999999999 ", None),
            ("TRACE: nat:A:rule: ", None),
            ("TRACE: nat::rule:1 ", None),
            ("TRACE: :A:rule:1 ", None),
            ("TRACE: rule:1 ", None),
            ("TRACE: ", None),
            ("TRACE", None),
            ("", None),
        ] {
            let found = TracedRule::parse(prefix);
            let found = found
                .as_ref()
                .map(|p| (&*p.table, &*p.chain, p.number, p.reached));
            assert_eq!(found, expected, "{prefix}");
        }
    }

    proptest! {
        #[test]
        fn no_prefix_and_no_packet_make_it_panic(
            prefix in "(TRACE: ?)?[a-z:é]{0,12}(:rule|:return|:policy)?:?[0-9]{0,24} ?",
            payload in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = read(message(PACKET, &prefix, &payload));
        }
    }
}

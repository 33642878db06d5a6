//! The fields that the rules of a frontend or a listener match, as a sequence of bits that can be
//! searched by prefix.
//!
//! The bits are those of the address (128; of IPv4 the first 32, then zeros; all zeros if no
//! address is matched), the protocol (4) and the port (16).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use net::{Family, Protocol};
use xtables::rule::{Match, Rule};

/// Positions of the first bit of the protocol and of the port.
const PROTOCOL: u8 = 128;
const PORT: u8 = 132;
const END: u8 = 148;
/// Chains start at multiples of this number of bits.
pub const STRIDE: u8 = 4;

/// An address, a protocol and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    address: u128,
    /// Protocol and port, starting at the highest bit.
    rest: u32,
}

/// All keys that start with certain bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// Bits after the prefix are 0.
    bits: Key,
    length: u8,
}

impl Key {
    /// The key of a port at `address`, or at any address.
    pub fn new(address: Option<IpAddr>, protocol: Protocol, port: u16) -> Key {
        let address = match address {
            None => 0,
            Some(IpAddr::V4(ip)) => u128::from(ip.to_bits()) << 96,
            Some(IpAddr::V6(ip)) => ip.to_bits(),
        };
        let rest = (number(protocol) << 28) | (u32::from(port) << 12);
        Key { address, rest }
    }

    fn port(self) -> u16 {
        // The mask makes the cast lossless.
        (self.rest >> 12 & 0xffff) as u16
    }
}

/// Number of a protocol in a key; no protocol has 0.
fn number(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => 1,
        Protocol::Udp => 2,
        Protocol::Sctp => 3,
    }
}

/// A mask of the first `length` bits of a key.
fn mask(length: u8) -> Key {
    let (of_address, of_rest) = (length.min(PROTOCOL), length.saturating_sub(PROTOCOL));
    let gone = 128 - u32::from(of_address);
    Key {
        address: u128::MAX.checked_shl(gone).unwrap_or(0),
        rest: u32::MAX.checked_shl(32 - u32::from(of_rest)).unwrap_or(0),
    }
}

impl Prefix {
    /// The empty prefix of all keys.
    pub const ALL: Prefix = Prefix {
        bits: Key {
            address: 0,
            rest: 0,
        },
        length: 0,
    };

    fn of(key: Key, length: u8) -> Prefix {
        let mask = mask(length);
        let bits = Key {
            address: key.address & mask.address,
            rest: key.rest & mask.rest,
        };
        Prefix { bits, length }
    }

    /// The longest common prefix of both keys that a rule can match: it can only match a protocol
    /// as a whole.
    pub fn common(one: Key, other: Key) -> Prefix {
        let of_address = (one.address ^ other.address).leading_zeros();
        let of_rest = (one.rest ^ other.rest).leading_zeros();
        let same = match of_address {
            128 => of_address + of_rest,
            _ => of_address,
        };
        let same = u8::try_from(same).unwrap_or(END).min(END);
        match same {
            PROTOCOL..PORT => Prefix::of(one, PROTOCOL),
            _ => Prefix::of(one, same),
        }
    }

    /// The longest part of this prefix at which a chain may start.
    pub fn aligned(self) -> Prefix {
        Prefix::of(self.bits, self.length - self.length % STRIDE)
    }

    /// Number of bits.
    pub fn length(self) -> u8 {
        self.length
    }

    /// The keys with this prefix.
    pub fn keys(self) -> RangeInclusive<Key> {
        let mask = mask(self.length);
        let last = Key {
            address: self.bits.address | !mask.address,
            rest: self.bits.rest | !mask.rest,
        };
        self.bits..=last
    }

    /// The next longer prefixes that a rule can match, in order: two, or one for each protocol.
    pub fn parts(self) -> impl Iterator<Item = Prefix> {
        let width = match self.length {
            PROTOCOL => PORT - PROTOCOL,
            _ => 1,
        };
        let length = (self.length + width).min(END);
        let part = move |number: u32| {
            let mut bits = self.bits;
            if length > PROTOCOL {
                bits.rest |= number << (32 - u32::from(length - PROTOCOL));
            } else {
                bits.address |= u128::from(number) << (128 - u32::from(length));
            }
            Prefix { bits, length }
        };
        (0..1 << width).map(part)
    }

    /// Restricts `rule` to packets with this prefix; `addresses` is the family of the addresses, or
    /// `None` if they are not matched.
    pub fn within(self, rule: Rule, addresses: Option<Family>) -> Rule {
        let rule = match addresses {
            Some(family) if self.length > 0 => rule.destination(self.network(family)),
            _ => rule,
        };
        let number = self.bits.rest >> 28;
        let mut protocols = Protocol::ALL.into_iter();
        let protocol = protocols.find(|protocol| self::number(*protocol) == number);
        let Some(protocol) = protocol.filter(|_| self.length >= PORT) else {
            return rule;
        };
        let rule = rule.protocol(protocol);
        if self.length == PORT {
            return rule;
        }
        let ports = self.keys();
        let ports = ports.start().port()..=ports.end().port();
        rule.with(Match::DestinationPorts(protocol, ports))
    }

    fn network(self, family: Family) -> IpNet {
        let (address, longest) = match family {
            Family::V4 => {
                let bits = (self.bits.address >> 96) as u32;
                (IpAddr::V4(Ipv4Addr::from_bits(bits)), 32)
            }
            Family::V6 => (IpAddr::V6(Ipv6Addr::from_bits(self.bits.address)), 128),
        };
        // At most the longest possible length.
        IpNet::new_assert(address, self.length.min(longest))
    }

    /// Text that is different for each prefix.
    pub fn identity(self) -> String {
        let Key { address, rest } = self.bits;
        format!("{address:x} {rest:x} {}", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str, protocol: Protocol, port: u16) -> Key {
        Key::new(address.parse().ok(), protocol, port)
    }

    #[test]
    fn prefixes_match_what_their_keys_have_in_common() {
        use Protocol::{Tcp, Udp};
        for (one, other, family, words) in [
            (
                ("10.96.0.1", Tcp, 80),
                ("10.96.7.1", Udp, 53),
                Some(Family::V4),
                "-d 10.96.0.0/21",
            ),
            (
                ("10.96.0.1", Tcp, 80),
                ("200.0.0.1", Tcp, 80),
                Some(Family::V4),
                "",
            ),
            (
                ("10.96.0.1", Tcp, 80),
                ("10.96.0.1", Udp, 80),
                Some(Family::V4),
                "-d 10.96.0.1/32",
            ),
            (
                ("10.96.0.1", Tcp, 80),
                ("10.96.0.1", Tcp, 8080),
                Some(Family::V4),
                "-d 10.96.0.1/32 -p tcp -m tcp --dport 0:8191",
            ),
            (
                ("fd96::1", Tcp, 80),
                ("fd96::ff:2", Tcp, 80),
                Some(Family::V6),
                "-d fd96::/104",
            ),
            (("-", Tcp, 30_080), ("-", Udp, 30_080), None, ""),
            (("-", Tcp, 1), ("-", Tcp, 65_535), None, "-p tcp"),
            (
                ("-", Udp, 30_080),
                ("-", Udp, 30_081),
                None,
                "-p udp -m udp --dport 30080:30081",
            ),
            (
                ("-", Udp, 30_080),
                ("-", Udp, 30_080),
                None,
                "-p udp -m udp --dport 30080",
            ),
        ] {
            let [one, other] = [one, other].map(|(ip, protocol, port)| key(ip, protocol, port));
            let common = Prefix::common(one, other);
            let rule = common.within(Rule::new(), family);
            let of = family.unwrap_or(Family::V4);
            assert_eq!(rule.words(of).to_string(), words);
            assert!([one, other].iter().all(|key| common.keys().contains(key)));
            let parts: Vec<_> = common.parts().filter(|_| one != other).collect();
            for key in [one, other] {
                let having = parts.iter().filter(|part| part.keys().contains(&key));
                assert_eq!(having.count(), usize::from(one != other), "{key:?}");
            }
            let has_both =
                |part: &&Prefix| part.keys().contains(&one) && part.keys().contains(&other);
            assert_eq!(parts.iter().find(has_both), None);
        }
    }
}

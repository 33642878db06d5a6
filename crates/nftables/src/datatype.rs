//! The types of keys and data: their names in `nft`, and the text of their octets.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use net::Family;

/// Bits of one type in the number of a concatenation (`TYPE_BITS` of nft).
const BITS: u32 = 6;
/// Length of an interface name with its NUL (`IFNAMSIZ`).
const NAME: usize = 16;

/// The type of a value, by the number that `nft` gives it (`enum datatypes` of
/// its `datatype.h`). The kernel only keeps these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// A number of 32 bits in host order, such as that of `numgen`.
    Integer,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A transport protocol.
    Protocol,
    /// A transport port, in network order.
    Port,
    /// A packet or connection mark.
    Mark,
    /// Bits of a connection's state.
    CtState,
    /// Direction in a connection.
    CtDirection,
    /// Status bits of a connection.
    CtStatus,
    /// Kind of an address, as `fib` finds it.
    FibType,
    /// An interface's name.
    IfName,
}

/// Order of a type's octets, as it stands in user data (`enum byteorder` of nft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    /// No order, or several in a concatenation.
    Invalid = 0,
    Host = 1,
    Big = 2,
}

impl DataType {
    /// The type of addresses of `family`.
    pub fn address(family: Family) -> DataType {
        match family {
            Family::V4 => DataType::Ipv4,
            Family::V6 => DataType::Ipv6,
        }
    }

    /// Returns the number that `nft` gives it.
    pub fn number(self) -> u32 {
        match self {
            DataType::Integer => 4,
            DataType::Ipv4 => 7,
            DataType::Ipv6 => 8,
            DataType::Protocol => 12,
            DataType::Port => 13,
            DataType::Mark => 19,
            DataType::CtState => 26,
            DataType::CtDirection => 27,
            DataType::CtStatus => 28,
            DataType::FibType => 38,
            DataType::IfName => 41,
        }
    }

    /// Returns its word after `type` in a set.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Integer => "integer",
            DataType::Ipv4 => "ipv4_addr",
            DataType::Ipv6 => "ipv6_addr",
            DataType::Protocol => "inet_proto",
            DataType::Port => "inet_service",
            DataType::Mark => "mark",
            DataType::CtState => "ct_state",
            DataType::CtDirection => "ct_dir",
            DataType::CtStatus => "ct_status",
            DataType::FibType => "fib_addrtype",
            DataType::IfName => "ifname",
        }
    }

    /// Returns how many octets a value has.
    pub fn octets(self) -> usize {
        match self {
            DataType::Protocol | DataType::CtDirection => 1,
            DataType::Port => 2,
            DataType::Ipv6 => 16,
            DataType::IfName => NAME,
            _ => 4,
        }
    }

    /// Returns how many octets a value takes in a concatenation, where each begins at a
    /// multiple of four.
    pub(super) fn padded(self) -> usize {
        self.octets().next_multiple_of(4)
    }

    pub(super) fn order(self) -> ByteOrder {
        match self {
            DataType::Ipv4 | DataType::Ipv6 | DataType::Port => ByteOrder::Big,
            _ => ByteOrder::Host,
        }
    }

    /// The number of a concatenation; `nft` has room for five types in it.
    pub(super) fn concatenation(types: &[DataType]) -> u32 {
        let fold = |number: u32, t: &DataType| (number << BITS) | t.number();
        types.iter().fold(0, fold)
    }

    /// Returns whether that number is one of several types.
    pub(super) fn is_concatenation(number: u32) -> bool {
        number >> BITS != 0
    }

    /// Writes a value of this type as `nft` reads it; a number where it has no
    /// word.
    pub(super) fn write(self, octets: &[u8], f: &mut impl fmt::Write) -> fmt::Result {
        match (self, octets) {
            (DataType::Ipv4 | DataType::Ipv6, _) => match address(octets) {
                Some(ip) => write!(f, "{ip}"),
                None => hex(octets, f),
            },
            (DataType::Protocol, &[6]) => f.write_str("tcp"),
            (DataType::Protocol, &[17]) => f.write_str("udp"),
            (DataType::Protocol, &[132]) => f.write_str("sctp"),
            (DataType::Protocol, &[number]) => write!(f, "{number}"),
            (DataType::CtDirection, &[0]) => f.write_str("original"),
            (DataType::CtDirection, &[1]) => f.write_str("reply"),
            (DataType::Port, &[high, low]) => write!(f, "{}", u16::from_be_bytes([high, low])),
            (DataType::IfName, _) => match name(octets) {
                Some(name) if name.len() == octets.len() => write!(f, "\"{name}*\""),
                Some(name) => write!(f, "\"{name}\""),
                None => hex(octets, f),
            },
            (_, &[a, b, c, d]) => {
                let number = u32::from_ne_bytes([a, b, c, d]);
                match self {
                    DataType::Integer => write!(f, "{number}"),
                    DataType::CtState => bits(number, &CT_STATES, f),
                    DataType::CtStatus => bits(number, &CT_STATUSES, f),
                    DataType::FibType => match FIB_TYPES.iter().find(|(n, _)| *n == number) {
                        Some((_, word)) => f.write_str(word),
                        None => write!(f, "{number}"),
                    },
                    _ => write!(f, "{number:#010x}"),
                }
            }
            _ => hex(octets, f),
        }
    }
}

/// `ct state`, see `linux/netfilter/nf_conntrack_common.h`.
const CT_STATES: [(u32, &str); 5] = [
    (1, "invalid"),
    (2, "established"),
    (4, "related"),
    (8, "new"),
    (64, "untracked"),
];
/// Bits of `ct status` (`enum ip_conntrack_status`).
const CT_STATUSES: [(u32, &str); 7] = [
    (1, "expected"),
    (2, "seen-reply"),
    (4, "assured"),
    (8, "confirmed"),
    (16, "snat"),
    (32, "dnat"),
    (512, "dying"),
];
/// `fib … type` (`RTN_*` of `linux/rtnetlink.h`).
const FIB_TYPES: [(u32, &str); 8] = [
    (0, "unspec"),
    (1, "unicast"),
    (2, "local"),
    (3, "broadcast"),
    (4, "anycast"),
    (5, "multicast"),
    (6, "blackhole"),
    (7, "unreachable"),
];

fn bits(number: u32, words: &[(u32, &str)], f: &mut impl fmt::Write) -> fmt::Result {
    let known: Vec<_> = words.iter().filter(|(bit, _)| number & bit != 0).collect();
    if known.is_empty() || known.iter().fold(0, |sum, (bit, _)| sum | bit) != number {
        return write!(f, "{number:#x}");
    }
    for (at, (_, word)) in known.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(f, "{comma}{word}")?;
    }
    Ok(())
}

fn hex(octets: &[u8], f: &mut impl fmt::Write) -> fmt::Result {
    f.write_str("0x")?;
    octets.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(octets).ok()?;
    Some(Ipv6Addr::from(octets).into())
}

/// A name, or without its NUL the beginning of names.
fn name(octets: &[u8]) -> Option<&str> {
    let end = octets.iter().position(|octet| *octet == 0);
    let end = end.unwrap_or(octets.len());
    let name = std::str::from_utf8(&octets[..end]).ok()?;
    let plain = |c: char| !c.is_control() && c != '"';
    name.chars().all(plain).then_some(name)
}

/// Writes the inclusive range from `low` to `high`: one value, a prefix where
/// it is one of addresses, or both ends.
pub(super) fn write_range(
    of: DataType,
    low: &[u8],
    high: &[u8],
    f: &mut impl fmt::Write,
) -> fmt::Result {
    of.write(low, f)?;
    if low == high {
        return Ok(());
    }
    if let (DataType::Ipv4 | DataType::Ipv6, Some(length)) = (of, prefix(low, high)) {
        return write!(f, "/{length}");
    }
    f.write_char('-')?;
    of.write(high, f)
}

/// The length of the prefix that begins with `low` and ends with `high`.
fn prefix(low: &[u8], high: &[u8]) -> Option<usize> {
    let differ: Vec<u8> = low.iter().zip(high).map(|(l, h)| l ^ h).collect();
    let length = differ
        .iter()
        .position(|d| *d != 0)
        .map_or(8 * differ.len(), |octet| {
            8 * octet + differ[octet].leading_zeros() as usize
        });
    let ends = |at: usize| -> bool {
        let bit = 0x80 >> (at % 8);
        low[at / 8] & bit == 0 && high[at / 8] & bit != 0
    };
    (low.len() == high.len() && (length..8 * low.len()).all(ends)).then_some(length)
}

/// A time as `nft` takes it.
pub(super) struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_concatenations_are_those_of_nft() {
        let types = [DataType::Ipv4, DataType::Protocol, DataType::Port];
        assert_eq!(DataType::concatenation(&types), 0x730d);
        assert!(DataType::is_concatenation(0x730d));
        let one = DataType::concatenation(&[DataType::IfName]);
        assert!(one == 41 && !DataType::is_concatenation(one));
    }

    #[test]
    fn values_read_as_nft_takes_them() {
        let text = |of: DataType, low: &[u8], high: &[u8]| {
            let mut text = String::new();
            write_range(of, low, high, &mut text).unwrap();
            text
        };
        let one = |of, octets: &[u8]| text(of, octets, octets);
        assert_eq!(one(DataType::Ipv4, &[10, 0, 0, 1]), "10.0.0.1");
        assert_eq!(one(DataType::Protocol, &[6]), "tcp");
        assert_eq!(one(DataType::Protocol, &[47]), "47");
        assert_eq!(one(DataType::Port, &[0x1f, 0x90]), "8080");
        let number = |of, number: u32| one(of, &number.to_ne_bytes());
        assert_eq!(number(DataType::Mark, 0x4000), "0x00004000");
        assert_eq!(number(DataType::CtState, 6), "established,related");
        assert_eq!(number(DataType::CtState, 128), "0x80");
        assert_eq!(one(DataType::Ipv4, &[1]), "0x01");
        let range = |low, high| text(DataType::Ipv4, low, high);
        assert_eq!(range(&[10, 0, 0, 0], &[10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(range(&[0; 4], &[255; 4]), "0.0.0.0/0");
        assert_eq!(range(&[10, 0, 0, 1], &[10, 0, 0, 2]), "10.0.0.1-10.0.0.2");
        assert_eq!(text(DataType::Port, &[0, 1], &[0, 2]), "1-2");
    }
}

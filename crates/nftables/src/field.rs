//! Values that rules match and that make up keys: a field of a header, a property of the packet or
//! its connection, a generated number.

use std::fmt;

use net::Family;

use super::{
    datatype::DataType,
    expression::{
        Expression, Header,
        attributes::{ct, fib, hash, meta, numgen},
        register,
    },
};

/// One value of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The source address, from the header.
    SourceAddress(Family),
    /// The destination address, from the header.
    DestinationAddress(Family),
    /// Source port of any protocol.
    SourcePort,
    /// Destination port of any protocol.
    DestinationPort,
    /// A property of the packet in the kernel.
    Meta(Meta),
    /// A property of the connection in the kernel.
    Ct(Ct, Option<Direction>),
    /// Kind of an address of the packet by the routes, such as `local`.
    Fib(Fib),
    /// A number made for each packet.
    Numgen(Numgen),
    /// A hash of other fields. No set should be declared with one: `nft` 1.0.6 breaks
    /// off when it lists it. A [`Field::Numgen`], which is of the same type, takes its
    /// place.
    Jhash(Jhash),
    /// Some bits of another field.
    Masked(Box<Field>, u32),
}

/// `meta …` (`enum nft_meta_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meta {
    /// The transport protocol, `IPPROTO_*`.
    L4Proto = 16,
    /// The mark of the packet.
    Mark = 3,
    /// Name of the interface by which it came.
    InputName = 6,
    /// Name of the interface by which it goes.
    OutputName = 7,
}

impl Meta {
    fn word(self) -> &'static str {
        match self {
            Meta::L4Proto => "meta l4proto",
            Meta::Mark => "meta mark",
            Meta::InputName => "iifname",
            Meta::OutputName => "oifname",
        }
    }
}

/// `ct …` (`enum nft_ct_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ct {
    /// State of the connection.
    State,
    /// Direction of the packet.
    Direction,
    /// Status bits of the connection, such as `dnat`.
    Status,
    /// Source address; it takes a direction.
    SourceAddress(Family),
    /// Destination address; it takes a direction.
    DestinationAddress(Family),
    /// Source port; it takes a direction. `nft` 1.0.6 does not take it in a
    /// concatenation.
    SourcePort,
    /// Destination port; it takes a direction. `nft` 1.0.6 does not take it in a concatenation.
    DestinationPort,
}

impl Ct {
    pub(super) fn number(self) -> u32 {
        match self {
            Ct::State => 0,
            Ct::Direction => 1,
            Ct::Status => 2,
            Ct::SourcePort => 11,
            Ct::DestinationPort => 12,
            Ct::SourceAddress(Family::V4) => 19,
            Ct::DestinationAddress(Family::V4) => 20,
            Ct::SourceAddress(Family::V6) => 21,
            Ct::DestinationAddress(Family::V6) => 22,
        }
    }
}

/// A direction in a connection (`enum ip_conntrack_dir`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The direction in which it began, before translation.
    Original = 0,
    /// The direction of the answers.
    Reply = 1,
}

/// Which address is looked up in the routes (`enum nft_fib_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fib {
    /// The source of the packet.
    Source = 1,
    /// Its destination.
    Destination = 2,
}

impl Fib {
    /// `NFT_FIB_RESULT_ADDRTYPE` of `linux/netfilter/nf_tables.h`.
    pub(super) const TYPE: u32 = 3;
}

/// A number made for each packet, from `offset` to `offset + modulus - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numgen {
    /// Random; if not, it counts up, with one counter for each rule.
    pub random: bool,
    /// How many numbers there are.
    pub modulus: u32,
    /// The number that is added: the lowest result.
    pub offset: u32,
}

/// A hash of fields, from `offset` to `offset + modulus - 1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Jhash {
    /// The fields that are hashed together.
    pub of: Vec<Field>,
    /// How many numbers there are.
    pub modulus: u32,
    /// Seed that makes it differ from other hashes; 0: the kernel chooses, and does not tell.
    pub seed: u32,
    /// The number that is added: the lowest result.
    pub offset: u32,
}

impl Field {
    /// Returns the type that nft shows it as.
    pub fn data_type(&self) -> DataType {
        match self {
            Field::SourceAddress(family) | Field::DestinationAddress(family) => {
                DataType::address(*family)
            }
            Field::SourcePort | Field::DestinationPort => DataType::Port,
            Field::Meta(Meta::L4Proto) => DataType::Protocol,
            Field::Meta(Meta::Mark) => DataType::Mark,
            Field::Meta(Meta::InputName | Meta::OutputName) => DataType::IfName,
            Field::Ct(Ct::State, _) => DataType::CtState,
            Field::Ct(Ct::Direction, _) => DataType::CtDirection,
            Field::Ct(Ct::Status, _) => DataType::CtStatus,
            Field::Ct(Ct::SourceAddress(family) | Ct::DestinationAddress(family), _) => {
                DataType::address(*family)
            }
            Field::Ct(Ct::SourcePort | Ct::DestinationPort, _) => DataType::Port,
            Field::Fib(_) => DataType::FibType,
            Field::Numgen(_) | Field::Jhash(_) => DataType::Integer,
            Field::Masked(field, _) => field.data_type(),
        }
    }

    /// Returns the header, the offset and the length of a field that is part of a packet.
    pub(super) fn payload(&self) -> Option<(Header, u32, u32)> {
        Some(match self {
            Field::SourceAddress(Family::V4) => (Header::Network, 12, 4),
            Field::DestinationAddress(Family::V4) => (Header::Network, 16, 4),
            Field::SourceAddress(Family::V6) => (Header::Network, 8, 16),
            Field::DestinationAddress(Family::V6) => (Header::Network, 24, 16),
            Field::SourcePort => (Header::Transport, 0, 2),
            Field::DestinationPort => (Header::Transport, 2, 2),
            _ => return None,
        })
    }

    /// Appends the expressions that load it into the register at `to`; `free` is the first octet of
    /// the registers that are not in use.
    pub(super) fn load(&self, to: usize, free: usize, out: &mut Vec<Expression>) {
        if let Some((header, offset, len)) = self.payload() {
            out.push(Expression::payload(header, offset, len, register(to)));
            return;
        }
        let to_register = register(to);
        let loading = match self {
            Field::Meta(meta) => Expression::meta(*meta as u32, meta::TO, to_register),
            Field::Ct(ct, direction) => {
                let loading = Expression::new("ct")
                    .be32(ct::KEY, ct.number())
                    .be32(ct::TO, to_register);
                match direction {
                    Some(direction) => loading.octets(ct::DIRECTION, &[*direction as u8]),
                    None => loading,
                }
            }
            Field::Fib(fib) => Expression::new("fib")
                .be32(fib::TO, to_register)
                .be32(fib::RESULT, Fib::TYPE)
                .be32(fib::FLAGS, *fib as u32),
            Field::Numgen(numgen) => Expression::new("numgen")
                .be32(numgen::TO, to_register)
                .be32(numgen::MODULUS, numgen.modulus)
                .be32(numgen::KIND, numgen.random.into())
                .be32(numgen::OFFSET, numgen.offset),
            Field::Jhash(jhash) => {
                let len = load(&jhash.of, free, free, out);
                let mut hashing = Expression::new("hash")
                    .be32(hash::FROM, register(free))
                    .be32(hash::TO, to_register)
                    .be32(hash::LEN, len as u32)
                    .be32(hash::MODULUS, jhash.modulus);
                if jhash.seed != 0 {
                    hashing = hashing.be32(hash::SEED, jhash.seed);
                }
                // NFT_HASH_JENKINS
                hashing.be32(hash::OFFSET, jhash.offset).be32(hash::KIND, 0)
            }
            Field::Masked(field, mask) => {
                field.load(to, free, out);
                let mask = field.mask_octets(*mask);
                Expression::bitwise(to_register, &mask, &vec![0; mask.len()])
            }
            _ => return,
        };
        out.push(loading);
    }

    /// The lowest bits of a value of this field, in the order of its octets.
    fn mask_octets(&self, mask: u32) -> Vec<u8> {
        let len = self.data_type().octets();
        let mut octets = mask.to_be_bytes().to_vec();
        octets.drain(..4usize.saturating_sub(len));
        while octets.len() < len {
            octets.insert(0, 0);
        }
        let big = self.data_type().order() == super::datatype::ByteOrder::Big;
        if !big && cfg!(target_endian = "little") {
            octets.reverse();
        }
        octets
    }
}

/// Returns how many octets a key of these fields has.
pub(super) fn len(fields: &[Field]) -> usize {
    match fields {
        [one] => one.data_type().octets(),
        many => many.iter().map(|field| field.data_type().padded()).sum(),
    }
}

/// Appends the expressions that load a concatenation into the registers from `to` on. Returns its
/// length. `free` is as for [`Field::load`].
pub(super) fn load(fields: &[Field], to: usize, free: usize, out: &mut Vec<Expression>) -> usize {
    let len = len(fields);
    let free = free.max((to + len).next_multiple_of(4));
    let mut at = to;
    for field in fields {
        field.load(at, free, out);
        at += field.data_type().padded();
    }
    len
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = super::table::word;
        match self {
            Field::SourceAddress(family) => write!(f, "{} saddr", word(*family)),
            Field::DestinationAddress(family) => write!(f, "{} daddr", word(*family)),
            Field::SourcePort => f.write_str("th sport"),
            Field::DestinationPort => f.write_str("th dport"),
            Field::Meta(meta) => f.write_str(meta.word()),
            Field::Ct(ct, direction) => {
                f.write_str("ct ")?;
                match direction {
                    Some(Direction::Original) => f.write_str("original ")?,
                    Some(Direction::Reply) => f.write_str("reply ")?,
                    None => {}
                }
                match ct {
                    Ct::State => f.write_str("state"),
                    Ct::Direction => f.write_str("direction"),
                    Ct::Status => f.write_str("status"),
                    Ct::SourceAddress(family) => write!(f, "{} saddr", word(*family)),
                    Ct::DestinationAddress(family) => write!(f, "{} daddr", word(*family)),
                    Ct::SourcePort => f.write_str("proto-src"),
                    Ct::DestinationPort => f.write_str("proto-dst"),
                }
            }
            Field::Fib(fib) => {
                let address = match fib {
                    Fib::Source => "saddr",
                    Fib::Destination => "daddr",
                };
                write!(f, "fib {address} type")
            }
            Field::Numgen(numgen) => {
                let kind = if numgen.random { "random" } else { "inc" };
                write!(f, "numgen {kind} mod {}", numgen.modulus)?;
                offset(numgen.offset, f)
            }
            Field::Jhash(jhash) => {
                write!(f, "jhash {} mod {}", Concat(&jhash.of), jhash.modulus)?;
                if jhash.seed != 0 {
                    write!(f, " seed {:#x}", jhash.seed)?;
                }
                offset(jhash.offset, f)
            }
            Field::Masked(field, mask) => write!(f, "{field} & {mask:#x}"),
        }
    }
}

fn offset(offset: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match offset {
        0 => Ok(()),
        offset => write!(f, " offset {offset}"),
    }
}

/// Fields with points between them, as `nft` writes a concatenation.
pub(super) struct Concat<'a>(pub &'a [Field]);

impl fmt::Display for Concat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.0.iter().enumerate() {
            let point = if at == 0 { "" } else { " . " };
            write!(f, "{point}{field}")?;
        }
        Ok(())
    }
}

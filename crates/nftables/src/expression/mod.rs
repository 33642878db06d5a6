//! Expressions: the instructions that a rule consists of in the kernel. They
//! load into registers, compare, look up, and end in a verdict or an action.
//! [`compile`](super::compile) translates the statements of a rule to expressions.

mod attributes;
mod read;
mod write;

use std::{fmt, sync::Arc, time::Duration};

use super::verdict::{Datum, Verdict};

/// A register (`enum nft_registers`): 64 octets in units of four, by the offset
/// in octets. `nft` calls those at multiples of 16 by their old numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

impl Register {
    /// All registers together, in octets.
    pub(super) const SPACE: usize = 64;

    /// Returns the register that begins at this many octets; beyond the last it is one
    /// that the kernel refuses.
    pub(super) fn at(octets: usize) -> Register {
        Register(u8::try_from(octets / 4).unwrap_or(u8::MAX))
    }

    /// Returns the octets that are before it.
    pub fn octets(self) -> usize {
        4 * usize::from(self.0)
    }

    fn number(self) -> u32 {
        let unit = u32::from(self.0);
        // NFT_REG_1 to NFT_REG_4, NFT_REG32_00 to NFT_REG32_15.
        if unit.is_multiple_of(4) && unit < 16 {
            1 + unit / 4
        } else {
            8 + unit
        }
    }

    fn of_number(number: u32) -> Option<Register> {
        let unit = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return None,
        };
        u8::try_from(unit).ok().map(Register)
    }
}

/// Base of a payload's offset (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The network header.
    Network = 1,
    /// The transport header.
    Transport = 2,
}

/// How a register is compared (`enum nft_cmp_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Holds where the register has these octets.
    Equal = 0,
    /// Holds where the register has other octets.
    NotEqual = 1,
    /// Greater or equal.
    AtLeast = 5,
    /// Less or equal.
    AtMost = 3,
}

/// Whether a value is loaded into a register or set from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The value is loaded into this register.
    Load(Register),
    /// The value is set from this register.
    Store(Register),
}

/// Operation of a dynset expression (`enum nft_dynset_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynsetOp {
    /// Adds an element; an existing one stays as it is.
    Add = 0,
    /// Adds an element, or starts the timeout of an existing one again.
    Update = 1,
    /// Deletes an element.
    Delete = 2,
}

impl DynsetOp {
    pub(super) fn word(self) -> &'static str {
        match self {
            DynsetOp::Add => "add",
            DynsetOp::Update => "update",
            DynsetOp::Delete => "delete",
        }
    }
}

/// Registers of an address translation: the least and the greatest address and
/// port, where they are given, and `NF_NAT_RANGE_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Register of the lowest address; `None`: the address is not translated.
    pub address: Option<Register>,
    /// Register of the highest address; `None`: there is only one.
    pub last_address: Option<Register>,
    /// Register of the lowest port; `None`: the port is not translated.
    pub port: Option<Register>,
    /// Register of the highest port; `None`: there is only one.
    pub last_port: Option<Register>,
    /// `NF_NAT_RANGE_*` of `linux/netfilter/nf_nat.h`.
    pub flags: u32,
}

/// Which address is translated: `NFT_NAT_*` of `linux/netfilter/nf_tables.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The source address.
    Source = 0,
    /// The destination address.
    Destination = 1,
}

/// A limit of packets per time (`NFTA_LIMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many packets in each unit of time.
    pub rate: u64,
    /// The unit, in seconds.
    pub seconds: u64,
    /// How many packets above the rate may come at once.
    pub burst: u32,
    /// Matches packets over the limit, not those within.
    pub over: bool,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = if self.over { "over " } else { "" };
        let unit = match self.seconds {
            60 => "minute",
            3600 => "hour",
            86400 => "day",
            604_800 => "week",
            _ => "second",
        };
        let (rate, burst) = (self.rate, self.burst);
        write!(f, "limit rate {over}{rate}/{unit} burst {burst} packets")
    }
}

/// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`: the kernel sets
/// them where registers are given.
const GIVEN: u32 = 1 | 2;

/// One instruction of a rule (`NFTA_EXPR_*` of `linux/netfilter/nf_tables.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads octets of a header.
    Payload {
        /// The header that the offset counts from.
        header: Header,
        /// Distance from there, in octets.
        offset: u32,
        /// How much is loaded, in octets.
        len: u32,
        /// The register that is loaded.
        to: Register,
    },
    /// Loads or sets a property of the packet in the kernel (`enum nft_meta_keys`).
    Meta {
        /// The number of the property.
        key: u32,
        /// Loaded or set.
        access: Access,
    },
    /// Loads or sets a property of the connection in the kernel (`enum nft_ct_keys`).
    Ct {
        /// The number of the property.
        key: u32,
        /// 0: original, 1: reply.
        direction: Option<u8>,
        /// Loaded or set.
        access: Access,
    },
    /// Continues if the comparison holds.
    Compare {
        /// The register that is compared.
        from: Register,
        /// The comparison that must hold.
        how: Comparison,
        /// The octets that it is compared with.
        with: Box<[u8]>,
    },
    /// Continues if the register is in this range, ends included, or if not.
    Range {
        /// The register that is compared.
        from: Register,
        /// Continues if it is not in the range.
        inverted: bool,
        /// The least value of the range.
        low: Box<[u8]>,
        /// The greatest value of the range.
        high: Box<[u8]>,
    },
    /// `(from & mask) ^ xor`
    Bitwise {
        /// The register of the operand.
        from: Register,
        /// The register of the result.
        to: Register,
        /// The bits that are kept.
        mask: Box<[u8]>,
        /// The bits that are inverted.
        xor: Box<[u8]>,
    },
    /// Host order to network order.
    ToNetworkOrder {
        /// The register whose numbers are converted in place.
        register: Register,
        /// How many octets are converted.
        len: u32,
        /// How many octets each number has.
        size: u32,
    },
    /// Continues if the set has the element; loads its data from a map.
    Lookup {
        /// Name of the set or map.
        set: Arc<str>,
        /// The register where the key begins.
        from: Register,
        /// Continues if the set does not have the element.
        inverted: bool,
        /// Where data go; the verdict register for verdict maps.
        data: Option<LookupData>,
    },
    /// Loads a constant.
    Immediate {
        /// The register that is loaded.
        to: Register,
        /// The octets that are loaded.
        octets: Box<[u8]>,
    },
    /// Ends with a verdict.
    Verdict(Verdict),
    /// Makes a number for each packet: counting up, or random.
    Numgen {
        /// The register that is loaded.
        to: Register,
        /// One above the greatest, without offset.
        modulus: u32,
        /// Random, not counting up.
        random: bool,
        /// The number that is added.
        offset: u32,
    },
    /// Jenkins hash of registers (`NFT_HASH_JENKINS`).
    Jhash {
        /// The first register that is hashed.
        from: Register,
        /// How many octets are hashed.
        len: u32,
        /// The register that is loaded.
        to: Register,
        /// One above the greatest, without offset.
        modulus: u32,
        /// 0 where the kernel chose it: then it does not tell it.
        seed: u32,
        /// The number that is added.
        offset: u32,
    },
    /// Looks an address up in the routes.
    Fib {
        /// The register that is loaded.
        to: Register,
        /// The result to load, of `enum nft_fib_result`.
        result: u32,
        /// The fields of the packet to look up, of `enum nft_fib_flags`.
        flags: u32,
    },
    /// Translates an address.
    Nat {
        /// The address that is translated.
        of: Translation,
        /// The family of the address, `NFPROTO_*`.
        family: u32,
        /// The addresses and ports to translate to.
        range: Range,
    },
    /// Translates the source to this node's address.
    Masquerade {
        /// How ports are chosen, `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// Translates the destination to this node's address.
    Redirect {
        /// The register of the port, where that is translated.
        port: Option<Register>,
        /// How ports are chosen, `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// Refuses the packet, with an answer to its sender.
    Reject {
        /// The kind of answer, of `enum nft_reject_types`.
        kind: u32,
        /// Code of the ICMP message.
        code: u8,
    },
    /// Changes a set.
    Dynset {
        /// The name of the set.
        set: Arc<str>,
        /// The change of the element.
        op: DynsetOp,
        /// The register where the key begins.
        key: Register,
        /// The data, for a map.
        data: Option<Register>,
        /// Timeout of the element; `None`: that of the set.
        timeout: Option<Duration>,
        /// Counters and limits of the element.
        with: Vec<Expression>,
    },
    /// Counts packets and bytes.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Continues while a rate is kept.
    Limit(Limit),
    /// The packet's connection is not tracked.
    Notrack,
    /// An expression that is not known here.
    Other {
        /// The name that the kernel gives it.
        name: String,
    },
}

/// Where a lookup's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupData {
    /// They are loaded into this register.
    Register(Register),
    /// They are the verdict.
    Verdict,
}

impl Expression {
    /// Returns the same expression without the parts that change by themselves, and those that the
    /// kernel adds: an expression that was sent equals the listed one in this form.
    #[must_use]
    pub fn comparable(mut self) -> Expression {
        match &mut self {
            Expression::Counter { packets, bytes } => (*packets, *bytes) = (0, 0),
            Expression::Nat { range, .. } => range.flags &= !GIVEN,
            Expression::Redirect { flags, .. } => *flags &= !GIVEN,
            Expression::Dynset { with, .. } => {
                *with = std::mem::take(with)
                    .into_iter()
                    .map(Expression::comparable)
                    .collect();
            }
            _ => {}
        }
        self
    }

    /// Returns the expression that puts a constant into a register.
    pub(super) fn immediate(to: Register, octets: &[u8]) -> Expression {
        let octets = octets.into();
        Expression::Immediate { to, octets }
    }
}

/// A datum as the expression that loads it or ends with it.
impl From<(Register, Datum)> for Expression {
    fn from((to, datum): (Register, Datum)) -> Expression {
        match datum {
            Datum::Value(octets) => Expression::Immediate { to, octets },
            Datum::Verdict(verdict) => Expression::Verdict(verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_numbers_that_nft_gives_them() {
        let number = |octets| Register::at(octets).number();
        assert_eq!(
            [0, 4, 8, 16, 20, 48, 60].map(number),
            [1, 9, 10, 2, 13, 4, 23]
        );
        assert!(number(64) > 23, "beyond the last");
        for octets in (0..64).step_by(4) {
            let register = Register::at(octets);
            assert_eq!(Register::of_number(register.number()), Some(register));
        }
        // Both numbers of the first.
        assert_eq!(Register::of_number(8), Register::of_number(1));
        assert_eq!(Register::of_number(0), None);
    }
}

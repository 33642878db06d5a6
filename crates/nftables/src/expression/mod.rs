//! Expressions: the instructions that a rule consists of in the kernel. They
//! load into registers, compare, look up, and end in a verdict or an action.
//! [`compile`](super::compile) translates the statements of a rule to expressions.

mod attributes;
mod read;
mod write;

use std::{sync::Arc, time::Duration};

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
}

/// Whether a value is loaded into a register or set from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The value is loaded into this register.
    Load(Register),
    /// The value is set from this register.
    Store(Register),
}

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
    /// Loads a property of the connection in the kernel (`enum nft_ct_keys`).
    Ct {
        /// The number of the property.
        key: u32,
        /// 0: original, 1: reply.
        direction: Option<u8>,
        /// The register that is loaded.
        to: Register,
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
    /// Translates the destination (`NFT_NAT_DNAT`).
    Dnat {
        /// The family of the address, `NFPROTO_*`.
        family: u32,
        /// The register of the address.
        address: Register,
        /// The register of the port; `None`: the port is not translated.
        port: Option<Register>,
    },
    /// Translates the source to this node's address, and takes ports at random.
    Masquerade,
    /// Refuses the packet, with an answer to its sender.
    Reject {
        /// The kind of answer, of `enum nft_reject_types`.
        kind: u32,
        /// Code of the ICMP message.
        code: u8,
    },
    /// Adds an element to a set, or starts the timeout of an existing one again.
    Dynset {
        /// The name of the set.
        set: Arc<str>,
        /// The register where the key begins.
        key: Register,
        /// The data, for a map.
        data: Option<Register>,
        /// Timeout of the element.
        timeout: Duration,
    },
    /// Adds an element to a set, whose connections it counts; continues if they are more than so
    /// many.
    CountedBy {
        /// The name of the set.
        set: Arc<str>,
        /// The register where the key begins.
        key: Register,
        /// The greatest number for which the rule does not continue.
        over: u32,
    },
    /// Counts the packet's connection until it has ended; continues if there are more than so many
    /// (`NFTA_CONNLIMIT_*`).
    Connections {
        /// The greatest number for which the rule does not continue.
        over: u32,
    },
    /// Counts packets and bytes.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Continues for at most so many packets in a second (`NFTA_LIMIT_*`).
    Limit {
        /// How many packets in a second, and at once.
        rate: u32,
    },
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
    /// Returns the same expression without counts: an expression that was sent equals the listed
    /// one in this form.
    #[must_use]
    pub fn comparable(self) -> Expression {
        match self {
            Expression::Counter { .. } => Expression::Counter {
                packets: 0,
                bytes: 0,
            },
            other => other,
        }
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

//! Expressions: the instructions that a rule consists of in the kernel. They
//! load into registers, compare, look up, and end in a verdict or an action.
//! [`compile`](super::compile) translates the statements of a rule to expressions.

pub mod attributes;

use std::borrow::Cow;

use netlink::{Attribute, Malformed, Request};

use self::attributes::{DATA, NAME, bitwise, cmp, dynset, immediate, lookup, meta, nat, payload};
use super::verdict::{Datum, Verdict};

/// All registers together, in octets.
pub(super) const SPACE: usize = 64;

/// Returns the number of the register that begins at this many octets (`enum nft_registers`).
/// Registers are 64 octets in units of four; `nft` calls those at multiples of 16 by their old
/// numbers. Beyond the last it is one that the kernel refuses.
pub(super) fn register(octets: usize) -> u32 {
    let unit = (octets / 4) as u32;
    // NFT_REG_1 to NFT_REG_4, NFT_REG32_00 to NFT_REG32_15.
    if unit.is_multiple_of(4) && unit < 16 {
        1 + unit / 4
    } else {
        8 + unit
    }
}

/// Base of a payload's offset (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Network = 1,
    Transport = 2,
}

/// How a register is compared (`enum nft_cmp_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

/// One instruction of a rule: its name, and its attributes by their numbers (`NFTA_*` of
/// `linux/netfilter/nf_tables.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// The name that the kernel gives it, such as `payload` or `cmp`.
    pub name: Cow<'static, str>,
    attributes: Vec<(u16, Content)>,
}

/// Content of an attribute of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Octets(Box<[u8]>),
    Datum(Datum),
    Expression(Box<Expression>),
}

impl Expression {
    pub(super) fn new(name: &'static str) -> Expression {
        Expression {
            name: name.into(),
            attributes: Vec::new(),
        }
    }

    fn with(mut self, kind: u16, content: Content) -> Expression {
        self.attributes.push((kind, content));
        self
    }

    pub(super) fn octets(self, kind: u16, octets: &[u8]) -> Expression {
        self.with(kind, Content::Octets(octets.into()))
    }

    pub(super) fn be32(self, kind: u16, value: u32) -> Expression {
        self.octets(kind, &value.to_be_bytes())
    }

    pub(super) fn be64(self, kind: u16, value: u64) -> Expression {
        self.octets(kind, &value.to_be_bytes())
    }

    pub(super) fn name_of(self, kind: u16, set: &str) -> Expression {
        self.octets(kind, &[set.as_bytes(), &[0]].concat())
    }

    pub(super) fn datum(self, kind: u16, datum: Datum) -> Expression {
        self.with(kind, Content::Datum(datum))
    }

    pub(super) fn nested(self, kind: u16, inner: Expression) -> Expression {
        self.with(kind, Content::Expression(inner.into()))
    }

    /// Loads octets of a header.
    pub(super) fn payload(header: Header, offset: u32, len: u32, to: u32) -> Expression {
        Expression::new("payload")
            .be32(payload::TO, to)
            .be32(payload::BASE, header as u32)
            .be32(payload::OFFSET, offset)
            .be32(payload::LEN, len)
    }

    /// Loads (`meta::TO`) or sets (`meta::FROM`) a property of the packet in the kernel.
    pub(super) fn meta(key: u32, access: u16, register: u32) -> Expression {
        let meta = Expression::new("meta").be32(meta::KEY, key);
        meta.be32(access, register)
    }

    /// Continues if the first register has these octets, or others.
    pub(super) fn compare(how: Comparison, with: &[u8]) -> Expression {
        Expression::new("cmp")
            .be32(cmp::FROM, register(0))
            .be32(cmp::OP, how as u32)
            .datum(cmp::WITH, Datum::Value(with.into()))
    }

    /// Changes a register to `(register & mask) ^ xor`.
    pub(super) fn bitwise(register: u32, mask: &[u8], xor: &[u8]) -> Expression {
        Expression::new("bitwise")
            .be32(bitwise::FROM, register)
            .be32(bitwise::TO, register)
            .be32(bitwise::LEN, mask.len() as u32)
            .datum(bitwise::MASK, Datum::Value(mask.into()))
            .datum(bitwise::XOR, Datum::Value(xor.into()))
    }

    /// Appends its name and data.
    pub(crate) fn write(&self, request: Request) -> Request {
        let request = request.text(NAME, &self.name);
        let add = |r: Request, (kind, content): &(u16, Content)| match content {
            Content::Octets(octets) => r.attribute(*kind, octets),
            Content::Datum(datum) => r.nested(*kind, |r| datum.write(r)),
            Content::Expression(inner) => r.nested(*kind, |r| inner.write(r)),
        };
        match &*self.name {
            // The only one whose kind has no data.
            "notrack" => request,
            _ => request.nested(DATA, |r| self.attributes.iter().fold(r, add)),
        }
    }

    /// Reads the expressions of a list.
    pub(crate) fn read_all(list: Attribute<'_>) -> Result<Vec<Expression>, Malformed> {
        list.nested()
            .map(|inner| Expression::read(inner?))
            .collect()
    }

    /// Returns the expression that an attribute has.
    pub(crate) fn read(attribute: Attribute<'_>) -> Result<Expression, Malformed> {
        let (mut name, mut data) = ("", None);
        for inner in attribute.nested() {
            let inner = inner?;
            match inner.kind {
                NAME => name = inner.text()?,
                DATA => data = Some(inner),
                _ => {}
            }
        }
        let mut attributes = Vec::new();
        for inner in data.iter().flat_map(Attribute::nested) {
            let inner = inner?;
            let content = match (name, inner.kind) {
                ("cmp", cmp::WITH)
                | ("bitwise", bitwise::MASK | bitwise::XOR)
                | ("immediate", immediate::DATA) => Content::Datum(Datum::read(inner)?),
                ("dynset", dynset::EXPRESSION) => {
                    Content::Expression(Expression::read(inner)?.into())
                }
                _ => Content::Octets(inner.payload.into()),
            };
            attributes.push((inner.kind, content));
        }
        Ok(Expression {
            name: name.to_owned().into(),
            attributes,
        })
    }

    fn get(&self, kind: u16) -> Option<&Content> {
        let mut all = self.attributes.iter();
        all.find_map(|(of, content)| (*of == kind).then_some(content))
    }

    /// Returns the octets of an attribute; `None` where it is not there, or has a value or verdict.
    pub fn bytes(&self, kind: u16) -> Option<&[u8]> {
        match self.get(kind) {
            Some(Content::Octets(octets)) => Some(octets),
            _ => None,
        }
    }

    /// Returns the number in an attribute; 0 where it is not there.
    pub fn number(&self, kind: u16) -> u64 {
        self.bytes(kind).map_or(0, number)
    }

    /// Returns the text in an attribute; `None` where it is not there.
    pub fn text(&self, kind: u16) -> Option<&str> {
        let payload = self.bytes(kind)?;
        Attribute { kind, payload }.text().ok()
    }

    /// Returns the value or verdict in an attribute; `None` where it is not there.
    pub fn value(&self, kind: u16) -> Option<&Datum> {
        match self.get(kind) {
            Some(Content::Datum(datum)) => Some(datum),
            _ => None,
        }
    }

    /// Returns the verdict that it ends with; `None`: it is no verdict.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self.value(immediate::DATA) {
            Some(Datum::Verdict(verdict)) if self.name == "immediate" => Some(verdict),
            _ => None,
        }
    }

    /// Returns the name of the set or map that it looks something up in or changes; `None`: it does
    /// neither.
    pub fn set(&self) -> Option<&str> {
        match &*self.name {
            "lookup" => self.text(lookup::SET),
            "dynset" => self.text(dynset::SET),
            _ => None,
        }
    }

    /// Returns the form in which an expression that was sent equals the listed one: without counts
    /// and without what the kernel adds, which includes numbers of 0.
    #[must_use]
    pub fn comparable(mut self) -> Expression {
        let (address, port) = (self.number(nat::ADDRESS), self.number(nat::PORT));
        let is_added = |name: &str, kind: u16, octets: &[u8]| match (name, kind) {
            ("counter", _) => true,
            // The greatest value is listed also where it equals the least.
            ("nat", nat::LAST_ADDRESS) => number(octets) == address,
            ("nat", nat::LAST_PORT) => number(octets) == port,
            ("nat", nat::FLAGS) => number(octets) & !nat::GIVEN == 0,
            // The register of verdicts.
            ("lookup", lookup::TO) => false,
            _ => octets.iter().all(|octet| *octet == 0),
        };
        let all = self.attributes.into_iter();
        let mut kept: Vec<_> = all
            .filter_map(|(kind, content)| match content {
                Content::Octets(octets) if is_added(&self.name, kind, &octets) => None,
                Content::Expression(inner) => {
                    Some((kind, Content::Expression(inner.comparable().into())))
                }
                content => Some((kind, content)),
            })
            .collect();
        kept.sort_by_key(|(kind, _)| *kind);
        self.attributes = kept;
        self
    }
}

/// A number in network order.
fn number(octets: &[u8]) -> u64 {
    octets
        .iter()
        .fold(0, |number, octet| number << 8 | u64::from(*octet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_numbers_that_nft_gives_them() {
        assert_eq!(
            [0, 4, 8, 16, 20, 48, 60].map(register),
            [1, 9, 10, 2, 13, 4, 23]
        );
        assert!(register(64) > 23, "beyond the last");
    }
}

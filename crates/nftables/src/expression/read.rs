//! Expressions from attributes, as a dump has them.

use std::{sync::Arc, time::Duration};

use netlink::{Attribute, Malformed};

use super::{
    Access, Comparison, DynsetOp, Expression, Header, Limit, LookupData, Range, Register,
    Translation,
    attributes::{
        DATA, NAME, bitwise, byteorder, cmp, counter, ct, dynset, fib, hash, immediate, limit,
        lookup, masq, meta, nat, numgen, payload, range, redir, reject,
    },
};
use crate::verdict::Datum;

/// The kernel nests expressions once, in a dynset; deeper nesting could only be meant
/// to exhaust the stack.
const DEEPEST: u32 = 3;

impl Expression {
    /// Reads the expressions of a list.
    pub(crate) fn read_all(list: Attribute<'_>) -> Result<Vec<Expression>, Malformed> {
        all(list, DEEPEST)
    }

    /// Returns the expression that an attribute has.
    pub(crate) fn read(attribute: Attribute<'_>) -> Result<Expression, Malformed> {
        one(attribute, DEEPEST)
    }
}

fn all(list: Attribute<'_>, depth: u32) -> Result<Vec<Expression>, Malformed> {
    list.nested().map(|inner| one(inner?, depth)).collect()
}

fn one(attribute: Attribute<'_>, depth: u32) -> Result<Expression, Malformed> {
    let depth = depth
        .checked_sub(1)
        .ok_or(Malformed("expressions nested too deeply"))?;
    let (mut name, mut data) = ("", None);
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            NAME => name = inner.text()?,
            DATA => data = Some(inner),
            _ => {}
        }
    }
    let fields = Fields(data);
    known(name, &fields, depth).map(|found| {
        found.unwrap_or_else(|| Expression::Other {
            name: name.to_owned(),
        })
    })
}

/// The attributes of an expression's data.
struct Fields<'a>(Option<Attribute<'a>>);

impl<'a> Fields<'a> {
    fn get(&self, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
        for inner in self.0.iter().flat_map(Attribute::nested) {
            let inner = inner?;
            if inner.kind == kind {
                return Ok(Some(inner));
            }
        }
        Ok(None)
    }

    /// A number; 0 where it is not there.
    fn u32(&self, kind: u16) -> Result<u32, Malformed> {
        self.get(kind)?.map_or(Ok(0), |a| a.be32())
    }

    fn u64(&self, kind: u16) -> Result<u64, Malformed> {
        self.get(kind)?.map_or(Ok(0), |a| a.be64())
    }

    fn optional(&self, kind: u16) -> Result<Option<Register>, Malformed> {
        let number = self.get(kind)?.map(|a| a.be32()).transpose()?;
        Ok(number.and_then(Register::of_number))
    }

    fn register(&self, kind: u16) -> Result<Register, Malformed> {
        let unknown = Malformed("an expression without a register");
        self.optional(kind)?.ok_or(unknown)
    }

    fn octets(&self, kind: u16) -> Result<Box<[u8]>, Malformed> {
        let missing = Malformed("an expression without its value");
        Datum::octets(self.get(kind)?.ok_or(missing)?)
    }

    fn text(&self, kind: u16) -> Result<Arc<str>, Malformed> {
        let missing = Malformed("an expression without its set");
        self.get(kind)?.ok_or(missing)?.text().map(Arc::from)
    }

    fn access(&self, to: u16, from: u16) -> Result<Access, Malformed> {
        Ok(match self.optional(to)? {
            Some(register) => Access::Load(register),
            None => Access::Store(self.register(from)?),
        })
    }
}

/// `None` for an expression that is not known here, or not in this form.
fn known(name: &str, f: &Fields<'_>, depth: u32) -> Result<Option<Expression>, Malformed> {
    if let Some(load) = load(name, f)? {
        return Ok(Some(load));
    }
    match comparison(name, f)? {
        Some(comparison) => Ok(Some(comparison)),
        None => action(name, f, depth),
    }
}

/// Reads expressions that put something into a register, or end in a verdict.
fn load(name: &str, f: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    Ok(Some(match name {
        "payload" if f.get(payload::TO)?.is_some() => Expression::Payload {
            header: match f.u32(payload::BASE)? {
                1 => Header::Network,
                2 => Header::Transport,
                _ => return Ok(None),
            },
            offset: f.u32(payload::OFFSET)?,
            len: f.u32(payload::LEN)?,
            to: f.register(payload::TO)?,
        },
        "meta" => Expression::Meta {
            key: f.u32(meta::KEY)?,
            access: f.access(meta::TO, meta::FROM)?,
        },
        "ct" => Expression::Ct {
            key: f.u32(ct::KEY)?,
            direction: f.get(ct::DIRECTION)?.map(|a| a.u8()).transpose()?,
            access: f.access(ct::TO, ct::FROM)?,
        },
        "immediate" => {
            let missing = Malformed("an expression without its value");
            match Datum::read(f.get(immediate::DATA)?.ok_or(missing)?)? {
                Datum::Verdict(verdict) => Expression::Verdict(verdict),
                Datum::Value(octets) => Expression::Immediate {
                    to: f.register(immediate::TO)?,
                    octets,
                },
            }
        }
        "numgen" => Expression::Numgen {
            to: f.register(numgen::TO)?,
            modulus: f.u32(numgen::MODULUS)?,
            random: f.u32(numgen::KIND)? != 0,
            offset: f.u32(numgen::OFFSET)?,
        },
        "hash" if f.u32(hash::KIND)? == 0 => Expression::Jhash {
            from: f.register(hash::FROM)?,
            len: f.u32(hash::LEN)?,
            to: f.register(hash::TO)?,
            modulus: f.u32(hash::MODULUS)?,
            seed: f.u32(hash::SEED)?,
            offset: f.u32(hash::OFFSET)?,
        },
        "fib" => Expression::Fib {
            to: f.register(fib::TO)?,
            result: f.u32(fib::RESULT)?,
            flags: f.u32(fib::FLAGS)?,
        },
        _ => return Ok(None),
    }))
}

/// Reads expressions that examine registers, or change them.
fn comparison(name: &str, f: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    Ok(Some(match name {
        "cmp" => Expression::Compare {
            from: f.register(cmp::FROM)?,
            how: match f.u32(cmp::OP)? {
                0 => Comparison::Equal,
                1 => Comparison::NotEqual,
                3 => Comparison::AtMost,
                5 => Comparison::AtLeast,
                _ => return Ok(None),
            },
            with: f.octets(cmp::WITH)?,
        },
        "range" => Expression::Range {
            from: f.register(range::FROM)?,
            inverted: f.u32(range::OP)? != 0,
            low: f.octets(range::LOW)?,
            high: f.octets(range::HIGH)?,
        },
        "bitwise" if f.u32(bitwise::OP)? == 0 => Expression::Bitwise {
            from: f.register(bitwise::FROM)?,
            to: f.register(bitwise::TO)?,
            mask: f.octets(bitwise::MASK)?,
            xor: f.octets(bitwise::XOR)?,
        },
        "byteorder"
            if f.u32(byteorder::OP)? == byteorder::HOST_TO_NETWORK
                && f.optional(byteorder::FROM)? == f.optional(byteorder::TO)? =>
        {
            Expression::ToNetworkOrder {
                register: f.register(byteorder::TO)?,
                len: f.u32(byteorder::LEN)?,
                size: f.u32(byteorder::SIZE)?,
            }
        }
        "lookup" => Expression::Lookup {
            set: f.text(lookup::SET)?,
            from: f.register(lookup::FROM)?,
            inverted: f.u32(lookup::FLAGS)? & lookup::INVERTED != 0,
            data: match f.get(lookup::TO)?.map(|a| a.be32()).transpose()? {
                None => None,
                Some(0) => Some(LookupData::Verdict),
                Some(_) => Some(LookupData::Register(f.register(lookup::TO)?)),
            },
        },
        _ => return Ok(None),
    }))
}

/// Reads expressions that do something with the packet or a set.
fn action(name: &str, f: &Fields<'_>, depth: u32) -> Result<Option<Expression>, Malformed> {
    Ok(Some(match name {
        "nat" => Expression::Nat {
            of: match f.u32(nat::KIND)? {
                0 => Translation::Source,
                _ => Translation::Destination,
            },
            family: f.u32(nat::FAMILY)?,
            range: translation(f)?,
        },
        "masq" => Expression::Masquerade {
            flags: f.u32(masq::FLAGS)?,
        },
        "redir" => Expression::Redirect {
            port: f.optional(redir::PORT)?,
            flags: f.u32(redir::FLAGS)?,
        },
        "reject" => Expression::Reject {
            kind: f.u32(reject::KIND)?,
            code: f.get(reject::CODE)?.map_or(Ok(0), |a| a.u8())?,
        },
        "dynset" => Expression::Dynset {
            set: f.text(dynset::SET)?,
            op: match f.u32(dynset::OP)? {
                0 => DynsetOp::Add,
                1 => DynsetOp::Update,
                2 => DynsetOp::Delete,
                _ => return Ok(None),
            },
            key: f.register(dynset::KEY)?,
            data: f.optional(dynset::DATA)?,
            timeout: Some(Duration::from_millis(f.u64(dynset::TIMEOUT)?)).filter(|t| !t.is_zero()),
            with: match (f.get(dynset::EXPRESSIONS)?, f.get(dynset::EXPRESSION)?) {
                (Some(many), _) => all(many, depth)?,
                (None, Some(single)) => vec![one(single, depth)?],
                (None, None) => Vec::new(),
            },
        },
        "counter" => Expression::Counter {
            packets: f.u64(counter::PACKETS)?,
            bytes: f.u64(counter::BYTES)?,
        },
        "limit" if f.u32(limit::KIND)? == 0 => Expression::Limit(Limit {
            rate: f.u64(limit::RATE)?,
            seconds: f.u64(limit::UNIT)?,
            burst: f.u32(limit::BURST)?,
            over: f.u32(limit::FLAGS)? & limit::OVER != 0,
        }),
        "notrack" => Expression::Notrack,
        _ => return Ok(None),
    }))
}

/// Reads a range. The kernel lists the greatest value also where it equals the least.
fn translation(f: &Fields<'_>) -> Result<Range, Malformed> {
    let mut range = Range {
        address: f.optional(nat::ADDRESS)?,
        last_address: f.optional(nat::LAST_ADDRESS)?,
        port: f.optional(nat::PORT)?,
        last_port: f.optional(nat::LAST_PORT)?,
        flags: f.u32(nat::FLAGS)?,
    };
    range.last_address = range
        .last_address
        .filter(|last| Some(*last) != range.address);
    range.last_port = range.last_port.filter(|last| Some(*last) != range.port);
    Ok(range)
}

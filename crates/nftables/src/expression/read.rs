//! Expressions from attributes, as a dump has them.

use std::{sync::Arc, time::Duration};

use netlink::{Attribute, Malformed};

use super::{
    Access, Comparison, Expression, Header, LookupData, Register,
    attributes::{
        DATA, NAME, bitwise, byteorder, cmp, connlimit, counter, ct, dynset, fib, hash, immediate,
        limit, lookup, masq, meta, nat, numgen, payload, reject,
    },
};
use crate::verdict::Datum;

impl Expression {
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
        let found = known(name, &Fields(data))?;
        Ok(found.unwrap_or_else(|| Expression::Other {
            name: name.to_owned(),
        }))
    }
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
}

/// `None` for an expression that is not known here, or not in this form.
fn known(name: &str, f: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    if let Some(load) = load(name, f)? {
        return Ok(Some(load));
    }
    match comparison(name, f)? {
        Some(comparison) => Ok(Some(comparison)),
        None => action(name, f),
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
            access: match f.optional(meta::TO)? {
                Some(to) => Access::Load(to),
                None => Access::Store(f.register(meta::FROM)?),
            },
        },
        "ct" if f.get(ct::TO)?.is_some() => Expression::Ct {
            key: f.u32(ct::KEY)?,
            direction: f.get(ct::DIRECTION)?.map(|a| a.u8()).transpose()?,
            to: f.register(ct::TO)?,
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
                _ => return Ok(None),
            },
            with: f.octets(cmp::WITH)?,
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
fn action(name: &str, f: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    Ok(Some(match name {
        "nat" if is_plain(f)? => Expression::Dnat {
            family: f.u32(nat::FAMILY)?,
            address: f.register(nat::ADDRESS)?,
            port: f.optional(nat::PORT)?,
        },
        "masq" if f.u32(masq::FLAGS)? == masq::FULLY_RANDOM => Expression::Masquerade,
        "reject" => Expression::Reject {
            kind: f.u32(reject::KIND)?,
            code: f.get(reject::CODE)?.map_or(Ok(0), |a| a.u8())?,
        },
        "dynset"
            if f.u32(dynset::OP)? == dynset::UPDATE
                && f.get(dynset::EXPRESSION)?.is_none()
                && f.get(dynset::EXPRESSIONS)?.is_none() =>
        {
            Expression::Dynset {
                set: f.text(dynset::SET)?,
                key: f.register(dynset::KEY)?,
                data: f.optional(dynset::DATA)?,
                timeout: Duration::from_millis(f.u64(dynset::TIMEOUT)?),
            }
        }
        "dynset" if f.u32(dynset::OP)? == dynset::ADD && f.u64(dynset::TIMEOUT)? == 0 => {
            let counts = f
                .get(dynset::EXPRESSION)?
                .map(Expression::read)
                .transpose()?;
            let Some(Expression::Connections { over }) = counts else {
                return Ok(None);
            };
            Expression::CountedBy {
                set: f.text(dynset::SET)?,
                key: f.register(dynset::KEY)?,
                over,
            }
        }
        "connlimit" if f.u32(connlimit::FLAGS)? == connlimit::OVER => Expression::Connections {
            over: f.u32(connlimit::COUNT)?,
        },
        "counter" => Expression::Counter {
            packets: f.u64(counter::PACKETS)?,
            bytes: f.u64(counter::BYTES)?,
        },
        "limit" if f.u32(limit::KIND)? == 0 && f.u32(limit::FLAGS)? == 0 => {
            let (rate, unit) = (f.u32(limit::BURST)?, f.u64(limit::UNIT)?);
            if f.u64(limit::RATE)? != u64::from(rate) || unit != limit::SECOND {
                return Ok(None);
            }
            Expression::Limit { rate }
        }
        "notrack" => Expression::Notrack,
        _ => return Ok(None),
    }))
}

/// Returns true if a translation is one of the destination to a single address, and a single port at
/// most. The kernel lists the greatest value also where it equals the least.
fn is_plain(f: &Fields<'_>) -> Result<bool, Malformed> {
    let (address, last_address) = (f.u32(nat::ADDRESS)?, f.u32(nat::LAST_ADDRESS)?);
    let (port, last_port) = (f.u32(nat::PORT)?, f.u32(nat::LAST_PORT)?);
    Ok(f.u32(nat::KIND)? == nat::DESTINATION
        && address != 0
        && [0, address].contains(&last_address)
        && [0, port].contains(&last_port)
        && f.u32(nat::FLAGS)? & !nat::GIVEN == 0)
}

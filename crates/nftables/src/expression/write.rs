//! Expressions as attributes.

use netlink::Request;

use super::{
    Access, Expression, LookupData, Register,
    attributes::{
        DATA, NAME, bitwise, byteorder, cmp, connlimit, counter, ct, dynset, fib, hash, immediate,
        limit, lookup, masq, meta, nat, numgen, payload, reject,
    },
};
use crate::verdict::VALUE;

impl Expression {
    fn name(&self) -> &str {
        match self {
            Expression::Payload { .. } => "payload",
            Expression::Meta { .. } => "meta",
            Expression::Ct { .. } => "ct",
            Expression::Compare { .. } => "cmp",
            Expression::Bitwise { .. } => "bitwise",
            Expression::ToNetworkOrder { .. } => "byteorder",
            Expression::Lookup { .. } => "lookup",
            Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
            Expression::Numgen { .. } => "numgen",
            Expression::Jhash { .. } => "hash",
            Expression::Fib { .. } => "fib",
            Expression::Dnat { .. } => "nat",
            Expression::Masquerade => "masq",
            Expression::Reject { .. } => "reject",
            Expression::Dynset { .. } | Expression::CountedBy { .. } => "dynset",
            Expression::Connections { .. } => "connlimit",
            Expression::Counter { .. } => "counter",
            Expression::Limit { .. } => "limit",
            Expression::Notrack => "notrack",
            Expression::Other { name } => name,
        }
    }

    /// Appends its name and data.
    pub(crate) fn write(&self, request: Request) -> Request {
        let request = request.text(NAME, self.name());
        match self {
            Expression::Notrack | Expression::Other { .. } => request,
            _ => request.nested(DATA, |r| self.data(r)),
        }
    }

    fn data(&self, r: Request) -> Request {
        match self {
            Expression::Payload { .. }
            | Expression::Meta { .. }
            | Expression::Ct { .. }
            | Expression::Immediate { .. }
            | Expression::Verdict(_)
            | Expression::Numgen { .. }
            | Expression::Jhash { .. }
            | Expression::Fib { .. } => self.load(r),
            Expression::Compare { .. }
            | Expression::Bitwise { .. }
            | Expression::ToNetworkOrder { .. }
            | Expression::Lookup { .. } => self.comparison(r),
            Expression::Dnat { .. }
            | Expression::Masquerade
            | Expression::Reject { .. }
            | Expression::Dynset { .. }
            | Expression::CountedBy { .. }
            | Expression::Connections { .. }
            | Expression::Counter { .. }
            | Expression::Limit { .. } => self.action(r),
            Expression::Notrack | Expression::Other { .. } => r,
        }
    }

    /// Writes an expression that puts something into a register, or ends in a verdict.
    fn load(&self, r: Request) -> Request {
        match self {
            Expression::Payload {
                header,
                offset,
                len,
                to,
            } => register(r, payload::TO, *to)
                .be32(payload::BASE, *header as u32)
                .be32(payload::OFFSET, *offset)
                .be32(payload::LEN, *len),
            Expression::Meta { key, access } => {
                let r = r.be32(meta::KEY, *key);
                match access {
                    Access::Load(to) => register(r, meta::TO, *to),
                    Access::Store(from) => register(r, meta::FROM, *from),
                }
            }
            Expression::Ct { key, direction, to } => {
                let r = register(r.be32(ct::KEY, *key), ct::TO, *to);
                match direction {
                    Some(direction) => r.attribute(ct::DIRECTION, &[*direction]),
                    None => r,
                }
            }
            Expression::Immediate { to, octets } => {
                let r = register(r, immediate::TO, *to);
                value(r, immediate::DATA, octets)
            }
            Expression::Verdict(verdict) => r
                .be32(immediate::TO, 0)
                .nested(immediate::DATA, |r| verdict.write(r)),
            Expression::Numgen {
                to,
                modulus,
                random,
                offset,
            } => register(r, numgen::TO, *to)
                .be32(numgen::MODULUS, *modulus)
                .be32(numgen::KIND, u32::from(*random))
                .be32(numgen::OFFSET, *offset),
            Expression::Jhash {
                from,
                len,
                to,
                modulus,
                seed,
                offset,
            } => {
                let mut r = register(register(r, hash::FROM, *from), hash::TO, *to)
                    .be32(hash::LEN, *len)
                    .be32(hash::MODULUS, *modulus);
                if *seed != 0 {
                    r = r.be32(hash::SEED, *seed);
                }
                // NFT_HASH_JENKINS
                r.be32(hash::OFFSET, *offset).be32(hash::KIND, 0)
            }
            Expression::Fib { to, result, flags } => register(r, fib::TO, *to)
                .be32(fib::RESULT, *result)
                .be32(fib::FLAGS, *flags),
            _ => r,
        }
    }

    /// Writes an expression that examines registers, or changes them.
    fn comparison(&self, r: Request) -> Request {
        match self {
            Expression::Compare { from, how, with } => {
                let r = register(r, cmp::FROM, *from).be32(cmp::OP, *how as u32);
                value(r, cmp::WITH, with)
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let r = register(register(r, bitwise::FROM, *from), bitwise::TO, *to)
                    .be32(bitwise::LEN, mask.len() as u32);
                value(value(r, bitwise::MASK, mask), bitwise::XOR, xor)
            }
            Expression::ToNetworkOrder {
                register: at,
                len,
                size,
            } => register(register(r, byteorder::FROM, *at), byteorder::TO, *at)
                .be32(byteorder::OP, byteorder::HOST_TO_NETWORK)
                .be32(byteorder::LEN, *len)
                .be32(byteorder::SIZE, *size),
            Expression::Lookup {
                set,
                from,
                inverted,
                data,
            } => {
                let mut r = register(r, lookup::FROM, *from);
                r = match data {
                    Some(LookupData::Register(to)) => register(r, lookup::TO, *to),
                    Some(LookupData::Verdict) => r.be32(lookup::TO, 0),
                    None => r,
                };
                r = r.text(lookup::SET, set);
                if *inverted {
                    r = r.be32(lookup::FLAGS, lookup::INVERTED);
                }
                r
            }
            _ => r,
        }
    }

    /// Writes an expression that does something with the packet or a set.
    fn action(&self, r: Request) -> Request {
        match self {
            Expression::Dnat {
                family,
                address,
                port,
            } => {
                let r = r.be32(nat::KIND, nat::DESTINATION);
                let r = register(r.be32(nat::FAMILY, *family), nat::ADDRESS, *address);
                optional(r, nat::PORT, *port)
            }
            Expression::Masquerade => r.be32(masq::FLAGS, masq::FULLY_RANDOM),
            Expression::Reject { kind, code } => {
                let r = r.be32(reject::KIND, *kind);
                r.attribute(reject::CODE, &[*code])
            }
            Expression::Dynset {
                set,
                key,
                data,
                timeout,
            } => optional(register(r, dynset::KEY, *key), dynset::DATA, *data)
                .be32(dynset::OP, dynset::UPDATE)
                .text(dynset::SET, set)
                .be64(dynset::TIMEOUT, timeout.as_millis() as u64),
            Expression::CountedBy { set, key, over } => register(r, dynset::KEY, *key)
                .be32(dynset::OP, dynset::ADD)
                .text(dynset::SET, set)
                .nested(dynset::EXPRESSION, |r| {
                    Expression::Connections { over: *over }.write(r)
                }),
            Expression::Connections { over } => r
                .be32(connlimit::COUNT, *over)
                .be32(connlimit::FLAGS, connlimit::OVER),
            Expression::Counter {
                packets: 0,
                bytes: 0,
            } => r,
            Expression::Counter { packets, bytes } => r
                .be64(counter::BYTES, *bytes)
                .be64(counter::PACKETS, *packets),
            Expression::Limit { rate } => r
                .be64(limit::RATE, (*rate).into())
                .be64(limit::UNIT, limit::SECOND)
                .be32(limit::BURST, *rate)
                .be32(limit::KIND, 0)
                .be32(limit::FLAGS, 0),
            _ => r,
        }
    }
}

fn register(r: Request, kind: u16, register: Register) -> Request {
    r.be32(kind, register.number())
}

fn optional(r: Request, kind: u16, given: Option<Register>) -> Request {
    match given {
        Some(given) => register(r, kind, given),
        None => r,
    }
}

fn value(r: Request, kind: u16, octets: &[u8]) -> Request {
    r.nested(kind, |r| r.attribute(VALUE, octets))
}

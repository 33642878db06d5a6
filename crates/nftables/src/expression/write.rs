//! Expressions as attributes.

use netlink::Request;

use super::{
    Access, Expression, LookupData, Range, Register,
    attributes::{
        DATA, ELEMENT, NAME, bitwise, byteorder, cmp, counter, ct, dynset, fib, hash, immediate,
        limit, lookup, masq, meta, nat, numgen, payload, range, redir, reject,
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
            Expression::Range { .. } => "range",
            Expression::Bitwise { .. } => "bitwise",
            Expression::ToNetworkOrder { .. } => "byteorder",
            Expression::Lookup { .. } => "lookup",
            Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
            Expression::Numgen { .. } => "numgen",
            Expression::Jhash { .. } => "hash",
            Expression::Fib { .. } => "fib",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade { .. } => "masq",
            Expression::Redirect { .. } => "redir",
            Expression::Reject { .. } => "reject",
            Expression::Dynset { .. } => "dynset",
            Expression::Counter { .. } => "counter",
            Expression::Limit(_) => "limit",
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
            | Expression::Range { .. }
            | Expression::Bitwise { .. }
            | Expression::ToNetworkOrder { .. }
            | Expression::Lookup { .. } => self.comparison(r),
            Expression::Nat { .. }
            | Expression::Masquerade { .. }
            | Expression::Redirect { .. }
            | Expression::Reject { .. }
            | Expression::Dynset { .. }
            | Expression::Counter { .. }
            | Expression::Limit(_) => self.action(r),
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
                accessed(r, *access, meta::TO, meta::FROM)
            }
            Expression::Ct {
                key,
                direction,
                access,
            } => {
                let r = accessed(r.be32(ct::KEY, *key), *access, ct::TO, ct::FROM);
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
            Expression::Range {
                from,
                inverted,
                low,
                high,
            } => {
                let r = register(r, range::FROM, *from).be32(range::OP, u32::from(*inverted));
                value(value(r, range::LOW, low), range::HIGH, high)
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
            Expression::Nat { of, family, range } => {
                let r = r.be32(nat::KIND, *of as u32);
                ranged(r.be32(nat::FAMILY, *family), range)
            }
            Expression::Masquerade { flags: 0 } => r,
            Expression::Masquerade { flags } => r.be32(masq::FLAGS, *flags),
            Expression::Redirect { port, flags } => {
                let r = optional(r, redir::PORT, *port);
                flagged(r, redir::FLAGS, *flags)
            }
            Expression::Reject { kind, code } => {
                let r = r.be32(reject::KIND, *kind);
                r.attribute(reject::CODE, &[*code])
            }
            Expression::Dynset {
                set,
                op,
                key,
                data,
                timeout,
                with,
            } => {
                let mut r = register(r, dynset::KEY, *key);
                r = optional(r, dynset::DATA, *data)
                    .be32(dynset::OP, *op as u32)
                    .text(dynset::SET, set);
                if let Some(timeout) = timeout {
                    r = r.be64(dynset::TIMEOUT, timeout.as_millis() as u64);
                }
                match &with[..] {
                    [] => r,
                    // Kernels before 5.11 know of one only.
                    [one] => r.nested(dynset::EXPRESSION, |r| one.write(r)),
                    many => r
                        .nested(dynset::EXPRESSIONS, |r| {
                            let each =
                                |r: Request, e: &Expression| r.nested(ELEMENT, |r| e.write(r));
                            many.iter().fold(r, each)
                        })
                        .be32(dynset::FLAGS, dynset::HAS_EXPRESSIONS),
                }
            }
            Expression::Counter {
                packets: 0,
                bytes: 0,
            } => r,
            Expression::Counter { packets, bytes } => r
                .be64(counter::BYTES, *bytes)
                .be64(counter::PACKETS, *packets),
            Expression::Limit(given) => r
                .be64(limit::RATE, given.rate)
                .be64(limit::UNIT, given.seconds)
                .be32(limit::BURST, given.burst)
                .be32(limit::KIND, 0)
                .be32(limit::FLAGS, if given.over { limit::OVER } else { 0 }),
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

fn flagged(r: Request, kind: u16, flags: u32) -> Request {
    match flags {
        0 => r,
        flags => r.be32(kind, flags),
    }
}

fn accessed(r: Request, access: Access, to: u16, from: u16) -> Request {
    match access {
        Access::Load(at) => register(r, to, at),
        Access::Store(at) => register(r, from, at),
    }
}

fn value(r: Request, kind: u16, octets: &[u8]) -> Request {
    r.nested(kind, |r| r.attribute(VALUE, octets))
}

fn ranged(r: Request, range: &Range) -> Request {
    let r = optional(r, nat::ADDRESS, range.address);
    let r = optional(r, nat::LAST_ADDRESS, range.last_address);
    let r = optional(r, nat::PORT, range.port);
    let r = optional(r, nat::LAST_PORT, range.last_port);
    flagged(r, nat::FLAGS, range.flags)
}

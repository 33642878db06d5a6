//! Compiles the statements of a rule into expressions, with the registers that `nft` would take, so
//! that `nft` lists them as the same statements.

use std::net::IpAddr;

use net::Family;

use super::{
    datatype::{ByteOrder, DataType},
    expression::{
        Access, Comparison, Expression, Header, LookupData, Range, Register, Translation,
    },
    field::{Field, len, load},
    statement::{Dynset, Mark, MarkValue, Reject, SetName, Statement, Target, Test},
};

/// Octets that a value which is no concatenation takes, as `nft` counts.
const SINGLE: usize = 16;
/// `NF_NAT_RANGE_PROTO_SPECIFIED` of `linux/netfilter/nf_nat.h`.
const PORT_GIVEN: u32 = 2;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` of `linux/netfilter/nf_nat.h`.
const FULLY_RANDOM: u32 = 16;
/// `NFT_META_MARK` and `NFT_CT_MARK`
const MARK: u32 = 3;
/// `NFT_META_NFTRACE` of `linux/netfilter/nf_tables.h`.
const NFTRACE: u32 = 12;

/// Translates statements to the expressions of the kernel.
pub(super) fn compile(statements: &[Statement]) -> Vec<Expression> {
    let mut out = Vec::with_capacity(2 * statements.len());
    for statement in statements {
        one(statement, &mut out);
    }
    out
}

fn one(statement: &Statement, out: &mut Vec<Expression>) {
    match statement {
        Statement::Match(field, test) => matched(field, test, out),
        Statement::In(key, set) => contained(key, set, Membership::In, out),
        Statement::NotIn(key, set) => contained(key, set, Membership::NotIn, out),
        Statement::VerdictMap(key, map) => {
            key_of(key, map, SINGLE, out);
            out.push(mapped(map, LookupData::Verdict));
        }
        Statement::Verdict(verdict) => out.push(Expression::Verdict(verdict.clone())),
        Statement::SetMark(of, value) => mark(*of, value, out),
        Statement::Dnat(family, target) => {
            translate(Translation::Destination, *family, target, out)
        }
        Statement::Snat(family, target) => translate(Translation::Source, *family, target, out),
        Statement::Masquerade { fully_random } => out.push(Expression::Masquerade {
            flags: if *fully_random { FULLY_RANDOM } else { 0 },
        }),
        Statement::Redirect(None) => out.push(Expression::Redirect {
            port: None,
            flags: 0,
        }),
        Statement::Redirect(Some(port)) => {
            let register = Register::at(0);
            out.push(Expression::immediate(register, &port.to_be_bytes()));
            out.push(Expression::Redirect {
                port: Some(register),
                flags: PORT_GIVEN,
            });
        }
        Statement::Reject(reject) => out.push(refusal(*reject)),
        Statement::Dynset(dynset) => change(dynset, out),
        Statement::Counter => out.push(Expression::Counter {
            packets: 0,
            bytes: 0,
        }),
        Statement::Limit(limit) => out.push(Expression::Limit(*limit)),
        Statement::Notrack => out.push(Expression::Notrack),
        Statement::BeginsTcp => begins_tcp(out),
        Statement::Trace => trace(out),
    }
}

/// The flags fin, syn, rst and ack of RFC 9293, in octet 13 of the header: syn alone.
fn begins_tcp(out: &mut Vec<Expression>) {
    let register = Register::at(0);
    out.push(Expression::Payload {
        header: Header::Transport,
        offset: 13,
        len: 1,
        to: register,
    });
    out.push(Expression::Bitwise {
        from: register,
        to: register,
        mask: [0x17].into(),
        xor: [0].into(),
    });
    out.push(Expression::Compare {
        from: register,
        how: Comparison::Equal,
        with: [0x02].into(),
    });
}

fn trace(out: &mut Vec<Expression>) {
    let register = Register::at(0);
    out.push(Expression::immediate(register, &[1]));
    out.push(Expression::Meta {
        key: NFTRACE,
        access: Access::Store(register),
    });
}

fn matched(field: &Field, test: &Test, out: &mut Vec<Expression>) {
    let register = Register::at(0);
    match test {
        Test::Prefix(ip, length) => {
            return prefix(field, *ip, *length, Comparison::Equal, out);
        }
        Test::NotPrefix(ip, length) => {
            return prefix(field, *ip, *length, Comparison::NotEqual, out);
        }
        _ => field.load(0, SINGLE, out),
    }
    let mut compare = |how, with: &[u8]| {
        out.push(Expression::Compare {
            from: register,
            how,
            with: with.into(),
        });
    };
    match test {
        Test::Is(octets) => compare(Comparison::Equal, octets),
        Test::IsNot(octets) => compare(Comparison::NotEqual, octets),
        Test::Within(low, high) => {
            compare(Comparison::AtLeast, low);
            compare(Comparison::AtMost, high);
        }
        Test::Outside(low, high) => out.push(Expression::Range {
            from: register,
            inverted: true,
            low: low[..].into(),
            high: high[..].into(),
        }),
        Test::Any(bits) => {
            out.push(masked(*bits, 0));
            out.push(Expression::Compare {
                from: register,
                how: Comparison::NotEqual,
                with: [0; 4].into(),
            });
        }
        Test::Prefix(..) | Test::NotPrefix(..) => {}
    }
}

/// A prefix of whole octets is compared without a mask, by loading less.
fn prefix(field: &Field, ip: IpAddr, length: u8, how: Comparison, out: &mut Vec<Expression>) {
    let mut octets = net::octets(&ip);
    let bits = usize::from(length).min(8 * octets.len());
    let mask: Vec<u8> = (0..octets.len())
        .map(|at| match bits.saturating_sub(8 * at) {
            0 => 0,
            some @ 1..=7 => !(0xff >> some),
            _ => 0xff,
        })
        .collect();
    for (octet, mask) in octets.iter_mut().zip(&mask) {
        *octet &= mask;
    }
    field.load(0, SINGLE, out);
    if let (Some(Expression::Payload { len, .. }), true) =
        (out.last_mut(), bits % 8 == 0 && bits > 0)
    {
        octets.truncate(bits / 8);
        *len = octets.len() as u32;
    } else {
        out.push(Expression::Bitwise {
            from: Register::at(0),
            to: Register::at(0),
            xor: vec![0; mask.len()].into(),
            mask: mask.into(),
        });
    }
    out.push(Expression::Compare {
        from: Register::at(0),
        how,
        with: octets.into(),
    });
}

/// `(register & mask) ^ xor` of the first register, 32 bits in host order.
fn masked(mask: u32, xor: u32) -> Expression {
    Expression::Bitwise {
        from: Register::at(0),
        to: Register::at(0),
        mask: mask.to_ne_bytes().into(),
        xor: xor.to_ne_bytes().into(),
    }
}

/// Loads a key from the first register on; from the octet `reserved` on, and
/// after the key, registers are free.
fn key_of(key: &[Field], set: &SetName, reserved: usize, out: &mut Vec<Expression>) {
    let free = reserved.max(len(key).next_multiple_of(4));
    let mut at = 0;
    for field in key {
        field.load(at, free, out);
        let of = field.data_type();
        // A value loaded in host order would be compared with ends of ranges in the wrong order.
        // One octet has no order; `nft` converts it, too.
        if set.ranges && key.len() > 1 && of.order() == ByteOrder::Host && of != DataType::IfName {
            let size = if of.octets() > 2 { 4 } else { 2 };
            out.push(Expression::ToNetworkOrder {
                register: Register::at(at),
                len: of.octets() as u32,
                size,
            });
        }
        at += of.padded();
    }
}

/// Whether a rule continues for members of a set, or for everything else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Membership {
    In,
    NotIn,
}

fn contained(key: &[Field], set: &SetName, membership: Membership, out: &mut Vec<Expression>) {
    let reserved = if key.len() > 1 { 0 } else { SINGLE };
    key_of(key, set, reserved, out);
    out.push(Expression::Lookup {
        set: set.name.clone(),
        from: Register::at(0),
        inverted: membership == Membership::NotIn,
        data: None,
    });
}

/// Looks up the data in `map` for the key in the first register.
fn mapped(map: &SetName, data: LookupData) -> Expression {
    Expression::Lookup {
        set: map.name.clone(),
        from: Register::at(0),
        inverted: false,
        data: Some(data),
    }
}

fn mark(of: Mark, value: &MarkValue, out: &mut Vec<Expression>) {
    let access = |access| match of {
        Mark::Packet => Expression::Meta { key: MARK, access },
        Mark::Connection => Expression::Ct {
            key: MARK,
            direction: None,
            access,
        },
    };
    let register = Register::at(0);
    let mut combine = |mask, xor| {
        out.push(access(Access::Load(register)));
        out.push(masked(mask, xor));
    };
    match value {
        MarkValue::Is(number) => {
            out.push(Expression::immediate(register, &number.to_ne_bytes()));
        }
        MarkValue::Or(bits) => combine(!bits, *bits),
        MarkValue::And(bits) => combine(*bits, 0),
        MarkValue::Xor(bits) => combine(u32::MAX, *bits),
        MarkValue::Of(field) => field.load(0, SINGLE, out),
    }
    out.push(access(Access::Store(register)));
}

fn translate(of: Translation, family: Family, target: &Target, out: &mut Vec<Expression>) {
    let mut range = Range {
        address: Some(Register::at(0)),
        ..Range::default()
    };
    match target {
        Target::To(ip, port) => {
            let octets = net::octets(ip);
            out.push(Expression::immediate(Register::at(0), &octets));
            if let Some(port) = port {
                let register = Register::at(SINGLE);
                out.push(Expression::immediate(register, &port.to_be_bytes()));
                range.port = Some(register);
                range.flags = PORT_GIVEN;
            }
        }
        Target::Map(key, map) => {
            // `nft` reserves room for the key in addition to that for the address.
            let concat = if key.len() > 1 { len(key) } else { 0 };
            key_of(key, map, SINGLE + concat, out);
            out.push(mapped(map, LookupData::Register(Register::at(0))));
            if let [address, _, ..] = &map.data[..] {
                range.port = Some(Register::at(address.padded()));
            }
        }
    }
    out.push(Expression::Nat {
        of,
        family: family.number().into(),
        range,
    });
}

/// `NFT_REJECT_ICMP_UNREACH` and `NFT_REJECT_TCP_RST`, with codes of
/// `linux/icmp.h` and `linux/icmpv6.h`.
fn refusal(reject: Reject) -> Expression {
    let (kind, code) = match reject {
        Reject::PortUnreachable(Family::V4) => (0, 3),
        Reject::PortUnreachable(Family::V6) => (0, 4),
        Reject::AdminProhibited(Family::V4) => (0, 13),
        Reject::AdminProhibited(Family::V6) => (0, 1),
        Reject::TcpReset => (1, 0),
    };
    Expression::Reject { kind, code }
}

fn change(dynset: &Dynset, out: &mut Vec<Expression>) {
    // `nft` 1.0.6 begins data at a multiple of 16 octets, and breaks off where
    // they have no room then.
    let mut data_at = len(&dynset.key).next_multiple_of(SINGLE);
    if data_at + len(&dynset.data) > Register::SPACE {
        data_at = len(&dynset.key).next_multiple_of(4);
    }
    let free = (data_at + len(&dynset.data)).next_multiple_of(SINGLE);
    load(&dynset.key, 0, free, out);
    let mut data = None;
    if !dynset.data.is_empty() {
        load(&dynset.data, data_at, free, out);
        data = Some(Register::at(data_at));
    }
    let counter = dynset.counter.then_some(Expression::Counter {
        packets: 0,
        bytes: 0,
    });
    let limit = dynset.limit.map(Expression::Limit);
    out.push(Expression::Dynset {
        set: dynset.set.name.clone(),
        op: dynset.op,
        key: Register::at(0),
        data,
        timeout: dynset.timeout,
        with: counter.into_iter().chain(limit).collect(),
    });
}

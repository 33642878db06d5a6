//! Compiles the statements of a rule into expressions, with the registers that `nft` would take, so
//! that `nft` lists them as the same statements.

use std::net::IpAddr;

use net::Family;

use super::{
    datatype::{ByteOrder, DataType},
    expression::{Access, Comparison, Expression, Header, LookupData, Register},
    field::{Field, len, load},
    statement::{Dynset, MarkValue, Reject, SetName, Statement, Test},
};

/// Octets that a value which is no concatenation takes, as `nft` counts.
const SINGLE: usize = 16;
/// `NFT_META_MARK` of `linux/netfilter/nf_tables.h`.
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
        Statement::SetMark(value) => mark(*value, out),
        Statement::Dnat(family, key, map) => translate(*family, key, map, out),
        Statement::Masquerade => out.push(Expression::Masquerade),
        Statement::Reject(reject) => out.push(refusal(*reject)),
        Statement::Dynset(dynset) => change(dynset, out),
        Statement::ConnectionsOver(over) => out.push(Expression::Connections { over: *over }),
        Statement::ConnectionsOfKeyOver(set, key, over) => {
            load(key, 0, len(key).next_multiple_of(SINGLE), out);
            out.push(Expression::CountedBy {
                set: set.name.clone(),
                key: Register::at(0),
                over: *over,
            });
        }
        Statement::Counter => out.push(Expression::Counter {
            packets: 0,
            bytes: 0,
        }),
        Statement::Limit(rate) => out.push(Expression::Limit { rate: *rate }),
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
    out.push(Expression::Immediate {
        to: register,
        octets: [1].into(),
    });
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

fn mark(value: MarkValue, out: &mut Vec<Expression>) {
    let access = |access| Expression::Meta { key: MARK, access };
    let register = Register::at(0);
    out.push(access(Access::Load(register)));
    out.push(match value {
        MarkValue::Or(bits) => masked(!bits, bits),
        MarkValue::Xor(bits) => masked(u32::MAX, bits),
    });
    out.push(access(Access::Store(register)));
}

fn translate(family: Family, key: &[Field], map: &SetName, out: &mut Vec<Expression>) {
    let address = Register::at(0);
    // `nft` reserves room for the key in addition to that for the address.
    let concat = if key.len() > 1 { len(key) } else { 0 };
    key_of(key, map, SINGLE + concat, out);
    out.push(mapped(map, LookupData::Register(address)));
    let port = match &map.data[..] {
        [address, _, ..] => Some(Register::at(address.padded())),
        _ => None,
    };
    out.push(Expression::Dnat {
        family: family.number().into(),
        address,
        port,
    });
}

/// `NFT_REJECT_ICMP_UNREACH` and `NFT_REJECT_TCP_RST`, with codes of
/// `linux/icmp.h` and `linux/icmpv6.h`.
fn refusal(reject: Reject) -> Expression {
    let (kind, code) = match reject {
        Reject::PortUnreachable(Family::V4) => (0, 3),
        Reject::PortUnreachable(Family::V6) => (0, 4),
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
    out.push(Expression::Dynset {
        set: dynset.set.name.clone(),
        key: Register::at(0),
        data,
        timeout: dynset.timeout,
    });
}

//! Compiles the statements of a rule into expressions, with the registers that `nft` would take, so
//! that `nft` lists them as the same statements.

use std::net::IpAddr;

use net::Family;

use super::{
    datatype::{ByteOrder, DataType},
    expression::{
        Comparison, Expression, Header, SPACE,
        attributes::{
            byteorder, connlimit, dynset, immediate, limit, lookup, masq, meta, nat, reject,
        },
        register,
    },
    field::{Field, len, load},
    statement::{Dynset, MarkValue, Reject, SetName, Statement, Test},
    verdict::{Datum, Verdict},
};

/// Octets that a value which is no concatenation takes, as `nft` counts.
const SINGLE: usize = 16;
/// `NFT_META_MARK` of `linux/netfilter/nf_tables.h`.
const MARK: u32 = 3;
/// `NFT_META_NFTRACE` of `linux/netfilter/nf_tables.h`.
const NFTRACE: u32 = 12;
/// `NFT_REG_VERDICT` of `linux/netfilter/nf_tables.h`.
const VERDICT: u32 = 0;

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
        Statement::In(key, set) => contained(key, set, true, out),
        Statement::NotIn(key, set) => contained(key, set, false, out),
        Statement::VerdictMap(key, map) => {
            key_of(key, map, SINGLE, out);
            out.push(lookup(map, Some(VERDICT)));
        }
        Statement::Verdict(verdict) => out.push(ending(verdict)),
        Statement::SetMark(value) => mark(*value, out),
        Statement::Dnat(family, key, map) => translate(*family, key, map, out),
        Statement::Masquerade => {
            let masquerade = Expression::new("masq");
            out.push(masquerade.be32(masq::FLAGS, masq::FULLY_RANDOM));
        }
        Statement::Reject(reject) => out.push(refusal(*reject)),
        Statement::Dynset(dynset) => change(dynset, out),
        Statement::ConnectionsOver(over) => out.push(connections(*over)),
        Statement::ConnectionsOfKeyOver(set, key, over) => {
            load(key, 0, len(key).next_multiple_of(SINGLE), out);
            out.push(
                Expression::new("dynset")
                    .be32(dynset::KEY, register(0))
                    .be32(dynset::OP, dynset::ADD)
                    .name_of(dynset::SET, &set.name)
                    .nested(dynset::EXPRESSION, connections(*over)),
            );
        }
        Statement::Counter => out.push(Expression::new("counter")),
        Statement::Limit(rate) => out.push(
            Expression::new("limit")
                .be64(limit::RATE, (*rate).into())
                .be64(limit::UNIT, limit::SECOND)
                .be32(limit::BURST, *rate)
                .be32(limit::KIND, 0)
                .be32(limit::FLAGS, 0),
        ),
        Statement::Notrack => out.push(Expression::new("notrack")),
        Statement::BeginsTcp => begins_tcp(out),
        Statement::Trace => trace(out),
    }
}

/// Ends with a verdict.
fn ending(verdict: &Verdict) -> Expression {
    Expression::new("immediate")
        .be32(immediate::TO, VERDICT)
        .datum(immediate::DATA, Datum::Verdict(verdict.clone()))
}

/// Counts the packet's connection until it has ended; continues if there are more than so many.
fn connections(over: u32) -> Expression {
    Expression::new("connlimit")
        .be32(connlimit::COUNT, over)
        .be32(connlimit::FLAGS, connlimit::OVER)
}

/// The flags fin, syn, rst and ack of RFC 9293, in octet 13 of the header: syn alone.
fn begins_tcp(out: &mut Vec<Expression>) {
    out.push(Expression::payload(Header::Transport, 13, 1, register(0)));
    out.push(Expression::bitwise(register(0), &[0x17], &[0]));
    out.push(Expression::compare(Comparison::Equal, &[0x02]));
}

fn trace(out: &mut Vec<Expression>) {
    out.push(
        Expression::new("immediate")
            .be32(immediate::TO, register(0))
            .datum(immediate::DATA, Datum::Value([1].into())),
    );
    out.push(Expression::meta(NFTRACE, meta::FROM, register(0)));
}

fn matched(field: &Field, test: &Test, out: &mut Vec<Expression>) {
    match test {
        Test::Prefix(ip, length) => {
            return prefix(field, *ip, *length, Comparison::Equal, out);
        }
        Test::NotPrefix(ip, length) => {
            return prefix(field, *ip, *length, Comparison::NotEqual, out);
        }
        _ => field.load(0, SINGLE, out),
    }
    match test {
        Test::Is(octets) => out.push(Expression::compare(Comparison::Equal, octets)),
        Test::IsNot(octets) => out.push(Expression::compare(Comparison::NotEqual, octets)),
        Test::Any(bits) => {
            out.push(masked(*bits, 0));
            out.push(Expression::compare(Comparison::NotEqual, &[0; 4]));
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
    match field.payload() {
        Some((header, offset, _)) if bits % 8 == 0 && bits > 0 => {
            octets.truncate(bits / 8);
            let len = octets.len() as u32;
            out.push(Expression::payload(header, offset, len, register(0)));
        }
        _ => {
            field.load(0, SINGLE, out);
            out.push(Expression::bitwise(
                register(0),
                &mask,
                &vec![0; mask.len()],
            ));
        }
    }
    out.push(Expression::compare(how, &octets));
}

/// `(register & mask) ^ xor` of the first register, 32 bits in host order.
fn masked(mask: u32, xor: u32) -> Expression {
    Expression::bitwise(register(0), &mask.to_ne_bytes(), &xor.to_ne_bytes())
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
        // One octet has no order: `nft` 1.0.6 converts it, too, which recent kernels, such as Linux
        // 6.12.117, refuse.
        let has_order = of.octets() > 1 && of != DataType::IfName;
        if set.ranges && key.len() > 1 && of.order() == ByteOrder::Host && has_order {
            let size = if of.octets() > 2 { 4 } else { 2 };
            out.push(
                Expression::new("byteorder")
                    .be32(byteorder::FROM, register(at))
                    .be32(byteorder::TO, register(at))
                    .be32(byteorder::OP, byteorder::HOST_TO_NETWORK)
                    .be32(byteorder::LEN, of.octets() as u32)
                    .be32(byteorder::SIZE, size),
            );
        }
        at += of.padded();
    }
}

/// Continues if `set` has the key, or if it does not.
fn contained(key: &[Field], set: &SetName, is_member: bool, out: &mut Vec<Expression>) {
    let reserved = if key.len() > 1 { 0 } else { SINGLE };
    key_of(key, set, reserved, out);
    let lookup = lookup(set, None);
    out.push(match is_member {
        true => lookup,
        false => lookup.be32(lookup::FLAGS, lookup::INVERTED),
    });
}

/// Looks up the key in the first register; loads its data from a map to a register.
fn lookup(set: &SetName, data: Option<u32>) -> Expression {
    let mut lookup = Expression::new("lookup").be32(lookup::FROM, register(0));
    if let Some(to) = data {
        lookup = lookup.be32(lookup::TO, to);
    }
    lookup.name_of(lookup::SET, &set.name)
}

fn mark(value: MarkValue, out: &mut Vec<Expression>) {
    out.push(Expression::meta(MARK, meta::TO, register(0)));
    out.push(match value {
        MarkValue::Or(bits) => masked(!bits, bits),
        MarkValue::Xor(bits) => masked(u32::MAX, bits),
    });
    out.push(Expression::meta(MARK, meta::FROM, register(0)));
}

fn translate(family: Family, key: &[Field], map: &SetName, out: &mut Vec<Expression>) {
    // `nft` reserves room for the key in addition to that for the address.
    let concat = if key.len() > 1 { len(key) } else { 0 };
    key_of(key, map, SINGLE + concat, out);
    out.push(lookup(map, Some(register(0))));
    let mut translation = Expression::new("nat")
        .be32(nat::KIND, nat::DESTINATION)
        .be32(nat::FAMILY, family.number().into())
        .be32(nat::ADDRESS, register(0));
    if let [address, _, ..] = &map.data[..] {
        translation = translation.be32(nat::PORT, register(address.padded()));
    }
    out.push(translation);
}

/// `NFT_REJECT_ICMP_UNREACH` and `NFT_REJECT_TCP_RST`, with codes of
/// `linux/icmp.h` and `linux/icmpv6.h`.
fn refusal(reject: Reject) -> Expression {
    let (kind, code) = match reject {
        Reject::PortUnreachable(Family::V4) => (0, 3),
        Reject::PortUnreachable(Family::V6) => (0, 4),
        Reject::TcpReset => (1, 0),
    };
    Expression::new("reject")
        .be32(reject::KIND, kind)
        .octets(reject::CODE, &[code])
}

fn change(dynset: &Dynset, out: &mut Vec<Expression>) {
    // `nft` 1.0.6 begins data at a multiple of 16 octets, and breaks off where
    // they have no room then.
    let mut data_at = len(&dynset.key).next_multiple_of(SINGLE);
    if data_at + len(&dynset.data) > SPACE {
        data_at = len(&dynset.key).next_multiple_of(4);
    }
    let free = (data_at + len(&dynset.data)).next_multiple_of(SINGLE);
    load(&dynset.key, 0, free, out);
    let mut change = Expression::new("dynset").be32(dynset::KEY, register(0));
    if !dynset.data.is_empty() {
        load(&dynset.data, data_at, free, out);
        change = change.be32(dynset::DATA, register(data_at));
    }
    out.push(
        change
            .be32(dynset::OP, dynset::UPDATE)
            .name_of(dynset::SET, &dynset.set.name)
            .be64(dynset::TIMEOUT, dynset.timeout.as_millis() as u64),
    );
}

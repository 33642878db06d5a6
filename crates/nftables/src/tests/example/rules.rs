//! Chains of the example and their rules.

use std::{sync::Arc, time::Duration};

use net::Family;

use super::{super::super::*, Sets, ip, service, slot, with};

fn number(number: u32) -> Vec<u8> {
    Value::Number(number).octets()
}

/// Chains and their rules.
pub(in super::super) fn chains(family: Family, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let dnat = |key: Vec<Field>| {
        let target = Target::Map(key, (&*sets.endpoints).into());
        Rule::new([Statement::Dnat(family, target)])
    };
    let jhash = Field::Jhash(Jhash {
        of: vec![Field::SourceAddress(family), Field::SourcePort],
        modulus: 2,
        seed: 7,
        offset: 0,
    });
    let one_jhash = Field::Jhash(Jhash {
        of: vec![Field::SourceAddress(family)],
        modulus: 2,
        seed: 0,
        offset: 1,
    });
    let jump = |chain: &str| Rule::new([Statement::Verdict(Verdict::Jump(chain.into()))]);
    let prerouting = Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, -100);
    let mut forward = Chain::base("forward", ChainType::Filter, Hook::Forward, -10);
    forward.base.as_mut().unwrap().policy = Policy::Drop;
    vec![
        (
            Chain::new("pick-2"),
            vec![dnat(with(service(family), slot(true, 2)))],
        ),
        (
            Chain::new("pick-2-rr"),
            vec![dnat(with(service(family), slot(false, 2)))],
        ),
        (
            Chain::new("pick-2-sh").commented("by the client's address"),
            match family {
                Family::V4 => vec![
                    dnat(with(service(family), jhash)),
                    dnat(with(service(family), one_jhash)),
                ],
                // With its port the hash needs more registers than there are.
                Family::V6 => vec![dnat(with(service(family), one_jhash))],
            },
        ),
        (Chain::new("services"), services(family, sets)),
        (prerouting, vec![jump("services"), jump("several")]),
        (
            Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, 100),
            postrouting(family, sets),
        ),
        (Chain::new("several"), several(family, sets)),
        (forward, filter(family, sets)),
        (
            Chain::base("raw", ChainType::Filter, Hook::Prerouting, -300),
            vec![Rule::new([Statement::Notrack])],
        ),
    ]
}

fn services(family: Family, sets: &Sets) -> Vec<Rule> {
    let vmap = |map: &Arc<Set>, key| Statement::VerdictMap(key, (&**map).into());
    vec![
        Rule::new([vmap(&sets.services, service(family))]),
        Rule::new([
            Statement::In(
                with(service(family), Field::SourceAddress(family)),
                (&*sets.ranges).into(),
            ),
            Statement::Verdict(Verdict::Return),
        ])
        .commented("callers that may"),
        Rule::new([
            Statement::NotIn(vec![Field::SourceAddress(family)], (&*sets.networks).into()),
            Statement::Verdict(Verdict::Continue),
        ]),
        Rule::new([
            Statement::Match(
                Field::Fib(Fib {
                    source: false,
                    input: false,
                }),
                Test::Is(number(2)),
            ),
            vmap(
                &sets.node_ports,
                vec![Field::Meta(Meta::L4Proto), Field::DestinationPort],
            ),
        ]),
        Rule::new([Statement::SetMark(Mark::Packet, MarkValue::Or(0x4000))]),
    ]
}

fn postrouting(family: Family, sets: &Sets) -> Vec<Rule> {
    let hairpin = vec![
        Field::SourceAddress(family),
        Field::DestinationAddress(family),
    ];
    vec![
        Rule::new([
            Statement::Match(
                Field::Masked(Box::new(Field::Meta(Meta::Mark)), 0x4000),
                Test::Is(number(0x4000)),
            ),
            Statement::Counter,
            Statement::Masquerade { fully_random: true },
        ]),
        Rule::new([
            Statement::In(hairpin, (&*sets.hairpin).into()),
            Statement::Masquerade {
                fully_random: false,
            },
        ]),
        Rule::new([Statement::Snat(family, Target::To(ip(family, 8), None))]),
    ]
}

fn several(family: Family, sets: &Sets) -> Vec<Rule> {
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let to = |port| Target::To(ip(family, 5), port);
    let single = Dynset {
        op: DynsetOp::Update,
        set: (&*sets.affinity).into(),
        key: vec![Field::SourceAddress(family), Field::DestinationPort],
        timeout: None,
        data: vec![Field::DestinationAddress(family), Field::DestinationPort],
        counter: false,
        limit: None,
    };
    let affinity = Target::Map(single.key.clone(), (&*sets.affinity).into());
    let mut rules = vec![
        Rule::new([tcp.clone(), Statement::Dnat(family, to(Some(80)))]),
        Rule::new([Statement::Dnat(family, to(None))]),
        Rule::new([tcp.clone(), Statement::Redirect(Some(8080))]),
        Rule::new([Statement::Redirect(None)]),
        Rule::new([tcp, Statement::Dnat(family, affinity)]),
    ];
    if family == Family::V4 {
        // `nft` 1.0.6 breaks off where key and data take more than 32 octets
        // and one of them no multiple of 16.
        rules.push(Rule::new([Statement::Dynset(single.clone())]));
        rules.push(Rule::new([Statement::Dynset(Dynset {
            timeout: Some(Duration::from_secs(30)),
            ..single
        })]));
    }
    rules
}

fn filter(family: Family, sets: &Sets) -> Vec<Rule> {
    let accept = || Statement::Verdict(Verdict::Accept);
    let when = |field, test| Rule::new([Statement::Match(field, test), accept()]);
    let ct = |ct| Field::Ct(ct, None);
    let original = |ct| Field::Ct(ct, Some(Direction::Original));
    let port = |number: u16| number.to_be_bytes().to_vec();
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let (network, odd) = match family {
        Family::V4 => (ip(family, 0), 15),
        Family::V6 => (ip(family, 0), 9),
    };
    let mut rules = vec![
        when(ct(Ct::State), Test::Any(2 | 4)),
        when(ct(Ct::State), Test::Any(1)),
        when(ct(Ct::Status), Test::Any(32)),
        when(ct(Ct::Direction), Test::Is(vec![1])),
        when(ct(Ct::Mark), Test::Is(number(7))),
        when(
            original(Ct::DestinationAddress(family)),
            Test::Is(Value::Ip(ip(family, 1)).octets()),
        ),
        Rule::new([
            tcp,
            Statement::Match(original(Ct::DestinationPort), Test::Is(port(80))),
            accept(),
        ]),
        when(
            Field::SourceAddress(family),
            Test::IsNot(Value::Ip(ip(family, 1)).octets()),
        ),
        when(Field::SourceAddress(family), Test::Prefix(network, 8)),
        when(Field::SourceAddress(family), Test::NotPrefix(network, 16)),
        when(
            Field::DestinationAddress(family),
            Test::Prefix(network, odd),
        ),
        when(Field::DestinationPort, Test::Is(port(80))),
        when(Field::DestinationPort, Test::Within(port(1000), port(2000))),
        when(
            Field::DestinationPort,
            Test::Outside(port(1000), port(2000)),
        ),
        when(
            Field::Masked(Box::new(Field::Meta(Meta::Mark)), 0xff),
            Test::IsNot(number(0x10)),
        ),
        when(
            Field::Meta(Meta::InputName),
            Test::Is(Value::Name("lo".to_owned()).octets()),
        ),
        when(
            Field::Meta(Meta::OutputName),
            Test::IsNot(Value::Name("lo".to_owned()).octets()),
        ),
        when(
            Field::Fib(Fib {
                source: true,
                input: true,
            }),
            Test::IsNot(number(1)),
        ),
        Rule::new([
            Statement::In(vec![Field::Meta(Meta::InputName)], (&*sets.links).into()),
            accept(),
        ]),
        Rule::new([
            Statement::In(vec![Field::SourceAddress(family)], (&*sets.counted).into()),
            Statement::Counter,
            Statement::Verdict(Verdict::Drop),
        ]),
    ];
    rules.extend(marks());
    rules.extend(limits(family, sets));
    rules
}

/// Rules that set marks.
fn marks() -> Vec<Rule> {
    vec![
        Rule::new([Statement::SetMark(Mark::Connection, MarkValue::Is(3))]),
        Rule::new([Statement::SetMark(Mark::Connection, MarkValue::Or(0x10))]),
        Rule::new([Statement::SetMark(
            Mark::Packet,
            MarkValue::And(0xffff_bfff),
        )]),
        Rule::new([Statement::SetMark(Mark::Packet, MarkValue::Xor(1))]),
        Rule::new([Statement::SetMark(
            Mark::Connection,
            MarkValue::Of(Field::Meta(Meta::Mark)),
        )]),
        Rule::new([Statement::SetMark(
            Mark::Packet,
            MarkValue::Of(Field::Ct(Ct::Mark, None)),
        )]),
    ]
}

/// Rules that limit and refuse.
fn limits(family: Family, sets: &Sets) -> Vec<Rule> {
    let accept = Statement::Verdict(Verdict::Accept);
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let limit = |over| Limit {
        rate: 10,
        seconds: 60,
        burst: 5,
        over,
    };
    let limited = |counter, limit, op| {
        Rule::new([Statement::Dynset(Dynset {
            op,
            set: (&*sets.limited).into(),
            key: vec![Field::SourceAddress(family)],
            timeout: Some(Duration::from_millis(1500)),
            data: Vec::new(),
            counter,
            limit,
        })])
    };
    vec![
        Rule::new([Statement::Limit(limit(false)), accept]),
        Rule::new([
            Statement::Limit(limit(true)),
            Statement::Verdict(Verdict::Drop),
        ]),
        limited(false, None, DynsetOp::Add),
        limited(true, None, DynsetOp::Update),
        limited(true, Some(limit(true)), DynsetOp::Update),
        Rule::new([Statement::Reject(Reject::PortUnreachable(family))]),
        Rule::new([Statement::Reject(Reject::AdminProhibited(family))]),
        Rule::new([tcp, Statement::Reject(Reject::TcpReset)]),
    ]
}

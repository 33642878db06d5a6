//! Chains of the example and their rules.

use std::{sync::Arc, time::Duration};

use net::Family;

use super::{super::super::*, Sets, ip, service, slot, with};

fn number(number: u32) -> Vec<u8> {
    Value::Number(number).octets()
}

/// Chains and their rules.
pub(in super::super) fn chains(family: Family, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let dnat =
        |key: Vec<Field>| Rule::new([Statement::Dnat(family, key, (&*sets.endpoints).into())]);
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
            Statement::Match(Field::Fib(Fib::Destination), Test::Is(number(2))),
            vmap(
                &sets.node_ports,
                vec![Field::Meta(Meta::L4Proto), Field::DestinationPort],
            ),
        ]),
        Rule::new([Statement::SetMark(MarkValue::Or(0x4000))]),
        Rule::new([Statement::SetMark(MarkValue::Xor(1))]),
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
            Statement::Masquerade,
        ]),
        Rule::new([
            Statement::In(hairpin, (&*sets.hairpin).into()),
            Statement::Masquerade,
        ]),
    ]
}

fn several(family: Family, sets: &Sets) -> Vec<Rule> {
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let single = Dynset {
        set: (&*sets.affinity).into(),
        key: vec![Field::SourceAddress(family), Field::DestinationPort],
        timeout: Duration::from_secs(30),
        data: vec![Field::DestinationAddress(family), Field::DestinationPort],
    };
    let affinity = Statement::Dnat(family, single.key.clone(), (&*sets.affinity).into());
    let mut rules = vec![Rule::new([tcp, affinity])];
    if family == Family::V4 {
        // `nft` 1.0.6 breaks off where key and data take more than 32 octets
        // and one of them no multiple of 16.
        rules.push(Rule::new([Statement::Dynset(single)]));
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
        when(
            Field::Masked(Box::new(Field::Meta(Meta::Mark)), 0xff),
            Test::IsNot(number(0x10)),
        ),
        when(
            Field::Meta(Meta::InputName),
            Test::Is(Value::Name("lo".to_owned()).octets()),
        ),
        when(
            Field::Meta(Meta::InputName),
            Test::IsNot(Value::Name("lo".to_owned()).octets()),
        ),
        when(Field::Fib(Fib::Source), Test::IsNot(number(1))),
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
    rules.extend(limits(family, sets));
    rules
}

/// Rules that limit and refuse.
fn limits(family: Family, sets: &Sets) -> Vec<Rule> {
    let accept = Statement::Verdict(Verdict::Accept);
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let limited = Dynset {
        set: (&*sets.limited).into(),
        key: vec![Field::SourceAddress(family)],
        timeout: Duration::from_millis(1500),
        data: Vec::new(),
    };
    vec![
        Rule::new([Statement::Limit(10), accept]),
        Rule::new([Statement::Dynset(limited)]),
        Rule::new([
            Statement::ConnectionsOfKeyOver(
                (&*sets.connections).into(),
                vec![Field::SourceAddress(family)],
                5,
            ),
            Statement::Counter,
            Statement::Verdict(Verdict::Drop),
        ]),
        Rule::new([
            Statement::ConnectionsOver(1000),
            Statement::Verdict(Verdict::Drop),
        ]),
        Rule::new([Statement::Reject(Reject::PortUnreachable(family))]),
        Rule::new([tcp.clone(), Statement::Reject(Reject::TcpReset)]),
        Rule::new([tcp, Statement::BeginsTcp, Statement::Trace]),
    ]
}

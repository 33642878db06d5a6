//! A table with one of everything that can be sent, which other tests load,
//! read and compare.

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::super::*;
use crate::net::Family;

pub(super) const TABLE: &str = "tripod-test";

pub(super) fn ip(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 96, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn address_type(family: Family) -> DataType {
    match family {
        Family::V4 => DataType::Ipv4,
        Family::V6 => DataType::Ipv6,
    }
}

pub(super) fn service(family: Family) -> Vec<Field> {
    vec![
        Field::DestinationAddress(family),
        Field::Meta(Meta::L4Proto),
        Field::DestinationPort,
    ]
}

fn endpoint(family: Family) -> Vec<Field> {
    vec![Field::DestinationAddress(family), Field::DestinationPort]
}

fn service_types(family: Family) -> Vec<DataType> {
    vec![address_type(family), DataType::Protocol, DataType::Port]
}

pub(super) fn service_key(family: Family, last: u8, port: u16) -> Vec<Value> {
    let ip = Value::Ip(ip(family, last));
    vec![ip, Value::Protocol(6), Value::Port(port)]
}

fn slot(random: bool, modulus: u32) -> Field {
    Field::Numgen(Numgen {
        random,
        modulus,
        offset: 0,
    })
}

fn with(mut fields: Vec<Field>, last: Field) -> Vec<Field> {
    fields.push(last);
    fields
}

/// The sets of the example.
pub(super) struct Sets {
    pub endpoints: Arc<Set>,
    pub services: Arc<Set>,
    ranges: Arc<Set>,
    networks: Arc<Set>,
    pub hairpin: Arc<Set>,
    affinity: Arc<Set>,
    limited: Arc<Set>,
    links: Arc<Set>,
    marks: Arc<Set>,
    counted: Arc<Set>,
    node_ports: Arc<Set>,
}

impl Sets {
    pub(super) fn new(family: Family) -> Sets {
        let of = address_type(family);
        let values = |fields| Data::Values(Type::Of(fields));
        let mut ranges = service_types(family);
        ranges.push(of);
        Sets {
            endpoints: Arc::new(Set::map(
                "endpoints",
                Type::Of(with(service(family), slot(true, 5))),
                values(endpoint(family)),
            )),
            services: Arc::new(Set {
                comment: Some(Comment::new("all addresses of Services")),
                ..Set::map(
                    "services",
                    Type::Named(service_types(family)),
                    Data::Verdict,
                )
            }),
            ranges: Arc::new(Set {
                interval: true,
                ..Set::new("ranges", Type::Named(ranges))
            }),
            networks: Arc::new(Set {
                interval: true,
                ..Set::new("networks", Type::Named(vec![of]))
            }),
            hairpin: Arc::new(Set::new("hairpin", Type::Named(vec![of, of]))),
            affinity: Arc::new(Set {
                dynamic: true,
                timeout: Some(Duration::from_secs(10_800)),
                size: Some(65_536),
                ..Set::map(
                    "affinity",
                    Type::Of(vec![Field::SourceAddress(family), Field::DestinationPort]),
                    values(endpoint(family)),
                )
            }),
            limited: Arc::new(Set {
                dynamic: true,
                timeouts: true,
                size: Some(1000),
                ..Set::new("limited", Type::Named(vec![of]))
            }),
            links: Arc::new(Set::new("links", Type::Named(vec![DataType::IfName]))),
            marks: Arc::new(Set::map(
                "marks",
                Type::Of(vec![Field::Meta(Meta::L4Proto)]),
                values(vec![Field::Meta(Meta::Mark)]),
            )),
            counted: Arc::new(Set {
                counter: true,
                ..Set::new("counted", Type::Named(vec![of]))
            }),
            node_ports: Arc::new(Set {
                interval: true,
                ..Set::map(
                    "node-ports",
                    Type::Named(vec![DataType::Protocol, DataType::Port]),
                    Data::Verdict,
                )
            }),
        }
    }

    pub(super) fn all(&self) -> [&Arc<Set>; 11] {
        [
            &self.endpoints,
            &self.services,
            &self.ranges,
            &self.networks,
            &self.hairpin,
            &self.affinity,
            &self.limited,
            &self.links,
            &self.marks,
            &self.counted,
            &self.node_ports,
        ]
    }

    /// Elements of each.
    pub(super) fn elements(&self, family: Family) -> Vec<(Arc<Set>, Vec<Element>)> {
        let one = |last| concat(&[Value::Ip(ip(family, last))]);
        let key = |last, port| concat(&service_key(family, last, port));
        let slot = |number| {
            let mut key = service_key(family, 1, 80);
            key.push(Value::Number(number));
            concat(&key)
        };
        let to = |last| {
            let pair = concat(&[Value::Ip(ip(family, last)), Value::Port(8080)]);
            Datum::Value(pair.into())
        };
        let goto = Datum::Verdict(Verdict::Goto("pick-2".into()));
        let (first, last) = match family {
            Family::V4 => ([192, 168, 1, 0].into(), [192, 168, 1, 77].into()),
            Family::V6 => (
                IpAddr::from([0xfd01, 0, 0, 0, 0, 0, 0, 0]),
                IpAddr::from([0xfd01, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff]),
            ),
        };
        let range = |from: Value, to: Value| {
            let mut keys = [service_key(family, 1, 443), service_key(family, 1, 443)];
            keys[0].push(from);
            keys[1].push(to);
            Element::range(concat(&keys[0]), concat(&keys[1]))
        };
        let port = |number| concat(&[Value::Protocol(17), Value::Port(number)]);
        vec![
            (
                Arc::clone(&self.endpoints),
                vec![Element::with(slot(0), to(5)), Element::with(slot(1), to(6))],
            ),
            (
                Arc::clone(&self.services),
                vec![
                    Element::with(key(1, 80), goto.clone()).commented("default/web:http"),
                    Element::with(key(2, 80), Datum::Verdict(Verdict::Drop)),
                ],
            ),
            (
                Arc::clone(&self.ranges),
                vec![
                    range(Value::Ip(first), Value::Ip(last)).commented("default/web:https"),
                    range(Value::Ip(ip(family, 9)), Value::Ip(ip(family, 9))),
                ]
                .into_iter()
                .map(|mut element| {
                    element.end.take_if(|end| *end == element.key);
                    element
                })
                .collect(),
            ),
            (
                Arc::clone(&self.networks),
                vec![
                    Element::new(one(7)),
                    Element::range(concat(&[Value::Ip(first)]), concat(&[Value::Ip(last)])),
                ],
            ),
            (
                Arc::clone(&self.hairpin),
                vec![Element::new(concat(&[
                    Value::Ip(ip(family, 5)),
                    Value::Ip(ip(family, 5)),
                ]))],
            ),
            (
                Arc::clone(&self.limited),
                vec![Element {
                    timeout: Some(Duration::from_secs(3600)),
                    ..Element::new(one(3)).commented("for an hour")
                }],
            ),
            (
                Arc::clone(&self.links),
                vec![Element::new(concat(&[Value::Name("lo".to_owned())]))],
            ),
            (
                Arc::clone(&self.marks),
                vec![Element::with(
                    concat(&[Value::Protocol(132)]),
                    Datum::Value(concat(&[Value::Number(0x4000)]).into()),
                )],
            ),
            (Arc::clone(&self.counted), vec![Element::new(one(4))]),
            (
                Arc::clone(&self.node_ports),
                vec![Element {
                    end: Some(port(32_767).into()),
                    ..Element::with(port(30_000), Datum::Verdict(Verdict::Return))
                }],
            ),
        ]
    }
}

pub(super) fn number(number: u32) -> Vec<u8> {
    Value::Number(number).octets()
}

/// Chains and their rules.
pub(super) fn chains(family: Family, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
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
    let hairpin = vec![
        Field::SourceAddress(family),
        Field::DestinationAddress(family),
    ];
    let prerouting = Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, -100);
    let mut forward = Chain::base("forward", ChainType::Filter, Hook::Forward, -10);
    forward.base.as_mut().unwrap().policy = Policy::Drop;
    let vmap = |map: &Arc<Set>, key| Statement::VerdictMap(key, (&**map).into());
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
        (
            Chain::new("services"),
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
            ],
        ),
        (prerouting, vec![jump("services"), jump("several")]),
        (
            Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, 100),
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
            ],
        ),
        (Chain::new("several"), several(family, sets)),
        (forward, filter(family, sets)),
        (
            Chain::base("raw", ChainType::Filter, Hook::Prerouting, -300),
            vec![Rule::new([Statement::Notrack])],
        ),
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
    let limit = |over| Limit {
        rate: 10,
        seconds: 60,
        burst: 5,
        over,
    };
    let port = |number: u16| number.to_be_bytes().to_vec();
    let tcp = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(vec![6]));
    let (network, odd) = match family {
        Family::V4 => (ip(family, 0), 15),
        Family::V6 => (ip(family, 0), 9),
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
            tcp.clone(),
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
            MarkValue::Of(ct(Ct::Mark)),
        )]),
        Rule::new([Statement::Limit(limit(false)), accept()]),
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

/// The table, in one transaction.
pub(super) fn whole(family: Family) -> Transaction {
    let mut table = Table::new(family, TABLE);
    table.comment = Some(Comment::new("made by a test"));
    let mut transaction = Transaction::new(table);
    transaction.add_table();
    let sets = Sets::new(family);
    let chains = chains(family, &sets);
    for (chain, _) in &chains {
        transaction.add_chain(chain.clone());
    }
    for set in sets.all() {
        transaction.add_set(set);
    }
    for (set, elements) in sets.elements(family) {
        transaction.add_elements(&set, elements);
    }
    for (chain, rules) in chains {
        for rule in rules {
            transaction.add_rule(&chain.name, rule);
        }
    }
    transaction
}

//! A table with one of everything that can be sent, which other tests load,
//! read and compare.

mod rules;

use std::{net::IpAddr, sync::Arc, time::Duration};

use net::Family;
pub(super) use rules::chains;

use super::super::*;

pub(super) const TABLE: &str = "tripod-test";

pub(super) fn ip(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, 96, 0, last].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)].into(),
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
    vec![
        DataType::address(family),
        DataType::Protocol,
        DataType::Port,
    ]
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
    connections: Arc<Set>,
    links: Arc<Set>,
    marks: Arc<Set>,
    counted: Arc<Set>,
    node_ports: Arc<Set>,
}

impl Sets {
    pub(super) fn new(family: Family) -> Sets {
        let of = DataType::address(family);
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
                timeouts: true,
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
            connections: Arc::new(Set {
                dynamic: true,
                size: Some(1000),
                ..Set::new("connections", Type::Named(vec![of]))
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

    pub(super) fn all(&self) -> [&Arc<Set>; 12] {
        [
            &self.endpoints,
            &self.services,
            &self.ranges,
            &self.networks,
            &self.hairpin,
            &self.affinity,
            &self.limited,
            &self.connections,
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
        let port = |number| concat(&[Value::Protocol(17), Value::Port(number)]);
        let mut elements = self.ranges(family);
        elements.extend([
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
        ]);
        elements
    }

    /// Elements of the sets of ranges.
    fn ranges(&self, family: Family) -> Vec<(Arc<Set>, Vec<Element>)> {
        let (first, last) = match family {
            Family::V4 => ([192, 168, 1, 0].into(), [192, 168, 1, 77].into()),
            Family::V6 => (
                IpAddr::from([0xfd01, 0, 0, 0, 0, 0, 0, 0]),
                IpAddr::from([0xfd01, 0, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff]),
            ),
        };
        let callers = |from: IpAddr, to: IpAddr| {
            let key = |ip| {
                let mut key = service_key(family, 1, 443);
                key.push(Value::Ip(ip));
                concat(&key)
            };
            Element::range(key(from), key(to))
        };
        let mut single = callers(ip(family, 9), ip(family, 9));
        single.end = None;
        let callers = callers(first, last).commented("default/web:https");
        let network = Element::range(concat(&[Value::Ip(first)]), concat(&[Value::Ip(last)]));
        let one = Element::new(concat(&[Value::Ip(ip(family, 7))]));
        vec![
            (Arc::clone(&self.ranges), vec![callers, single]),
            (Arc::clone(&self.networks), vec![one, network]),
        ]
    }
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

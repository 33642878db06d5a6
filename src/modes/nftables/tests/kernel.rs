//! Tests on this machine's kernel.

use std::{process::Command, sync::Arc};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::{
    super::{
        diff::TABLE,
        execute::FamilyTable,
        plan::{Options, SetId, Sets},
    },
    world::{any_port, exposed, on, service, sticky},
};
use crate::{
    kernel::{
        namespace::in_namespace,
        nftables::{Contents, Datum, Element, Rules, Table, Transaction, Value, concat},
    },
    net::Family,
    services::{Changes, ServiceMap, ServicePort},
};

const FAMILY: Family = Family::V4;

fn full() -> Changes {
    Changes {
        full: true,
        ..Changes::default()
    }
}

fn changed(ports: &[&ServicePort]) -> Changes {
    Changes {
        ports: ports.iter().map(|port| port.name.clone()).collect(),
        ..Changes::default()
    }
}

fn map(ports: &[ServicePort]) -> ServiceMap {
    ports.iter().cloned().collect()
}

fn contents(family: Family) -> Contents {
    let mut rules = Rules::open().unwrap();
    rules.contents(family, TABLE).unwrap().unwrap()
}

/// What is in the table, whatever the order, and whichever slot an endpoint has.
fn summary(family: Family) -> Vec<String> {
    let contents = contents(family);
    let mut lines = Vec::new();
    for chain in contents.chains {
        lines.push(format!("{:?}", chain.chain));
    }
    for rule in contents.rules {
        lines.push(format!("{} {:?}", rule.chain, rule.expressions));
    }
    for (listed, elements) in contents.sets {
        for element in elements {
            let mut element = element.comparable();
            if listed.set.name.ends_with("endpoints") {
                // The data come without the slot, and the slots without data.
                let data = element.data.take();
                let frontend = element.key.len() - 4;
                lines.push(format!(
                    "{} {:?} {data:?}",
                    listed.set.name,
                    &element.key[..frontend]
                ));
            }
            lines.push(format!("{} {element:?}", listed.set.name));
        }
    }
    lines.sort();
    lines
}

#[test]
fn random_steps_leave_what_a_fresh_table_has() {
    in_namespace(|| {
        let mut runner = TestRunner::deterministic();
        for family in Family::ALL {
            let mut table = FamilyTable::open(family).unwrap();
            let mut ports: Vec<Option<ServicePort>> = vec![None; 6];
            for step in 0..60 {
                let strategy = (0u16..6, prop::option::weighted(0.8, Just(()))).prop_flat_map(
                    move |(number, there)| (Just((number, there)), any_port(family, number)),
                );
                let ((number, there), port) = strategy.new_tree(&mut runner).unwrap().current();
                ports[usize::from(number)] = there.map(|()| port);
                let desired: Vec<ServicePort> = ports.iter().flatten().cloned().collect();
                let changes = changed(&[&service(family, number)]);
                let options = Options::usual(family);
                table
                    .sync(&map(&desired), &changes, options.clone())
                    .unwrap();
                assert!(table.failed().is_empty(), "{:?}", table.failed());
                if step % 10 == 9 {
                    let found = summary(family);
                    let mut fresh = FamilyTable::open(family).unwrap();
                    fresh.sync(&map(&desired), &full(), options).unwrap();
                    assert_eq!(found, summary(family));
                    table.externally_modified();
                }
            }
        }
    });
}

#[test]
fn a_table_that_another_process_changed_is_written_anew() {
    in_namespace(|| {
        let mut table = FamilyTable::open(FAMILY).unwrap();
        let ports = [exposed(on(FAMILY, 1, &[1, 3]))];
        table
            .sync(&map(&ports), &full(), Options::usual(FAMILY))
            .unwrap();
        let whole = summary(FAMILY);
        for command in [
            "nft flush ruleset",
            "nft flush table ip tripod",
            "nft flush map ip tripod endpoints",
            "nft add rule ip tripod services drop",
            "nft delete element ip tripod services { 10.96.0.1 . tcp . 80 }",
        ] {
            let status = Command::new("sh").args(["-c", command]).status().unwrap();
            assert!(status.success(), "{command}");
            table.externally_modified();
            table
                .sync(&map(&ports), &full(), Options::usual(FAMILY))
                .unwrap();
            assert_eq!(summary(FAMILY), whole, "{command}");
        }
        // It is noticed by what is refused, too.
        let flush = Command::new("nft")
            .args(["flush", "ruleset"])
            .status()
            .unwrap();
        assert!(flush.success());
        let ports = [exposed(on(FAMILY, 1, &[1, 5]))];
        let changes = changed(&[&ports[0]]);
        table
            .sync(&map(&ports), &changes, Options::usual(FAMILY))
            .unwrap();
        assert_eq!(summary(FAMILY).len(), whole.len());
    });
}

/// An element of the map of clients: who was sent where.
fn client(last: u8, to: u16) -> Element {
    let address = |network, last| Value::Ip(super::world::ip(FAMILY, network, last));
    let key = [
        address(0, last.into()),
        address(96, 1),
        Value::Protocol(6),
        Value::Port(80),
    ];
    let to = concat(&[address(244, to), Value::Port(8080)]);
    Element {
        timeout: Some(std::time::Duration::from_secs(60)),
        ..Element::with(concat(&key), Datum::Value(to.into()))
    }
}

fn clients() -> Vec<Element> {
    let contents = contents(FAMILY);
    let found = contents
        .sets
        .into_iter()
        .find(|(set, _)| &*set.set.name == "affinity");
    let mut found: Vec<Element> = found
        .unwrap()
        .1
        .into_iter()
        .map(Element::comparable)
        .collect();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

#[test]
fn clients_are_forgotten_with_their_endpoint_and_kept_over_a_restart() {
    in_namespace(|| {
        let mut table = FamilyTable::open(FAMILY).unwrap();
        let port = |last: &[u16]| [sticky(on(FAMILY, 1, last), 60)];
        let options = || Options::usual(FAMILY);
        table
            .sync(&map(&port(&[1, 3, 5])), &full(), options())
            .unwrap();
        let sets = Sets::new(FAMILY);
        let mut transaction = Transaction::new(Table::new(FAMILY, TABLE));
        let all = vec![client(1, 1), client(2, 3), client(3, 5)];
        transaction.add_elements(sets.get(SetId::Affinity), all.clone());
        Rules::open().unwrap().run(&transaction, None).unwrap();
        let now = port(&[3, 5]);
        table
            .sync(&map(&now), &changed(&[&now[0]]), options())
            .unwrap();
        assert_eq!(clients(), all[1..]);
        // Another process, to which an endpoint less is known.
        let mut table = FamilyTable::open(FAMILY).unwrap();
        table
            .sync(&map(&port(&[5, 7])), &full(), options())
            .unwrap();
        assert_eq!(clients(), all[2..]);
    });
}

#[test]
fn what_is_refused_costs_its_own_service_alone() {
    in_namespace(|| {
        let mut table = FamilyTable::open(FAMILY).unwrap();
        // Whoever made the map took care that no address is claimed twice.
        let twice = ServicePort {
            cluster_ip: service(FAMILY, 1).cluster_ip,
            ..on(FAMILY, 9, &[9])
        };
        let ports = [on(FAMILY, 1, &[1]), twice, on(FAMILY, 2, &[3])];
        table
            .sync(&map(&ports), &full(), Options::usual(FAMILY))
            .unwrap();
        assert_eq!(table.failed().len(), 1, "{:?}", table.failed());
        let services = |of: &Contents| {
            let found = of.sets.iter().find(|(set, _)| &*set.set.name == "services");
            found.unwrap().1.len()
        };
        assert_eq!(services(&contents(FAMILY)), 2);
        // What is new beside it comes in force.
        let mut more = ports.to_vec();
        more.push(on(FAMILY, 3, &[5]));
        let changes = Changes {
            retry: true,
            ..changed(&[&more[3]])
        };
        table
            .sync(&map(&more), &changes, Options::usual(FAMILY))
            .unwrap();
        assert_eq!(table.failed().len(), 1);
        assert_eq!(services(&contents(FAMILY)), 3);
    });
}

#[test]
fn a_full_sync_without_a_difference_writes_nothing() {
    in_namespace(|| {
        let mut table = FamilyTable::open(FAMILY).unwrap();
        let ports: Vec<Arc<ServicePort>> = vec![Arc::new(on(FAMILY, 1, &[1]))];
        let map: ServiceMap = ports.iter().map(|port| (**port).clone()).collect();
        table.sync(&map, &full(), Options::usual(FAMILY)).unwrap();
        let mut rules = Rules::open().unwrap();
        let generation = rules.generation().unwrap();
        let done = table.sync(&map, &full(), Options::usual(FAMILY)).unwrap();
        assert_eq!(
            (rules.generation().unwrap(), done.examined),
            (generation, 0)
        );
    });
}

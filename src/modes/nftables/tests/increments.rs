//! Differences add up: whatever way leads from one set of Services to another,
//! the table is the same in the end.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use super::{
    super::{
        diff::{Applied, Batch},
        plan::{Features, Options, Sets},
    },
    model::Model,
    world::{any_port, exposed, on, scheduled, sticky},
};
use crate::{
    modes::detect_local::DetectLocal,
    net::Family,
    services::{ServicePort, ServicePortName},
};

fn options(family: Family) -> Options {
    let (network, node) = match family {
        Family::V4 => ("10.244.0.0/16", "10.7.0.1"),
        Family::V6 => ("fd00:f4::/32", "fd07::1"),
    };
    Options {
        detect_local: DetectLocal::Within(network.parse().unwrap()),
        node_ip: Some(node.parse().unwrap()),
        ..Options::usual(family)
    }
}

/// A table that follows steps.
struct Table {
    applied: Applied,
    sets: Sets,
    model: Model,
}

impl Table {
    fn new(options: Options, ports: &[ServicePort]) -> Table {
        let sets = Sets::new(options.family);
        let mut applied = Applied::new(options);
        let ports: Vec<Arc<ServicePort>> = ports.iter().cloned().map(Arc::new).collect();
        let change = applied.change(ports.iter().map(|port| (&port.name, Some(port))));
        let batch = Batch::whole(change, &applied, &sets, false, Vec::new());
        let mut model = Model::default();
        model.run(&batch.transaction.to_string());
        applied.commit(batch.change);
        Table {
            applied,
            sets,
            model,
        }
    }

    /// Runs a change and returns its text.
    fn step(&mut self, ports: &[(ServicePortName, Option<Arc<ServicePort>>)]) -> String {
        let ports = ports.iter().map(|(name, port)| (name, port.as_ref()));
        let batch = self.applied.change(ports).batch(&self.applied, &self.sets);
        let text = batch.transaction.to_string();
        self.model.run(&text);
        self.applied.commit(batch.change);
        text
    }

    fn put(&mut self, port: ServicePort) -> String {
        self.step(&[(port.name.clone(), Some(Arc::new(port)))])
    }
}

/// A step: ServicePorts by number, and what they become.
fn steps(family: Family) -> impl Strategy<Value = Vec<Vec<(u16, Option<ServicePort>)>>> {
    let change = (1u16..6).prop_flat_map(move |number| {
        (
            Just(number),
            prop::option::weighted(0.8, any_port(family, number)),
        )
    });
    prop::collection::vec(prop::collection::vec(change, 1..4), 1..8)
}

fn converges(family: Family, steps: Vec<Vec<(u16, Option<ServicePort>)>>) {
    let mut table = Table::new(options(family), &[]);
    let mut desired: BTreeMap<u16, ServicePort> = BTreeMap::new();
    for step in steps {
        let mut changed = BTreeMap::new();
        for (number, port) in step {
            let name = super::world::service(family, number).name;
            match &port {
                Some(port) => drop(desired.insert(number, port.clone())),
                None => drop(desired.remove(&number)),
            }
            changed.insert(name, port.map(Arc::new));
        }
        let changed: Vec<_> = changed.into_iter().collect();
        table.step(&changed);
        let ports: Vec<ServicePort> = desired.values().cloned().collect();
        let fresh = Table::new(options(family), &ports);
        assert_eq!(table.model.clone().normalized(), fresh.model.normalized());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn what_steps_leave_is_what_a_fresh_table_has(
        v4 in steps(Family::V4),
        v6 in steps(Family::V6),
    ) {
        converges(Family::V4, v4);
        converges(Family::V6, v6);
    }
}

#[test]
fn one_endpoint_that_changes_costs_one_element_for_each_address() {
    let family = Family::V4;
    let others: Vec<_> = (2..50)
        .map(|number| on(family, number, &[1, 3, 5]))
        .collect();
    let mut table = Table::new(options(family), &others);
    table.put(on(family, 1, &[1, 3, 5]));
    let text = table.put(on(family, 1, &[1, 5, 7]));
    assert_eq!(
        text,
        "delete element ip tripod endpoints { 10.96.0.1 . tcp . 80 . 1 }\n\
         add element ip tripod endpoints { 10.96.0.1 . tcp . 80 . 1 : 10.244.0.7 . 8080 }\n"
    );
}

#[test]
fn the_slot_of_an_endpoint_that_goes_is_filled_by_the_last_one() {
    let family = Family::V4;
    let mut table = Table::new(options(family), &[on(family, 1, &[1, 3, 5, 7])]);
    let text = table.put(on(family, 1, &[1, 5, 7]));
    let endpoints: Vec<&str> = text.lines().filter(|l| l.contains(" endpoints ")).collect();
    assert_eq!(
        endpoints,
        [
            "delete element ip tripod endpoints { 10.96.0.1 . tcp . 80 . 1, 10.96.0.1 . tcp . 80 . 3 }",
            "add element ip tripod endpoints { 10.96.0.1 . tcp . 80 . 1 : 10.244.0.7 . 8080 }",
        ]
    );
    assert!(text.contains("goto pick-3-masquerade-not-local"), "{text}");
    // No ServicePort chooses among four any more.
    assert!(
        text.ends_with("delete chain ip tripod pick-4-masquerade-not-local\n"),
        "{text}"
    );
    assert_eq!(
        table.put(on(family, 1, &[1, 5, 7])),
        "",
        "nothing is different"
    );
}

#[test]
fn there_are_as_many_rules_with_many_services_as_with_few() {
    let family = Family::V4;
    let rules = |count: u16| {
        let ports: Vec<_> = (0..count)
            .map(|number| {
                exposed(on(
                    family,
                    number,
                    &[1, 2, 3][..1 + usize::from(number % 3)],
                ))
            })
            .collect();
        Table::new(options(family), &ports).model.chains
    };
    assert_eq!(rules(3), rules(2000));
}

#[test]
fn clients_are_forgotten_with_the_endpoints_that_go() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    let port = |last: &[u16]| Arc::new(sticky(exposed(on(family, 1, last)), 60));
    let mut forgotten = |port: Option<Arc<ServicePort>>| {
        let name = super::world::service(family, 1).name;
        let sets = Sets::new(family);
        let change = applied.change([(&name, port.as_ref())]);
        let batch = change.batch(&applied, &sets);
        let forgotten = batch.change.forgotten.clone();
        applied.commit(batch.change);
        forgotten
    };
    assert!(forgotten(Some(port(&[1, 3]))).is_empty());
    assert!(forgotten(Some(port(&[1, 3, 5]))).is_empty());
    assert_eq!(
        forgotten(Some(port(&[3, 5]))).len(),
        4,
        "each address and the node port"
    );
    assert_eq!(forgotten(None).len(), 8);
}

/// Takes something from what rules may use.
type Missing = fn(&mut Features);

/// What a kernel lacks is in none of the rules, and something takes its place.
#[test]
fn rules_use_nothing_that_is_missing() {
    let without = |change: Missing| {
        let mut options = Options {
            node_addresses: vec!["10.7.0.1".parse().unwrap()],
            ..options(Family::V4)
        };
        change(&mut options.features);
        let ports = [
            sticky(exposed(on(Family::V4, 1, &[1, 3])), 60),
            scheduled(on(Family::V4, 2, &[1, 3]), "rr"),
            scheduled(on(Family::V4, 3, &[1, 3]), "sh"),
            on(Family::V4, 4, &[]),
        ];
        let model = Table::new(options, &ports).model;
        let rules: Vec<String> = model.chains.into_values().flatten().collect();
        rules.join("\n")
    };
    let cases: [(Missing, &str, &str); 5] = [
        (
            |f| f.numgen = false,
            "numgen",
            "jhash ip saddr . th sport mod 2",
        ),
        (|f| f.hash = false, "jhash", "numgen random mod 2"),
        (|f| f.fib = false, "fib", "ip saddr @node-addresses"),
        (|f| f.reject = false, "reject", "@refused drop"),
        (
            |f| f.dynamic_maps = false,
            "@affinity ",
            "jhash ip saddr mod 2",
        ),
    ];
    for (missing, word, instead) in cases {
        let rules = without(missing);
        assert!(!rules.contains(word), "{word}: {rules}");
        assert!(rules.contains(instead), "{instead}: {rules}");
    }
    let whole = without(|_| {});
    for word in ["numgen inc", "jhash", "fib", "reject", "update @affinity "] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
}

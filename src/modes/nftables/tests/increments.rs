//! Differences add up: on every way from one set of Services to another, the table is the same in
//! the end.

use std::{collections::BTreeMap, num::NonZeroU16, sync::Arc};

use net::Family;
use nftables::Transaction;
use proptest::prelude::*;
use testing::cases;

use super::{
    super::{
        applied::Applied,
        diff::{Batch, Change, Routes},
        plan::{ClientMap, Features, Options, Sets, Slots, plan},
    },
    model::Model,
    random,
    world::{exposed, limited, on, scheduled, sticky},
};
use crate::{
    kernel::probe::NftPart,
    services::{Endpoints, ServicePort, ServicePortName, TrafficPolicy},
};

/// How many random cases of each family [`cases`] counts.
const CASES: u32 = 5000;

fn options(family: Family) -> Options {
    random::options(family, 0)
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
        let change = Change::new(&applied, ports.iter().map(|port| (&port.name, Some(port))));
        let batch = Batch::whole(change, &applied, &sets, None);
        let mut model = Model::default();
        model.run(&batch.transaction);
        batch.change.commit(&mut applied);
        Table {
            applied,
            sets,
            model,
        }
    }

    /// Runs a change and returns it.
    fn step(&mut self, ports: &[(ServicePortName, Option<Arc<ServicePort>>)]) -> Transaction {
        let ports = ports.iter().map(|(name, port)| (name, port.as_ref()));
        let batch = Change::new(&self.applied, ports).batch(&self.applied, &self.sets);
        self.model.run(&batch.transaction);
        batch.change.commit(&mut self.applied);
        batch.transaction
    }

    /// The text of a change of one ServicePort.
    fn put(&mut self, port: ServicePort) -> String {
        let change = [(port.name.clone(), Some(Arc::new(port)))];
        self.step(&change).to_string()
    }
}

/// A step: numbers of ServicePorts, and the choices that generate them.
type Step = Vec<(u16, u128)>;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop::collection::vec((0..random::PORTS, any::<u128>()), 1..4);
    prop::collection::vec(step, 2..4)
}

fn converges(options: &Options, steps: &[Step]) {
    let family = options.family;
    let mut table = Table::new(options.clone(), &[]);
    let mut desired: BTreeMap<u16, ServicePort> = BTreeMap::new();
    for step in steps {
        let mut changed = BTreeMap::new();
        for &(number, choices) in step {
            let port = random::port(family, number, choices);
            match &port {
                Some(port) => drop(desired.insert(number, port.clone())),
                None => drop(desired.remove(&number)),
            }
            let name = random::plain(family, number).name;
            changed.insert(name, port.map(Arc::new));
        }
        let changed: Vec<_> = changed.into_iter().collect();
        table.step(&changed);
    }
    let ports: Vec<ServicePort> = desired.into_values().collect();
    let fresh = Table::new(options.clone(), &ports);
    assert_eq!(table.model.normalized(), fresh.model.normalized());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases(CASES))
    })]

    #[test]
    fn what_steps_leave_is_what_a_fresh_table_has_v4(
        choices in any::<u128>(),
        steps in steps(),
    ) {
        converges(&random::options(Family::V4, choices), &steps);
    }

    #[test]
    fn what_steps_leave_is_what_a_fresh_table_has_v6(
        choices in any::<u128>(),
        steps in steps(),
    ) {
        converges(&random::options(Family::V6, choices), &steps);
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
fn a_range_costs_what_a_port_costs() {
    let family = Family::V4;
    let range = |endpoints: &[u16], last: u16| ServicePort {
        last_port: NonZeroU16::new(last),
        ..random::of_range(on(family, 1, endpoints))
    };
    // Nothing distinguishes pods of this node.
    let options = || random::options(family, 2);
    let mut table = Table::new(options(), &[]);
    let text = table.put(range(&[1, 3, 5], 60_000));
    for line in [
        "add chain ip tripod range/default/web-1/tcp/http",
        "add rule ip tripod range/default/web-1/tcp/http dnat to ip daddr . meta l4proto . \
         numgen random mod 4 offset 5242880 map @range-endpoints",
        "add element ip tripod ranges { 10.96.0.1 . tcp . 80-60000 comment \
         \"default/web-1:http\" : goto range/default/web-1/tcp/http }",
        "add element ip tripod range-endpoints { 10.96.0.1 . tcp . 5242880 : 10.244.0.1, \
         10.96.0.1 . tcp . 5242881 : 10.244.0.3, 10.96.0.1 . tcp . 5242882 : 10.244.0.5 }",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
    let one = Table::new(options(), &[]).put(range(&[1, 3, 5], 80));
    assert_eq!(one, text.replace("80-60000", "80"));
    assert_eq!(
        table.put(range(&[1, 5, 7], 60_000)),
        "delete element ip tripod range-endpoints { 10.96.0.1 . tcp . 5242881 }\n\
         add element ip tripod range-endpoints { 10.96.0.1 . tcp . 5242881 : 10.244.0.7 }\n"
    );
    // The chain stays, and with it the element of the range.
    let more = table.put(range(&[1, 3, 5, 7, 9], 60_000));
    let chain = "flush chain ip tripod range/default/web-1/tcp/http\n";
    assert!(
        more.starts_with(chain) && !more.contains(" ranges "),
        "{more}"
    );
    assert!(!more.contains("delete chain"), "{more}");
    let none = table.put(range(&[], 60_000));
    assert!(!none.contains(" ranges "), "{none}");
    let gone = table.step(&[(on(family, 1, &[]).name, None)]).to_string();
    for what in [
        "chain ip tripod ranges-prerouting",
        "map ip tripod ranges",
        "set ip tripod refused-ranges",
    ] {
        assert!(gone.contains(&format!("delete {what}\n")), "{what} {gone}");
    }
    assert_eq!(table.model, Table::new(options(), &[]).model);
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
    assert!(
        !text.contains("pick"),
        "it draws among as many slots: {text}"
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

/// Returns the routes that end when `port` takes effect, and the transaction.
fn stale(applied: &mut Applied, port: &ServicePort) -> (Routes, String) {
    let sets = Sets::new(applied.options.family);
    let port = Arc::new(port.clone());
    let change = Change::new(applied, [(&port.name, Some(&port))]);
    let batch = change.batch(applied, &sets);
    let stale = batch.change.stale.clone();
    batch.change.commit(applied);
    (stale, batch.transaction.to_string())
}

#[test]
fn clients_are_forgotten_with_the_endpoints_that_go() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    let port = |last: &[u16]| exposed(on(family, 1, last));
    for (last, expected) in [(&[1, 3][..], 0), (&[1, 3, 5], 0), (&[3, 5], 1), (&[7], 2)] {
        let (found, _) = stale(&mut applied, &sticky(port(last), 60));
        assert_eq!(found.len(), expected, "{last:?}");
    }
    let (found, changes) = stale(&mut applied, &port(&[7]));
    assert!(found.is_empty(), "the map goes with them");
    let deleted: Vec<&str> = changes
        .lines()
        .filter(|l| l.starts_with("delete map"))
        .collect();
    assert_eq!(
        deleted,
        ["delete map ip tripod affinity/default/web-1/tcp/http"]
    );
}

/// Clients that may be sent to different endpoints are in different maps.
#[test]
fn the_maps_of_clients_follow_from_the_policies() {
    use TrafficPolicy::{Cluster, Local};
    let family = Family::V4;
    // Of endpoints 1 to 4, those with an even number are on this node.
    let (all, local) = (("affinity/", 4), ("affinity-local/", 2));
    let cases = [
        (Cluster, Cluster, true, &[all][..]),
        (Cluster, Local, true, &[all, local]),
        (Local, Cluster, true, &[all, local]),
        (Local, Local, true, &[all, local]),
        (Cluster, Local, false, &[all]),
        (Local, Cluster, false, &[local]),
    ];
    for (internal, external, is_exposed, expected) in cases {
        let port = sticky(on(family, 1, &[1, 2, 3, 4]), 60);
        let port = ServicePort {
            internal_traffic_policy: internal,
            external_traffic_policy: external,
            ..if is_exposed { exposed(port) } else { port }
        };
        let needs = plan(&port, &Slots::new(&port), &options(family));
        let found: Vec<_> = needs
            .clients
            .iter()
            .map(|(map, to)| (map.name(), to.len()))
            .collect();
        let name =
            |(kind, count): &(&str, usize)| (format!("{kind}default/web-1/tcp/http"), *count);
        let expected: Vec<_> = expected.iter().map(name).collect();
        assert_eq!(found, expected, "{internal:?}, {external:?}");
    }
}

/// Endpoints of this node that terminate keep serving clients from outside, but not pods of this
/// node once another endpoint is ready.
#[test]
fn pods_are_forgotten_where_endpoints_that_terminate_are_for_outside_alone() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    // Only the last one takes traffic with policy Cluster.
    let port = |last: &[u16], in_use: u32| {
        let port = sticky(exposed(on(family, 1, last)), 60);
        let endpoints = Endpoints {
            cluster: [in_use].into(),
            ..Endpoints::clone(&port.endpoints)
        };
        ServicePort {
            external_traffic_policy: TrafficPolicy::Local,
            endpoints: Arc::new(endpoints),
            ..port
        }
    };
    let (found, _) = stale(&mut applied, &port(&[2], 0));
    assert!(found.is_empty());
    let (found, _) = stale(&mut applied, &port(&[2, 3], 1));
    let maps: Vec<String> = found.maps().map(ClientMap::name).collect();
    assert_eq!(maps, ["affinity/default/web-1/tcp/http"]);
    assert_eq!(found.len(), 1);
}

/// No rule uses a part that the kernel lacks; a substitute takes its place.
#[test]
fn rules_use_nothing_that_is_missing() {
    let without = |missing: &[NftPart]| {
        let options = Options {
            node_addresses: vec!["10.7.0.1".parse().unwrap()],
            features: Features::all() - missing.iter().copied().collect::<Features>(),
            ..options(Family::V4)
        };
        let ports = [
            sticky(exposed(on(Family::V4, 1, &[1, 3])), 60),
            scheduled(on(Family::V4, 2, &[1, 3]), "rr"),
            scheduled(on(Family::V4, 3, &[1, 3]), "sh"),
            on(Family::V4, 4, &[]),
            limited(on(Family::V4, 5, &[1, 3]), 100, 10),
            random::of_range(on(Family::V4, 6, &[1, 3])),
        ];
        let model = Table::new(options, &ports).model;
        let rules = model.chains.values().flatten();
        let rules: Vec<String> = rules.map(ToString::to_string).collect();
        rules.join("\n")
    };
    let cases: [(NftPart, &str, &str); 6] = [
        (NftPart::Numgen, "numgen", "jhash ip saddr . th sport mod 2"),
        (NftPart::Hash, "jhash", "numgen random mod 2"),
        (NftPart::Fib, "fib", "ip saddr @node-addresses"),
        (NftPart::Reject, "reject", "@refused drop"),
        (NftPart::DynamicMaps, "@affinity/", "jhash ip saddr mod 7"),
        (NftPart::ConnectionCounts, "ct count", "numgen random mod 2"),
    ];
    for (missing, word, instead) in cases {
        let rules = without(&[missing]);
        assert!(!rules.contains(word), "{word}: {rules}");
        assert!(rules.contains(instead), "{instead}: {rules}");
    }
    let whole = without(&[]);
    for word in ["numgen inc", "jhash", "fib", "reject", "update @affinity/"] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
    let limits = "\
        add @clients-100-per-client-10/default/web-5 { ip saddr ct count over 10 } counter goto over-limit \
        comment \"tripod.proxy/max-connections-per-client\"\n\
        ct count over 100 counter goto over-limit comment \"tripod.proxy/max-connections\"";
    assert!(whole.contains(limits), "{whole}");
}

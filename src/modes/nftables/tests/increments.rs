//! Differences add up: whatever way leads from one set of Services to another,
//! the table is the same in the end.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use proptest::prelude::*;

use super::{
    super::{
        applied::Applied,
        diff::{Batch, Change},
        plan::{Features, Options, Sets},
    },
    model::Model,
    random,
    world::{exposed, on, scheduled, sticky},
};
use crate::{
    kernel::{
        nftables::{Datum, Element, Transaction, Value, concat},
        probe::NftPart,
    },
    net::{Family, Protocol},
    services::{Endpoints, ServicePort, ServicePortName, TrafficPolicy},
    simulation::cases,
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

/// A step: numbers of ServicePorts, and what chooses what they become.
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

#[test]
fn clients_are_forgotten_with_the_endpoints_that_go() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    let port = |last: &[u16]| Arc::new(sticky(exposed(on(family, 1, last)), 60));
    let mut stale = |port: Option<Arc<ServicePort>>| {
        let name = super::world::service(family, 1).name;
        let sets = Sets::new(family);
        let change = Change::new(&applied, [(&name, port.as_ref())]);
        let batch = change.batch(&applied, &sets);
        let stale = batch.change.stale.clone();
        batch.change.commit(&mut applied);
        stale
    };
    assert!(stale(Some(port(&[1, 3]))).is_empty());
    assert!(stale(Some(port(&[1, 3, 5]))).is_empty());
    assert_eq!(
        stale(Some(port(&[3, 5]))).len(),
        [4; 2],
        "each address and the node port"
    );
    assert_eq!(stale(None).len(), [8; 2]);
}

/// A client that called from outside must not stay on an endpoint of another node once the
/// policy is Local; pods of this node may.
#[test]
fn clients_are_forgotten_whom_the_policy_sends_elsewhere() {
    let family = Family::V4;
    let mut options = options(family);
    let mut applied = Applied::new(options.clone());
    let port = |policy, last: &[u16]| {
        let port = sticky(exposed(on(family, 1, last)), 60);
        Arc::new(ServicePort {
            external_traffic_policy: policy,
            ..port
        })
    };
    let sets = Sets::new(family);
    let name = super::world::service(family, 1).name;
    let mut stale = |policy, last: &[u16]| {
        let port = port(policy, last);
        let change = Change::new(&applied, [(&name, Some(&port))]);
        let batch = change.batch(&applied, &sets);
        let stale = batch.change.stale.clone();
        batch.change.commit(&mut applied);
        stale.len()
    };
    let (cluster, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    assert_eq!(stale(cluster, &[1, 2, 3, 4]), [0; 2]);
    let elsewhere = 2 * 3;
    let at_three_frontends = [0, elsewhere];
    assert_eq!(stale(local, &[1, 2, 3, 4]), at_three_frontends);
    assert_eq!(stale(local, &[1, 2, 3, 4, 6]), [0; 2]);
    assert_eq!(stale(cluster, &[1, 2, 3, 4, 6]), [0; 2]);

    // The same for what a process finds when it starts.
    let empty = Applied::new(options.clone());
    let port = port(local, &[1, 2, 3, 4]);
    let change = Change::new(&empty, [(&name, Some(&port))]);
    let all = 4 * 4;
    assert_eq!(change.routes(&options).len(), [all, all - elsewhere]);
    options.features = Features::ALL.without(&[NftPart::DynamicMaps]);
    assert_eq!(
        change.routes(&options).len(),
        [0; 2],
        "there is no such map"
    );
}

/// Returns a ServicePort with affinity and the external policy Local, of whose endpoints those
/// `in_use` take traffic with policy Cluster.
fn of_policy_local(family: Family, last: &[u16], in_use: &[u32]) -> Arc<ServicePort> {
    let port = sticky(exposed(on(family, 1, last)), 60);
    let endpoints = Endpoints {
        cluster: in_use.into(),
        ..Endpoints::clone(&port.endpoints)
    };
    Arc::new(ServicePort {
        external_traffic_policy: TrafficPolicy::Local,
        endpoints: Arc::new(endpoints),
        ..port
    })
}

/// Endpoints of this node that terminate go on for clients from outside, and not for pods of this
/// node once another endpoint is ready.
#[test]
fn pods_are_forgotten_where_endpoints_that_terminate_are_for_outside_alone() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    let sets = Sets::new(family);
    // Only the last one takes traffic with policy Cluster.
    let port = |last: &[u16], in_use: u32| of_policy_local(family, last, &[in_use]);
    let terminating = port(&[2], 0);
    let name = &terminating.name;
    let mut stale = |port: &Arc<ServicePort>| {
        let change = Change::new(&applied, [(name, Some(port))]);
        let batch = change.batch(&applied, &sets);
        let stale = batch.change.stale.clone();
        batch.change.commit(&mut applied);
        stale.len()
    };
    assert_eq!(stale(&terminating), [0; 2]);
    let frontends = 4;
    let elsewhere_is_ready = port(&[2, 3], 1);
    assert_eq!(stale(&elsewhere_is_ready), [frontends, 1]);
}

/// By its address the node itself is no pod: it is stale with an endpoint elsewhere, and
/// clients from outside are not stale when an endpoint here is gone for pods only.
#[test]
fn the_node_is_forgotten_with_endpoints_elsewhere() {
    let family = Family::V4;
    let mut applied = Applied::new(options(family));
    let sets = Sets::new(family);
    let port = |last: &[u16], in_use: &[u32]| of_policy_local(family, last, in_use);
    let change = |applied: &mut Applied, port: &Arc<ServicePort>| {
        let change = Change::new(applied, [(&port.name, Some(port))]);
        let routes = change.routes(&applied.options);
        let batch = change.batch(applied, &sets);
        let stale = batch.change.stale.clone();
        batch.change.commit(applied);
        (routes, stale)
    };
    let node_port = port(&[2], &[0]).node_port.expect("a node port");
    let to = |port: &Arc<ServicePort>, at: usize| port.endpoints.all[at].address;
    // Entries of a client at a node port.
    let entry = |client: [u8; 4], to: SocketAddr| {
        let key = concat(&[
            Value::Ip(client.into()),
            Value::Ip(IpAddr::from([10, 7, 0, 1])),
            Value::Protocol(Protocol::Tcp.number()),
            Value::Port(node_port),
        ]);
        let data = concat(&[Value::Ip(to.ip()), Value::Port(to.port())]);
        Element {
            data: Some(Datum::Value(data.into())),
            ..Element::new(key)
        }
    };
    let node = IpAddr::from([10, 7, 0, 1]);
    let (first, second) = (port(&[2, 3], &[0, 1]), port(&[2], &[0]));
    let (here, elsewhere) = (to(&first, 0), to(&first, 1));
    let (routes, _) = change(&mut applied, &first);
    let of_node = entry([10, 7, 0, 1], elsewhere);
    assert!(routes.may_stay(&of_node, &applied.options, &[node]));
    assert!(!routes.may_stay(&of_node, &applied.options, &[]));
    let (_, stale) = change(&mut applied, &second);
    assert!(stale.are_of(&of_node, &applied.options));
    assert!(!stale.are_of(&entry([10, 7, 0, 1], here), &applied.options));

    change(&mut applied, &first);
    let pods_go_elsewhere = port(&[2, 3], &[1]);
    let (_, stale) = change(&mut applied, &pods_go_elsewhere);
    assert!(!stale.are_of(&entry([10, 9, 0, 1], here), &applied.options));
}

/// What a kernel lacks is in none of the rules, and something takes its place.
#[test]
fn rules_use_nothing_that_is_missing() {
    let without = |missing: &[NftPart]| {
        let options = Options {
            node_addresses: vec!["10.7.0.1".parse().unwrap()],
            features: Features::ALL.without(missing),
            ..options(Family::V4)
        };
        let ports = [
            sticky(exposed(on(Family::V4, 1, &[1, 3])), 60),
            scheduled(on(Family::V4, 2, &[1, 3]), "rr"),
            scheduled(on(Family::V4, 3, &[1, 3]), "sh"),
            on(Family::V4, 4, &[]),
        ];
        let model = Table::new(options, &ports).model;
        let rules = model.chains.values().flatten();
        let rules: Vec<String> = rules.map(ToString::to_string).collect();
        rules.join("\n")
    };
    let cases: [(NftPart, &str, &str); 5] = [
        (NftPart::Numgen, "numgen", "jhash ip saddr . th sport mod 2"),
        (NftPart::Hash, "jhash", "numgen random mod 2"),
        (NftPart::Fib, "fib", "ip saddr @node-addresses"),
        (NftPart::Reject, "reject", "@refused drop"),
        (NftPart::DynamicMaps, "@affinity ", "jhash ip saddr mod 2"),
    ];
    for (missing, word, instead) in cases {
        let rules = without(&[missing]);
        assert!(!rules.contains(word), "{word}: {rules}");
        assert!(rules.contains(instead), "{instead}: {rules}");
    }
    let whole = without(&[]);
    for word in ["numgen inc", "jhash", "fib", "reject", "update @affinity "] {
        assert!(whole.contains(word), "{word}: {whole}");
    }
}

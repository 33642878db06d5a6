mod walk;

use std::{collections::HashSet, net::Ipv4Addr};

use net::{Frontend, Protocol};
use proptest::prelude::*;
use simulated::model::Tables;
use testing::cases;
use xtables::{
    difference::exact_difference,
    features::Features,
    observed::Observed,
    rule::{Match, Negatable, Side, Table},
    transaction::Transaction,
};

use self::walk::{Packet, Walk};
use super::*;
use crate::modes::userspace::capture::redirect::{plan::CHAIN, tree::FEW};

fn environment(family: Family) -> Environment {
    let local = Match::LocalAddress(Negatable::Is(Side::Destination));
    Environment {
        family,
        features: Features::all(),
        destination: None,
        node: vec![Rule::new().with(local)],
        only_to_ours: true,
    }
}

fn applied_to(desired: &Desired, family: Family) -> Applied {
    Applied::of(desired, environment(family), &mut Report::default())
}

/// Tables with the whole desired state.
fn whole(applied: &Applied, family: Family) -> Tables {
    let nothing = Observed::new(plan::interest);
    let transaction = exact_difference(&nothing, applied.rule_set(), family);
    let mut tables = Tables::bare();
    tables.run(&transaction.to_string(), |_| {});
    tables
}

/// An address of the node that may be a Service's, too.
const SHARED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A packet to a frontend; for a node port, to another address of the node.
fn packet(frontend: &Frontend) -> Packet {
    let node = match frontend.family {
        Family::V4 => IpAddr::from([192, 0, 2, 2]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]),
    };
    Packet {
        address: frontend.address.unwrap_or(node),
        protocol: frontend.protocol,
        port: frontend.port,
        is_local: frontend.address.is_none_or(|address| address == SHARED),
    }
}

/// Checks that nat redirects packets to `frontend` to its target, or does not translate them.
fn assert_led(tables: &Tables, frontend: &Frontend, target: Option<&Target>) {
    let end = tables.way(Table::Nat, "PREROUTING", packet(frontend)).end;
    let expected = target.map(|target| format!("REDIRECT --to-ports {}", target.port));
    assert_eq!(end, expected, "{frontend}");
}

/// Returns whether packets sent directly to the listener of `frontend` are refused.
fn is_refused(tables: &Tables, frontend: &Frontend, target: &Target) -> bool {
    let direct = Packet {
        port: target.port,
        ..packet(&Frontend {
            address: None,
            ..*frontend
        })
    };
    let way = tables.way(Table::Filter, "INPUT", direct);
    way.end.is_some_and(|end| end.starts_with("REJECT"))
}

/// Addresses close to each other, one with many ports, others far away; one is the node's.
fn frontend() -> impl Strategy<Value = Frontend> {
    let protocol = prop_oneof![
        4 => Just(Protocol::Tcp),
        2 => Just(Protocol::Udp),
        1 => Just(Protocol::Sctp),
    ];
    let address = prop_oneof![
        4 => (0_u32..120).prop_map(|last| Some(0x0a60_0000 + last)),
        2 => Just(Some(0x0a60_0000)),
        1 => (0_u32..8).prop_map(|high| Some(high << 29 | 0x0200_0201)),
        2 => Just(Some(0xc000_0201)),
        3 => Just(None),
    ];
    (protocol, address, 1_u16..60).prop_map(|(protocol, address, port)| Frontend {
        protocol,
        family: Family::V4,
        address: address.map(|bits| IpAddr::V4(bits.into())),
        port,
        last_port: None,
    })
}

fn target() -> impl Strategy<Value = Option<Target>> {
    prop::option::weighted(0.7, (40_000_u16..40_200).prop_map(Target::at))
}

/// Changes made at once; sometimes everything else is removed.
fn step() -> impl Strategy<Value = (bool, Vec<(Frontend, Option<Target>)>)> {
    let few = prop::collection::vec((frontend(), target()), 1..4);
    let many = prop::collection::vec((frontend(), target()), 1..120);
    (prop::bool::weighted(0.15), prop_oneof![few, many])
}

/// Applies a step to tables, and checks every intermediate state.
fn apply(applied: &mut Applied, tables: &mut Tables, before: &Desired, after: &Desired) {
    let both = before.keys().chain(after.keys());
    let changed: Vec<Frontend> = both
        .filter(|frontend| before.get(frontend) != after.get(frontend))
        .copied()
        .collect();
    let mut report = Report::default();
    let difference = applied.update(after, &changed, &mut report);
    assert_eq!(report, Report::default());
    let transaction = Transaction::common(Family::V4, difference.ops);
    let stay: Vec<_> = before
        .iter()
        .filter(|(frontend, target)| after.get(frontend) == Some(target))
        .collect();
    tables.run(&transaction.to_string(), |tables| {
        for (frontend, target) in &stay {
            assert_led(tables, frontend, Some(target));
            assert!(is_refused(tables, frontend, target), "{frontend}");
        }
        // No packet is redirected to a listener that can also be called directly.
        for (frontend, target) in before.iter().chain(after) {
            let end = tables.way(Table::Nat, "PREROUTING", packet(frontend)).end;
            let led = end == Some(format!("REDIRECT --to-ports {}", target.port));
            assert!(!led || is_refused(tables, frontend, target), "{frontend}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]

    /// Incremental and complete writes result in the same chains, in which a packet gets to the
    /// same listener as by a lookup in a map.
    #[test]
    fn differences_add_up(
        steps in prop::collection::vec(step(), 1..7),
        strangers in prop::collection::vec(frontend(), 20),
    ) {
        let mut desired = Desired::new();
        let mut applied = applied_to(&desired, Family::V4);
        let mut tables = whole(&applied, Family::V4);
        for (all_else_goes, step) in steps {
            let before = desired.clone();
            if all_else_goes {
                desired.clear();
            }
            for (frontend, target) in step {
                match target {
                    Some(target) => desired.insert(frontend, target),
                    None => desired.remove(&frontend),
                };
            }
            apply(&mut applied, &mut tables, &before, &desired);
            let at_once = applied_to(&desired, Family::V4);
            prop_assert!(applied.changed_since(&at_once).is_empty());
            prop_assert_eq!(&tables, &whole(&at_once, Family::V4));
            for (frontend, target) in &desired {
                assert_led(&tables, frontend, Some(target));
            }
            // A packet to the node's address may be for a node port.
            let others = strangers.iter().filter(|frontend| frontend.address != Some(SHARED));
            for frontend in others {
                assert_led(&tables, frontend, desired.get(frontend));
            }
            let few = desired.len() <= FEW;
            let parts = tables.ours(Table::Nat).filter(|(name, _)| *name != CHAIN);
            prop_assert_eq!(parts.count() == 0, few);
        }
    }
}

/// Returns `count` frontends: node ports, and addresses that are spread over a service network,
/// half of them dense.
fn cluster(family: Family, count: u32) -> Desired {
    let mut seed = 1_u32;
    let mut random = move || {
        // The generator of Numerical Recipes: its upper bits are good.
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let one = |number: u32| {
        let offset = match number % 2 {
            0 => random() % (1 << 20),
            _ => number,
        };
        let address = match family {
            Family::V4 => IpAddr::V4((0x0a60_0000 + offset).into()),
            Family::V6 => IpAddr::V6(((0xfd96_u128 << 112) + u128::from(offset)).into()),
        };
        let target = Target::at(20_000 + (number % 40_000) as u16);
        let frontend = match number % 16 {
            0 => Frontend::node_port(Protocol::Tcp, family, 30_000 + (number / 16) as u16),
            _ => Frontend::service(Protocol::Tcp, address, 80),
        };
        (frontend, target)
    };
    (0..count).map(one).collect()
}

#[test]
fn few_rules_are_compared_of_many() {
    for family in Family::ALL {
        let desired = cluster(family, 20_000);
        let applied = applied_to(&desired, family);
        let tables = whole(&applied, family);
        for table in [Table::Nat, Table::Filter] {
            let most = tables.ours(table).map(|(_, rules)| rules.len()).max();
            assert!(most.is_some_and(|most| most <= FEW), "{most:?} in {table}");
        }
        let (mut most, mut sum, mut count) = (0, 0, 0);
        for (frontend, target) in desired.iter().step_by(7) {
            let way = tables.way(Table::Nat, "PREROUTING", packet(frontend));
            let led = Some(format!("REDIRECT --to-ports {}", target.port));
            assert_eq!(way.end, led, "{frontend}");
            assert!(way.rules <= 16 * way.chains + FEW, "{way:?}");
            most = most.max(way.rules);
            (sum, count) = (sum + way.rules, count + 1);
        }
        assert!(most <= 80 && sum / count <= 40, "{most}, {}", sum / count);
        let elsewhere = Packet {
            address: IpAddr::from([8, 8, 8, 8]),
            protocol: Protocol::Tcp,
            port: 443,
            is_local: false,
        };
        let way = tables.way(Table::Nat, "PREROUTING", elsewhere);
        assert!(way.end.is_none() && way.rules <= 4, "{way:?}");
        let direct = Packet {
            port: 60_001,
            is_local: true,
            ..elsewhere
        };
        let way = tables.way(Table::Filter, "INPUT", direct);
        assert!(way.end.is_none() && way.rules <= 80, "{way:?}");
    }
}

#[test]
fn a_change_writes_few_rules_of_many() {
    for count in [1_000, 20_000] {
        let mut desired = cluster(Family::V4, count);
        let mut applied = applied_to(&desired, Family::V4);
        let mut tables = whole(&applied, Family::V4);
        let some: Vec<Frontend> = desired.keys().step_by(97).copied().collect();
        for frontend in some {
            let target = desired.remove(&frontend).unwrap();
            for _ in 0..2 {
                let ops = applied
                    .update(&desired, &[frontend], &mut Report::default())
                    .ops;
                let text = Transaction::common(Family::V4, ops).to_string();
                let rules = text.lines().filter(|line| line.starts_with("-A")).count();
                assert!((1..=300).contains(&rules), "{rules} of {count}: {text}");
                tables.run(&text, |_| {});
                desired.insert(frontend, target.clone());
            }
        }
        assert!(tables == whole(&applied, Family::V4));
    }
}

#[test]
fn chains_go_with_the_frontends_that_need_them() {
    let mut desired = cluster(Family::V4, 1_000);
    let mut applied = applied_to(&desired, Family::V4);
    let mut tables = whole(&applied, Family::V4);
    let all: Vec<Frontend> = desired.keys().copied().collect();
    // One after the other, in an order that leaves some of each part until the end.
    for number in 0..all.len() {
        let frontend = all[number * 7919 % all.len()];
        desired.remove(&frontend);
        let ops = applied
            .update(&desired, &[frontend], &mut Report::default())
            .ops;
        let text = Transaction::common(Family::V4, ops).to_string();
        tables.run(&text, |_| {});
        assert_eq!(tables.unused(), [""; 0], "{number}: {text}");
    }
    assert!(desired.is_empty() && tables == whole(&applied, Family::V4));
}

#[test]
fn the_way_to_a_frontend_is_named() {
    let desired = cluster(Family::V4, 2_000);
    let applied = applied_to(&desired, Family::V4);
    let tables = whole(&applied, Family::V4);
    for (frontend, target) in desired.iter().step_by(11) {
        let way = applied.way(frontend);
        let mut chain = CHAIN.to_owned();
        for Entry { rule, .. } in &way {
            let words = rule.words(Family::V4).to_string();
            let (_, rules) = tables
                .ours(Table::Nat)
                .find(|(name, _)| **name == chain)
                .unwrap();
            assert!(rules.contains(&words), "{words} in {chain}");
            chain = rule.leads_to().unwrap_or_default().to_owned();
        }
        let names: HashSet<&String> = way.iter().map(|step| &step.chain).collect();
        assert_eq!(names.len(), way.len());
        let last = way
            .last()
            .map(|step| step.rule.words(Family::V4).to_string());
        let end = format!("-j REDIRECT --to-ports {}", target.port);
        assert!(last.is_some_and(|last| last.ends_with(&end)), "{frontend}");
    }
}

/// No rule of a sync may be refused, as all are written together.
#[test]
fn sctp_is_not_captured_without_its_match() {
    for family in Family::ALL {
        let [tcp, sctp] = [Protocol::Tcp, Protocol::Sctp].map(|protocol| Frontend {
            family,
            protocol,
            address: None,
            port: 30_000,
            last_port: None,
        });
        let target = |port| Target {
            port,
            name: "service".into(),
            other_ports: crate::modes::userspace::capture::OtherPorts::Refuse,
        };
        let desired = Desired::from([(tcp, target(1)), (sctp, target(2))]);
        let mut environment = environment(family);
        environment.features = Features::all() - Extension::Sctp;
        let mut report = Report::default();
        let applied = Applied::of(&desired, environment, &mut report);
        let failed: Vec<_> = report.failed.iter().map(|(one, _)| *one).collect();
        assert_eq!(failed, [sctp]);
        assert!(applied.listener(&tcp).is_some() && applied.listener(&sctp).is_none());
    }
}

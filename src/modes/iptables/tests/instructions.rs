//! Planning, comparing and printing for iptables-restore, counted in instructions.

use hashbrown::HashSet;

use super::options;
use crate::{
    modes::iptables::{
        applied::Applied,
        count::RuleCount,
        diff::{Change, Limits},
        plan::{Dispatch, Options},
    },
    services::{ServiceMap, ServicePortName},
    tests::instructions::{CHANGES, SERVICES, counted, service},
};

const LIMITS: Limits = Limits {
    chains: usize::MAX,
    weight: usize::MAX,
};

/// With as many Services the index would be used.
fn applied() -> Applied {
    let options = Options {
        large_cluster: true,
        dispatch: Dispatch::Indexed,
        ..options()
    };
    Applied::new(options, RuleCount::default())
}

fn map(version: u32) -> ServiceMap {
    let ports = (0..SERVICES).map(|number| {
        let version = if number < CHANGES { version } else { 0 };
        (*service(number, version)).clone()
    });
    ports.collect()
}

fn names(map: &ServiceMap) -> HashSet<ServicePortName> {
    map.iter().map(|port| port.name.clone()).collect()
}

#[test]
fn rules() {
    let (map, applied) = (map(0), applied());
    let names = names(&map);
    let text = counted(|| {
        Change::new(&applied, &map, &names, LIMITS)
            .transaction
            .to_string()
    });
    assert!(text.lines().count() > 10 * SERVICES as usize);
}

#[test]
fn changes() {
    let (first, second, mut applied) = (map(0), map(1), applied());
    Change::new(&applied, &first, &names(&first), LIMITS).commit(&mut applied);
    let changed: Vec<_> = (0..CHANGES).map(|number| service(number, 1)).collect();
    let lines = counted(|| {
        let each = changed.iter().map(|port| {
            let change = Change::new(&applied, &second, [&port.name], LIMITS);
            let lines = change.transaction.to_string().lines().count();
            change.commit(&mut applied);
            lines
        });
        each.sum::<usize>()
    });
    assert!(lines > 5 * CHANGES as usize, "{lines}");
}

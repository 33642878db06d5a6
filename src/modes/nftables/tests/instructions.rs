//! Planning, comparing and encoding for the kernel, counted in instructions.

use std::sync::Arc;

use net::Family;

use super::{
    super::{
        applied::Applied,
        diff::{Batch, Change},
        plan::Sets,
    },
    random,
};
use crate::{
    services::ServicePort,
    tests::instructions::{CHANGES, REPEATED, SERVICES, counted, service},
};

fn first(ports: &[Arc<ServicePort>], applied: &mut Applied, sets: &Sets) -> usize {
    let change = Change::new(applied, ports.iter().map(|port| (&port.name, Some(port))));
    let batch = Batch::whole(change, applied, sets, None);
    let size = batch.transaction.encoded();
    batch.change.commit(applied);
    size
}

fn ports() -> Vec<Arc<ServicePort>> {
    (0..SERVICES).map(|number| service(number, 0)).collect()
}

#[test]
fn table() {
    let sets = Sets::new(Family::V4);
    let options = random::options(Family::V4, 0);
    let mut all: Vec<_> = (0..REPEATED)
        .map(|_| Applied::new(options.clone()))
        .collect();
    let ports = ports();
    let messages = counted(|| {
        let each = all.iter_mut();
        each.map(|applied| first(&ports, applied, &sets))
            .sum::<usize>()
    });
    assert!(messages > 50 * REPEATED, "{messages}");
}

#[test]
fn changes() {
    let sets = Sets::new(Family::V4);
    let options = random::options(Family::V4, 0);
    let mut all: Vec<_> = (0..REPEATED)
        .map(|_| Applied::new(options.clone()))
        .collect();
    for applied in &mut all {
        first(&ports(), applied, &sets);
    }
    let changed: Vec<_> = (0..CHANGES)
        .map(|number| service(number, 1 + number))
        .collect();
    let change = |applied: &mut Applied, port: &Arc<ServicePort>| {
        let change = Change::new(applied, [(&port.name, Some(port))]);
        let batch = change.batch(applied, &sets);
        let size = batch.transaction.encoded();
        batch.change.commit(applied);
        size
    };
    let messages = counted(|| {
        let each = all.iter_mut().map(|applied| {
            let each = changed.iter().map(|port| change(applied, port));
            each.sum::<usize>()
        });
        each.sum::<usize>()
    });
    // A frame of two messages, elements that are deleted and elements that are added.
    assert!(messages >= 4 * CHANGES as usize * REPEATED, "{messages}");
}

//! Planning and comparing, counted in instructions.

use super::*;
use crate::{
    modes::ipvs::plan::NodeContext,
    tests::instructions::{CHANGES, SERVICES, counted, service},
};

#[test]
fn changes() {
    let mut desired = Desired::new(NodeContext::default());
    for number in 0..SERVICES {
        let port = service(number, 0);
        desired.update(&port.name, Some(&port), &mut Dirty::default());
    }
    let changed: Vec<_> = (0..CHANGES).map(|number| service(number, 1)).collect();
    let servers = Servers::default();
    let opened = counted(|| {
        let each = changed.iter().map(|port| {
            let mut dirty = Dirty::default();
            let plan = desired.update(&port.name, Some(port), &mut dirty);
            let steps = steps(&dirty, desired.needs(), &servers, &[]);
            let (drains, now) = (Drains::default(), Instant::now());
            let of = |server| server_difference(server, None, None, &drains, now);
            let differences = plan.servers.iter().map(of);
            let changes = differences.map(|difference| difference.changes.len());
            steps.open.len().min(changes.sum())
        });
        each.sum::<usize>()
    });
    assert_eq!(opened, CHANGES as usize);
}

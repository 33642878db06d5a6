//! Instruction counts of planning and comparing.

use std::sync::Arc;

use net::PerFamily;

use super::super::{
    capture::Method,
    diff::{Applied, AppliedGroup, diff},
    plan::{self, listen::NodeContext},
};
use crate::{
    node::Served,
    sched::SchedulerName,
    services::ServicePort,
    tests::instructions::{CHANGES, SERVICES, counted, service},
};

fn node() -> NodeContext {
    NodeContext {
        methods: PerFamily::each(|_| Method::Local),
        addresses: vec![[192, 0, 2, 1].into()],
        node_ports: Arc::new(Served::All),
        opens_listeners: true,
    }
}

/// Number of steps from `applied` to the plan of `port`.
fn steps(port: &ServicePort, applied: &Applied, node: &NodeContext) -> usize {
    let plans = plan::plan(port, SchedulerName::default());
    diff(plans, applied, node).open.len()
}

#[test]
fn first() {
    let node = node();
    let ports: Vec<_> = (0..SERVICES).map(|number| service(number, 0)).collect();
    let applied = Applied::new();
    let all = counted(|| {
        let each = ports.iter().map(|port| steps(port, &applied, &node));
        each.sum::<usize>()
    });
    // The group, its listener, its capture.
    assert_eq!(all, 3 * SERVICES as usize);
}

#[test]
fn changes() {
    let node = node();
    let open = |number: u32| {
        let plans = plan::plan(&service(number, 0), SchedulerName::default());
        let groups = plans.into_iter().map(|plan| {
            let address = plan.cluster_ip.map(|ip| (ip, 80).into());
            let group = AppliedGroup {
                frontends: plan.frontends,
                listens_on: address.into_iter().collect(),
                ..AppliedGroup::default()
            };
            (plan.name.kind, group)
        });
        groups.collect::<Applied>()
    };
    let changed: Vec<_> = (0..CHANGES)
        .map(|number| (service(number, 1), open(number)))
        .collect();
    let all = counted(|| {
        let each = changed
            .iter()
            .map(|(port, applied)| steps(port, applied, &node));
        each.sum::<usize>()
    });
    assert!(all >= CHANGES as usize, "{all}");
}

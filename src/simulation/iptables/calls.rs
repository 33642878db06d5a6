//! The calls that iptables mode makes to the kernel for one change.

use std::{sync::Arc, time::Duration};

use net::Family;
use parking_lot::Mutex;
use simulated::{Call, Fault, Observer, State, xtables::Edit};
use xtables::Engine;

use super::{OfIptables, is_ours};
use crate::{
    modes::{Mode, iptables::Iptables},
    services::{
        Changes, ServiceMap, ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{self, named_cases::on_a_node},
};

/// Longer than the time between two checks whether others changed something.
const CHECKS: Duration = Duration::from_secs(5);

/// Records the calls that are made.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Call>>>);

impl Observer for Calls {
    fn before(&mut self, call: Call, _: &mut State) -> Fault {
        self.0.lock().push(call);
        Fault::None
    }

    fn after(&mut self, _: Call, _: &mut State) {}
}

impl Calls {
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Returns `count` Services, of which the first has an endpoint with this last number.
fn services(count: u8, address: u8) -> ServiceMap {
    let of = |number: u8| {
        let last = if number == 0 { address } else { 1 };
        ServicePort {
            endpoints: endpoints([endpoint(([10, 244, number, last], 80))]),
            ..service_port(&format!("s{number}"), [10, 96, 0, number])
        }
    };
    (0..count).map(of).collect()
}

async fn sync(mode: &mut Iptables, map: &ServiceMap, full: bool) {
    let changed = map
        .iter()
        .filter(|port| full || &*port.name.service.name == "s0");
    let changes = Changes {
        ports: changed.map(|port| port.name.clone()).collect(),
        full,
        ..Changes::default()
    };
    simulation::sync(mode, map, &changes).await;
}

pub(super) async fn notices(mode: &mut Iptables) -> bool {
    let modified = mode.externally_modified();
    tokio::time::timeout(CHECKS, modified).await.is_ok()
}

/// The calls are the same with many Services as with few, and none of them is a list.
#[test]
fn a_change_and_the_checks_after_it_list_nothing() {
    let of = |count| -> Vec<Call> {
        let calls = Calls::default();
        let subject = OfIptables(Engine::NfTables);
        on_a_node(subject, calls.clone(), async |kernel, mode| {
            sync(mode, &services(count, 1), true).await;
            assert!(!notices(mode).await, "its own change");
            calls.take();
            sync(mode, &services(count, 2), false).await;
            assert!(!notices(mode).await, "its own change");
            let made = calls.take();
            // A change by another process would be noticed.
            kernel.change(|state| {
                let edit = Edit::FlushChain(is_ours, 0);
                assert!(state.edit(Family::V4, "nat", edit));
            });
            assert!(notices(mode).await, "a change by another process");
            made
        })
    };
    let (few, many) = (of(3), of(200));
    let lists = |call: &&Call| matches!(call, Call::Dump(_) | Call::Members(_) | Call::Save(_));
    assert_eq!(many.iter().find(lists), None);
    assert_eq!(many, few);
}

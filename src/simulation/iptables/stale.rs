//! UDP clients that call after another process has removed rules which a change of ours
//! writes again before their absence is noticed.

use std::sync::Arc;

use net::{Family, Protocol};
use netlink::conntrack::flows::{Tuple, UDP};
use parking_lot::Mutex;
use simulated::{Call, Fault, Observer, State, xtables::Edit};
use xtables::Engine;

use super::{OfIptables, calls::notices};
use crate::{
    modes::iptables::Iptables,
    services::{
        Changes, ServiceMap, ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{self, named_cases::on_a_node},
};

/// The cluster IP of the Service that has clients.
const DNS: [u8; 4] = [10, 96, 0, 10];

/// When the rules are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    BetweenSyncs,
    WhileASyncRuns,
}

/// Removes the rules of Services at the end of a sync, if told to.
#[derive(Clone, Default)]
struct Removing(Arc<Mutex<bool>>);

impl Observer for Removing {
    fn before(&mut self, _: Call, _: &mut State) -> Fault {
        Fault::None
    }

    fn after(&mut self, call: Call, state: &mut State) {
        if call == Call::Restore(Family::V4) && std::mem::take(&mut *self.0.lock()) {
            remove(state);
        }
    }
}

fn is_of_a_service(chain: &str) -> bool {
    chain.starts_with("KUBE-SVC-") && !chain.starts_with("KUBE-SVC-IDX-")
}

fn remove(state: &mut State) {
    let edit = Edit::FlushChain(is_of_a_service, 0);
    assert!(state.edit(Family::V4, "nat", edit), "there is a chain");
}

/// A client calls, and no rule translates its packet.
fn call(state: &mut State) {
    let (client, called) = (([10, 9, 0, 1], 40_000).into(), (DNS, 80).into());
    let tuple = |source, destination| Tuple {
        source,
        destination,
    };
    let conntrack = &mut state.conntrack;
    conntrack.enter(UDP, tuple(client, called), tuple(called, client));
}

/// Returns the Service with `count` endpoints, and others without any.
fn services(count: u8, others: u8) -> ServiceMap {
    let all = (1..=count).map(|last| endpoint(([10, 244, 0, last], 80)));
    let mut dns = service_port("dns", DNS);
    dns.name = dns.name.over(Protocol::Udp);
    dns.endpoints = endpoints(all);
    let other = |number| service_port(&format!("s{number}"), [10, 96, 1, number]);
    let others = (0..others).map(other);
    others
        .chain([dns])
        .collect::<Vec<ServicePort>>()
        .into_iter()
        .collect()
}

async fn sync(mode: &mut Iptables, map: &ServiceMap, changed: &str) {
    let named = |port: &&Arc<ServicePort>| port.name.service.name.starts_with(changed);
    let changes = Changes {
        ports: map
            .iter()
            .filter(named)
            .map(|port| port.name.clone())
            .collect(),
        full: changed.is_empty(),
        ..Changes::default()
    };
    simulation::sync(mode, map, &changes).await;
}

/// Returns whether the next packet of a client that called past the rules reaches an
/// endpoint. `notices_it`: the change by another process is noticed; otherwise a full sync
/// is due before that.
fn is_led(engine: Engine, when: When, notices_it: bool) -> bool {
    let removing = Removing::default();
    on_a_node(
        OfIptables(engine),
        removing.clone(),
        async |kernel, mode| {
            sync(mode, &services(1, 1), "").await;
            *removing.0.lock() = when == When::WhileASyncRuns;
            sync(mode, &services(1, 2), "s1").await;
            if when == When::BetweenSyncs {
                kernel.change(remove);
            }
            kernel.change(call);
            let now = services(2, 2);
            sync(mode, &now, "dns").await;
            if !notices_it || notices(mode).await {
                sync(mode, &now, "").await;
            }
            let mut is_led = false;
            kernel.change(|state| is_led = state.conntrack.flows().next().is_none());
            is_led
        },
    )
}

#[test]
fn clients_are_led_again_whose_rules_were_missing_although_a_change_restored_them() {
    for engine in [Engine::Legacy, Engine::NfTables] {
        for when in [When::BetweenSyncs, When::WhileASyncRuns] {
            for notices_it in [true, false] {
                let case = (engine, when, notices_it);
                assert!(is_led(engine, when, notices_it), "{case:?}");
            }
        }
    }
}

//! Effects on other Services, and on later changes, if a program fails once.

use std::sync::Arc;

use net::{Family, PerFamily};
use parking_lot::Mutex;
use simulated::{Call, Fault, Kernel, Observer, State, packet::Disposition};
use xtables::Engine;

use super::OfIptables;
use crate::{
    modes::{Mode, iptables::Iptables},
    services::{
        Changes, Endpoint, ServiceMap, ServicePort, TrafficPolicy,
        service_ports::{endpoint, endpoints, service_port},
    },
    simulation::{
        named_cases::{from_outside, mode, on_a_node},
        world::node_address,
    },
};

/// How many Services there are.
const SERVICES: u8 = 5;
const LOAD_BALANCER: [u8; 4] = [10, 113, 0, 1];

/// Observes the state after each transaction of a program for IPv4.
trait Onlooker: Send + 'static {
    /// Chooses the fault of a run of the program.
    fn before(&mut self) -> Fault {
        Fault::None
    }

    /// Observes the rules after a transaction.
    fn after(&mut self, _: &State) {}
}

struct Onlooking<T>(Arc<Mutex<T>>);

impl<T: Onlooker> Observer for Onlooking<T> {
    fn before(&mut self, call: Call, _: &mut State) -> Fault {
        if call == Call::Restore(Family::V4) {
            self.0.lock().before()
        } else {
            Fault::None
        }
    }

    fn after(&mut self, call: Call, state: &mut State) {
        if call == Call::Restore(Family::V4) {
            self.0.lock().after(state);
        }
    }
}

/// Runs `body` on a node in iptables mode that `onlooker` observes.
fn with_onlooker<T: Onlooker>(
    engine: Engine,
    onlooker: T,
    body: impl AsyncFnOnce(&Kernel, &mut Iptables, &Mutex<T>),
) {
    let onlooker = Arc::new(Mutex::new(onlooker));
    let observer = Onlooking(Arc::clone(&onlooker));
    on_a_node(OfIptables(engine), observer, async |kernel, mode| {
        body(kernel, mode, &onlooker).await;
    });
}

/// Syncs IPv4 with `mode`, with all of `map` changed. Returns whether everything was applied and
/// nothing is unfinished.
async fn sync(mode: &mut Iptables, map: &ServiceMap, full: bool) -> bool {
    let changes = Changes {
        ports: map.iter().map(|port| port.name.clone()).collect(),
        full,
        ..Changes::default()
    };
    let asked = PerFamily::each(|family| (family == Family::V4).then_some(&changes));
    let outcomes = mode.sync(map, asked).await;
    match outcomes.get(Family::V4) {
        Some(Ok(report)) => report.failed.is_empty() && report.unfinished.is_empty(),
        _ => false,
    }
}

/// Returns all possible outcomes of a call from outside.
fn call(state: &State, to: [u8; 4]) -> Vec<Disposition> {
    let own = [node_address(Family::V4)];
    let outcomes = state.outcomes_by_rules(Family::V4, &from_outside(to), &own);
    let outcomes = outcomes.into_iter();
    outcomes.map(|outcome| outcome.disposition).collect()
}

fn cluster_ip(number: u8) -> [u8; 4] {
    [10, 96, 0, number]
}

fn external_ip(number: u8) -> [u8; 4] {
    [10, 51, 0, number]
}

fn service(number: u8, policy: TrafficPolicy, external_ips: &[[u8; 4]]) -> ServicePort {
    ServicePort {
        internal_traffic_policy: policy,
        external_ips: external_ips.iter().map(|ip| (*ip).into()).collect(),
        endpoints: endpoints([Endpoint {
            local: true,
            ..endpoint(([10, 244, 0, number], 80))
        }]),
        ..service_port(&format!("s{number}"), cluster_ip(number))
    }
}

/// Looks for Services that are closed.
struct Closed {
    refused: u8,
    checks: bool,
    found: Vec<u8>,
}

impl Onlooker for Closed {
    fn after(&mut self, state: &State) {
        let others = (0..SERVICES).filter(|number| self.checks && *number != self.refused);
        self.found.extend(others.filter(|number| {
            let is_open = |found: &Disposition| {
                let own = (cluster_ip(*number), 80).into();
                matches!(found, Disposition::Passes(to) if *to != own)
            };
            !call(state, cluster_ip(*number)).iter().all(is_open)
        }));
    }
}

/// A rule that jumps to a Service is removed in the transaction that adds its replacement, also
/// during the search for the refused Service.
#[test]
fn a_service_that_is_refused_closes_no_other_one_for_a_moment() {
    for (engine, refused) in [Engine::Legacy, Engine::NfTables]
        .into_iter()
        .flat_map(|engine| (0..SERVICES).map(move |refused| (engine, refused)))
    {
        let closed = Closed {
            refused,
            checks: false,
            found: Vec::new(),
        };
        with_onlooker(engine, closed, async |kernel, mode, closed| {
            let all = |policy| (0..SERVICES).map(move |number| service(number, policy, &[]));
            let before: ServiceMap = all(TrafficPolicy::Cluster).collect();
            assert!(sync(mode, &before, true).await);
            let text = format!("default/s{refused}");
            kernel.change(|state| state.xtables.refuse(Some(text)));
            closed.lock().checks = true;
            let now: ServiceMap = all(TrafficPolicy::Local).collect();
            assert!(!sync(mode, &now, false).await, "one is refused");
            let found = &closed.lock().found;
            assert!(found.is_empty(), "{engine:?}, s{refused}: {found:?} closed");
        });
    }
}

/// An onlooker for runs in which nothing has to be observed.
struct Nobody;

impl Onlooker for Nobody {}

/// If one of the rules for source ranges is refused, in table filter or in nat, a removed address
/// is closed meanwhile, and one that stays is not.
#[test]
fn an_address_that_stays_is_open_while_rules_of_its_source_ranges_are_refused() {
    let texts = ["traffic not accepted by", "will be dropped by"];
    for (engine, refused) in [Engine::Legacy, Engine::NfTables]
        .into_iter()
        .flat_map(|engine| texts.map(move |text| (engine, text)))
    {
        with_onlooker(engine, Nobody, async |kernel, mode, _| {
            let of = |ranges: &[&str], external_ips: &[[u8; 4]]| -> ServiceMap {
                let ranges = ranges.iter().map(|range| range.parse().expect("a network"));
                let port = ServicePort {
                    load_balancer_ips: [LOAD_BALANCER.into()].into(),
                    load_balancer_source_ranges: ranges.collect(),
                    ..service(1, TrafficPolicy::Cluster, external_ips)
                };
                [port].into_iter().collect()
            };
            let led = Disposition::Passes(([10, 244, 0, 1], 80).into());
            let is_led = |address| {
                let mut found = Vec::new();
                kernel.change(|state| found = call(state, address));
                found == [led]
            };
            assert!(sync(mode, &of(&[], &[external_ip(1)]), true).await);
            assert!(is_led(LOAD_BALANCER) && is_led(external_ip(1)));
            kernel.change(|state| state.xtables.refuse(Some(refused.to_owned())));
            let now = of(&["10.8.0.0/16"], &[]);
            assert!(!sync(mode, &now, false).await, "some are refused");
            assert!(is_led(LOAD_BALANCER), "{engine:?}, {refused}");
            assert!(!is_led(external_ip(1)), "{engine:?}, {refused}");
            kernel.change(|state| state.xtables.refuse(None));
            assert!(sync(mode, &now, false).await);
            assert!(!is_led(LOAD_BALANCER), "the caller is in no range");
        });
    }
}

/// Loses the answer of one run: the one with this number.
struct Losing(usize);

impl Onlooker for Losing {
    fn before(&mut self) -> Fault {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == 0 {
            Fault::Unanswered
        } else {
            Fault::None
        }
    }
}

/// The program is killed after it has done its work, and is run again.
#[test]
fn an_address_closes_whose_rules_may_be_there_twice() {
    for (engine, run) in [Engine::Legacy, Engine::NfTables]
        .into_iter()
        .flat_map(|engine| (1..9).map(move |run| (engine, run)))
    {
        with_onlooker(engine, Losing(run), async |kernel, mode, _| {
            let of = |external_ips: &[[u8; 4]]| -> ServiceMap {
                [service(1, TrafficPolicy::Cluster, external_ips)]
                    .into_iter()
                    .collect()
            };
            sync(mode, &of(&[external_ip(1), external_ip(2)]), true).await;
            // Its chain stays for the other address.
            assert!(sync(mode, &of(&[external_ip(2)]), false).await);
            kernel.change(|state| {
                let found = call(state, external_ip(1));
                let not_led = Disposition::Passes((external_ip(1), 80).into());
                assert_eq!(found, [not_led], "{engine:?}, run {run}");
                assert_ne!(call(state, cluster_ip(1)), found);
            });
        });
    }
}

/// Refuses writes, and records the outcomes of calls to the load balancer's address.
#[derive(Default)]
struct Leading {
    refuses: bool,
    to: Vec<Disposition>,
}

impl Onlooker for Leading {
    fn before(&mut self) -> Fault {
        if self.refuses {
            Fault::Line(0)
        } else {
            Fault::None
        }
    }

    fn after(&mut self, state: &State) {
        self.to.extend(call(state, LOAD_BALANCER));
    }
}

/// Rules of an earlier process jump to a chain that a Service uses again.
#[test]
fn an_address_whose_rules_could_not_be_taken_away_leads_to_no_new_endpoint() {
    for engine in [Engine::Legacy, Engine::NfTables] {
        with_onlooker(engine, Leading::default(), async |_, process, leading| {
            let before = ServicePort {
                load_balancer_ips: [LOAD_BALANCER.into()].into(),
                ..service(1, TrafficPolicy::Cluster, &[])
            };
            assert!(sync(process, &[before].into_iter().collect(), true).await);
            *process = mode(OfIptables(engine));
            leading.lock().refuses = true;
            let none = ServiceMap::default();
            assert!(!sync(process, &none, true).await, "rules are left");
            *leading.lock() = Leading::default();
            let now = ServicePort {
                endpoints: endpoints([endpoint(([10, 244, 0, 2], 80))]),
                ..service(1, TrafficPolicy::Cluster, &[])
            };
            assert!(sync(process, &[now].into_iter().collect(), false).await);
            let to = &leading.lock().to;
            let new = Disposition::Passes(([10, 244, 0, 2], 80).into());
            assert!(!to.contains(&new), "{engine:?}: {to:?}");
            let not_led = Disposition::Passes((LOAD_BALANCER, 80).into());
            assert_eq!(to.last(), Some(&not_led), "{engine:?}");
        });
    }
}

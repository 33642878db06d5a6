//! nftables mode with few and many Services of 5 endpoints each, in separate network namespaces:
//! the number of rules, the first sync, one endpoint that is replaced, added or removed, and
//! connecting to the only Service and to the last of 20,000, compared with a single rule with dnat
//! and iptables mode with 10.
//! Needs root.
//!
//! `cargo bench --bench nftables [-- table|connecting]`

mod connecting;
mod node;
#[path = "../../tests/lab/service_ports.rs"]
mod service_ports;
#[path = "../iptables/services.rs"]
mod services;

use std::time::Duration;

use net::Family;
use nftables::Rules;
use tripod::{
    modes::nftables::TABLE,
    services::{Changes, ServiceMap, ServicePort},
};

use self::{
    node::{Node, busy, in_namespace},
    services::{ENDPOINTS, endpoint_of, service, with},
};

/// Number of measurements of a first sync, and of one change.
const ROUNDS: usize = 5;
const CHANGES: usize = 51;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked =
        |name: &str| words.iter().any(|w| w == name) || !words.iter().any(|w| !w.starts_with('-'));
    if asked("table") {
        for services in [10, 100, 5000, 20_000] {
            in_namespace(move || table(services))
                .join()
                .expect("it is measured");
        }
    }
    if asked("connecting") {
        connecting::measure();
    }
}

fn table(services: u32) {
    println!("\n{services} Services of {ENDPOINTS} endpoints");
    let map: ServiceMap = (0..services).map(|number| service(number, 0)).collect();
    let before = busy();
    let mut first = Vec::new();
    for _ in 0..ROUNDS {
        let mut node = Node::nftables();
        first.push(node.sync(&map, &full()));
        node.clean();
    }
    // Including start and end.
    let spent = (busy() - before) / ROUNDS as u32;
    let mut node = Node::nftables();
    node.sync(&map, &full());
    let contents = Rules::open().expect("a socket").contents(Family::V4, TABLE);
    let contents = contents.expect("an answer").expect("a table");
    println!(
        "  rules               {:8} in {} chains",
        contents.rules.len(),
        contents.chains.len()
    );
    say("first sync", first, spent);

    let number = services / 2;
    let with_endpoints = |count: u32| {
        with(
            number,
            (0..count).map(|at| endpoint_of(number, at)).collect(),
        )
    };
    for (what, other) in [
        ("endpoint replaced", service(number, 1)),
        ("endpoint more or less", with_endpoints(ENDPOINTS + 1)),
    ] {
        let ports = (0..services).map(|at| {
            if at == number {
                other.clone()
            } else {
                service(at, 0)
            }
        });
        let others: ServiceMap = ports.collect();
        // The remaining one keeps the objects that both numbers of slots need.
        let changes = changed(&other);
        let (before, mut took) = (busy(), Vec::new());
        for at in 0..2 * CHANGES {
            let map = if at % 2 == 0 { &others } else { &map };
            took.push(node.sync(map, &changes));
        }
        let spent = (busy() - before) / took.len() as u32;
        say(what, took, spent);
    }
}

fn full() -> Changes {
    Changes {
        full: true,
        ..Changes::default()
    }
}

fn changed(port: &ServicePort) -> Changes {
    Changes {
        ports: [port.name.clone()].into_iter().collect(),
        ..Changes::default()
    }
}

fn median<T: Ord + Copy>(mut of: Vec<T>) -> T {
    of.sort_unstable();
    of[of.len() / 2]
}

fn say(what: &str, took: Vec<Duration>, spent: Duration) {
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    let (median, spent) = (millis(median(took)), millis(spent));
    println!("  {what:<22}{median:8.2} ms, busy {spent:.2} ms");
}

//! The changes in each transaction of a full sync.

use net::Family;
use xtables::{
    rule::Table,
    transaction::{Phase, Transaction},
};

use super::{Tables, options};
use crate::{
    modes::iptables::{
        diff::{Full, Translation},
        plan,
    },
    services::{
        ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    },
};

const OLD: &str = "10.244.0.1:8080";
const NEW: &str = "10.244.0.2:8080";

/// Returns a ServicePort that has a node port and an external IP, or neither.
fn port(accessible: bool, last: u8) -> ServicePort {
    ServicePort {
        node_port: accessible.then_some(30_000),
        external_ips: accessible
            .then(|| [192, 0, 2, 1].into())
            .into_iter()
            .collect(),
        endpoints: endpoints([endpoint(([10, 244, 0, last], 8080))]),
        ..service_port("s", [10, 96, 0, 1])
    }
}

/// Returns whether table nat has a rule with this text.
fn has(tables: &Tables, text: &str) -> bool {
    let chains = &tables.0.0[&Table::Nat];
    chains.values().flatten().any(|rule| rule.contains(text))
}

/// Where a full sync finds a ServicePort changed, nobody reaches new endpoints at an address
/// that is not the ServicePort's any more, not even between two transactions.
#[test]
fn addresses_that_go_lead_to_no_new_endpoint() {
    let mut tables = Tables::new();
    tables.adopt(&[(1, port(true, 1))].into());
    assert!(has(&tables, OLD) && has(&tables, "--dport 30000") && has(&tables, "192.0.2.1/32"));
    let map = [port(false, 2)].into_iter().collect();
    let observed = tables.0.observed(crate::modes::iptables::observe::interest);
    let fixed = plan::fixed(&options());
    let mut full = Full::new(&map, observed, &fixed, options(), usize::MAX);
    full.closing();
    let new = port(false, 2);
    let translation = full.translation(&new, usize::MAX);
    let Translation { goes, comes, .. } = translation.expect("endpoints differ");
    let family = Family::V4;
    let groups = vec![goes, comes];
    let translation = Transaction { family, groups }.text(Phase::Translate);
    tables.restore(&translation);
    assert!(has(&tables, NEW), "{translation}");
    let is_open = has(&tables, "--dport 30000") || has(&tables, "192.0.2.1/32");
    assert!(!is_open, "{translation}");
    let stale = full.stale();
    let groups = [vec![stale.leads], stale.chains].concat();
    let stale = Transaction { family, groups }.to_string();
    tables.restore(&stale);
    assert!(!has(&tables, OLD), "{stale}");
    assert_eq!(tables.adopt(&[(1, new)].into()), "");
}

//! ServicePorts with thousands of endpoints, whose changes take the programs long. Pure.
//!
//! The time that iptables-nft-restore takes grows with the square of the number of chains in one
//! run, because it keeps their names in a sorted list (`cache_chain_list_insert` in
//! `iptables/nft-cache.c`). So each run writes some of the chains, and each sync adds some of the
//! endpoints: the changes of other ServicePorts do not wait for all of them.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use xtables::{
    observed::Observed,
    rule::Table,
    transaction::{Action, Group, Op},
};

use super::{
    observe::{PART, distance},
    plan::endpoint_chains,
};
use crate::services::{Endpoint, Endpoints, ServicePort, ServicePortName};

/// Returns a step between `old` and `new`, if they differ in more than `most` endpoints: with
/// `most` of the new endpoints. Removed endpoints get no new connections, and all but `most` of
/// them still have chains.
pub fn step(
    old: Option<&ServicePort>,
    new: Option<&ServicePort>,
    most: usize,
) -> Option<ServicePort> {
    let Changed { comes, goes } = changed(old, new, most)?;
    let gone = old.filter(|_| new.is_none()).map(without_addresses);
    Some(limited(new.or(gone.as_ref())?, &comes, &goes, most))
}

/// Returns whether there is a [`step`].
pub fn has_step(old: Option<&ServicePort>, new: Option<&ServicePort>, most: usize) -> bool {
    changed(old, new, most).is_some()
}

/// Endpoints with chains that come and go.
struct Changed<'a> {
    comes: HashSet<SocketAddr>,
    goes: Vec<&'a Endpoint>,
}

/// Returns the endpoints in which `old` and `new` differ, if these are more than `most`.
fn changed<'a>(
    old: Option<&'a ServicePort>,
    new: Option<&'a ServicePort>,
    most: usize,
) -> Option<Changed<'a>> {
    let count = |port: Option<&ServicePort>| port.map_or(0, |port| port.endpoints.all.len());
    if count(old).max(count(new)) <= most {
        return None;
    }
    let [before, after] = [old, new].map(|port| port.map(with_chains).unwrap_or_default());
    let differs = |one: &&Endpoint, from: &[&Endpoint]| {
        let address = |other: &&Endpoint| other.address;
        from.binary_search_by_key(&one.address, address).is_err()
    };
    let comes = after.iter().filter(|one| differs(one, &before));
    let comes: HashSet<_> = comes.map(|one| one.address).collect();
    let goes = before.iter().filter(|one| differs(one, &after));
    let goes: Vec<_> = goes.copied().collect();
    (comes.len() + goes.len() > most).then_some(Changed { comes, goes })
}

/// Returns the first step to `port` if more than `most` of the chains of its endpoints are not
/// `there`: with `most` of those endpoints. Chains that are there may serve clients already.
pub fn first_step(port: &ServicePort, there: &Observed, most: usize) -> Option<ServicePort> {
    if port.endpoints.all.len() <= most {
        return None;
    }
    let mut comes = endpoint_chains(port);
    comes.retain(|(_, chain)| !there.has_whole(Table::Nat, chain));
    let comes: HashSet<_> = comes.into_iter().map(|(address, _)| address).collect();
    (comes.len() > most).then(|| limited(port, &comes, &[], most))
}

/// Returns the endpoints that have chains, sorted by address.
fn with_chains(port: &ServicePort) -> Vec<&Endpoint> {
    let endpoints = &port.endpoints;
    let reachable = endpoints.all_reachable.iter();
    let reachable = reachable.filter_map(|at| endpoints.all.get(*at as usize));
    reachable.filter(|one| one.weight > 0).collect()
}

/// Returns a ServicePort of the same name that nobody can call.
fn without_addresses(port: &ServicePort) -> ServicePort {
    ServicePort {
        cluster_ip: None,
        node_port: None,
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        health_check_node_port: None,
        endpoints: Arc::default(),
        ..port.clone()
    }
}

/// Returns `port` with `most` of the endpoints that come, and without as many of those that go as
/// there is room for.
fn limited(
    port: &ServicePort,
    comes: &HashSet<SocketAddr>,
    goes: &[&Endpoint],
    most: usize,
) -> ServicePort {
    let Endpoints {
        all,
        cluster,
        local,
        all_reachable,
        ..
    } = &*port.endpoints;
    // Those of this node come first, as some clients may reach no others; then one part after the
    // other, so that few chains of parts change.
    let is_elsewhere = |address: &SocketAddr| {
        let at = all.binary_search_by_key(address, |one| one.address);
        at.is_ok_and(|at| all.get(at).is_some_and(|one| !one.local))
    };
    let mut later = endpoint_chains(port);
    later.retain(|(address, _)| comes.contains(address));
    later.sort_by_cached_key(|(address, chain)| (is_elsewhere(address), chain.clone()));
    let room = most.saturating_sub(later.len());
    let later: HashSet<_> = later.into_iter().skip(most).map(|one| one.0).collect();
    let members = (0..).zip(all).map(|(at, one)| {
        let sets = [cluster, local, all_reachable];
        (one, sets.map(|set| set.binary_search(&at).is_ok()))
    });
    let mut members: BTreeMap<SocketAddr, (Endpoint, [bool; 3])> = members
        .filter(|(one, _)| !later.contains(&one.address))
        .map(|(one, sets)| (one.address, (one.clone(), sets)))
        .collect();
    members.extend(goes.iter().skip(room).map(|one| {
        let unused = Endpoint {
            ready: false,
            serving: false,
            ..(*one).clone()
        };
        (one.address, (unused, [false, false, true]))
    }));
    let set = |number: usize| {
        let members = (0..).zip(members.values());
        let of_set = members.filter(|(_, (_, sets))| sets[number]);
        of_set.map(|(at, _)| at).collect()
    };
    let endpoints = Endpoints {
        cluster: set(0),
        local: set(1),
        all_reachable: set(2),
        all: members.values().map(|(one, _)| one.clone()).collect(),
        has_any: port.endpoints.has_any,
        ..Endpoints::default()
    };
    ServicePort {
        endpoints: Arc::new(endpoints),
        ..port.clone()
    }
}

/// Divides the steps of one ServicePort if they weigh more than `limit`, at points where nothing
/// changes for its clients: chains that are filled before others jump to them, everything that
/// belongs together, and chains that are deleted when no rule jumps to them any more.
pub fn divided(group: Group<ServicePortName>, limit: usize) -> Vec<Group<ServicePortName>> {
    if group.weight() <= limit {
        return vec![group];
    }
    let Group { owner, mut ops } = group;
    let is_inner = |op: &Op| op.table == Table::Nat && distance(&op.chain) >= PART;
    let fills = |op: &mut Op| is_inner(op) && matches!(op.action, Action::Fill(_));
    let comes: Vec<Op> = ops.extract_if(.., fills).collect();
    let deletes = |op: &mut Op| is_inner(op) && op.action == Action::Delete;
    // Those of endpoints are named before those that jumped to them.
    let goes: Vec<Op> = ops.extract_if(.., deletes).collect();
    let alone = |op| vec![op];
    let groups = comes.into_iter().map(alone);
    let groups = groups.chain([ops]).chain(goes.into_iter().rev().map(alone));
    let owned = |ops| Group {
        owner: owner.clone(),
        ops,
    };
    groups.map(owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::Family;
    use xtables::{desired::OwnerRules, difference::between, transaction::CHAIN};

    use crate::{
        modes::iptables::{
            applied::Applied,
            count::RuleCount,
            plan::{Options, plan, usual_options},
        },
        services::{
            ServiceMap,
            service_ports::{endpoint, endpoints, port_name, service_port},
        },
    };

    /// Number of endpoints of a step.
    const MOST: usize = 10;

    fn options() -> Options {
        Options {
            undivided: 3,
            ..usual_options()
        }
    }

    fn port(numbers: std::ops::Range<u8>) -> ServicePort {
        let all = numbers.map(|number| Endpoint {
            local: number % 10 == 9,
            ..endpoint(([10, 244, 0, number], 80))
        });
        ServicePort {
            endpoints: endpoints(all),
            ..service_port("crowd", [10, 96, 0, 1])
        }
    }

    fn rules(port: Option<&ServicePort>) -> OwnerRules {
        port.map_or_else(OwnerRules::default, |port| plan(port, &options()))
    }

    /// Returns whether a chain jumps to one of an endpoint that `is_one`.
    fn is_led(rules: &OwnerRules, is_one: impl Fn(&str) -> bool) -> bool {
        let mut rules = rules.chains.iter().flat_map(|chain| &chain.rules);
        rules.any(|rule| rule.leads_to().is_some_and(&is_one))
    }

    #[test]
    fn endpoints_come_and_go_in_steps() {
        let cases = [
            (None, Some(port(0..55)), 6),
            (Some(port(0..55)), Some(port(0..60)), 1),
            (Some(port(0..55)), Some(port(30..75)), 5),
            (Some(port(0..55)), None, 6),
            (Some(port(0..55)), Some(port(0..0)), 6),
        ];
        for (old, new, expected) in cases {
            let case = format!("{:?}", (old.is_some(), new.is_some(), expected));
            let after: Vec<String> = new
                .iter()
                .flat_map(endpoint_chains)
                .map(|one| one.1)
                .collect();
            let (mut now, mut steps, mut is_last) = (old, 0, false);
            while !is_last {
                let next = step(now.as_ref(), new.as_ref(), MOST);
                is_last = next.is_none();
                let next = next.or_else(|| new.clone());
                let (from, to) = (rules(now.as_ref()), rules(next.as_ref()));
                let ops = between(&from, &to, Family::V4);
                let of_endpoints = |op: &&Op| op.chain.starts_with("KUBE-SEP-");
                let count = ops.iter().filter(of_endpoints).count();
                assert!(count <= MOST, "{case}: {count}");
                let is_gone = |chain: &str| {
                    chain.starts_with("KUBE-SEP-") && !after.iter().any(|one| one == chain)
                };
                assert!(!is_led(&to, is_gone), "{case}: not one that goes is used");
                (now, steps) = (next, steps + 1);
            }
            assert_eq!(steps, expected, "{case}");
            assert_eq!(now, new, "{case}");
        }
        let local = step(None, Some(&port(0..55)), MOST).expect("a step");
        assert_eq!(
            local.endpoints.local.len(),
            5,
            "those of this node are first"
        );
    }

    /// With fewer endpoints other comments are due in all rules, for which everything is compared.
    #[test]
    fn a_cluster_stays_large_until_the_last_step() {
        for (count, expected) in [(55, 55), (9, 0)] {
            let mut applied = Applied::new(options(), RuleCount::default());
            applied.insert(Arc::new(port(0..count)));
            let gone = [port(0..0).name];
            let size = applied.size_after(&ServiceMap::default(), gone.iter(), MOST);
            assert_eq!(size.endpoints, expected);
        }
    }

    fn chains(groups: &[Group<ServicePortName>]) -> Vec<Vec<&str>> {
        let ops = groups.iter().map(|group| group.ops.iter());
        ops.map(|ops| ops.map(|op| &*op.chain).collect()).collect()
    }

    #[test]
    fn endpoints_come_before_what_leads_to_them_and_go_after_it() {
        let op = |chain, action| Op::new(Table::Nat, chain, action);
        let fill = |chain| op(chain, Action::Fill(Vec::new()));
        let delete = |chain| op(chain, Action::Delete);
        let part = "KUBE-SVC-AAAAAAAAAAAAAAAA-0A";
        let ops = vec![
            fill("KUBE-SEP-1"),
            fill(part),
            fill("KUBE-SVC-A"),
            delete("KUBE-SEP-2"),
            delete("KUBE-SVC-AAAAAAAAAAAAAAAA-0B"),
            delete("KUBE-EXT-A"),
        ];
        let group = Group::of(port_name("a"), ops);
        let all = 6 * CHAIN;
        assert_eq!(divided(group.clone(), all), std::slice::from_ref(&group));
        let found = divided(group, all - 1);
        let expected: [&[&str]; 5] = [
            &["KUBE-SEP-1"],
            &[part],
            &["KUBE-SVC-A", "KUBE-EXT-A"],
            &["KUBE-SVC-AAAAAAAAAAAAAAAA-0B"],
            &["KUBE-SEP-2"],
        ];
        assert_eq!(chains(&found), expected);
        assert!(
            found
                .iter()
                .all(|group| group.owner == Some(port_name("a")))
        );
    }
}

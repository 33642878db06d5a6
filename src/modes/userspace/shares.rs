//! Distribution of scarce resources, such as file descriptors of listeners and local ports: among
//! namespaces and Services in turn, such that something is left for others. Pure.

use std::sync::Arc;

use hashbrown::HashMap;

use super::proxy::usage::Room;
use crate::services::{ServiceName, ServicePortName};

/// If there are fewer units than this, none are left free: an administrator who chose so few has
/// counted.
const LEAVES_ROOM: usize = 256;

/// Request of a ServicePort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: ServicePortName,
    /// Number of requested units.
    pub wants: usize,
    /// Whether an earlier process served it: then it comes before others, and may take all free
    /// units.
    pub was_served: bool,
}

/// Numbers of units that namespaces and Services have.
#[derive(Debug, Default)]
pub struct Held {
    namespaces: HashMap<Arc<str>, usize>,
    services: HashMap<ServiceName, usize>,
}

impl Held {
    /// Counts `units` of `service`.
    pub fn add(&mut self, service: &ServiceName, units: usize) {
        let namespace = Arc::clone(&service.namespace);
        *self.namespaces.entry(namespace).or_default() += units;
        *self.services.entry(service.clone()).or_default() += units;
    }
}

/// Distributes units of `room` among the `claims`; `held` are the current units of namespaces and
/// Services. Returns the units for each claim.
pub fn share_out(mut room: Room, mut held: Held, claims: &[Claim]) -> Vec<usize> {
    let mut granted = vec![0; claims.len()];
    let wanted: usize = claims.iter().map(|claim| claim.wants).sum();
    if room.is_ample_for(wanted) {
        return claims.iter().map(|claim| claim.wants).collect();
    }
    for was_served in [true, false] {
        let turn = claims.iter().zip(&mut granted);
        let turn = turn.filter(|(claim, _)| claim.was_served == was_served);
        let leaves_room = !was_served && room.total >= LEAVES_ROOM;
        give(&mut room, &mut held, turn.collect(), leaves_room);
    }
    granted
}

/// Distributes units in turn. With `leaves_room`, units that are for others stay free.
///
/// A unit of a Service has a rank: the number of units that the Service has before it. The Services
/// of a namespace get their units in the order of these ranks, which gives each unit a rank in its
/// namespace; the namespaces get theirs in the order of those.
fn give(room: &mut Room, held: &mut Held, mut turn: Vec<(&Claim, &mut usize)>, leaves_room: bool) {
    let mut ranks: HashMap<&ServiceName, usize> = HashMap::new();
    let mut units: Vec<(usize, &ServiceName, usize)> = Vec::new();
    for (at, (claim, _)) in turn.iter().enumerate() {
        let service = &claim.name.service;
        let held = || held.services.get(service).copied().unwrap_or(0);
        let rank = ranks.entry(service).or_insert_with(held);
        // More than are free are never granted.
        for _ in 0..claim.wants.min(room.free) {
            units.push((*rank, service, at));
            *rank += 1;
        }
    }
    units.sort_unstable();
    let mut ranks: HashMap<&Arc<str>, usize> = HashMap::new();
    let mut in_order: Vec<_> = units
        .into_iter()
        .map(|(of_service, service, at)| {
            let namespace = &service.namespace;
            let held = || held.namespaces.get(namespace).copied().unwrap_or(0);
            let rank = ranks.entry(namespace).or_insert_with(held);
            *rank += 1;
            (*rank - 1, namespace, of_service, service, at)
        })
        .collect();
    in_order.sort_by_key(|(of_namespace, namespace, ..)| (*of_namespace, *namespace));
    for (of_namespace, _, of_service, service, at) in in_order {
        let is_for_others = || {
            room.is_for_others(of_namespace) || room.is_for_other_clients(of_service, of_namespace)
        };
        // The later units of the namespace, whose ranks are at least as high, are for others, too.
        if room.free == 0 || leaves_room && is_for_others() {
            continue;
        }
        room.free -= 1;
        held.add(service, 1);
        if let Some((_, granted)) = turn.get_mut(at) {
            **granted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::services::service_ports::port_name;

    /// Claims of `ports` ports of `namespace/service`.
    fn claims(namespace: &str, service: &str, ports: usize) -> impl Iterator<Item = Claim> + use<> {
        let name = port_name(&format!("{namespace}/{service}:0"));
        (0..ports).map(move |_| Claim {
            name: name.clone(),
            wants: 1,
            was_served: false,
        })
    }

    /// Numbers of units that each Service gets of `total`, of which `held` are not free.
    fn shares(total: usize, held: &[(&str, usize)], claims: &[Claim]) -> Vec<(String, usize)> {
        let mut free = total;
        let mut has = Held::default();
        for (name, units) in held {
            let (namespace, name) = name.split_once('/').expect("two parts");
            let (namespace, name) = (namespace.into(), name.into());
            has.add(&ServiceName { namespace, name }, *units);
            free -= units;
        }
        let granted = share_out(Room { free, total }, has, claims);
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        for (claim, granted) in claims.iter().zip(granted) {
            *shares.entry(claim.name.service.to_string()).or_default() += granted;
        }
        shares.into_iter().collect()
    }

    fn expected(shares: &[(&str, usize)]) -> Vec<(String, usize)> {
        let shares = shares.iter();
        shares
            .map(|(name, units)| ((*name).to_owned(), *units))
            .collect()
    }

    #[test]
    fn a_service_that_asks_for_all_leaves_the_others_theirs() {
        let huge = || claims("aaa", "huge", 30_000);
        let others = |count: usize| {
            let each = (0..count).flat_map(|n| claims("shop", &format!("s{n:02}"), 2));
            each.chain(claims("zoo", "web", 100))
        };
        let all: Vec<_> = huge().chain(others(3)).collect();
        let of_others = [
            ("shop/s00", 2),
            ("shop/s01", 2),
            ("shop/s02", 2),
            ("zoo/web", 100),
        ];
        let granted = shares(10_000, &[], &all);
        assert_eq!(granted[1..], expected(&of_others), "after a restart");
        assert!((5_900..6_100).contains(&granted[0].1), "{granted:?}");
        let held = [("aaa/huge", granted[0].1)];
        let later: Vec<_> = others(3).collect();
        assert_eq!(
            shares(10_000, &held, &later),
            expected(&of_others),
            "they came later"
        );
        // Also in its own namespace.
        let own: Vec<_> = claims("aaa", "small", 9).collect();
        assert_eq!(shares(10_000, &held, &own), expected(&[("aaa/small", 9)]));
        // Small steps do not get it more: a quarter is left.
        let more: Vec<_> = huge().take(10).collect();
        assert_eq!(
            shares(10_000, &[("aaa/huge", 7_500)], &more),
            expected(&[("aaa/huge", 0)])
        );
    }

    #[test]
    fn what_was_served_before_comes_first() {
        let mut all: Vec<_> = claims("aaa", "huge", 30_000).collect();
        all.extend(claims("shop", "web", 600).map(|claim| Claim {
            was_served: true,
            ..claim
        }));
        let granted = shares(1_000, &[], &all);
        assert_eq!(granted[1].1, 600, "more than its share");
        assert!((200..300).contains(&granted[0].1), "{granted:?}");
    }

    #[test]
    fn where_there_is_enough_everyone_gets_all() {
        let all: Vec<_> = claims("aaa", "huge", 740).collect();
        assert_eq!(shares(1_000, &[], &all), expected(&[("aaa/huge", 740)]));
        let none = shares(0, &[], &all);
        assert_eq!(none, expected(&[("aaa/huge", 0)]));
    }
}

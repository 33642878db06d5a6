//! Consistent hashing: the slots of ServicePorts whose endpoints are chosen by a hash.

use std::{collections::HashMap, net::SocketAddr, num::NonZeroU32, sync::Arc};

use net::Family;

use super::{
    super::plan::{Slots, Taken},
    world::{endpoints, on, scheduled},
};
use crate::services::{Preferences, ServicePort};

/// A ServicePort whose endpoints have these last parts of their address and weights, and that asks
/// for a table of that size.
fn hashed(weights: &[(u16, u16)], size: u32) -> ServicePort {
    let port = scheduled(on(Family::V4, 1, &[]), "mh");
    let preferences = Preferences {
        hash_table_size: NonZeroU32::new(size),
        ..port.preferences().clone()
    };
    ServicePort {
        endpoints: endpoints(Family::V4, weights),
        preferences: Some(Arc::new(preferences)),
        ..port
    }
}

fn equal(count: u16) -> Vec<(u16, u16)> {
    (1..=count).map(|last| (last, 1)).collect()
}

fn table(weights: &[(u16, u16)], size: u32) -> Taken {
    Slots::hashed(&hashed(weights, size)).cluster
}

fn entries(table: &Taken) -> HashMap<SocketAddr, u32> {
    let mut entries = HashMap::new();
    for endpoint in &table.endpoints {
        *entries.entry(*endpoint).or_default() += 1;
    }
    entries
}

#[test]
fn a_table_has_a_prime_number_of_entries() {
    for (asked, endpoints, size) in [
        (0, 3, 4093),
        (1, 3, 7),
        (32, 3, 61),
        (251, 3, 251),
        (252, 3, 509),
        (1, 300, 509),
        (65_521, 1, 65_521),
    ] {
        let table = table(&equal(endpoints), asked);
        assert_eq!(table.endpoints.len(), size, "{asked} for {endpoints}");
        assert_eq!(table.out_of, u32::try_from(size).unwrap());
    }
    assert_eq!(table(&[], 0), Taken::default());
    // A Service with many ports and addresses.
    let limited = ServicePort {
        most_hash_entries: 100,
        ..hashed(&equal(3), 4093)
    };
    assert_eq!(Slots::hashed(&limited).cluster.endpoints.len(), 127);
}

/// Each endpoint with a weight has an entry, and no other has one.
#[test]
fn entries_are_shared_by_the_weights() {
    for weights in [
        &[1; 10][..],
        &[3, 1],
        &[400, 100],
        &[65_535, 1],
        &[7, 0, 11, 13, 1000],
    ] {
        let weighed: Vec<_> = (1..).zip(weights.iter().copied()).collect();
        let found = entries(&table(&weighed, 0));
        let of = hashed(&weighed, 0);
        let sum: u32 = weights.iter().copied().map(u32::from).sum();
        for endpoint in of.endpoints.all.iter() {
            let entries = found.get(&endpoint.address).copied().unwrap_or(0);
            let expected = f64::from(endpoint.weight) / f64::from(sum) * 4093.0;
            let difference = (f64::from(entries) - expected).abs();
            assert!(difference < 1.5, "{entries} of {expected} in {weights:?}");
            assert_eq!(entries > 0, endpoint.weight > 0, "{weights:?}");
        }
    }
}

/// The order of the endpoints, and what was there before, mean nothing: all nodes agree.
#[test]
fn a_table_follows_from_the_endpoints_alone() {
    let mut weights = equal(9);
    let found = table(&weights, 0);
    weights.reverse();
    assert_eq!(table(&weights, 0), found);
}

/// `docs/nftables.md` has these numbers: clients of endpoints that stay, of all clients, who move
/// when one of N endpoints goes, in hundredths of a percent, at most.
#[test]
fn when_an_endpoint_goes_few_clients_of_others_move() {
    for (size, most) in [
        (1021, [(3, 66), (5, 145), (10, 293), (20, 421)]),
        (4093, [(3, 24), (5, 65), (10, 141), (20, 172)]),
        (16_381, [(3, 5), (5, 45), (10, 107), (20, 102)]),
        (65_521, [(3, 6), (5, 14), (10, 30), (20, 37)]),
    ] {
        for (count, most) in most {
            let weights = equal(count);
            let before = table(&weights, size);
            let moved = weights.iter().map(|gone| {
                let rest: Vec<_> = weights.iter().filter(|one| *one != gone).copied().collect();
                let after = table(&rest, size);
                let pairs = before.endpoints.iter().zip(&after.endpoints);
                let moved = pairs.filter(|(before, after)| before != after).count() as f64;
                moved / f64::from(size) - 1.0 / f64::from(count)
            });
            let worst = moved.fold(0.0, f64::max) * 10_000.0;
            assert!(worst <= f64::from(most), "{worst} of {count} in {size}");
        }
    }
}

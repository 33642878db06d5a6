//! Removes the leftovers of a killed probe among the node's own objects.

use ipvs::ipset::IpSets;
use net::Family;
use netlink::{links, nfacct, routes, rules};
use xtables::{
    SCRATCH, features,
    observed::Interest,
    remove::{Owned, Preserved},
    rule::Table,
};

use super::{
    ipvs::{LINK, SET},
    tries::test_route,
};

/// The chains that probes make.
const OWNED: Owned = Owned {
    tables: &Table::ALL,
    interest: |_, chain| match chain {
        SCRATCH => Interest::Whole,
        _ => Interest::Foreign,
    },
    shared: None,
};

/// Removes the objects that probes make and remove again, in case one was killed in between:
/// chains, a link, a set, counters, a route and a routing rule. Missing objects are no error.
///
/// # Errors
/// The first failure, after all other objects were tried.
pub async fn cleanup() -> Result<(), String> {
    let mut outcome = objects().map_err(|error| error.to_string());
    for family in Family::ALL {
        let removed = OWNED.remove(&[family], &Preserved::nothing()).await;
        outcome = outcome.and(removed.map_err(|error| error.to_string()));
        // The chains go first, because their rules use the counters.
        let _ = nfacct::delete(features::account(family));
    }
    outcome
}

fn objects() -> Result<(), netlink::Error> {
    let mut socket = netlink::Socket::open(netlink::Protocol::Route)?;
    let mut outcome = links::delete(&mut socket, LINK);
    for family in Family::ALL {
        let deleted = test_route(family).and_then(|route| routes::delete(&mut socket, &[route]));
        outcome = outcome.and(deleted.map(drop));
        outcome = outcome.and(rules::delete_probe(&mut socket, family));
    }
    // A kernel without nf_tables has no tables.
    if let Ok(mut tables) = nftables::Rules::open() {
        for family in Family::ALL {
            let _ = tables.delete_table(family, super::nftables::TABLE);
        }
    }
    // A kernel without ipset has no sets.
    if let Ok(mut sets) = IpSets::open() {
        outcome = outcome.and(sets.destroy(SET));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use testing::{block_on, in_namespace, sh};

    use super::*;

    #[test]
    fn what_a_probe_left_goes_and_nothing_else() {
        in_namespace(|| {
            sh(
                "for program in iptables ip6tables; do for engine in nft legacy; do
                    $program-$engine -w -t nat -N TRIPOD-PROBE
                    $program-$engine -w -N TRIPOD-PROBE
                    $program-$engine -w -A TRIPOD-PROBE -j RETURN
                    $program-$engine -w -N MINE
                done; done
                nft add table ip tripod-probe; nft add table ip6 tripod-probe; nft add table ip mine
                ipset create TRIPOD-PROBE hash:ip; ipset create MINE hash:ip",
            );
            let counters = [features::account(Family::V4), features::account(Family::V6)];
            nfacct::create(&counters).unwrap();
            sh("iptables-nft -A TRIPOD-PROBE -m nfacct --nfacct-name tripod-probe");
            let mut socket = netlink::Socket::open(netlink::Protocol::Route).unwrap();
            for family in Family::ALL {
                let route = [test_route(family).unwrap()];
                let added = routes::add(&mut socket, &route).unwrap();
                added.into_iter().collect::<Result<(), _>>().unwrap();
            }
            // Where the kernel has dummy links.
            let _ = links::add_dummy(&mut socket, LINK);
            let left = || {
                let rules = sh("for program in iptables ip6tables; do
                        $program-nft-save; $program-legacy-save; done");
                let objects =
                    sh("ipset list -n; nft list tables; ip link; ip route show table all");
                let left = format!("{rules}{objects}").to_lowercase();
                (left.matches("probe").count(), left.matches("mine").count())
            };
            let before = left();
            assert!(before.0 >= 15, "{before:?}");
            block_on(cleanup()).unwrap();
            assert_eq!(left(), (0, before.1));
            for counter in counters {
                assert!(nfacct::packets(counter).is_err(), "{counter}");
            }
            for family in Family::ALL {
                let route = [test_route(family).unwrap()];
                let again = routes::add(&mut socket, &route).unwrap();
                assert!(again.iter().all(Result::is_ok), "it was gone");
            }
            block_on(cleanup()).expect("twice is harmless");
        });
    }
}

//! Preferences of Services that nftables mode does not support.

use super::{
    Features,
    draws::{HashOf, Scheduler},
    limits::MOST,
};
use crate::{
    kernel::probe::NftPart,
    modes::Reason,
    services::{Preferences, ServicePort},
};

/// Returns how the endpoints of `port` are chosen: as it asks, where the kernel's maps
/// can do that, else at random.
pub fn scheduler(port: &ServicePort, features: &Features) -> Scheduler {
    let sticky = port.session_affinity.is_some();
    if sticky && !remembers(port, features) && features.contains(NftPart::Hash) {
        return Scheduler::Hash(HashOf::Address);
    }
    match port.preferences().scheduler.as_deref() {
        // Weights are slots.
        Some("rr" | "wrr") if features.contains(NftPart::Numgen) => {
            Scheduler::RoundRobin(port.name.clone())
        }
        Some("sh" | "mh") if features.contains(NftPart::Hash) => Scheduler::Hash(HashOf::Address),
        Some("mh-port") if features.contains(NftPart::Hash) => {
            Scheduler::Hash(HashOf::AddressAndPort)
        }
        _ => Scheduler::Random,
    }
}

/// Returns whether clients of `port` that stay on their endpoint are remembered. At an address, rules
/// cannot tell connections to a range from those to a port within it; so where a Service has ranges, a
/// hash leads its clients to the same endpoint at all its ports.
pub(super) fn remembers(port: &ServicePort, features: &Features) -> bool {
    let hashes = port.has_ranges() && features.contains(NftPart::Hash);
    features.contains(NftPart::DynamicMaps) && !hashes && !port.is_range()
}

/// Lists the preferences of `port` that are not honoured.
pub fn unsupported(port: &ServicePort, features: Features) -> Vec<Reason> {
    let asked = port.preferences();
    let known = |name: &str| match name {
        "random" => true,
        "rr" | "wrr" => features.contains(NftPart::Numgen),
        "sh" | "mh" | "mh-port" => features.contains(NftPart::Hash),
        _ => false,
    };
    let other = asked.scheduler.as_ref().filter(|name| !known(name));
    let scheduler = other.map(|name| {
        let why = format!(
            "endpoints are chosen at random, by their weights, instead of by {name:?}; this mode \
             has random, and on most kernels rr, wrr, sh, mh and mh-port; ipvs and userspace mode \
             have others"
        );
        Reason::new(Preferences::SCHEDULER, why)
    });
    let most = port.most_hash_entries;
    let too_large = asked.hash_table_size.filter(|size| size.get() > most);
    let table = too_large.map(|_| {
        let why = format!(
            "the Service has so many ports and addresses that each of its tables has about {most} \
             entries"
        );
        Reason::new(Preferences::HASH_TABLE_SIZE, why)
    });
    let own = scheduler.into_iter().chain(table);
    own.chain(Reason::of_nat_rules(asked))
        .chain(limits(asked, features))
        .chain(of_ranges(port, features))
        .collect()
}

/// The limits that are not honoured.
fn limits(asked: &Preferences, features: Features) -> impl Iterator<Item = Reason> {
    let counts = features.contains(NftPart::ConnectionCounts);
    asked.limits().filter_map(move |(what, most)| match counts {
        false => Some(Reason::new(
            what,
            "this kernel cannot count the connections of a rule: modprobe nft_connlimit, or a \
             kernel with CONFIG_NFT_CONNLIMIT",
        )),
        true => (most.get() > MOST).then(|| {
            let why = format!(
                "there is no limit, because nftables mode counts {MOST} connections at most: for \
                 each new one, the kernel looks through all that it counts; userspace mode counts \
                 more"
            );
            Reason::new(what, why)
        }),
    })
}

/// Lists what does not apply as usual to a Service with ranges of ports. Reasons have the same words
/// for all its ports, so that they are reported once.
fn of_ranges(port: &ServicePort, features: Features) -> Vec<Reason> {
    if !port.has_ranges() {
        return Vec::new();
    }
    let asked = port.preferences();
    let mut reasons = Vec::new();
    if port.session_affinity.is_some() {
        let what = "sessionAffinity";
        reasons.push(match features.contains(NftPart::Hash) {
            true => Reason::new(
                what,
                "the Service has ranges of ports: a hash of the client's address chooses its \
                 endpoint, the same one for all ports and ranges; clients are not remembered, so \
                 that a few of them move when endpoints come or go",
            )
            .instead("mh"),
            false => Reason::new(
                what,
                "in ranges of ports, clients do not stay on an endpoint",
            ),
        });
    }
    if !port.is_range() {
        return reasons;
    }
    if !features.contains(NftPart::Fib) {
        let why = "these ports are not served, because this kernel cannot tell which addresses are \
                   the node's own: modprobe nft_fib_ipv4 nft_fib_ipv6, or a kernel with CONFIG_NFT_FIB_IPV4 and \
                   CONFIG_NFT_FIB_IPV6";
        reasons.push(Reason::new(Preferences::PORTS, why));
    }
    reasons.extend(asked.limits().map(|(what, _)| {
        let why = "in ranges of ports, connections are neither counted nor limited; they do not \
                   count for the other ports of the Service";
        Reason::new(what, why)
    }));
    if asked.eject {
        let why =
            "in ranges of ports, an endpoint that does not answer gets connections all the same";
        reasons.push(Reason::new(Preferences::EJECT, why));
    }
    if asked.reset {
        let why = "in ranges of ports, no connection is reset";
        reasons.push(Reason::new(Preferences::RESET, why));
    }
    reasons
}

//! Preferences of Services that nftables mode does not support.

use super::{
    Features,
    chains::{HashOf, Scheduler},
    limits::MOST,
};
use crate::{
    kernel::probe::NftPart,
    modes::Reason,
    services::{Preferences, ServicePort, SessionAffinity},
};

/// Returns how the endpoints of `port` are chosen: as it asks, where the kernel's maps
/// can do that, else at random.
pub fn scheduler(port: &ServicePort, features: &Features) -> Scheduler {
    let sticky = port.session_affinity != SessionAffinity::None;
    if sticky && !features.contains(NftPart::DynamicMaps) && features.contains(NftPart::Hash) {
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

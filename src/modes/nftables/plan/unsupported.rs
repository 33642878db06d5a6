//! What Services ask of Tripod that nftables mode cannot do.

use sha2::{Digest, Sha256};

use super::{Features, chains::Scheduler};
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
        return Scheduler::SourceHash;
    }
    match port.preferences().scheduler.as_deref() {
        // Weights are slots.
        Some("rr" | "wrr") if features.contains(NftPart::Numgen) => {
            Scheduler::RoundRobin(chain_name(port).into())
        }
        Some("sh") if features.contains(NftPart::Hash) => Scheduler::SourceHash,
        _ => Scheduler::Random,
    }
}

/// Maximum number of characters of a name that a chain's name ends with: a chain's name has at most
/// 255 (`NFT_NAME_MAXLEN` of `linux/netfilter/nf_tables.h`). An API server accepts none that is
/// longer, but a manifest may have one.
const LONGEST: usize = 180;

/// Returns a name for what is one ServicePort's own, of characters that `nft` takes.
fn chain_name(port: &ServicePort) -> String {
    let name = &port.name;
    let protocol = name.protocol.to_string().to_lowercase();
    let whole = format!("{}/{protocol}/{}", name.service, name.port);
    if whole.len() <= LONGEST {
        return whole;
    }
    let hash = Sha256::digest(&whole);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{protocol}/{hash}")
}

/// Returns what of the preferences of `port` is not done.
pub fn unsupported(port: &ServicePort, features: Features) -> Vec<Reason> {
    let asked = port.preferences();
    let known = |name: &str| match name {
        "random" => true,
        "rr" | "wrr" => features.contains(NftPart::Numgen),
        "sh" => features.contains(NftPart::Hash),
        _ => false,
    };
    let other = asked.scheduler.as_ref().filter(|name| !known(name));
    let scheduler = other.map(|name| {
        let why = format!(
            "endpoints are chosen at random, by their weights, instead of by {name:?}; this mode \
             has random, and on most kernels rr, wrr and sh; ipvs and userspace mode have others"
        );
        Reason::new(Preferences::SCHEDULER, why)
    });
    let own = scheduler.into_iter();
    own.chain(Reason::of_nat_rules(asked)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::{port_name, service_port};

    #[test]
    fn no_name_is_too_long_for_a_chain() {
        let named = |name: &str| {
            let mut port = service_port("", [10, 96, 0, 1]);
            port.name = port_name(name);
            chain_name(&port)
        };
        assert_eq!(named("shop/web:http"), "shop/web/tcp/http");
        let long = |end: &str| named(&format!("{0}/{0}{end}:http", "a".repeat(252)));
        assert!(long("b").len() <= LONGEST && long("b") != long("c"));
    }
}

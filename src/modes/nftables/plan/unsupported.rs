//! What Services ask of Tripod that nftables mode cannot do.

use super::{Features, chains::Scheduler};
use crate::{
    modes::{Reason, Unsupported},
    services::{Forwarding, Preferences, ServicePort, SessionAffinity},
};

/// How the endpoints of `port` are chosen: as it asks, where the kernel's maps can
/// do that, else at random.
pub(super) fn scheduler(port: &ServicePort, features: &Features) -> Scheduler {
    let sticky = port.session_affinity != SessionAffinity::None;
    if sticky && !features.dynamic_maps && features.hash {
        return Scheduler::SourceHash;
    }
    match port.preferences().scheduler.as_deref() {
        // Weights are slots.
        Some("rr" | "wrr") if features.numgen => Scheduler::RoundRobin(chain_name(port).into()),
        Some("sh") if features.hash => Scheduler::SourceHash,
        _ => Scheduler::Random,
    }
}

/// A name for what is one ServicePort's own, of characters that `nft` takes.
fn chain_name(port: &ServicePort) -> String {
    let name = &port.name;
    let protocol = name.protocol.to_string().to_lowercase();
    format!("{}/{protocol}/{}", name.service, name.port)
}

/// Returns what of the preferences of `port` is not done.
pub fn unsupported(port: &ServicePort, features: Features) -> impl Iterator<Item = Unsupported> {
    let asked = port.preferences();
    let known = |name: &str| match name {
        "random" => true,
        "rr" | "wrr" => features.numgen,
        "sh" => features.hash,
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
    let other = asked.forwarding.filter(|way| *way != Forwarding::Nat);
    let forwarding = other.map(|way| {
        let why = format!("packets are forwarded by nat instead of {way}, which ipvs mode can do");
        Reason::new(Preferences::FORWARDING, why)
    });
    let drain = asked.drain_timeout.map(|_| {
        let why = "connections to an endpoint that left go on for as long as it answers; \
                   ipvs and userspace mode can end them";
        Reason::new(Preferences::DRAIN_TIMEOUT, why)
    });
    let header = asked.proxy_protocol.map(|_| {
        let why = "packets are passed on without a look into them, so no header can be added; \
                   userspace mode can do that";
        Reason::new(Preferences::PROXY_PROTOCOL, why)
    });
    let retry = Reason::of_retry(asked);
    let all = [scheduler, forwarding, drain, header, retry];
    all.into_iter()
        .flatten()
        .map(|reason| reason.at(&port.name))
}

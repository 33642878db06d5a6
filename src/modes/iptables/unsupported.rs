//! What Services ask of Tripod that iptables mode cannot do.

use super::plan;
use crate::{
    kernel::xtables::features::Features,
    modes::{Reason, Unsupported},
    services::{Forwarding, Preferences, ServicePort},
};

/// The scheduler that the rules of iptables mode amount to.
const RANDOM: &str = "random";

/// Returns what of the preferences of `port` is not done with these features.
pub fn of(port: &ServicePort, features: Features) -> impl Iterator<Item = Unsupported> {
    let protocol = (!plan::is_possible(port, &features)).then(|| {
        let why = "the port is not served, because this node's iptables lacks -m sctp: modprobe \
                   xt_sctp, or a kernel with CONFIG_NETFILTER_XT_MATCH_SCTP; ipvs mode needs none";
        Reason::new("protocol SCTP", why)
    });
    let asked = port.preferences();
    let scheduler = asked.scheduler.as_ref().filter(|name| ***name != *RANDOM);
    let scheduler = scheduler.map(|name| {
        let why = format!(
            "endpoints are chosen at random, by their weights, instead of by {name:?}; \
             ipvs and userspace mode have schedulers"
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
    let all = [protocol, scheduler, forwarding, drain, header, retry];
    let all = all.into_iter().flatten();
    all.map(|reason| reason.at(&port.name))
}

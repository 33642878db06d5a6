//! Preferences of Services that iptables mode does not support.

use xtables::features::Features;

use super::is_possible;
use crate::{
    modes::Reason,
    services::{Preferences, ServicePort},
};

/// The scheduler that the rules of iptables mode amount to.
const RANDOM: &str = "random";

/// Lists the preferences of `port` that are not honoured with these features.
pub fn unsupported(port: &ServicePort, features: Features) -> Vec<Reason> {
    let protocol = (!is_possible(port, &features)).then(|| {
        let why = "the port is not served, because this node's iptables lacks -m sctp: modprobe \
                   xt_sctp, or a kernel with CONFIG_NETFILTER_XT_MATCH_SCTP; ipvs mode does not \
                   need this match";
        Reason::new("protocol SCTP", why)
    });
    let asked = port.preferences();
    let scheduler = asked.scheduler.as_ref().filter(|name| ***name != *RANDOM);
    let scheduler = scheduler.map(|name| {
        let why = format!(
            "endpoints are chosen at random, by their weights, instead of by {name:?}; \
             the other modes have schedulers"
        );
        Reason::new(Preferences::SCHEDULER, why)
    });
    let own = [protocol, scheduler].into_iter().flatten();
    own.chain(Reason::of_ports(port))
        .chain(Reason::of_hash_table_size(asked))
        .chain(Reason::of_nat_rules(asked))
        .chain(Reason::of_limits(asked))
        .collect()
}

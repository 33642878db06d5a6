//! Preferences of Services that ipvs mode does not support.

use super::{Builder, NodeContext, ROUND_ROBIN, servers::scheduler};
use crate::{
    modes::Reason,
    services::{Forwarding, Preferences, ServicePort},
};

/// Lists the preferences of `port` that are not honoured on this `node`.
pub fn unsupported(port: &ServicePort, node: &NodeContext) -> Vec<Reason> {
    let asked = port.preferences();
    let header = asked.proxy_protocol.then(|| {
        let why = "IPVS cannot put a header before a connection's first byte; use userspace mode";
        Reason::new(Preferences::PROXY_PROTOCOL, why)
    });
    let scheduler = scheduler(port, node);
    let slow_start = Reason::of_slow_start(asked, scheduler.as_deref().unwrap_or(ROUND_ROBIN));
    let scheduler = scheduler.err();
    let scheduler =
        scheduler.map(|why| Reason::new(Preferences::SCHEDULER, why).instead(ROUND_ROBIN));
    let not_direct = match asked.forwarding {
        Some(Forwarding::Dr | Forwarding::Tunnel) => Builder::new(port, node).not_direct,
        Some(Forwarding::Nat | Forwarding::FullNat) | None => Vec::new(),
    };
    let not_direct = not_direct.into_iter();
    let own = [
        header,
        Reason::of_retry(asked),
        scheduler,
        slow_start,
        Reason::of_hash_table_size(asked),
        Reason::of_reset(asked),
        Reason::of_ports(port),
    ];
    own.into_iter()
        .flatten()
        .chain(Reason::of_limits(asked))
        .chain(not_direct.map(|why| Reason::new(Preferences::FORWARDING, why)))
        .collect()
}

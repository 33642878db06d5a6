//! What lc, wlc, sed and nq share: the walk for the real server with the least
//! cost for its weight.

use super::{Load, RealServer, round, usable};
use std::sync::atomic::Ordering::Relaxed;

/// Open connections of a real server as a cost: IPVS reckons an established
/// one 256 times as costly as one that is ending (`ip_vs_dest_conn_overhead`
/// in the kernel's `include/net/ip_vs.h`).
pub(super) fn overhead(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) * 256 + u64::from(load.inactive.load(Relaxed))
}

/// Established connections, the new one included.
pub(super) fn expected(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) + 1
}

/// Returns the usable server whose cost is least for its share; among equals
/// the one that comes first when counting begins at `first`. `share` is only
/// asked for servers with a weight, and must not be 0.
pub(super) fn least(
    servers: &[RealServer],
    skip: &dyn Fn(usize) -> bool,
    first: usize,
    cost: impl Fn(&Load) -> u64,
    share: impl Fn(&RealServer) -> u32,
) -> Option<usize> {
    let mut best: Option<(usize, u128, u128)> = None;
    for i in round(servers, first) {
        if !usable(servers, skip, i) {
            continue;
        }
        let cost = u128::from(cost(&servers[i].load));
        let share = u128::from(share(&servers[i]));
        // cost / share < least.cost / least.share without division.
        if best.is_none_or(|(_, least_cost, least_share)| cost * least_share < least_cost * share) {
            best = Some((i, cost, share));
        }
    }
    best.map(|(i, ..)| i)
}

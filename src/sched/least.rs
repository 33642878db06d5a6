//! What lc, wlc, sed and nq share: they pick the real server with the least cost for its
//! share of the load.

use std::sync::atomic::Ordering::Relaxed;

use super::{Flow, Load, RealServer, Scheduler, round, usable};

/// Returns the cost of a real server that has a weight, and the share of the load that it
/// is to take, which is not 0.
type Cost = fn(&RealServer) -> (u64, u32);

/// Picks the usable real server whose cost is least for its share; among equals the one
/// that comes first when counting begins at `first`.
#[derive(Debug)]
pub(super) struct Least {
    first: usize,
    cost: Cost,
}

impl Least {
    pub(super) fn new(cost: Cost, first: usize) -> Least {
        Least { first, cost }
    }

    /// Returns the indices of `servers` in the order in which equals are preferred.
    pub(super) fn order(&self, servers: &[RealServer]) -> impl Iterator<Item = usize> {
        round(servers, self.first)
    }
}

impl Scheduler for Least {
    fn pick(
        &self,
        servers: &[RealServer],
        _flow: &Flow,
        skip: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut best: Option<(usize, u128, u128)> = None;
        for i in self.order(servers) {
            if !usable(servers, skip, i) {
                continue;
            }
            let (cost, share) = (self.cost)(&servers[i]);
            let (cost, share) = (u128::from(cost), u128::from(share));
            // cost / share < least.cost / least.share without division.
            let is_less = |(_, least_cost, least_share)| cost * least_share < least_cost * share;
            if best.is_none_or(is_less) {
                best = Some((i, cost, share));
            }
        }
        best.map(|(i, ..)| i)
    }
}

/// Returns the open connections of a real server as a cost: IPVS reckons an established
/// one 256 times as costly as one that is ending (`ip_vs_dest_conn_overhead`
/// in the kernel's `include/net/ip_vs.h`).
pub(super) fn overhead(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) * 256 + u64::from(load.inactive.load(Relaxed))
}

/// Returns the established connections, the new one included.
pub(super) fn expected(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) + 1
}

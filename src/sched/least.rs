//! The common part of lc, wlc, sed and nq, which pick the real server with the least cost for its
//! share of the load.

use std::sync::atomic::Ordering::Relaxed;

use super::{Candidates, Flow, Load, RealServer, Scheduler, round};

/// Computes the cost of a real server that has a weight, and its share of the load, which is not 0.
type Cost = fn(&RealServer) -> (u64, u32);

/// Picks the usable real server whose cost is least for its share; among equals, the first one when
/// counting from `first`.
#[derive(Debug)]
pub(super) struct Least {
    first: usize,
    cost: Cost,
}

impl Least {
    pub(super) fn new(cost: Cost, first: usize) -> Least {
        Least { first, cost }
    }

    /// The indices of `servers` in the order of preference among equals.
    pub(super) fn order(&self, servers: &[RealServer]) -> impl Iterator<Item = usize> {
        round(servers, self.first)
    }
}

impl Scheduler for Least {
    fn pick(&self, of: Candidates<'_>, _flow: &Flow) -> Option<usize> {
        let mut best: Option<(usize, u128, u128)> = None;
        for i in self.order(of.servers) {
            if !of.usable(i) {
                continue;
            }
            let (cost, share) = (self.cost)(&of.servers[i]);
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

/// The cost of a real server's open connections: IPVS counts an established one as 256 times as
/// costly as a closing one (`ip_vs_dest_conn_overhead` in the kernel's `include/net/ip_vs.h`).
pub(super) fn overhead(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) * 256 + u64::from(load.inactive.load(Relaxed))
}

/// Number of established connections, including the new one.
pub(super) fn expected(load: &Load) -> u64 {
    u64::from(load.active.load(Relaxed)) + 1
}

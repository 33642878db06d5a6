//! `random`: each connection is drawn independently, in proportion to the weights. Not in IPVS;
//! iptables mode picks like this.
//!
//! A draw is a binary search in the running sums of the weights.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Candidates, Flow, RealServer, Scheduler, hash::mix};

/// Number of draws after which the weights of the usable servers are summed up instead.
const DRAWS: usize = 8;

#[derive(Debug)]
pub(super) struct Random {
    /// The sum of the weights up to each real server. It stays below 2^64, since weights and indices
    /// are below 2^32.
    sums: Box<[u64]>,
    numbers: Numbers,
}

impl Random {
    pub(super) fn new(servers: &[RealServer]) -> Self {
        Self::seeded(servers, RandomState::new().build_hasher().finish())
    }

    fn seeded(servers: &[RealServer], seed: u64) -> Self {
        let sums = servers.iter().scan(0, |sum, server| {
            *sum += u64::from(server.weight);
            Some(*sum)
        });
        Random {
            sums: sums.collect(),
            numbers: Numbers(AtomicU64::new(seed)),
        }
    }

    fn draw(&self) -> Option<usize> {
        let point = below(self.numbers.next(), *self.sums.last()?);
        let drawn = self.sums.partition_point(|sum| *sum <= point);
        Some(drawn).filter(|drawn| *drawn < self.sums.len())
    }
}

impl Scheduler for Random {
    fn pick(&self, of: Candidates<'_>, _flow: &Flow) -> Option<usize> {
        for _ in 0..DRAWS {
            let drawn = self.draw()?;
            if of.usable(drawn) {
                return Some(drawn);
            }
        }
        // Most of the weight is skipped: draw from the rest exactly.
        let left = || (0..of.servers.len()).filter(|&i| of.usable(i));
        let total = left().map(|i| u64::from(of.servers[i].weight)).sum();
        let mut point = below(self.numbers.next(), total);
        for i in left() {
            match point.checked_sub(u64::from(of.servers[i].weight)) {
                Some(rest) => point = rest,
                None => return Some(i),
            }
        }
        // Servers became unusable between the two walks.
        of.next_usable(0)
    }
}

/// Returns a random number scaled to `0..bound` (D. Lemire, "Fast random
/// integer generation in an interval", without the rejection: the bias is below
/// bound / 2^64).
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// SplitMix64. Its state is a counter, so threads share it without a lock.
#[derive(Debug)]
struct Numbers(AtomicU64);

impl Numbers {
    fn next(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        mix(self.0.fetch_add(GAMMA, Relaxed).wrapping_add(GAMMA))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn the_sums_hold_exactly_the_weights() {
        for weights in [
            &[1, 1, 1][..],
            &[3, 1],
            &[0, 5, 0, 7, 1, 1000],
            &[u32::MAX, 1, u32::MAX],
            &[0, 0],
            &[],
        ] {
            let servers = servers(weights);
            let random = Random::seeded(&servers, 1);
            let before = [0].into_iter().chain(random.sums.iter().copied());
            let shares = random
                .sums
                .iter()
                .zip(before)
                .map(|(sum, before)| sum - before);
            assert!(
                shares.eq(weights.iter().map(|&w| u64::from(w))),
                "{weights:?}"
            );
            let none = weights.iter().all(|weight| *weight == 0);
            assert_eq!(random.draw().is_none(), none, "{weights:?}");
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        for weights in [&[1, 1, 1, 1][..], &[3, 1], &[0, 2, 5, 1]] {
            let servers = servers(weights);
            let random = Random::seeded(&servers, 7);
            let counts = counts(&random, &servers, 40_000);
            assert_shares(&counts, weights, 0.03);
        }
    }

    #[test]
    fn what_is_left_after_skipping_keeps_its_proportions() {
        // Nearly all weight is skipped, so draws fail and the rest is summed.
        let servers = servers(&[1_000_000, 3, 1, 0]);
        let random = Random::seeded(&servers, 7);
        let mut counts = [0; 4];
        for _ in 0..20_000 {
            counts[random
                .pick(Candidates::new(&servers, &|i| i == 0), &flow(1))
                .unwrap()] += 1;
        }
        assert_shares(&counts, &[0, 3, 1, 0], 0.03);
    }

    #[test]
    fn two_schedulers_draw_differently() {
        let servers = servers(&[1; 16]);
        let draw = || sequence(&Random::new(&servers), &servers, 32);
        assert_ne!(draw(), draw());
    }
}

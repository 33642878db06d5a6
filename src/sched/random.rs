//! `random`: each connection is drawn independently, in proportion to the weights. Not in IPVS;
//! iptables mode picks like this.
//!
//! A draw takes O(1) for any number of real servers: Walker's alias method with Vose's construction
//! (M. D. Vose, "A linear algorithm for generating random numbers with a given distribution",
//! 1991), in integers.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{Flow, RealServer, Scheduler, hash::mix, next_usable, usable};

/// Number of draws after which the weights of the usable servers are summed up instead.
const DRAWS: usize = 8;

#[derive(Debug)]
pub(super) struct Random {
    columns: Box<[Column]>,
    /// Height of each column.
    height: u64,
    numbers: Numbers,
}

/// A column of the alias table: up to `split` it belongs to `own`, above to
/// `alias`.
#[derive(Debug)]
struct Column {
    split: u64,
    own: u32,
    alias: u32,
}

impl Random {
    pub(super) fn new(servers: &[RealServer]) -> Self {
        Self::seeded(servers, RandomState::new().build_hasher().finish())
    }

    fn seeded(servers: &[RealServer], seed: u64) -> Self {
        let weighted = || servers.iter().enumerate().filter(|(_, s)| s.weight > 0);
        let count = weighted().count() as u64;
        // Both the sum of weights and weight × count stay below 2^64, since
        // weights and indices are below 2^32.
        let height: u64 = weighted().map(|(_, s)| u64::from(s.weight)).sum();
        let mut columns: Box<[Column]> = weighted()
            .map(|(i, s)| Column {
                split: u64::from(s.weight) * count,
                own: i as u32,
                alias: i as u32,
            })
            .collect();
        // A column that is too low is filled from one that is too high.
        let (mut low, mut high): (Vec<usize>, Vec<usize>) =
            (0..columns.len()).partition(|&c| columns[c].split < height);
        while let (Some(short), Some(&tall)) = (low.pop(), high.last()) {
            columns[short].alias = columns[tall].own;
            columns[tall].split -= height - columns[short].split;
            if columns[tall].split < height {
                high.pop();
                low.push(tall);
            }
        }
        Random {
            columns,
            height,
            numbers: Numbers(AtomicU64::new(seed)),
        }
    }

    fn draw(&self) -> Option<usize> {
        let column = below(self.numbers.next(), self.columns.len() as u64);
        let column = self.columns.get(column as usize)?;
        let side = below(self.numbers.next(), self.height) < column.split;
        Some(if side { column.own } else { column.alias } as usize)
    }
}

impl Scheduler for Random {
    fn pick(
        &self,
        servers: &[RealServer],
        _flow: &Flow,
        skip: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        for _ in 0..DRAWS {
            let drawn = self.draw()?;
            if usable(servers, skip, drawn) {
                return Some(drawn);
            }
        }
        // Most of the weight is skipped: draw from the rest exactly.
        let left = || (0..servers.len()).filter(|&i| usable(servers, skip, i));
        let total = left().map(|i| u64::from(servers[i].weight)).sum();
        let mut point = below(self.numbers.next(), total);
        for i in left() {
            match point.checked_sub(u64::from(servers[i].weight)) {
                Some(rest) => point = rest,
                None => return Some(i),
            }
        }
        // Servers became unusable between the two walks.
        next_usable(servers, skip, 0)
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
    fn the_table_holds_exactly_the_weights() {
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
            let mut share = vec![0u64; weights.len()];
            for column in &random.columns {
                let own = column.split.min(random.height);
                share[column.own as usize] += own;
                share[column.alias as usize] += random.height - own;
            }
            let count = random.columns.len() as u64;
            let expected: Vec<_> = weights.iter().map(|&w| u64::from(w) * count).collect();
            assert_eq!(share, expected, "{weights:?}");
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
            counts[random.pick(&servers, &flow(1), &|i| i == 0).unwrap()] += 1;
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

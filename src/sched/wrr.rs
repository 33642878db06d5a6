//! `wrr`: weighted round robin. Passes over the real servers with a falling
//! level, from the greatest weight down to the weights' greatest common
//! divisor; a pass serves those whose weight reaches the level. Weights 4, 3,
//! 2 give a a b a b c a b c (kernel `ip_vs_wrr.c`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Candidates, Flow, Previous, RealServer, Scheduler, Seed, order::resume, weight_gcd};

/// Marks the place of a round that has picked none yet: it may be chosen again while the first
/// servers of a Service appear one by one.
const UNUSED: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct WeightedRoundRobin {
    place: AtomicU64,
    /// Level of the place where a round without a seed would begin.
    level: u32,
    /// Height of one level: greatest common divisor of the weights, at least 1.
    step: u32,
    /// The highest level; 0 if no server has a weight.
    top: u32,
}

/// The place of the round. It fits into one word, so that a pick moves both parts in one exchange
/// and needs no lock.
#[derive(Clone, Copy)]
struct Place {
    /// Index behind the real server picked last; 0 at the start of a pass. With [`UNUSED`] at the
    /// very start.
    next: u32,
    /// A pass serves weights of at least `level * step`.
    level: u32,
}

impl Place {
    fn pack(self) -> u64 {
        u64::from(self.next) << 32 | u64::from(self.level)
    }

    fn unpack(word: u64) -> Self {
        Place {
            next: (word >> 32) as u32,
            level: word as u32,
        }
    }
}

/// Returns the level that follows `level` after `passes` more passes.
fn lowered(level: u32, passes: u32, top: u32) -> u32 {
    match level.checked_sub(passes) {
        Some(lower) if lower > 0 || top == 0 => lower,
        Some(_) => top,
        None => top - (passes - level),
    }
}

impl WeightedRoundRobin {
    pub(super) fn new(
        servers: &[RealServer],
        previous: Option<Previous<&WeightedRoundRobin>>,
        seed: Seed,
    ) -> Self {
        let step = weight_gcd(servers.iter().map(|s| s.weight)).max(1);
        let top = servers.iter().map(|s| s.weight / step).max().unwrap_or(0);
        let (mut level, mut next) = (top, None);
        if let Some((previous, before)) = previous {
            let old = Place::unpack(previous.place.load(Relaxed));
            let unused = old.next & UNUSED != 0;
            // The pass continues at the same height, so that a half-finished round does not start
            // again, as in the kernel. Unlike the kernel, this also keeps the place among the
            // servers: otherwise frequent changes would favour the first one.
            let before_seed = if unused { previous.level } else { old.level };
            if before_seed > 0 {
                let height = u64::from(before_seed - 1) * u64::from(previous.step) + 1;
                level = u32::try_from(height.div_ceil(u64::from(step)))
                    .unwrap_or(top)
                    .min(top);
            }
            if !unused {
                next = resume(before, old.next as usize, servers);
            }
        }
        let place = match next {
            Some(next) => Place {
                next: next as u32,
                level,
            },
            // It begins at another place of the cycle, but the cycle is that of the kernel.
            None => Place {
                next: seed.position(servers.len()) as u32 | UNUSED,
                level: lowered(level, seed.second(top), top),
            },
        };
        WeightedRoundRobin {
            place: AtomicU64::new(place.pack()),
            level,
            step,
            top,
        }
    }

    /// Returns the next server in the round, and the level of its pass.
    fn find(&self, place: Place, of: Candidates<'_>) -> Option<(usize, u32)> {
        let servers = of.servers;
        let in_pass = |from: usize, level: u32| {
            (from..servers.len()).find(|&i| servers[i].weight / self.step >= level && of.usable(i))
        };
        if let Some(found) = in_pass((place.next & !UNUSED) as usize, place.level) {
            return Some((found, place.level));
        }
        let best = (0..servers.len())
            .filter(|&i| of.usable(i))
            .map(|i| servers[i].weight / self.step)
            .max()?;
        let next_level = if place.level > 1 {
            place.level - 1
        } else {
            self.top
        };
        // Passes above the greatest remaining weight would find no server. Their number depends on
        // the weights that users choose, so they are skipped.
        let level = next_level.min(best);
        in_pass(0, level)
            .or_else(|| of.next_usable(0))
            .map(|found| (found, level))
    }
}

impl Scheduler for WeightedRoundRobin {
    fn pick(&self, of: Candidates<'_>, _flow: &Flow) -> Option<usize> {
        let mut picked = None;
        let after = |word| {
            let (found, level) = self.find(Place::unpack(word), of)?;
            picked = Some(found);
            let next = found as u32 + 1;
            Some(Place { next, level }.pack())
        };
        self.place.fetch_update(Relaxed, Relaxed, after).ok()?;
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SchedulerName, build, tests::*},
        *,
    };

    #[test]
    fn interleaves_as_the_kernel_does() {
        // Two rounds each, derived by hand from ip_vs_wrr_schedule.
        #[rustfmt::skip]
        let cases: &[(&[u32], &[usize])] = &[
            (&[1], &[0, 0]),
            (&[1, 1, 1], &[0, 1, 2, 0, 1, 2]),
            (&[3, 1], &[0, 0, 0, 1, 0, 0, 0, 1]),
            (&[1, 3], &[1, 1, 0, 1, 1, 1, 0, 1]),
            (&[4, 3, 2], &[0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 0, 1, 0, 1, 2, 0, 1, 2]),
            (&[300, 100], &[0, 0, 0, 1, 0, 0, 0, 1]),
            (&[0, 2, 0, 1], &[1, 1, 3, 1, 1, 3]),
            (&[u32::MAX, 0], &[0, 0]),
        ];
        for &(weights, expected) in cases {
            let servers = servers(weights);
            let wrr = WeightedRoundRobin::new(&servers, None, Seed::default());
            assert_eq!(
                sequence(&wrr, &servers, expected.len()),
                expected,
                "{weights:?}"
            );
        }
    }

    #[test]
    fn shares_are_exact_also_among_threads() {
        let servers = servers(&[3, 1, 0, 4]);
        let wrr = WeightedRoundRobin::new(&servers, None, Seed::default());
        assert_eq!(
            concurrent_counts(&wrr, &servers, 4, 4_000),
            [6_000, 2_000, 0, 8_000]
        );
    }

    #[test]
    fn a_heavy_server_out_of_order_costs_no_empty_passes() {
        let servers = servers(&[4_000_000_000, 1, 2]);
        let wrr = WeightedRoundRobin::new(&servers, None, Seed::default());
        let picks: Vec<_> = (0..6)
            .map(|_| {
                wrr.pick(Candidates::new(&servers, &|i| i == 0), &flow(1))
                    .unwrap()
            })
            .collect();
        assert_eq!(picks, [2, 1, 2, 2, 1, 2]);
    }

    #[test]
    fn a_round_half_done_goes_on_when_the_set_changes() {
        let first = with_weights(servers_at(&[1, 2]), &[4, 2]);
        let wrr = build(SchedulerName::Wrr, &first, None, Seed::default());
        // Levels 2, 1 of step 2: a | a b. Stop after the second a.
        assert_eq!(sequence(&*wrr, &first, 2), [0, 0]);
        // With a third server the step is 1, and the pass is still the lowest.
        let second = with_weights(servers_at(&[1, 2, 3]), &[4, 2, 1]);
        let wrr = build(
            SchedulerName::Wrr,
            &second,
            Some((&*wrr, &first)),
            Seed::default(),
        );
        assert_eq!(sequence(&*wrr, &second, 6), [1, 2, 0, 0, 0, 1]);
    }

    #[test]
    fn a_set_without_weights_recovers_when_one_gets_a_weight() {
        let none = servers(&[0, 0]);
        let wrr = build(SchedulerName::Wrr, &none, None, Seed::default());
        assert_eq!(wrr.pick(Candidates::new(&none, &|_| false), &flow(1)), None);
        let one = servers(&[0, 7]);
        let wrr = build(
            SchedulerName::Wrr,
            &one,
            Some((&*wrr, &none)),
            Seed::default(),
        );
        assert_eq!(sequence(&*wrr, &one, 3), [1, 1, 1]);
    }
}

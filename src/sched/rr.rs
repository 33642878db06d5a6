//! `rr`: round robin. Each real server in its turn, regardless of its weight, as long as that is
//! not 0 (kernel `ip_vs_rr.c`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Candidates, Flow, Previous, RealServer, Scheduler, Seed, order::resume};

/// Marks the place of a round that has picked none yet: it may be chosen again while the first
/// servers of a Service appear one by one.
const UNUSED: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
pub(super) struct RoundRobin {
    /// Index behind the real server picked last; at the start, that of the
    /// first one to pick, with [`UNUSED`].
    next: AtomicUsize,
}

impl RoundRobin {
    pub(super) fn new(
        servers: &[RealServer],
        previous: Option<Previous<&RoundRobin>>,
        seed: Seed,
    ) -> Self {
        let resumed = previous.and_then(|(rr, before)| {
            let next = rr.next.load(Relaxed);
            resume(before, next, servers).filter(|_| next & UNUSED == 0)
        });
        let start = || seed.position(servers.len()) | UNUSED;
        RoundRobin {
            next: AtomicUsize::new(resumed.unwrap_or_else(start)),
        }
    }
}

impl Scheduler for RoundRobin {
    fn pick(&self, of: Candidates<'_>, _flow: &Flow) -> Option<usize> {
        // The cursor must follow the server that is actually picked: a plain `fetch_add` would give
        // the neighbour of a skipped one a double share.
        let mut picked = None;
        let after = |next: usize| {
            picked = of.next_usable(next & !UNUSED);
            picked.map(|picked| picked + 1)
        };
        self.next.fetch_update(Relaxed, Relaxed, after).ok()?;
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
    fn each_in_its_turn_whatever_the_weight() {
        let servers = servers(&[1, 5, 0, 1]);
        let rr = RoundRobin::new(&servers, None, Seed::default());
        assert_eq!(sequence(&rr, &servers, 7), [0, 1, 3, 0, 1, 3, 0]);
    }

    #[test]
    fn a_skipped_server_does_not_double_its_neighbours_share() {
        let servers = servers(&[1, 1, 1, 1]);
        let rr = RoundRobin::new(&servers, None, Seed::default());
        let mut counts = [0; 4];
        for _ in 0..300 {
            counts[rr
                .pick(Candidates::new(&servers, &|i| i == 1), &flow(1))
                .unwrap()] += 1;
        }
        assert_eq!(counts, [100, 0, 100, 100]);
    }

    #[test]
    fn goes_on_behind_the_last_one_when_the_set_changes() {
        let first = servers_at(&[1, 2, 3, 4]);
        let rr = build(SchedulerName::Rr, &first, None, Seed::default());
        assert_eq!(sequence(&*rr, &first, 2), [0, 1]);
        let second = servers_at(&[1, 3, 4, 5]);
        let rr = build(
            SchedulerName::Rr,
            &second,
            Some((&*rr, &first)),
            Seed::default(),
        );
        assert_eq!(sequence(&*rr, &second, 5), [1, 2, 3, 0, 1]);
    }

    #[test]
    fn another_scheduler_leaves_it_nothing_to_inherit() {
        let servers = servers(&[1, 1]);
        let wrr = build(SchedulerName::Wrr, &servers, None, Seed::default());
        sequence(&*wrr, &servers, 1);
        let rr = build(
            SchedulerName::Rr,
            &servers,
            Some((&*wrr, &servers)),
            Seed::default(),
        );
        assert_eq!(sequence(&*rr, &servers, 2), [0, 1]);
    }

    #[test]
    fn fair_to_the_connection_among_threads() {
        let servers = servers(&[1, 1, 0, 1, 1, 1]);
        let rr = RoundRobin::new(&servers, None, Seed::default());
        assert_eq!(
            concurrent_counts(&rr, &servers, 4, 5_000),
            [4_000, 4_000, 0, 4_000, 4_000, 4_000]
        );
    }
}

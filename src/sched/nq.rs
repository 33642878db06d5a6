//! `nq`: never queue. The first idle real server, however slow; if none is
//! idle, the one with the shortest expected delay (kernel `ip_vs_nq.c`).

use std::sync::atomic::Ordering::Relaxed;

use super::{Candidates, Flow, Scheduler, least::Least, sed};

#[derive(Debug)]
pub(super) struct NeverQueue(Least);

impl NeverQueue {
    pub(super) fn new(first: usize) -> NeverQueue {
        NeverQueue(Least::new(sed::cost, first))
    }
}

impl Scheduler for NeverQueue {
    fn pick(&self, of: Candidates<'_>, flow: &Flow) -> Option<usize> {
        let idle = |&i: &usize| of.servers[i].load.active.load(Relaxed) == 0 && of.usable(i);
        let NeverQueue(by_delay) = self;
        by_delay
            .order(of.servers)
            .find(idle)
            .or_else(|| by_delay.pick(of, flow))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn an_idle_server_goes_before_a_fast_one() {
        #[rustfmt::skip]
        let cases: &[LoadCase] = &[
            (&[(9, 1, 0), (1, 0, 0)], Some(1)),
            (&[(9, 1, 0), (0, 0, 0), (1, 0, 7)], Some(2)),
            (&[(1, 1, 0), (3, 2, 0)], Some(1)),
            (&[(1, 1, 0), (3, 5, 0)], Some(0)),
            (&[(0, 0, 0)], None),
        ];
        assert_picks(&NeverQueue::new(0), cases);
    }

    #[test]
    fn connections_that_stay_fill_idle_servers_then_follow_the_weights() {
        // a and b are idle; then (active + 1)/weight: 2/3 2/1 → a;
        // 3/3 2/1 → a; 4/3 2/1 → a; 5/3 2/1 → a; 6/3 2/1 → a (equal); 7/3 → b.
        let servers = servers(&[3, 1]);
        assert_eq!(
            kept_connections(&NeverQueue::new(0), &servers, 8),
            [0, 1, 0, 0, 0, 0, 0, 1]
        );
    }
}

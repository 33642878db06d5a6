//! Real servers that left their Service and serve their connections to the
//! end.
//!
//! As in kube-proxy (`pkg/proxy/ipvs/graceful_termination.go`), a TCP real server
//! is deleted when it has no connections left, however long that takes; a limit
//! is what a flag or an annotation sets. The kernel does not notify of the end of
//! a connection, so connections are counted, with a growing pause. Nothing is
//! stored: after a restart the real servers of weight 0 that no ServicePort needs
//! are drained on.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::plan::Frontend;
use crate::net::{Family, Protocol};

/// How soon the connections of a real server are counted after it lost its
/// weight. The pause doubles each time, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// As often as kube-proxy counts them (`rsCheckDeleteInterval`).
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is to become of a real server that no ServicePort needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It gets no new connections, and those that it has are counted again.
    Drain,
    /// It is deleted; what connections it has are ended by
    /// `expire_nodest_conn`.
    Delete,
}

/// Real servers that are drained.
#[derive(Debug, Default)]
pub struct Drains {
    frontends: HashMap<Frontend, Draining>,
    /// When to count connections, soonest first.
    due: BTreeSet<(Instant, Frontend)>,
}

/// Those of one virtual server, whose connections are counted together.
#[derive(Debug)]
struct Draining {
    /// Since when each is drained, and when it is deleted at the latest.
    reals: BTreeMap<SocketAddr, (Instant, Option<Instant>)>,
    pause: Duration,
    due: Instant,
}

impl Drains {
    /// Decides about a real server that no ServicePort needs. `limit` is how
    /// long its connections may go on, `None`: as long as they last. It has
    /// `weight`, and `connections`, active and inactive ones.
    pub fn decide(
        &mut self,
        frontend: &Frontend,
        real: SocketAddr,
        limit: Option<Duration>,
        weight: u32,
        connections: u32,
        now: Instant,
    ) -> Fate {
        // Only TCP tells when a connection is over.
        let at_once = frontend.protocol != Protocol::Tcp || limit == Some(Duration::ZERO);
        let since = self.since(frontend, real).unwrap_or(now);
        // A limit beyond what the clock can show is none.
        let end = limit.and_then(|limit| since.checked_add(limit));
        let is_over = end.is_some_and(|end| now >= end);
        // While it has weight, a connection may come before it is deleted.
        if at_once || is_over || weight == 0 && connections == 0 {
            self.forget(frontend, real);
            return Fate::Delete;
        }
        let soon = now + FIRST_PAUSE;
        let draining = self.frontends.entry(*frontend).or_insert_with(|| {
            self.due.insert((soon, *frontend));
            Draining {
                reals: BTreeMap::new(),
                pause: FIRST_PAUSE,
                due: soon,
            }
        });
        if draining.reals.insert(real, (since, end)).is_none() {
            draining.pause = FIRST_PAUSE;
            reschedule(&mut self.due, frontend, draining, soon);
        }
        Fate::Drain
    }

    /// The connections of all real servers at `frontend` were counted, and these
    /// `reals` are to be drained on. Others that were are gone.
    pub fn counted(&mut self, frontend: &Frontend, reals: &[SocketAddr], now: Instant) {
        let Some(draining) = self.frontends.get_mut(frontend) else {
            return;
        };
        draining.reals.retain(|real, _| reals.contains(real));
        if draining.reals.is_empty() {
            return self.forget_all(frontend);
        }
        let mut due = draining.due;
        if due <= now {
            draining.pause = (draining.pause * 2).min(LONGEST_PAUSE);
            due = now + draining.pause;
        }
        let ends = draining.reals.values().filter_map(|(_, end)| *end);
        let due = ends.fold(due, Instant::min);
        reschedule(&mut self.due, frontend, draining, due);
    }

    /// It is needed again, or gone.
    pub fn forget(&mut self, frontend: &Frontend, real: SocketAddr) {
        let Some(draining) = self.frontends.get_mut(frontend) else {
            return;
        };
        draining.reals.remove(&real);
        if draining.reals.is_empty() {
            self.forget_all(frontend);
        }
    }

    /// Its virtual server is gone.
    pub fn forget_all(&mut self, frontend: &Frontend) {
        if let Some(draining) = self.frontends.remove(frontend) {
            self.due.remove(&(draining.due, *frontend));
        }
    }

    /// Virtual servers whose connections are to be counted now.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = Frontend> {
        let due = self.due.iter().take_while(move |(at, _)| *at <= now);
        due.map(|(_, frontend)| *frontend)
    }

    /// When to count connections of `family` next; `None`: nothing of it is drained.
    pub fn next_due_of(&self, family: Family) -> Option<Instant> {
        let mut due = self.due.iter();
        let next = due.find(|(_, frontend)| Family::of(&frontend.address) == family);
        next.map(|(at, _)| *at)
    }

    /// When to count connections next; `None`: nothing is drained.
    #[cfg(test)]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many real servers are drained.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let of = |draining: &Draining| draining.reals.len();
        self.frontends.values().map(of).sum()
    }

    fn since(&self, frontend: &Frontend, real: SocketAddr) -> Option<Instant> {
        let (since, _) = self.frontends.get(frontend)?.reals.get(&real)?;
        Some(*since)
    }
}

fn reschedule(
    due: &mut BTreeSet<(Instant, Frontend)>,
    frontend: &Frontend,
    draining: &mut Draining,
    at: Instant,
) {
    due.remove(&(draining.due, *frontend));
    draining.due = at;
    due.insert((at, *frontend));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> Frontend {
        Frontend {
            address: [10, 0, 0, 1].into(),
            port: 80,
            protocol: Protocol::Tcp,
        }
    }

    fn real(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, last], 80))
    }

    #[test]
    fn connections_are_served_to_their_end() {
        let tcp = tcp();
        let udp = Frontend {
            protocol: Protocol::Udp,
            ..tcp
        };
        let sctp = Frontend {
            protocol: Protocol::Sctp,
            ..tcp
        };
        let start = Instant::now();
        let minutes = |n: u64| start + Duration::from_secs(60 * n);
        let minute = Some(Duration::from_secs(60));
        let endless = Some(Duration::MAX);
        let mut drains = Drains::default();
        let cases = [
            ("UDP", udp, None, 1, 9, 0, Fate::Delete),
            ("SCTP", sctp, None, 1, 9, 0, Fate::Delete),
            ("at once", tcp, Some(Duration::ZERO), 1, 9, 0, Fate::Delete),
            ("first without new ones", tcp, None, 1, 0, 0, Fate::Drain),
            ("idle", tcp, None, 0, 0, 0, Fate::Delete),
            ("busy", tcp, None, 0, 1, 0, Fate::Drain),
            ("still busy", tcp, None, 0, 1, 16, Fate::Drain),
            ("for days", tcp, None, 0, 1, 5_000, Fate::Drain),
            ("a huge limit", tcp, endless, 0, 1, 5_000, Fate::Drain),
            (
                "a limit comes later",
                tcp,
                minute,
                0,
                1,
                5_001,
                Fate::Delete,
            ),
            ("busy with a limit", tcp, minute, 0, 1, 6_000, Fate::Drain),
            ("limit reached", tcp, minute, 0, 1, 6_001, Fate::Delete),
        ];
        for (what, frontend, limit, weight, connections, at, fate) in cases {
            let now = minutes(at);
            let decided = drains.decide(&frontend, real(1), limit, weight, connections, now);
            assert_eq!(decided, fate, "{what}");
            assert_eq!(drains.next_due().is_some(), fate == Fate::Drain, "{what}");
        }
        drains.decide(&tcp, real(1), None, 0, 1, start);
        drains.forget_all(&tcp);
        assert_eq!(drains.next_due(), None);
    }

    #[test]
    fn connections_are_counted_with_a_growing_pause() {
        let (tcp, start) = (tcp(), Instant::now());
        let mut drains = Drains::default();
        let count = |drains: &mut Drains, reals: &[u8], now: Instant| {
            for last in reals {
                let limit = (*last == 9).then_some(Duration::from_secs(10));
                drains.decide(&tcp, real(*last), limit, 0, 1, now);
            }
            let reals: Vec<_> = reals.iter().map(|last| real(*last)).collect();
            drains.counted(&tcp, &reals, now);
        };
        let seconds = |instant: Instant| (instant - start).as_secs();
        count(&mut drains, &[1], start);
        let mut at = Vec::new();
        while at.len() < 9 {
            let now = drains.next_due().expect("it is drained");
            assert_eq!(drains.due(now - Duration::from_millis(1)).count(), 0);
            assert_eq!(drains.due(now).collect::<Vec<_>>(), [tcp]);
            at.push(seconds(now));
            // Something else about that Service changes.
            count(&mut drains, &[1], now - Duration::from_millis(1));
            count(&mut drains, &[1], now);
        }
        assert_eq!(at, [1, 3, 7, 15, 31, 63, 123, 183, 243]);

        // Those of a further one are counted soon, those of one with a limit in
        // time.
        let now = drains.next_due().expect("it is drained");
        count(&mut drains, &[1, 2], now);
        let next = drains.next_due().expect("they are drained");
        assert_eq!(next - now, FIRST_PAUSE);
        count(&mut drains, &[1, 2, 9], next);
        for _ in 0..3 {
            let now = drains.next_due().expect("they are drained");
            count(&mut drains, &[1, 2, 9], now);
        }
        let due = drains.next_due().expect("they are drained");
        assert_eq!(due - next, Duration::from_secs(10));

        drains.forget(&tcp, real(1));
        assert_eq!((drains.len(), drains.next_due()), (2, Some(due)));
        // Another program deleted one.
        count(&mut drains, &[9], next);
        assert_eq!((drains.len(), drains.next_due()), (1, Some(due)));
        drains.forget(&tcp, real(9));
        assert_eq!((drains.len(), drains.next_due()), (0, None));
    }
}

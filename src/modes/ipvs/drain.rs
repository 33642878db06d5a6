//! Real servers that left their Service and serve their connections to the end.
//!
//! As in kube-proxy (`pkg/proxy/ipvs/graceful_termination.go`), a TCP real server is deleted when
//! it has no connections left, however long that takes; only a flag or an annotation sets a limit.
//! The kernel does not notify of the end of a connection, so connections are counted, with a
//! growing pause. Nothing is stored: after a restart, draining continues for the real servers of
//! weight 0 that no ServicePort needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use hashbrown::HashMap;
use net::Protocol;
use tokio::time::Instant;

use super::plan::ServerId;
use crate::backoff::Backoff;

/// How soon the connections of a real server are counted after it lost its
/// weight. The pause doubles each time, up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// As often as kube-proxy counts them (`rsCheckDeleteInterval`).
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Treatment of a real server that no ServicePort needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// It gets no new connections, and those that it has are counted again.
    Drain(Drained),
    /// It is deleted; `expire_nodest_conn` ends its connections.
    Delete,
}

/// A real server that no ServicePort needs any more.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// Its address and port.
    pub address: SocketAddr,
    /// Its share of new connections.
    pub weight: u32,
    /// How many connections it has, active and inactive ones.
    pub connections: u32,
    /// How long they may continue; `None`: as long as they last.
    pub limit: Option<Duration>,
}

/// A real server that is still being drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Its address and port.
    pub address: SocketAddr,
    /// How long it is drained.
    pub period: Period,
}

/// Real servers of one family that are drained.
#[derive(Debug, Default)]
pub struct Drains {
    frontends: HashMap<ServerId, Draining>,
    /// When to count connections, soonest first.
    due: BTreeSet<(Instant, ServerId)>,
}

/// The drained real servers of one virtual server, whose connections are counted
/// together.
#[derive(Debug)]
struct Draining {
    reals: BTreeMap<SocketAddr, Period>,
    backoff: Backoff,
    due: Instant,
}

/// How long a real server is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    since: Instant,
    /// When it is deleted at the latest.
    end: Option<Instant>,
}

impl Drains {
    /// Decides how to treat a real server that no ServicePort needs.
    pub fn decide(&self, frontend: &ServerId, leaving: &Leaving, now: Instant) -> DrainAction {
        let (real, limit) = (leaving.address, leaving.limit);
        // Only TCP shows when a connection is over.
        let at_once = frontend.protocol != Protocol::Tcp || limit == Some(Duration::ZERO);
        let since = self.since(frontend, real).unwrap_or(now);
        // A limit beyond what the clock can hold is no limit.
        let end = limit.and_then(|limit| since.checked_add(limit));
        let is_over = end.is_some_and(|end| now >= end);
        // While it has weight, a connection may come before it is deleted.
        if at_once || is_over || leaving.weight == 0 && leaving.connections == 0 {
            DrainAction::Delete
        } else {
            DrainAction::Drain(Drained {
                address: real,
                period: Period { since, end },
            })
        }
    }

    /// Records that the connections of all real servers at `frontend` were counted, and that those
    /// in `drained` are still drained; others that were drained are needed again, or gone.
    pub fn update(&mut self, frontend: &ServerId, drained: &[Drained], now: Instant) {
        if drained.is_empty() {
            return self.remove(frontend);
        }
        let draining = self.frontends.entry(*frontend).or_insert_with(|| Draining {
            reals: BTreeMap::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            due: now,
        });
        let reals = drained.iter().map(|one| (one.address, one.period));
        let before = std::mem::replace(&mut draining.reals, reals.collect());
        if !draining.reals.keys().all(|real| before.contains_key(real)) {
            draining.backoff.failed_anew(now);
        }
        draining.backoff.failed(now);
        draining.reschedule(frontend, &mut self.due, now);
    }

    /// Records that the counts due at `now` were taken as far as possible: connections that could
    /// not be counted are counted after a growing pause.
    pub fn postpone(&mut self, now: Instant) {
        let late: Vec<ServerId> = self.due(now).collect();
        for frontend in late {
            let Some(draining) = self.frontends.get_mut(&frontend) else {
                continue;
            };
            draining.backoff.failed(now);
            draining.reschedule(&frontend, &mut self.due, now);
        }
    }

    /// Removes the real servers of a virtual server that is gone.
    pub fn remove(&mut self, frontend: &ServerId) {
        if let Some(draining) = self.frontends.remove(frontend) {
            self.due.remove(&(draining.due, *frontend));
        }
    }

    /// Virtual servers whose connections are due to be counted.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = ServerId> {
        let due = self.due.iter().take_while(move |(at, _)| *at <= now);
        due.map(|(_, frontend)| *frontend)
    }

    /// Returns when to count connections next; `None`: nothing is drained.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the real servers of a virtual server that are drained.
    pub fn of(&self, frontend: &ServerId) -> Vec<SocketAddr> {
        let draining = self.frontends.get(frontend);
        draining.map_or_else(Vec::new, |draining| {
            draining.reals.keys().copied().collect()
        })
    }

    /// Returns the real servers that are drained, each with its virtual server.
    pub fn all(&self) -> impl Iterator<Item = (&ServerId, SocketAddr)> {
        let all = self.frontends.iter();
        all.flat_map(|(frontend, draining)| {
            draining.reals.keys().map(move |real| (frontend, *real))
        })
    }

    /// Returns how many real servers are drained.
    pub fn len(&self) -> usize {
        let of = |draining: &Draining| draining.reals.len();
        self.frontends.values().map(of).sum()
    }

    fn since(&self, frontend: &ServerId, real: SocketAddr) -> Option<Instant> {
        let period = self.frontends.get(frontend)?.reals.get(&real)?;
        Some(period.since)
    }
}

impl Draining {
    /// Schedules the next count: when the pause is over, or a future limit is reached.
    fn reschedule(
        &mut self,
        frontend: &ServerId,
        all: &mut BTreeSet<(Instant, ServerId)>,
        now: Instant,
    ) {
        all.remove(&(self.due, *frontend));
        let ends = self.reals.values().filter_map(|period| period.end);
        let ends = ends.filter(|end| *end > now);
        let due = self.backoff.due().into_iter().chain(ends).min();
        self.due = due.unwrap_or(self.due);
        all.insert((self.due, *frontend));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_port_80(protocol: Protocol) -> ServerId {
        ServerId::new(([10, 0, 0, 1], 80), protocol)
    }

    fn real(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, last], 80))
    }

    fn leaving(last: u8, limit: Option<Duration>, weight: u32, connections: u32) -> Leaving {
        Leaving {
            address: real(last),
            weight,
            connections,
            limit,
        }
    }

    /// Decides about a real server, the only one of its virtual server, and records the decision.
    fn decide(
        drains: &mut Drains,
        frontend: &ServerId,
        leaving: &Leaving,
        now: Instant,
    ) -> DrainAction {
        let action = drains.decide(frontend, leaving, now);
        let drained = match action {
            DrainAction::Drain(drained) => Some(drained),
            DrainAction::Delete => None,
        };
        drains.update(frontend, drained.as_slice(), now);
        action
    }

    #[test]
    fn connections_that_cannot_be_counted_are_tried_less_and_less_often() {
        let tcp = at_port_80(Protocol::Tcp);
        let mut drains = Drains::default();
        let mut now = Instant::now();
        let limit = Some(Duration::from_secs(3));
        decide(&mut drains, &tcp, &leaving(1, limit, 0, 1), now);
        let mut pauses = Vec::new();
        while pauses.len() < 8 {
            let due = drains.next_due().expect("something is drained");
            pauses.push((due - now).as_secs());
            now = due;
            drains.postpone(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let counted = leaving(1, limit, 0, 1);
        let action = decide(&mut drains, &tcp, &counted, now);
        assert_eq!(action, DrainAction::Delete);
        assert_eq!(drains.next_due(), None);
    }

    #[test]
    fn connections_are_served_to_their_end() {
        let [tcp, udp, sctp] = Protocol::ALL.map(at_port_80);
        let start = Instant::now();
        let minutes = |n: u64| start + Duration::from_secs(60 * n);
        let minute = Some(Duration::from_secs(60));
        let (zero, endless) = (Some(Duration::ZERO), Some(Duration::MAX));
        let mut drains = Drains::default();
        let cases = [
            ("UDP", udp, None, 1, 9, 0, false),
            ("SCTP", sctp, None, 1, 9, 0, false),
            ("at once", tcp, zero, 1, 9, 0, false),
            ("first without new ones", tcp, None, 1, 0, 0, true),
            ("idle", tcp, None, 0, 0, 0, false),
            ("busy", tcp, None, 0, 1, 0, true),
            ("still busy", tcp, None, 0, 1, 16, true),
            ("for days", tcp, None, 0, 1, 5_000, true),
            ("a huge limit", tcp, endless, 0, 1, 5_000, true),
            ("a limit comes later", tcp, minute, 0, 1, 5_001, false),
            ("busy with a limit", tcp, minute, 0, 1, 6_000, true),
            ("limit reached", tcp, minute, 0, 1, 6_001, false),
        ];
        for (what, frontend, limit, weight, connections, at, is_drained) in cases {
            let leaving = leaving(1, limit, weight, connections);
            let action = decide(&mut drains, &frontend, &leaving, minutes(at));
            assert_eq!(action != DrainAction::Delete, is_drained, "{what}");
            assert_eq!(drains.next_due().is_some(), is_drained, "{what}");
        }
        decide(&mut drains, &tcp, &leaving(1, None, 0, 1), start);
        drains.remove(&tcp);
        assert_eq!(drains.next_due(), None);
    }

    #[test]
    fn connections_are_counted_with_a_growing_pause() {
        let (tcp, start) = (at_port_80(Protocol::Tcp), Instant::now());
        let mut drains = Drains::default();
        let count = |drains: &mut Drains, reals: &[u8], now: Instant| {
            let drained = reals.iter().map(|last| {
                let limit = (*last == 9).then_some(Duration::from_secs(10));
                let leaving = leaving(*last, limit, 0, 1);
                match drains.decide(&tcp, &leaving, now) {
                    DrainAction::Drain(drained) => drained,
                    DrainAction::Delete => panic!("{last} is deleted"),
                }
            });
            let drained: Vec<_> = drained.collect();
            drains.update(&tcp, &drained, now);
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

        // Connections of a further one are counted soon, those of one with a limit in
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

        count(&mut drains, &[2, 9], next);
        assert_eq!((drains.len(), drains.next_due()), (2, Some(due)));
        // Another program deleted one.
        count(&mut drains, &[9], next);
        assert_eq!((drains.len(), drains.next_due()), (1, Some(due)));
        count(&mut drains, &[], next);
        assert_eq!((drains.len(), drains.next_due()), (0, None));
    }
}

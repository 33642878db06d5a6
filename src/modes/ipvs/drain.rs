//! Real servers that left their Service and serve their connections to the
//! end.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use super::plan::Frontend;
use crate::services::Protocol;

/// How long connections may go on where a Service does not say.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// What is to become of a real server that nobody wants any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It gets no new connections and is looked at again.
    Drain,
    /// It is deleted; what connections it has are ended by
    /// `expire_nodest_conn`.
    Delete,
}

/// Real servers that are drained, and until when at most.
#[derive(Debug, Default)]
pub struct Drains {
    until: HashMap<(Frontend, SocketAddr), Instant>,
}

impl Drains {
    /// Decides about a real server that nobody wants. `limit` is what its
    /// Service says of how long connections may go on. It has `weight`, and
    /// `connections`, active and inactive ones.
    pub fn decide(
        &mut self,
        frontend: &Frontend,
        real: SocketAddr,
        limit: Option<Duration>,
        weight: u32,
        connections: u32,
        now: Instant,
    ) -> Fate {
        let key = (*frontend, real);
        // Only TCP tells when a connection is over.
        if frontend.protocol != Protocol::Tcp || limit == Some(Duration::ZERO) {
            self.until.remove(&key);
            return Fate::Delete;
        }
        let limit = limit.unwrap_or(LONGEST);
        let until = *self.until.entry(key).or_insert(now + limit);
        // While it has weight, a connection may come between the look and the
        // deletion.
        if now >= until || weight == 0 && connections == 0 {
            self.until.remove(&key);
            Fate::Delete
        } else {
            Fate::Drain
        }
    }

    /// It is wanted, or gone.
    pub fn forget(&mut self, frontend: &Frontend, real: SocketAddr) {
        if !self.until.is_empty() {
            self.until.remove(&(*frontend, real));
        }
    }

    /// Its virtual server is gone.
    pub fn forget_all(&mut self, frontend: &Frontend) {
        if !self.until.is_empty() {
            self.until.retain(|(of, _), _| of != frontend);
        }
    }

    /// How many are drained.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// Virtual servers to look at again.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        self.until.keys().map(|(frontend, _)| *frontend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_served_to_their_end() {
        let tcp = Frontend {
            address: [10, 0, 0, 1].into(),
            port: 80,
            protocol: Protocol::Tcp,
        };
        let udp = Frontend {
            protocol: Protocol::Udp,
            ..tcp
        };
        let real = SocketAddr::from(([10, 1, 0, 1], 80));
        let start = Instant::now();
        let minutes = |n: u64| start + Duration::from_secs(60 * n);
        let minute = Some(Duration::from_secs(60));
        let mut drains = Drains::default();
        let cases = [
            ("UDP", udp, None, 1, 9, 0, Fate::Delete),
            ("at once", tcp, Some(Duration::ZERO), 1, 9, 0, Fate::Delete),
            ("first without new ones", tcp, None, 1, 0, 0, Fate::Drain),
            ("idle", tcp, None, 0, 0, 0, Fate::Delete),
            ("busy", tcp, None, 0, 1, 0, Fate::Drain),
            ("still busy", tcp, None, 0, 1, 14, Fate::Drain),
            ("too long", tcp, None, 0, 1, 15, Fate::Delete),
            ("busy with a limit", tcp, minute, 0, 1, 20, Fate::Drain),
            ("limit reached", tcp, minute, 0, 1, 21, Fate::Delete),
        ];
        for (what, frontend, limit, weight, connections, at, fate) in cases {
            let decided = drains.decide(&frontend, real, limit, weight, connections, minutes(at));
            assert_eq!(decided, fate, "{what}");
            assert_eq!(drains.len(), usize::from(fate == Fate::Drain), "{what}");
        }
        drains.decide(&tcp, real, None, 0, 1, start);
        assert_eq!(drains.frontends().collect::<Vec<_>>(), [tcp]);
        drains.forget_all(&tcp);
        assert_eq!(drains.len(), 0);
    }
}

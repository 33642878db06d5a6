//! Stale flows that could not be deleted yet.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    mem,
};

use net::{Family, Frontend, Protocol};

use super::{Match, Reply};

/// Frontends of which flows may wait to be deleted, while that fails.
pub const MOST: usize = 10_000;

/// Endpoints of one frontend that are named, of those that flows to it still go to; as many as of
/// a ServicePort that waits for its family.
const MOST_OF_ONE: usize = 100;

/// The stale flows of one family that wait to be deleted, by the frontend that the client
/// called: however often its endpoints change, a frontend counts once.
#[derive(Debug, Default)]
pub struct Waiting {
    pub(super) frontends: HashMap<Frontend, Reply>,
    /// Whether frontends are no longer named with their endpoints, as there were too many: all
    /// flows to them must be compared with the endpoints that serve.
    pub(super) compares_all: bool,
}

impl Waiting {
    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && !self.compares_all
    }

    /// Adds the flows of `family` that `matches` match.
    pub fn add(&mut self, family: Family, matches: impl IntoIterator<Item = Match>) {
        for Match {
            destination,
            port,
            reply,
            ..
        } in matches
        {
            let frontend = Frontend {
                protocol: Protocol::Udp,
                family,
                address: destination,
                port: port.unwrap_or(0),
            };
            match self.frontends.entry(frontend) {
                Entry::Vacant(vacant) => {
                    vacant.insert(reply);
                }
                Entry::Occupied(mut waiting) => {
                    let before = mem::replace(waiting.get_mut(), Reply::Any);
                    *waiting.get_mut() = either(before, reply);
                }
            }
        }
    }

    /// Limits the waiting flows to [`MOST`] frontends, with [`MOST_OF_ONE`] endpoints each. If
    /// there are more, a comparison of all flows replaces the frontends that are `served`, which
    /// have endpoints. Returns how many others were dropped, since they are too many by themselves.
    pub fn bound(&mut self, served: impl FnOnce() -> HashSet<Frontend>) -> usize {
        let is_large = |reply: &Reply| match reply {
            Reply::From(gone) => gone.len() > MOST_OF_ONE,
            Reply::Any | Reply::NotFrom(_) => false,
        };
        let any_is_large = self.frontends.values().any(is_large);
        if self.frontends.len() <= MOST && !any_is_large {
            return 0;
        }
        let served = served();
        self.frontends.retain(|at, reply| {
            if !is_large(reply) {
                return true;
            }
            if served.contains(at) {
                self.compares_all = true;
                return false;
            }
            match reply {
                // Without an address, flows of others to that port anywhere would be meant.
                Reply::From(gone) if at.address.is_none() => {
                    *gone = gone.iter().take(MOST_OF_ONE).copied().collect();
                }
                _ => *reply = Reply::Any,
            }
            true
        });
        if self.frontends.len() <= MOST {
            return 0;
        }
        self.frontends.retain(|at, _| !served.contains(at));
        self.compares_all = true;
        let over = self.frontends.len().saturating_sub(MOST);
        let dropped: Vec<Frontend> = self.frontends.keys().take(over).copied().collect();
        for at in dropped {
            self.frontends.remove(&at);
        }
        over
    }
}

/// Combines two patterns: the result matches any flow that `one` or `other` matches.
fn either(one: Reply, other: Reply) -> Reply {
    match (one, other) {
        (Reply::Any, _) | (_, Reply::Any) => Reply::Any,
        (Reply::From(mut all), Reply::From(others)) => {
            all.extend(others);
            Reply::From(all)
        }
        (Reply::NotFrom(mut kept), Reply::NotFrom(others)) => {
            kept.retain(|source| others.contains(source));
            Reply::NotFrom(kept)
        }
        (Reply::NotFrom(mut kept), Reply::From(gone))
        | (Reply::From(gone), Reply::NotFrom(mut kept)) => {
            kept.retain(|source| !gone.contains(source));
            Reply::NotFrom(kept)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::{
        super::{Source, flows},
        *,
    };

    fn source(last: u8) -> Source {
        Source::from(SocketAddr::from(([10, 1, 0, last], 53)))
    }

    fn sources(all: &[u8]) -> HashSet<Source> {
        all.iter().map(|last| source(*last)).collect()
    }

    fn at(number: usize) -> Frontend {
        let [_, _, high, low] = (number as u32).to_be_bytes();
        Frontend::service(Protocol::Udp, [10, 0, high, low].into(), 53)
    }

    #[test]
    fn what_waits_of_one_frontend_is_one() {
        let replies = [
            Reply::Any,
            Reply::From(sources(&[])),
            Reply::From(sources(&[1, 2])),
            Reply::NotFrom(sources(&[])),
            Reply::NotFrom(sources(&[2, 3])),
        ];
        let means = |reply: &Reply, source: &Source| match reply {
            Reply::Any => true,
            Reply::From(all) => all.contains(source),
            Reply::NotFrom(all) => !all.contains(source),
        };
        for one in &replies {
            for other in &replies {
                let mut waiting = Waiting::default();
                let both = [one, other].map(|reply| flows(&at(53), reply.clone()));
                waiting.add(Family::V4, both);
                let Waiting {
                    frontends: all,
                    compares_all,
                } = mem::take(&mut waiting);
                assert_eq!((all.len(), compares_all), (1, false));
                for last in 1..5 {
                    let source = source(last);
                    let expected = means(one, &source) || means(other, &source);
                    let found = means(&all[&at(53)], &source);
                    assert_eq!(found, expected, "{one:?} and {other:?}: {last}");
                }
                assert!(waiting.is_empty());
            }
        }
    }

    #[test]
    fn nothing_is_lost_of_more_endpoints_than_are_named() {
        let served = at(1);
        let gone = at(2);
        let node_port = Frontend::node_port(Protocol::Udp, Family::V4, 30_053);
        let all: Vec<u8> = (0..=MOST_OF_ONE as u8).collect();
        for (named, compares_all, replies) in [
            (MOST_OF_ONE, false, [Some(MOST_OF_ONE); 3]),
            (MOST_OF_ONE + 1, true, [None, Some(0), Some(MOST_OF_ONE)]),
        ] {
            let mut waiting = Waiting::default();
            for frontend in [served, gone, node_port] {
                for last in &all[..named] {
                    let reply = Reply::From(sources(&[*last]));
                    waiting.add(Family::V4, [flows(&frontend, reply)]);
                }
            }
            assert_eq!(waiting.bound(|| HashSet::from([served])), 0);
            assert_eq!(waiting.compares_all, compares_all);
            let found = [served, gone, node_port].map(|frontend| {
                Some(match waiting.frontends.get(&frontend)? {
                    Reply::From(gone) => gone.len(),
                    Reply::Any => 0,
                    Reply::NotFrom(_) => unreachable!("none was added"),
                })
            });
            assert_eq!(found, replies, "{named}");
        }
    }

    #[test]
    fn nothing_is_lost_of_more_frontends_than_are_named() {
        let mut waiting = Waiting::default();
        let gone = |number| flows(&at(number), Reply::From(sources(&[1])));
        waiting.add(Family::V4, (0..MOST).map(gone));
        let unused = || unreachable!("they are not too many");
        assert_eq!(waiting.bound(unused), 0);
        waiting.add(Family::V4, [gone(MOST)]);
        let served = || (100..=MOST).map(at).collect();
        assert_eq!(
            waiting.bound(served),
            0,
            "a comparison stands for the others"
        );
        let Waiting {
            frontends,
            compares_all,
        } = mem::take(&mut waiting);
        assert_eq!((frontends.len(), compares_all), (100, true));

        waiting.add(Family::V4, (0..MOST + 3).map(gone));
        assert_eq!(waiting.bound(HashSet::new), 3, "too many are gone");
        assert_eq!(waiting.frontends.len(), MOST);
    }
}

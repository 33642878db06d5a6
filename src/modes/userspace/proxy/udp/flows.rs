//! How many UDP flows there may be, and which of them end early when there are
//! many: the one that was idle for longest goes first.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Idle time that no flow is ended within, however many there are: its answer
/// may be on the way.
const SHORTEST: Duration = Duration::from_millis(250);

/// Flows that are examined for each new one, so that none has to wait for long.
const EXAMINED: usize = 8;

/// All UDP flows.
#[derive(Debug)]
pub struct Flows {
    /// Flows that there may be: each takes a descriptor, and TCP needs some, too.
    most: usize,
    /// Flows to one endpoint that there may be.
    most_each: usize,
    /// How long a flow may be idle while there are few.
    timeout: Duration,
    epoch: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    all: Queue,
    remotes: HashMap<SocketAddr, Queue>,
}

/// Flows, those that have been idle for longest first, roughly: one that was used
/// since it was put here is put at the end when its turn comes.
#[derive(Debug, Default)]
struct Queue {
    count: usize,
    entries: VecDeque<(Weak<Activity>, u64)>,
}

/// When a flow was used, and that it is to end.
#[derive(Debug)]
pub struct Activity {
    /// Milliseconds after the epoch.
    last_used: AtomicU64,
    ends: AtomicBool,
    end: Notify,
}

/// There are as many flows as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Of all: they take descriptors.
    All,
    /// To that endpoint: they take local ports.
    Endpoint,
}

/// A flow's place among all. Gives it back on drop.
#[derive(Debug)]
pub struct Place {
    flows: Arc<Flows>,
    remote: SocketAddr,
    activity: Arc<Activity>,
}

impl Flows {
    /// Returns up to `most` flows, and `most_each` to one endpoint, each of which may be
    /// idle for `timeout` while there are few.
    pub fn new(most: usize, most_each: usize, timeout: Duration) -> Arc<Self> {
        Arc::new(Flows {
            most: most.max(1),
            most_each: most_each.max(1),
            timeout,
            epoch: Instant::now(),
            state: Mutex::default(),
        })
    }

    /// Returns the place of a new flow to `remote`, unless there are too many. Answers
    /// also how many others were ended to make room.
    pub fn begin(self: &Arc<Self>, remote: SocketAddr) -> (Result<Place, Full>, usize) {
        let now = self.now();
        let mut state = self.state.lock();
        let allowed = self.allowed(state.all.count, self.most);
        let mut ended = state.all.end_idle(now, allowed);
        let of_remote = state.remotes.entry(remote).or_default();
        let allowed = self.allowed(of_remote.count, self.most_each);
        ended += of_remote.end_idle(now, allowed);
        let full = if of_remote.count >= self.most_each {
            Some(Full::Endpoint)
        } else {
            (state.all.count >= self.most).then_some(Full::All)
        };
        if let Some(full) = full {
            return (Err(full), ended);
        }
        let activity = Arc::new(Activity {
            last_used: AtomicU64::new(now),
            ends: AtomicBool::new(false),
            end: Notify::new(),
        });
        state.add(remote, &activity, now);
        let place = Place {
            flows: Arc::clone(self),
            remote,
            activity,
        };
        (Ok(place), ended)
    }

    /// Ends the flow to `remote` that was idle for longest, if for long enough:
    /// there was no port for another one. Answers how many were ended.
    pub fn make_room(&self, remote: SocketAddr) -> usize {
        let now = self.now();
        let mut state = self.state.lock();
        let of_remote = state.remotes.get_mut(&remote);
        of_remote.map_or(0, |queue| queue.end_idle(now, Some(SHORTEST)))
    }

    /// Returns how long a flow may be idle when there are `count` of `most`; `None`: as
    /// long as it would anyway. From half on, the less the more there are.
    fn allowed(&self, count: usize, most: usize) -> Option<Duration> {
        let left = most.saturating_sub(count);
        if left > most / 2 {
            return None;
        }
        let share = 2.0 * left as f64 / most as f64;
        Some(self.timeout.mul_f64(share).max(SHORTEST))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl State {
    fn add(&mut self, remote: SocketAddr, activity: &Arc<Activity>, now: u64) {
        self.all.add(activity, now);
        self.remotes.entry(remote).or_default().add(activity, now);
    }

    fn remove(&mut self, remote: SocketAddr) {
        self.all.count -= 1;
        if let Some(of_remote) = self.remotes.get_mut(&remote) {
            of_remote.count -= 1;
            if of_remote.count == 0 {
                self.remotes.remove(&remote);
            }
        }
    }
}

impl Queue {
    fn add(&mut self, activity: &Arc<Activity>, now: u64) {
        self.count += 1;
        // Flows that ended are still in it.
        if self.entries.len() > 2 * self.count + 64 {
            self.entries.retain(|(flow, _)| flow.strong_count() > 0);
        }
        self.entries.push_back((Arc::downgrade(activity), now));
    }

    /// Ends flows that were idle for longer than `allowed`; answers how many.
    fn end_idle(&mut self, now: u64, allowed: Option<Duration>) -> usize {
        let Some(allowed) = allowed else {
            return 0;
        };
        let allowed = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
        let mut ended = 0;
        for _ in 0..EXAMINED {
            let Some((flow, seen)) = self.entries.pop_front() else {
                break;
            };
            let Some(activity) = flow.upgrade().filter(|a| !a.ends.load(Relaxed)) else {
                continue;
            };
            let last_used = activity.last_used.load(Relaxed);
            if last_used > seen {
                self.entries.push_back((flow, last_used));
            } else if now.saturating_sub(last_used) > allowed {
                activity.end();
                ended += 1;
            } else {
                self.entries.push_front((flow, seen));
                break;
            }
        }
        ended
    }
}

impl Activity {
    /// Ends the flow.
    pub fn end(&self) {
        self.ends.store(true, Relaxed);
        self.end.notify_one();
    }

    /// Waits until the flow is to end.
    pub async fn ended(&self) {
        self.end.notified().await;
    }
}

impl Place {
    /// Records that the flow is used now.
    pub fn used(&self) {
        self.activity.last_used.store(self.flows.now(), Relaxed);
    }

    /// Returns how long it was not used.
    pub fn idle(&self) -> Duration {
        let last_used = self.activity.last_used.load(Relaxed);
        Duration::from_millis(self.flows.now().saturating_sub(last_used))
    }

    /// Returns what ends it.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.flows.state.lock().remove(self.remote);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn remote(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, last], 53))
    }

    fn begin(flows: &Arc<Flows>, to: u8) -> Place {
        flows.begin(remote(to)).0.expect("a place")
    }

    fn ends(place: &Place) -> bool {
        place.activity.ends.load(Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_flows_the_sooner_the_most_idle_ends() {
        let flows = Flows::new(100, 1000, TIMEOUT);
        let mut places: Vec<Place> = Vec::new();
        for _ in 0..75 {
            places.push(begin(&flows, 1));
            advance(Duration::from_millis(10)).await;
        }
        // Three quarters: half the time.
        advance(TIMEOUT / 2 - Duration::from_secs(2)).await;
        places[0].used();
        places.push(begin(&flows, 2));
        assert!(!places.iter().any(ends), "none was idle for so long");
        advance(Duration::from_secs(2)).await;
        let (place, ended) = flows.begin(remote(2));
        places.push(place.expect("a place"));
        // The first one was used.
        assert_eq!(ended, EXAMINED);
        let (others, rest) = places[1..].split_at(EXAMINED);
        assert!(!ends(&places[0]) && others.iter().all(ends) && !rest.iter().any(ends));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_too_many_and_none_that_waits_for_its_answer_ends() {
        for (most, each) in [(10, 100), (100, 10)] {
            let flows = Flows::new(most, each, TIMEOUT);
            let mut places: Vec<Place> = (0..10).map(|_| begin(&flows, 1)).collect();
            let full = [Full::All, Full::Endpoint][usize::from(most > each)];
            assert_eq!(flows.begin(remote(1)).0.err(), Some(full));
            assert_eq!(flows.make_room(remote(1)), 0);
            assert!(!places.iter().any(ends));
            advance(SHORTEST * 2).await;
            assert!(
                flows.begin(remote(1)).0.is_err(),
                "the ended are still there"
            );
            places.retain(|place| !ends(place));
            assert_eq!(places.len(), 10 - EXAMINED);
            begin(&flows, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_goes_with_the_flows() {
        let flows = Flows::new(10_000, 10_000, TIMEOUT);
        for n in 0..1000_u32 {
            drop(begin(&flows, n as u8));
        }
        let state = flows.state.lock();
        assert!(state.all.entries.len() <= 65 && state.remotes.is_empty());
        assert_eq!(state.all.count, 0);
    }
}

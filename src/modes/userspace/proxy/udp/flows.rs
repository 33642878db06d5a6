//! The number of UDP flows, and which of them end early when there are many: those that have been
//! idle for longest.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::super::usage::Room;

/// No flow is ended within this idle time, however many there are: its answer may be in flight.
const SHORTEST: Duration = Duration::from_millis(250);

/// Number of flows that counts as few, whatever the maximum: some 25 MB of memory, half of it the
/// kernel's.
const FEW: usize = 4096;

/// Number of flows that are examined for each new one, so that none has to wait for long.
const EXAMINED: usize = 8;

/// Range of times before the epoch, for flows that began in another process: longer than the
/// maximum idle time.
const BEFORE: Duration = Duration::from_secs(86_400);

/// All UDP flows of the process, in the order of their last use.
#[derive(Debug)]
pub struct Flows {
    /// Maximum number of flows: each takes a descriptor, and TCP needs some, too.
    most: AtomicUsize,
    /// Maximum number of flows to one endpoint.
    most_each: usize,
    /// Maximum idle time of a flow while there are few.
    timeout: Duration,
    epoch: Instant,
    state: Mutex<State>,
}

/// Each flow is in the queues of all, of its endpoint and of its Service.
#[derive(Debug, Default)]
struct State {
    queues: HashMap<Of, Queue>,
    /// The Services that have more than a quarter of the maximum number of flows.
    large: Vec<Arc<str>>,
}

/// The flows of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Of {
    All,
    Endpoint(SocketAddr),
    Service(Arc<str>),
}

/// Flows, roughly those that have been idle for longest first: a flow that was used since it was
/// put here moves to the end when its turn comes.
#[derive(Debug, Default)]
struct Queue {
    count: usize,
    entries: VecDeque<(Weak<Activity>, u64)>,
}

/// When a flow was last used, and whether it should end.
#[derive(Debug)]
pub struct Activity {
    /// Milliseconds after the epoch.
    last_used: AtomicU64,
    ends: AtomicBool,
    end: Notify,
}

/// Why another flow is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The maximum is reached, or this Service has its share while few flows are left for others:
    /// flows take descriptors.
    All,
    /// The maximum for the endpoint is reached: flows take local ports.
    Endpoint,
}

/// A flow's place among all, which is freed when this is dropped.
#[derive(Debug)]
pub struct Place {
    flows: Arc<Flows>,
    service: Arc<str>,
    remote: SocketAddr,
    activity: Arc<Activity>,
}

impl Flows {
    /// Limits the number of flows to `most`, and to `most_each` to one endpoint. Each may be idle
    /// for `timeout` while there are few.
    pub fn new(most: usize, most_each: usize, timeout: Duration) -> Arc<Self> {
        Arc::new(Flows {
            most: AtomicUsize::new(most.max(1)),
            most_each: most_each.max(1),
            timeout,
            epoch: Instant::now(),
            state: Mutex::default(),
        })
    }

    /// Allows up to `most` flows from now on; existing ones stay.
    pub fn set_most(&self, most: usize) {
        self.most.store(most.max(1), Relaxed);
    }

    fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Takes a place for a new flow of `service` to `remote`, unless there are too many. Also
    /// returns the number of flows that were ended to make room: first those of Services that have
    /// many, then others.
    pub fn begin(
        self: &Arc<Self>,
        service: &Arc<str>,
        remote: SocketAddr,
    ) -> (Result<Place, Full>, usize) {
        let now = self.now();
        let mut state = self.state.lock();
        let is_large = state.large.contains(service);
        let taken = self.taken(&state, service);
        let allowed = self.allowed(taken, self.most());
        let from = state.queue_to_shorten(service);
        let mut ended = state.end_idle(&from, now, allowed);
        let endpoint = Of::Endpoint(remote);
        let of_endpoint = state.count(&endpoint);
        let allowed = self.allowed(of_endpoint, self.most_each);
        ended += state.end_idle(&endpoint, now, allowed);
        let full = if of_endpoint >= self.most_each {
            Some(Full::Endpoint)
        } else {
            (taken >= self.most()).then_some(Full::All)
        };
        if let Some(full) = full {
            return (Err(full), ended);
        }
        let activity = Arc::new(Activity {
            last_used: AtomicU64::new(now),
            ends: AtomicBool::new(false),
            end: Notify::new(),
        });
        for of in queues_of(service, remote) {
            state.queues.entry(of).or_default().add(&activity, now);
        }
        let of_service = state.count(&Of::Service(Arc::clone(service)));
        if of_service > self.large() && !is_large {
            state.large.push(Arc::clone(service));
        }
        let place = Place {
            flows: Arc::clone(self),
            service: Arc::clone(service),
            remote,
            activity,
        };
        (Ok(place), ended)
    }

    /// Number of flows that counts for a new one of `service`: for a Service that has many, the
    /// part that it must leave to others is added.
    fn taken(&self, state: &State, service: &Arc<str>) -> usize {
        let is_large = state.large.contains(service);
        state.count(&Of::All) + if is_large { self.large() } else { 0 }
    }

    /// Returns whether other flows end early for a new flow of `service`.
    pub fn is_little_room(&self, service: &Arc<str>) -> bool {
        let taken = self.taken(&self.state.lock(), service);
        self.allowed(taken, self.most()).is_some()
    }

    /// The room for flows, and the number of flows of `service`.
    pub fn room(&self, service: &Arc<str>) -> (Room, usize) {
        let state = self.state.lock();
        let room = Room {
            free: self.most().saturating_sub(state.count(&Of::All)),
            total: self.most(),
        };
        (room, state.count(&Of::Service(Arc::clone(service))))
    }

    /// Ends the flow to `remote` that has been idle for longest, if that is long enough, because
    /// there was no port for another one. Returns how many were ended.
    pub fn make_room(&self, remote: SocketAddr) -> usize {
        let now = self.now();
        let mut state = self.state.lock();
        state.end_idle(&Of::Endpoint(remote), now, Some(SHORTEST))
    }

    /// Ends all flows to `remote`.
    pub fn end_to(&self, remote: SocketAddr) {
        let state = self.state.lock();
        let queue = state.queues.get(&Of::Endpoint(remote)).into_iter();
        let flows = queue.flat_map(|queue| &queue.entries);
        let flows = flows.filter_map(|(flow, _)| flow.upgrade());
        flows.for_each(|flow| flow.end());
    }

    /// Returns whether there are so many flows that those which seem to be over should end: more
    /// than an eighth of the maximum, or than [`FEW`].
    pub fn are_many(&self) -> bool {
        self.state.lock().count(&Of::All) > FEW.min(self.most() / 8)
    }

    /// Maximum idle time of a flow when there are `count` of `most`; `None` for the usual time.
    /// From half of `most` on, the time shrinks as their number grows.
    fn allowed(&self, count: usize, most: usize) -> Option<Duration> {
        let left = most.saturating_sub(count);
        if left > most / 2 {
            return None;
        }
        let share = 2.0 * left as f64 / most as f64;
        Some(self.timeout.mul_f64(share).max(SHORTEST))
    }

    /// Number of flows that a Service may have while few are left for others.
    fn large(&self) -> usize {
        self.most() / 4
    }

    /// The time in milliseconds since a fixed moment.
    pub fn now(&self) -> u64 {
        let elapsed = self.epoch.elapsed().saturating_add(BEFORE);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

impl State {
    /// Number of flows in a queue.
    fn count(&self, of: &Of) -> usize {
        self.queues.get(of).map_or(0, |queue| queue.count)
    }

    /// The flows of which some end for a new one of `service`: those of `service` if it has many,
    /// otherwise those of another Service that has, or all if none has.
    fn queue_to_shorten(&self, service: &Arc<str>) -> Of {
        let large = self.large.iter().find(|large| *large == service);
        let large = large.or(self.large.first());
        large.map_or(Of::All, |large| Of::Service(Arc::clone(large)))
    }

    /// Ends flows of a queue that have been idle for longer than `allowed`. Returns how many.
    fn end_idle(&mut self, of: &Of, now: u64, allowed: Option<Duration>) -> usize {
        let queue = self.queues.get_mut(of).zip(allowed);
        queue.map_or(0, |(queue, allowed)| queue.end_idle(now, allowed))
    }

    /// Removes a flow from a queue, which goes with its last one. Returns the number of flows left.
    fn remove(&mut self, of: &Of) -> usize {
        let Some(queue) = self.queues.get_mut(of) else {
            return 0;
        };
        queue.count -= 1;
        let left = queue.count;
        if left == 0 {
            self.queues.remove(of);
        }
        left
    }
}

/// The queues of a flow.
fn queues_of(service: &Arc<str>, remote: SocketAddr) -> [Of; 3] {
    let service = Of::Service(Arc::clone(service));
    [Of::All, Of::Endpoint(remote), service]
}

impl Queue {
    fn add(&mut self, activity: &Arc<Activity>, now: u64) {
        self.count += 1;
        // Ended flows are still in the queue.
        if self.entries.len() > 2 * self.count + 64 {
            self.entries.retain(|(flow, _)| flow.strong_count() > 0);
        }
        self.entries.push_back((Arc::downgrade(activity), now));
    }

    /// Ends flows that have been idle for longer than `allowed`; returns how many. If any of the
    /// examined flows has, at least one ends: among those used since they were put here, the one
    /// that has been idle for longest.
    fn end_idle(&mut self, now: u64, allowed: Duration) -> usize {
        let allowed = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
        let is_too_long = |last_used| now.saturating_sub(last_used) > allowed;
        let mut ended = 0;
        let mut most_idle: Option<(u64, Arc<Activity>)> = None;
        let mut examined = 0;
        while examined < EXAMINED
            && let Some((flow, seen)) = self.entries.pop_front()
        {
            // An ended flow is removed here, once.
            let Some(activity) = flow.upgrade().filter(|a| !a.ends.load(Relaxed)) else {
                continue;
            };
            examined += 1;
            let last_used = activity.last_used.load(Relaxed);
            if last_used > seen {
                self.entries.push_back((flow, last_used));
                if most_idle.as_ref().is_none_or(|(at, _)| last_used < *at) {
                    most_idle = Some((last_used, activity));
                }
            } else if is_too_long(last_used) {
                activity.end();
                ended += 1;
            } else {
                self.entries.push_front((flow, seen));
                break;
            }
        }
        if ended == 0
            && let Some((last_used, activity)) = most_idle
            && is_too_long(last_used)
        {
            activity.end();
            ended = 1;
        }
        ended
    }
}

impl Activity {
    /// Tells the flow's task to end it.
    pub fn end(&self) {
        self.ends.store(true, Relaxed);
        self.end.notify_one();
    }

    /// Returns whether the flow should end.
    pub fn ends(&self) -> bool {
        self.ends.load(Relaxed)
    }

    /// Wakes the task that waits for [`Activity::changed`].
    pub fn wake(&self) {
        self.end.notify_one();
    }

    /// Waits until the flow should end, or something else about it changed.
    pub async fn changed(&self) {
        self.end.notified().await;
    }
}

impl Place {
    /// Records that the flow is used now.
    pub fn used(&self) {
        self.activity.last_used.store(self.flows.now(), Relaxed);
    }

    /// Records that another process last used the flow this long `ago`.
    pub fn was_used(&self, ago: Duration) {
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        let last_used = self.flows.now().saturating_sub(ago);
        self.activity.last_used.store(last_used, Relaxed);
    }

    pub fn idle(&self) -> Duration {
        let last_used = self.activity.last_used.load(Relaxed);
        Duration::from_millis(self.flows.now().saturating_sub(last_used))
    }

    pub fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.flows.state.lock();
        let left = queues_of(&self.service, self.remote).map(|of| state.remove(&of));
        let [.., of_service] = left;
        if of_service <= self.flows.large() {
            state.large.retain(|large| *large != self.service);
        }
    }
}

#[cfg(test)]
mod tests;

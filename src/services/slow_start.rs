//! Slow start (`tripod.proxy/slow-start`): an endpoint that becomes ready begins with a tenth of its
//! share of new connections, which grows to its weight, so that it has time to fill its caches.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::{EndpointSlice, ServiceName};

/// Parts into which a weight is divided: a share differs by at most half a part from what it would
/// be if it grew all the time.
const PARTS: u8 = 40;
/// Parts with which an endpoint begins.
const FIRST: u8 = PARTS / 10;
/// The least time between two steps of a Service, which limits what they write.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// How much of its weight an endpoint has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// Of [`PARTS`]; 0: its Service has no slow start.
    parts: u8,
}

impl Grown {
    /// Returns the share of new connections of an endpoint of that weight, in proportion to those
    /// of the other endpoints of its Service.
    pub fn share(self, weight: u16) -> u32 {
        u32::from(weight) * u32::from(self.parts.max(1))
    }

    /// Returns how many percent of its weight an endpoint has that grows; `None` for others.
    pub fn percent(self) -> Option<u8> {
        let grows = (1..PARTS).contains(&self.parts);
        grows.then(|| (u16::from(self.parts) * 100 / u16::from(PARTS)) as u8)
    }

    /// Returns whether the shares of its Service may differ although the weights do not.
    pub(super) fn is_slow_start(self) -> bool {
        self.parts > 0
    }

    /// Returns how far an endpoint has grown that became ready that time ago, where the slow start
    /// takes `duration`.
    pub fn after(age: Duration, duration: Duration) -> Grown {
        let grown = age.as_secs_f64() / duration.as_secs_f64();
        let parts = f64::from(PARTS - FIRST) * grown.min(1.0);
        Grown {
            parts: FIRST + parts.round() as u8,
        }
    }
}

/// Identifies an endpoint through changes of slices and addresses, in four bytes: a hash of the UID
/// of its pod, or else of its address. With a collision, an endpoint would begin with its whole
/// weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u32);

impl Identity {
    /// Returns the identity of an endpoint at `address`.
    pub fn of(pod_uid: Option<&str>, address: IpAddr) -> Identity {
        let mut hasher = DefaultHasher::new();
        match pod_uid {
            Some(uid) => uid.hash(&mut hasher),
            None => address.hash(&mut hasher),
        }
        Identity(hasher.finish() as u32)
    }
}

/// When the endpoints of Services with slow start became ready.
#[derive(Debug, Default)]
pub(super) struct SlowStarts(HashMap<ServiceName, Starts>);

/// The ready endpoints of a Service with slow start.
#[derive(Debug)]
pub(super) struct Starts {
    duration: Duration,
    /// When each began to grow; `None`: it has its weight.
    since: HashMap<Identity, Option<Instant>>,
    now: Instant,
    /// When shares will have grown; `None` while none grows.
    pub(super) next: Option<Instant>,
}

impl SlowStarts {
    /// Takes note of which endpoints of a Service are ready now, and returns how far they have
    /// grown; `None` if it has no slow start. If none of them was ready before, all have their whole
    /// weight: there is nobody else who could serve meanwhile.
    pub(super) fn observe<'a>(
        &mut self,
        service: &ServiceName,
        duration: Option<Duration>,
        slices: impl Iterator<Item = &'a EndpointSlice>,
    ) -> Option<&Starts> {
        let Some(duration) = duration else {
            self.0.remove(service);
            return None;
        };
        let now = Instant::now();
        let starts = self.0.entry_ref(service).or_insert_with(|| Starts {
            duration,
            since: HashMap::new(),
            now,
            next: None,
        });
        starts.duration = duration;
        starts.now = now;
        starts.update(slices);
        Some(starts)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Starts {
    fn update<'a>(&mut self, slices: impl Iterator<Item = &'a EndpointSlice>) {
        let (now, duration) = (self.now, self.duration);
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| endpoint.ready);
        let ready: HashSet<Identity> = ready.map(|endpoint| endpoint.identity).collect();
        let known = std::mem::take(&mut self.since);
        let all_are_new = !ready.iter().any(|endpoint| known.contains_key(endpoint));
        let since = |endpoint| match known.get(&endpoint) {
            Some(since) => since.filter(|since| now - *since < duration),
            None => (!all_are_new).then_some(now),
        };
        self.since = ready.into_iter().map(|one| (one, since(one))).collect();
        let grows = self.since.values().any(Option::is_some);
        let step = LEAST_PAUSE.max(duration / u32::from(PARTS - FIRST));
        let next = self.next.filter(|next| *next > now);
        self.next = grows.then(|| next.unwrap_or(now + step));
    }

    /// Returns how much of its weight an endpoint has.
    pub(super) fn grown(&self, endpoint: Identity) -> Grown {
        let age = match self.since.get(&endpoint) {
            Some(Some(since)) => self.now - *since,
            _ => self.duration,
        };
        Grown::after(age, self.duration)
    }
}

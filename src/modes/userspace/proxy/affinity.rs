//! ClientIP affinity: pins each client address to an endpoint.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::time::Instant;

use crate::log_once::LoggedFlag;

/// Number of pins that are examined for each new one: more than one, so that expired pins are
/// removed faster than new ones are added.
const EXAMINED: usize = 4;

#[derive(Debug)]
struct Pin {
    endpoint: SocketAddr,
    last_used: Instant,
}

#[derive(Debug)]
struct Table {
    /// How long a pin lasts after its last use.
    timeout: Duration,
    pins: HashMap<IpAddr, Pin>,
    /// The same clients with their time of last use, roughly those that expire first in front: a
    /// client that was used since it was put here moves to the end when its turn comes.
    order: VecDeque<(IpAddr, Instant)>,
}

/// The pins of one ServicePort's clients.
#[derive(Debug)]
pub struct Affinity {
    /// The ServicePort, for logs.
    label: Arc<str>,
    limit: Arc<PinLimit>,
    table: Mutex<Table>,
}

impl Affinity {
    /// A table without pins for the ServicePort `label`. Each pin lasts until its client has been
    /// silent for `timeout`, unless there are more than `limit` allows.
    pub fn new(label: Arc<str>, timeout: Duration, limit: &Arc<PinLimit>) -> Self {
        Affinity {
            label,
            limit: Arc::clone(limit),
            table: Mutex::new(Table {
                timeout,
                pins: HashMap::new(),
                order: VecDeque::new(),
            }),
        }
    }

    /// Changes the timeout after the last use. Clients stay on their endpoints, as with kube-proxy,
    /// which changes `--seconds` of a rule and not the list of the clients (iptables-extensions(8),
    /// recent).
    pub fn set_timeout(&self, timeout: Duration) {
        self.table.lock().timeout = timeout;
    }

    /// Each client with its endpoint, and how long it has been silent.
    pub fn pins(&self) -> Vec<(IpAddr, SocketAddr, Duration)> {
        let now = Instant::now();
        let table = self.table.lock();
        let idle = |pin: &Pin| now.duration_since(pin.last_used);
        let pins = table.pins.iter();
        pins.map(|(client, pin)| (*client, pin.endpoint, idle(pin)))
            .filter(|(.., idle)| *idle < table.timeout)
            .collect()
    }

    /// Adds [`Affinity::pins`] of other processes; if a client has several pins, the most recently
    /// used one counts.
    pub fn inherit(&self, pins: impl Iterator<Item = (IpAddr, SocketAddr, Duration)>) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let mut pins: Vec<_> = pins.filter(|(.., idle)| *idle < table.timeout).collect();
        pins.sort_unstable_by_key(|(.., idle)| std::cmp::Reverse(*idle));
        for (client, endpoint, idle) in pins {
            let Some(last_used) = now.checked_sub(idle) else {
                continue;
            };
            let pin = Pin {
                endpoint,
                last_used,
            };
            match table.pins.get_mut(&client) {
                Some(before) => *before = pin,
                None => self.add(&mut table, client, pin, now),
            }
        }
    }

    /// Pins `client` to the endpoint that `choose` returns, if any; `choose` is called with the
    /// endpoint to which the client is pinned now, if any. Returns the rest of the result of
    /// `choose`. All of this happens under the table's lock, so that the first connections of a
    /// client, accepted by several workers at once, still agree.
    pub fn pin<T>(
        &self,
        client: IpAddr,
        choose: impl FnOnce(Option<SocketAddr>) -> (Option<SocketAddr>, T),
    ) -> T {
        let now = Instant::now();
        let mut table = self.table.lock();
        let current = table
            .pins
            .get(&client)
            .filter(|pin| now.duration_since(pin.last_used) < table.timeout)
            .map(|pin| pin.endpoint);
        let (endpoint, chosen) = choose(current);
        if let Some(endpoint) = endpoint {
            let pin = Pin {
                endpoint,
                last_used: now,
            };
            match table.pins.get_mut(&client) {
                Some(before) => *before = pin,
                None => self.add(&mut table, client, pin, now),
            }
        }
        chosen
    }

    /// Frees the pins that have expired.
    pub fn drop_expired(&self) {
        let mut table = self.table.lock();
        let all = table.pins.len();
        self.limit.free(table.expire(all, Instant::now()));
    }

    /// Adds the first pin of a client.
    fn add(&self, table: &mut Table, client: IpAddr, pin: Pin, now: Instant) {
        self.limit.free(table.expire(EXAMINED, now));
        if !self.limit.take(table.pins.len()) {
            table.evict();
            self.limit.evicted(&self.label);
        }
        table.order.push_back((client, pin.last_used));
        table.pins.insert(client, pin);
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        self.limit.free(self.table.get_mut().pins.len());
    }
}

impl Table {
    /// Removes expired pins among the first `examined` ones. Returns how many were removed.
    fn expire(&mut self, examined: usize, now: Instant) -> usize {
        let before = self.pins.len();
        for _ in 0..examined {
            if self.put_off() {
                continue;
            }
            match self.order.front() {
                Some((_, last_used)) if now.duration_since(*last_used) >= self.timeout => {
                    self.remove();
                }
                _ => break,
            }
        }
        before - self.pins.len()
    }

    /// Removes a pin that would expire before most others.
    fn evict(&mut self) {
        for _ in 0..EXAMINED {
            if !self.put_off() {
                break;
            }
        }
        self.remove();
    }

    /// Moves the first pin to the end if it was used since it was put there; returns whether it
    /// was.
    fn put_off(&mut self) -> bool {
        let Some((client, seen)) = self.order.front() else {
            return false;
        };
        let last_used = self.pins.get(client).map_or(*seen, |pin| pin.last_used);
        let is_used = last_used > *seen;
        if is_used && let Some((client, _)) = self.order.pop_front() {
            self.order.push_back((client, last_used));
        }
        is_used
    }

    /// Removes the first pin.
    fn remove(&mut self) {
        if let Some((client, _)) = self.order.pop_front() {
            self.pins.remove(&client);
        }
    }
}

/// Maximum number of pins of all ServicePorts together: as many as nftables mode has.
const MOST: usize = 1 << 18;

/// Number of pins that each ServicePort may have in any case, so that a flood of clients of one
/// Service leaves some to others.
const OF_EACH: usize = 1024;

/// Maximum memory of a pin in bytes: includes its place in the order of expiry, in tables that
/// double as they grow.
const COST: u64 = 256;

/// Pins may take one part in this many of the memory limit.
const MEMORY_SHARE: u64 = 8;

/// The limit on the pins of all ServicePorts together.
#[derive(Debug)]
pub struct PinLimit {
    most: usize,
    taken: AtomicUsize,
    evicted: IntCounter,
    logged: LoggedFlag,
}

impl PinLimit {
    /// The limit of a process with a limit of `memory` bytes, if there is one. Pins that end early
    /// are counted in `evicted`.
    pub fn new(memory: Option<u64>, evicted: IntCounter) -> Self {
        let fit = memory.map(|memory| memory / MEMORY_SHARE / COST);
        let fit = fit.and_then(|fit| usize::try_from(fit).ok());
        PinLimit {
            most: fit.unwrap_or(MOST).min(MOST),
            taken: AtomicUsize::new(0),
            evicted,
            logged: LoggedFlag::default(),
        }
    }

    /// Returns whether the limit is reached.
    pub fn is_reached(&self) -> bool {
        self.taken.load(Relaxed) >= self.most
    }

    /// Takes another pin for a ServicePort that has this many; returns false if there are too many.
    fn take(&self, has: usize) -> bool {
        let more = |taken| (taken < self.most || has < OF_EACH).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Releases `pins`, so that other clients may be remembered.
    fn free(&self, pins: usize) {
        if pins > 0 {
            self.taken.fetch_sub(pins, Relaxed);
        }
    }

    /// Counts that a client of the ServicePort `label` was forgotten in favour of another one, and
    /// logs it once.
    fn evicted(&self, label: &str) {
        self.evicted.inc();
        if self.logged.is_first() {
            tracing::warn!(
                service = %label,
                remembered = self.most,
                "the maximum number of clients with session affinity is remembered: each new one \
                 replaces the client that was silent longest, which may get another endpoint; \
                 shorten sessionAffinityConfig.clientIP.timeoutSeconds, or limit who may call \
                 (loadBalancerSourceRanges); tripod_userspace_affinity_evicted_total counts them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1)), 80);

    /// A limit of `most` pins.
    fn limit_of(most: usize) -> Arc<PinLimit> {
        let evicted = IntCounter::new("evicted", "Forgotten clients.").expect("a counter");
        let memory = u64::try_from(most).expect("a number") * MEMORY_SHARE * COST;
        PinLimit::new(Some(memory), evicted).into()
    }

    /// A table that is the only one, and its limit.
    fn affinity(seconds: u64) -> (Affinity, Arc<PinLimit>) {
        let limit = limit_of(1 << 18);
        let timeout = Duration::from_secs(seconds);
        (Affinity::new("web".into(), timeout, &limit), limit)
    }

    /// The pin that a connection of `client` finds; the connection pins the client to `A`.
    fn connection(affinity: &Affinity, client: IpAddr) -> Option<SocketAddr> {
        affinity.pin(client, |current| (Some(A), current))
    }

    fn client(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pin_lasts_until_its_client_was_silent_for_the_timeout() {
        let (affinity, _) = affinity(10);
        let client = "10.1.0.1".parse().unwrap();
        assert_eq!(connection(&affinity, client), None);
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert_eq!(connection(&affinity, client), Some(A), "each use prolongs");
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(connection(&affinity, client), None);
    }

    #[tokio::test]
    async fn of_the_pins_that_other_processes_say_the_last_used_counts() {
        let b = SocketAddr::from(([10, 2, 0, 2], 80));
        let pins = [(A, 20), (b, 1), (A, 30), (b, 200)];
        let pins = pins.map(|(at, idle)| (client(1), at, Duration::from_secs(idle)));
        for turned in 0..pins.len() {
            let (affinity, limit) = affinity(100);
            let mut pins = pins;
            pins.rotate_left(turned);
            affinity.inherit(pins.into_iter());
            assert_eq!(connection(&affinity, client(1)), Some(b));
            assert_eq!(limit.taken.load(Relaxed), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_pins_do_not_accumulate() {
        let (affinity, limit) = affinity(1);
        for i in 0..20_000u32 {
            if i % 500 == 0 {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            connection(&affinity, client(i));
            // A pin that is used again and again does not delay the others.
            connection(&affinity, client(0));
        }
        let has = affinity.table.lock().pins.len();
        assert!(has <= 1000, "{has} pins");
        assert_eq!(limit.taken.load(Relaxed), has);
        tokio::time::advance(Duration::from_secs(1)).await;
        affinity.drop_expired();
        assert_eq!(limit.taken.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_are_too_many_the_one_that_expires_first_goes() {
        const MOST: u32 = 2 * OF_EACH as u32;
        let limit = limit_of(MOST as usize);
        let new = || Affinity::new("web".into(), Duration::from_secs(10_800), &limit);
        let (flooded, other) = (new(), new());
        for i in 0..MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            connection(&flooded, client(i));
        }
        connection(&flooded, client(0));
        for i in MOST..MOST + 100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            connection(&flooded, client(i));
        }
        let table = flooded.table.lock();
        assert_eq!(
            (table.pins.len(), table.order.len()),
            (MOST as usize, MOST as usize)
        );
        let has = |i| table.pins.contains_key(&client(i));
        assert!(has(0), "it was used since");
        assert!((1..=100).all(|i| !has(i)) && (101..MOST + 100).all(has));
        drop(table);
        assert_eq!(
            (limit.taken.load(Relaxed), limit.evicted.get()),
            (MOST as usize, 100)
        );
        // Another ServicePort keeps its share in any case, but no more.
        for i in 0..MOST {
            connection(&other, client(i));
        }
        assert_eq!(other.table.lock().pins.len(), OF_EACH);
        drop(flooded);
        for i in 0..MOST {
            connection(&other, client(i));
        }
        assert_eq!(
            limit.taken.load(Relaxed),
            MOST as usize,
            "what is free is for all"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_pins_are_taken_over_than_there_may_be() {
        let limit = limit_of(OF_EACH);
        let affinity = Affinity::new("web".into(), Duration::from_secs(10_800), &limit);
        tokio::time::advance(Duration::from_secs(10_000)).await;
        let most = OF_EACH as u32;
        let pins = (0..most + 10).map(|i| (client(i), A, Duration::from_secs(i.into())));
        affinity.inherit(pins);
        let table = affinity.table.lock();
        let kept = |i| table.pins.contains_key(&client(i));
        assert!((0..most).all(kept) && !(most..most + 10).any(kept));
    }

    #[tokio::test(start_paused = true)]
    async fn pins_of_another_process_last_as_long_as_they_would_have_there() {
        let clients: [IpAddr; 2] = ["10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap()];
        tokio::time::advance(Duration::from_secs(60)).await;
        let (before, limit) = affinity(10);
        connection(&before, clients[0]);
        tokio::time::advance(Duration::from_secs(6)).await;
        connection(&before, clients[1]);
        let [first, second] = [[clients[0]], [clients[1]]].map(|of| {
            let after = Affinity::new("web".into(), Duration::from_secs(10), &limit);
            let pins = before.pins().into_iter();
            after.inherit(pins.filter(|(client, ..)| of.contains(client)));
            after
        });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(connection(&first, clients[0]), None);
        assert_eq!(connection(&second, clients[1]), Some(A));
        assert_eq!(before.pins().len(), 1);
    }

    #[test]
    fn a_client_without_endpoint_gets_no_pin() {
        let (affinity, limit) = affinity(1);
        affinity.pin(client(1), |_| (None, ()));
        assert!(affinity.table.lock().pins.is_empty());
        assert_eq!(limit.taken.load(Relaxed), 0);
    }
}

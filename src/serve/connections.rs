//! The open connections of a server, and the choice of one that must make room for a new one.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use net::address::client;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Maximum number of open connections; probes and scrapes need few, and each takes a descriptor
/// away from the data path.
const MOST: usize = 64;

/// Maximum number of them from one peer.
const SHARE: usize = MOST / 4;

/// Maximum number of bytes of answers that wait to be sent, unless a single answer is larger: with
/// tens of thousands of endpoints an answer may have several MiB, and a client need not read it.
const MOST_BYTES: usize = 32 << 20;

/// The open connections of one server, or of several that share the limit.
///
/// A new connection always gets a place, because it may be the kubelet's probe: if none is left,
/// the oldest connection of the peer that has most of them is closed, among those to the listener
/// that has most. A peer that has used up its share at a listener loses its own oldest one there.
/// The memory of answers is shared by the peers in the same way.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    listeners: u64,
    /// By number, which is the order of age.
    places: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    listener: u64,
    peer: IpAddr,
    /// Size of the answer.
    bytes: usize,
    evict: oneshot::Sender<()>,
}

/// The place of one connection, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    connections: Arc<Connections>,
    number: u64,
    evicted: oneshot::Receiver<()>,
}

impl Connections {
    /// Returns the number of a new listener.
    pub(super) fn listener(&self) -> u64 {
        let mut open = self.lock();
        open.listeners += 1;
        open.listeners
    }

    /// Makes a place for a connection to `listener` from `address`.
    pub(super) fn enter(self: &Arc<Self>, listener: u64, address: IpAddr) -> Place {
        let peer = client(address);
        let mut open = self.lock();
        if let Some(oldest) = open.to_evict(listener, peer) {
            open.evict(oldest);
        }
        let number = open.next;
        open.next += 1;
        let (evict, evicted) = oneshot::channel();
        let bytes = 0;
        let entry = Entry {
            listener,
            peer,
            bytes,
            evict,
        };
        open.places.insert(number, entry);
        Place {
            connections: Arc::clone(self),
            number,
            evicted,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock()
    }
}

impl Open {
    /// Chooses the connection to close when one of `peer` to `listener` arrives, if one must be
    /// closed.
    fn to_evict(&self, listener: u64, peer: IpAddr) -> Option<u64> {
        let is_own = |entry: &Entry| entry.listener == listener && entry.peer == peer;
        let mut own = self.places.iter().filter(|(_, entry)| is_own(entry));
        if own.clone().count() >= SHARE {
            return own.next().map(|(number, _)| *number);
        }
        if self.places.len() < MOST {
            return None;
        }
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for entry in self.places.values() {
            *counts.entry(entry.listener).or_default() += 1;
        }
        let most = counts.values().max();
        let of_largest = self.places.iter();
        let of_largest = of_largest.filter(|(_, entry)| counts.get(&entry.listener) == most);
        oldest_of_largest(of_largest, |_| 1)
    }

    /// Closes connections until all answers together take no more than [`MOST_BYTES`], except for
    /// that of `number`: the oldest connection of the peer whose answers take most.
    fn make_room(&mut self, number: u64) {
        while self.places.values().map(|entry| entry.bytes).sum::<usize>() > MOST_BYTES {
            let all = self.places.iter();
            let others = all.filter(|(other, entry)| **other != number && entry.bytes > 0);
            let Some(oldest) = oldest_of_largest(others, |entry| entry.bytes) else {
                return;
            };
            self.evict(oldest);
        }
    }

    fn evict(&mut self, number: u64) {
        if let Some(entry) = self.places.remove(&number) {
            // Fails when the connection has just ended, which has the same effect.
            let _ = entry.evict.send(());
        }
    }
}

/// Returns the oldest of these places of the peer whose places have the largest sum of `size`.
fn oldest_of_largest<'a>(
    mut places: impl Iterator<Item = (&'a u64, &'a Entry)> + Clone,
    size: impl Fn(&Entry) -> usize,
) -> Option<u64> {
    let mut sums: HashMap<IpAddr, usize> = HashMap::new();
    for (_, entry) in places.clone() {
        *sums.entry(entry.peer).or_default() += size(entry);
    }
    let largest = sums.values().max();
    let oldest = places.find(|(_, entry)| sums.get(&entry.peer) == largest);
    oldest.map(|(number, _)| *number)
}

/// Records the size of a connection's answer.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    connections: Arc<Connections>,
    number: u64,
}

impl Answered {
    /// Records an answer of this many `bytes`; closes other connections if the total is too large.
    pub(super) fn with(&self, bytes: usize) {
        let mut open = self.connections.lock();
        if let Some(entry) = open.places.get_mut(&self.number) {
            entry.bytes = bytes;
            open.make_room(self.number);
        }
    }
}

impl Place {
    /// Returns a recorder for the answer of this connection.
    pub(super) fn answered(&self) -> Answered {
        Answered {
            connections: Arc::clone(&self.connections),
            number: self.number,
        }
    }

    /// Waits until the connection must be closed to make room.
    pub(super) async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Indices of those of `places` that had to be closed.
    fn evicted(places: &mut [Place]) -> Vec<usize> {
        let ended = |place: &mut Place| place.evicted.try_recv().is_ok();
        let places = places.iter_mut().enumerate();
        places
            .filter_map(|(at, place)| ended(place).then_some(at))
            .collect()
    }

    #[test]
    fn a_peer_gives_up_its_own_oldest_beyond_its_share() {
        let connections = Arc::new(Connections::default());
        let probe = connections.enter(1, address("10.0.0.1"));
        // All addresses of one network are one peer.
        let crowd = (0..SHARE + 2).map(|n| address(&format!("2001:db8::{n:x}")));
        let mut crowd: Vec<_> = crowd.map(|from| connections.enter(1, from)).collect();
        assert_eq!(evicted(&mut crowd), [0, 1]);
        assert_eq!(evicted(&mut [probe]), [0; 0]);
        // Dropped places are free.
        drop(crowd);
        assert!(connections.lock().places.is_empty());
    }

    #[test]
    fn the_oldest_of_the_peer_that_has_most_gives_way() {
        let connections = Arc::new(Connections::default());
        let from = |n: usize| address(&format!("::ffff:10.0.{}.{}", n / 250, n % 250));
        let mut singles: Vec<_> = (0..MOST - 2)
            .map(|n| connections.enter(1, from(n)))
            .collect();
        let mut pair = [0, 1].map(|_| connections.enter(1, from(900)));
        singles.push(connections.enter(1, from(901)));
        assert_eq!(
            (evicted(&mut singles), evicted(&mut pair)),
            (vec![], vec![0])
        );
        // Each peer has one now: the oldest of all is closed.
        singles.push(connections.enter(1, from(902)));
        assert_eq!(evicted(&mut singles), [0]);
        assert_eq!(connections.lock().places.len(), MOST);
    }

    #[test]
    fn no_listener_takes_the_places_of_others() {
        let connections = Arc::new(Connections::default());
        let from = |n: usize| address(&format!("10.0.{}.{}", n / 250, n % 250));
        let mut probe = connections.enter(1, address("10.9.0.1"));
        let crowd = (0..2 * MOST).map(|n| connections.enter(2, from(n)));
        let mut crowd: Vec<_> = crowd.collect();
        assert_eq!(evicted(std::slice::from_mut(&mut probe)), [0; 0]);
        assert_eq!(evicted(&mut crowd).len(), MOST + 1);
        let _another = connections.enter(3, address("10.9.0.1"));
        assert_eq!(evicted(&mut [probe]), [0; 0]);
        assert_eq!(evicted(&mut crowd).len(), 1);
    }

    #[test]
    fn answers_that_nobody_takes_have_bounded_memory() {
        let connections = Arc::new(Connections::default());
        let scrape = connections.enter(1, address("10.0.0.1"));
        scrape.answered().with(MOST_BYTES / 8);
        let from = |n: u8| connections.enter(1, IpAddr::from([127, 0, 0, n % 2 + 1]));
        let mut greedy: Vec<_> = (0..8).map(from).collect();
        for (at, place) in greedy.iter().enumerate() {
            place.answered().with(MOST_BYTES / 4 + at);
        }
        // The last ones, and the small one, stay.
        assert_eq!(evicted(&mut greedy), [0, 1, 2, 3, 4]);
        assert_eq!(evicted(&mut [scrape]), [0; 0]);
        // A single answer may be larger.
        let mut large = [from(0), from(1)];
        large[1].answered().with(2 * MOST_BYTES);
        assert_eq!(evicted(&mut large), [0; 0]);
        let bytes = |open: &Open| open.places.values().map(|entry| entry.bytes).sum::<usize>();
        assert_eq!(bytes(&connections.lock()), 2 * MOST_BYTES);
    }
}

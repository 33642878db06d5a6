//! Log of attempts to reach endpoints, kept while a ServicePort is followed. Otherwise an attempt
//! costs one load of an atomic.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use net::Protocol;
use parking_lot::Mutex;

/// How long a ServicePort is followed after a request.
const LEASE: Duration = Duration::from_secs(10);

/// Maximum number of ServicePorts that are followed at a time.
const MOST_FOLLOWED: usize = 16;

/// Maximum number of attempts that are remembered, of all followed ServicePorts; the oldest ones
/// are dropped.
const MOST: usize = 4096;

/// An attempt to reach an endpoint for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the endpoint.
    pub endpoint: SocketAddr,
    /// The source address that the endpoint sees; `None` if it was not reached, or that is not
    /// known.
    pub from: Option<SocketAddr>,
    /// Why the endpoint could not be reached; `None` if it was.
    pub error: Option<String>,
}

/// Attempts of a ServicePort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dials {
    /// The attempts, oldest first.
    pub items: Vec<Dial>,
    /// The number for the next request.
    pub next: u64,
    /// Whether attempts may be missing: there were more than are remembered, the ServicePort was
    /// not followed for a while, or the number is from another process.
    pub lost: bool,
}

/// The maximum number of ServicePorts are being followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "connections to endpoints of {MOST_FOLLOWED} ServicePorts are already being followed, which is \
     the maximum: try again when another tripod trace has ended"
)]
pub struct TooMany;

/// The remembered attempts.
#[derive(Debug, Default)]
pub struct DialLog {
    is_followed: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    followed: Vec<Followed>,
    /// Attempts with their ServicePorts, whose positions in `followed` may change.
    dials: VecDeque<(Box<str>, Protocol, Dial)>,
    /// Number of attempts before those in `dials`.
    before: u64,
}

#[derive(Debug)]
struct Followed {
    label: Box<str>,
    protocol: Protocol,
    until: Instant,
}

impl DialLog {
    /// Remembers an attempt for a client of the ServicePort `label`, if that is followed.
    pub fn add(&self, label: &str, protocol: Protocol, dial: impl FnOnce() -> Dial) {
        if self.is_followed.load(Relaxed) {
            self.remember((label, protocol), Instant::now(), dial);
        }
    }

    fn remember(&self, of: (&str, Protocol), now: Instant, dial: impl FnOnce() -> Dial) {
        let mut log = self.log.lock();
        log.end_overdue(now);
        self.is_followed.store(!log.followed.is_empty(), Relaxed);
        log.add(of, dial);
    }

    /// The attempts for clients of the ServicePort `label` from number `after` on. Also follows the
    /// ServicePort for ten seconds from `now`. Without a number, no attempts are returned.
    ///
    /// # Errors
    /// When the maximum number of others are being followed.
    pub fn follow(
        &self,
        label: &str,
        protocol: Protocol,
        after: Option<u64>,
        now: Instant,
    ) -> Result<Dials, TooMany> {
        let mut log = self.log.lock();
        log.end_overdue(now);
        let was_followed = log.renew(label, protocol, now + LEASE)?;
        self.is_followed.store(true, Relaxed);
        let mut dials = log.since(label, protocol, after);
        dials.lost |= after.is_some() && !was_followed;
        Ok(dials)
    }
}

impl Log {
    fn add(&mut self, (label, protocol): (&str, Protocol), dial: impl FnOnce() -> Dial) {
        let mut followed = self.followed.iter();
        if !followed.any(|one| &*one.label == label && one.protocol == protocol) {
            return;
        }
        if self.dials.len() == MOST {
            self.dials.pop_front();
            self.before += 1;
        }
        self.dials.push_back((label.into(), protocol, dial()));
    }

    fn end_overdue(&mut self, now: Instant) {
        self.followed.retain(|one| one.until > now);
        if self.followed.is_empty() {
            self.before += self.dials.len() as u64;
            self.dials = VecDeque::new();
        }
    }

    /// Returns whether the ServicePort was already being followed.
    fn renew(&mut self, label: &str, protocol: Protocol, until: Instant) -> Result<bool, TooMany> {
        let is_full = self.followed.len() == MOST_FOLLOWED;
        let mut followed = self.followed.iter_mut();
        let known = followed.find(|one| &*one.label == label && one.protocol == protocol);
        match known {
            Some(one) => {
                one.until = until;
                Ok(true)
            }
            None if is_full => Err(TooMany),
            None => {
                self.followed.push(Followed {
                    label: label.into(),
                    protocol,
                    until,
                });
                Ok(false)
            }
        }
    }

    fn since(&self, label: &str, protocol: Protocol, after: Option<u64>) -> Dials {
        let next = self.before + self.dials.len() as u64;
        let after = after.unwrap_or(next);
        let known = usize::try_from(after.saturating_sub(self.before)).unwrap_or(usize::MAX);
        let new = self.dials.iter().skip(known);
        let of_port = new.filter(|(of, by, _)| **of == *label && *by == protocol);
        Dials {
            items: of_port.map(|(.., dial)| dial.clone()).collect(),
            next,
            lost: after < self.before || after > next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(port: u16) -> Dial {
        Dial {
            client: ([10, 244, 0, 9], port).into(),
            endpoint: ([10, 244, 0, 11], 8080).into(),
            from: None,
            error: None,
        }
    }

    fn ports(dials: &Dials) -> Vec<u16> {
        let items = dials.items.iter();
        items.map(|dial| dial.client.port()).collect()
    }

    #[test]
    fn tries_of_what_is_followed_are_remembered_while_somebody_asks() {
        let (log, now) = (DialLog::default(), Instant::now());
        let add = |label, port| log.add(label, Protocol::Tcp, || dial(port));
        let follow = |after, now| log.follow("a/web:http", Protocol::Tcp, after, now).unwrap();
        log.add("a/web:http", Protocol::Tcp, || {
            unreachable!("it is not followed")
        });
        let begun = follow(None, now);
        assert_eq!(begun, Dials::default());
        add("a/web:http", 1);
        add("a/other:http", 2);
        log.add("a/web:http", Protocol::Udp, || dial(3));
        add("a/web:http", 4);
        let found = follow(Some(begun.next), now);
        assert_eq!((ports(&found), found.lost), (vec![1, 4], false));
        add("a/web:http", 5);
        let found = follow(Some(found.next), now);
        assert_eq!(ports(&found), [5]);
        // A number from another process.
        let others = follow(Some(u64::MAX), now);
        assert_eq!((ports(&others), others.lost), (vec![], true));

        let web = ("a/web:http", Protocol::Tcp);
        log.remember(web, now + LEASE - Duration::from_millis(1), || dial(6));
        assert!(log.is_followed.load(Relaxed));
        log.remember(web, now + LEASE, || unreachable!("it is not followed"));
        assert!(!log.is_followed.load(Relaxed));
        let again = follow(Some(found.next), now + LEASE);
        assert_eq!((again.items.len(), again.lost), (0, true));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (log, now) = (DialLog::default(), Instant::now());
        let begun = log.follow("a/web:http", Protocol::Tcp, None, now).unwrap();
        for port in 0..MOST + 7 {
            let port = u16::try_from(port).unwrap();
            log.add("a/web:http", Protocol::Tcp, || dial(port));
        }
        let found = log.follow("a/web:http", Protocol::Tcp, Some(begun.next), now);
        let found = found.unwrap();
        assert_eq!((found.items.len(), found.lost), (MOST, true));
        assert_eq!(ports(&found)[0], 7);
        for one in 1..MOST_FOLLOWED {
            let label = format!("a/web-{one}:http");
            log.follow(&label, Protocol::Tcp, None, now).unwrap();
        }
        let more = |protocol, now| log.follow("a/web:http", protocol, None, now);
        assert_eq!(more(Protocol::Udp, now), Err(TooMany));
        more(Protocol::Tcp, now).expect("it is followed");
        more(Protocol::Udp, now + LEASE).expect("the others have ended");
    }
}

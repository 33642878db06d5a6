//! Which backend a UDP client talks to, and for how long.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    net::UdpSocket,
    sync::{Notify, OwnedSemaphorePermit, watch},
    time::Instant,
};

use super::super::{Shared, backends::Lease, portal::Portal};
use super::{ANSWER_OR_REFUSAL, connected, receive_answer, socket};
use crate::sched::Flow;

/// A client, and the address of ours that it sends to.
type Key = (SocketAddr, IpAddr);

/// Bytes of the first datagram that are kept until the backend answers, so
/// that a refusal costs the client nothing; longer ones are not kept.
const KEPT: usize = 2048;

/// How often an association looks whether it is idle, at least.
const LOOK: Duration = Duration::from_secs(2);

/// Idle time that is enough for an association to end while descriptors are
/// short.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_secs(1);

/// One client's conversation with one backend.
struct Association {
    key: Key,
    backend: UdpSocket,
    lease: Lease,
    /// Ours, on which the client's datagrams come in and answers go out.
    listener: Arc<UdpSocket>,
    /// Milliseconds after the table's epoch.
    last_used: AtomicU64,
    answered: AtomicBool,
    /// The first datagram, until the backend answers.
    unanswered: Mutex<Vec<u8>>,
    /// Endpoints that refused this client before.
    tried: Vec<SocketAddr>,
    superseded: Notify,
    _descriptor: OwnedSemaphorePermit,
}

/// The associations of one portal, shared by all workers: whichever worker the
/// kernel hands a datagram to finds the client's association.
pub struct Associations {
    shared: Arc<Shared>,
    portal: Arc<Portal>,
    epoch: Instant,
    table: Mutex<HashMap<Key, Arc<Association>>>,
}

impl Associations {
    /// None yet.
    pub fn new(shared: Arc<Shared>, portal: Arc<Portal>) -> Arc<Self> {
        Arc::new(Associations {
            shared,
            portal,
            epoch: Instant::now(),
            table: Mutex::default(),
        })
    }

    /// The ServicePort, for logs.
    pub fn label(&self) -> &str {
        &self.portal.label
    }

    /// Passes a client's datagram on to its backend, which is picked now if
    /// the client has none.
    pub fn from_client(
        self: &Arc<Self>,
        listener: &Arc<UdpSocket>,
        from: SocketAddr,
        to: IpAddr,
        bytes: &[u8],
        closing: &watch::Receiver<bool>,
    ) {
        let key = (from, to);
        let known = self.lock().get(&key).cloned();
        let association = match known {
            Some(association) => association,
            None if !self.portal.admits(&flow(key)) => {
                self.shared.counters.datagrams_dropped.inc();
                return;
            }
            None => match self.begin(key, listener, Vec::new(), closing) {
                Some(association) => association,
                None => {
                    self.shared.counters.datagrams_dropped.inc();
                    return;
                }
            },
        };
        self.send(&association, bytes, closing);
    }

    fn send(
        self: &Arc<Self>,
        association: &Arc<Association>,
        bytes: &[u8],
        closing: &watch::Receiver<bool>,
    ) {
        association.last_used.store(self.now(), Relaxed);
        match socket::send_connected(&association.backend, bytes) {
            Ok(()) => association.keep(bytes),
            // The error belongs to an earlier datagram (udp(7)): this one was
            // not sent.
            Err(e) if refused(&e) => {
                association.keep(bytes);
                self.move_on(association, closing);
            }
            Err(_) => self.shared.counters.datagrams_dropped.inc(),
        }
    }

    /// Begins an association with an endpoint that is not among `tried`.
    fn begin(
        self: &Arc<Self>,
        key: Key,
        listener: &Arc<UdpSocket>,
        tried: Vec<SocketAddr>,
        closing: &watch::Receiver<bool>,
    ) -> Option<Arc<Association>> {
        let descriptor = self.shared.descriptors.try_take(1)?;
        let endpoint = self.portal.pick(&flow(key), &tried)?;
        let backend = connected(endpoint.address)
            .inspect_err(|e| {
                endpoint.failed();
                tracing::trace!(service = %self.label(), endpoint = %endpoint.address, "{e}");
            })
            .ok()?;
        let association = Arc::new(Association {
            key,
            backend,
            lease: endpoint.lease(),
            listener: Arc::clone(listener),
            last_used: AtomicU64::new(self.now()),
            answered: AtomicBool::new(false),
            unanswered: Mutex::default(),
            tried,
            superseded: Notify::new(),
            _descriptor: descriptor,
        });
        let before = self.lock().insert(key, Arc::clone(&association));
        if let Some(before) = before {
            before.superseded.notify_one();
        }
        self.shared.counters.udp_associations.inc();
        tokio::task::spawn_local(
            Arc::clone(self).answers(Arc::clone(&association), closing.clone()),
        );
        Some(association)
    }

    /// The endpoint refused the client: begins an association with the next
    /// one and says there what was not answered. When all refused, the client's
    /// next datagram starts over.
    fn move_on(self: &Arc<Self>, old: &Arc<Association>, closing: &watch::Receiver<bool>) {
        let endpoint = old.lease.endpoint();
        endpoint.failed();
        self.shared.counters.dial_failures.inc();
        if !self.forget(old) {
            return;
        }
        let mut tried = old.tried.clone();
        tried.push(endpoint.address);
        let Some(next) = self.begin(old.key, &old.listener, tried, closing) else {
            return;
        };
        self.shared.counters.dial_retries.inc();
        let unanswered = std::mem::take(&mut *lock(&old.unanswered));
        if !unanswered.is_empty() {
            self.send(&next, &unanswered, closing);
        }
    }

    /// Takes the association out of the table; false if another has its place.
    fn forget(&self, association: &Arc<Association>) -> bool {
        let mut table = self.lock();
        let current = table
            .get(&association.key)
            .is_some_and(|a| Arc::ptr_eq(a, association));
        if current {
            table.remove(&association.key);
            association.superseded.notify_one();
        }
        current
    }

    /// Carries the backend's answers to the client until the association ends.
    async fn answers(
        self: Arc<Self>,
        association: Arc<Association>,
        closing: watch::Receiver<bool>,
    ) {
        let mut closed = closing.clone();
        let (client, called) = association.key;
        let mut look = Box::pin(tokio::time::sleep(self.patience().min(LOOK)));
        let removed = association.lease.endpoint().removed();
        tokio::pin!(removed);
        loop {
            tokio::select! {
                ready = association.backend.ready(ANSWER_OR_REFUSAL) => {
                    let Ok(ready) = ready else { break };
                    let received = receive_answer(&association.backend, ready, |bytes| {
                        association.answered();
                        association.last_used.store(self.now(), Relaxed);
                        let sent = socket::send_from(&association.listener, bytes, called, client);
                        if sent.is_err() {
                            self.shared.counters.datagrams_dropped.inc();
                        }
                    });
                    match received {
                        Err(e) if refused(&e) => {
                            self.move_on(&association, &closing);
                            break;
                        }
                        // Any other error is about one datagram only.
                        _ => {}
                    }
                }
                () = &mut removed => break,
                () = association.superseded.notified() => break,
                _ = closed.wait_for(|c| *c) => break,
                () = &mut look => {
                    let idle = self.now().saturating_sub(association.last_used.load(Relaxed));
                    let left = self.patience().saturating_sub(Duration::from_millis(idle));
                    if left.is_zero() { break }
                    look.as_mut().reset(Instant::now() + left.min(LOOK));
                }
            }
        }
        self.forget(&association);
        self.shared.counters.udp_associations.dec();
    }

    fn patience(&self) -> Duration {
        if self.shared.descriptors.short() {
            self.shared.udp_timeout.min(SHORT_OF_DESCRIPTORS)
        } else {
            self.shared.udp_timeout
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Association>>> {
        lock(&self.table)
    }
}

impl Association {
    /// Keeps the first datagram while the backend has not answered.
    fn keep(&self, bytes: &[u8]) {
        if !self.answered.load(Relaxed) && bytes.len() <= KEPT {
            let mut unanswered = lock(&self.unanswered);
            if unanswered.is_empty() {
                unanswered.extend_from_slice(bytes);
            }
        }
    }

    fn answered(&self) {
        if !self.answered.swap(true, Relaxed) {
            self.lease.endpoint().answered();
            *lock(&self.unanswered) = Vec::new();
        }
    }
}

fn flow((client, destination): Key) -> Flow {
    Flow {
        client,
        destination,
    }
}

fn refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs under these locks leaves its value half-changed.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

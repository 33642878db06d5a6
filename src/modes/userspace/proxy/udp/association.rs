//! Assignment of a UDP client to a backend, and how long it lasts.

mod inherited;
mod search;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use net::Protocol;
use parking_lot::Mutex;
use tokio::{net::UdpSocket, time::Instant};

pub use self::inherited::{Exchange, PassedFlow};
use self::{
    inherited::{Inherited, InheritedClients},
    search::Begun,
};
use super::{
    super::{Shared, backends::Tried, group::ServiceGroup, ticket::Ticket},
    ANSWER_OR_REFUSAL, Listener, Local,
    flows::Place,
    receive_answer,
};
use crate::{
    kernel::socket::datagram,
    sched::{Flow, RealServer},
    services::Retry,
};

/// A client, and our address to which it sends.
pub type Key = (SocketAddr, IpAddr);

/// Maximum size in bytes of a first datagram that is kept until the backend answers, so that a
/// refusal costs the client nothing.
const LONGEST_REPEATED: usize = 2048;

/// Number of datagrams that may be a client's whole request: a name server is asked for the
/// addresses of both families at once.
const FEW: u32 = 2;

/// Idle time after which, while there are many, an association ends if its client sent at most
/// [`FEW`] datagrams before the first answer and none since, and got as many answers. Such a client
/// would seldom come back. A client that sends again after an answer, as in SIP and TURN with
/// authentication (RFC 3261 section 22, RFC 8656 section 5), is in a conversation.
const ANSWERED: Duration = Duration::from_secs(3);

/// Maximum interval between checks of an association's idle time.
const IDLE_CHECK: Duration = Duration::from_secs(2);

/// Idle time after which an association ends while descriptors are short.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_secs(1);

/// How long answers of an endpoint that was removed from its Service are forwarded: they may have
/// been in flight.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// One client's conversation with one backend.
pub struct Association {
    /// Number that identifies it within this process.
    number: u64,
    key: Key,
    backend: UdpSocket,
    /// The address or port to which `backend` is bound.
    local: Local,
    endpoint: RealServer,
    /// The socket that receives the client's datagrams and sends the answers.
    listener: Arc<Listener>,
    place: Place,
    /// Number of the client's datagrams, and of answers.
    sent: AtomicU32,
    received: AtomicU32,
    /// Whether the client sent something after an answer.
    converses: AtomicBool,
    /// Whether its endpoint was removed from the Service: the client's next datagram goes to
    /// another one.
    leaves: AtomicBool,
    /// Whether another process reads the answers.
    is_left: AtomicBool,
    /// The first datagram, until the backend answers.
    unanswered: Mutex<Vec<u8>>,
    /// Endpoints that refused this client before, for the next association.
    tried: Mutex<Tried>,
    ticket: Ticket,
}

/// The associations of one service group, shared by all workers: any worker to which the kernel
/// gives a datagram finds the client's association.
pub struct Associations {
    shared: Arc<Shared>,
    /// The service group whose endpoints they use.
    pub group: Arc<ServiceGroup>,
    table: Mutex<HashMap<Key, Arc<Association>>>,
    /// Associations whose endpoint was removed, kept for answers in flight.
    leaving: Mutex<Vec<Arc<Association>>>,
    inherited: Mutex<InheritedClients>,
}

impl Associations {
    /// Starts without associations.
    pub fn new(shared: Arc<Shared>, group: Arc<ServiceGroup>) -> Arc<Self> {
        Arc::new(Associations {
            shared,
            group,
            table: Mutex::default(),
            leaving: Mutex::default(),
            inherited: Mutex::default(),
        })
    }

    /// Returns whether any client has a flow.
    pub fn are_any(&self) -> bool {
        !self.table.lock().is_empty()
    }

    /// Each client with its endpoint, and how long it has been idle.
    pub fn assigned(&self) -> Vec<(Key, SocketAddr, Duration)> {
        let table = self.table.lock();
        let all = table.values();
        all.map(|one| one.assigned()).collect()
    }

    /// The ServicePort, for logs.
    pub fn label(&self) -> &str {
        &self.group.label
    }

    /// The current time in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.shared.udp.flows.now()
    }

    /// Forwards a client's datagram to its backend, which is picked now if the client has none. A
    /// new client is served, even if other flows have to end, unless it is served `only_if_room`.
    pub fn from_client(
        self: &Arc<Self>,
        listener: &Arc<Listener>,
        key: Key,
        bytes: &[u8],
        only_if_room: bool,
    ) {
        let known = self.table.lock().get(&key).cloned();
        let is_left_out =
            || only_if_room && self.shared.udp.flows.is_little_room(&self.group.label);
        let association = match known {
            Some(association) => association,
            None if is_left_out() || !self.group.admits(&flow(key)) => {
                self.shared.counters.datagrams_dropped.inc();
                return;
            }
            None => match self.begin_first(key, listener) {
                Some(association) => association,
                None => {
                    self.shared.counters.datagrams_dropped.inc();
                    return;
                }
            },
        };
        self.send(&association, bytes);
    }

    fn send(self: &Arc<Self>, association: &Arc<Association>, bytes: &[u8]) {
        association.place.used();
        association.sent.fetch_add(1, Relaxed);
        if association.is_answered() {
            association.converses.store(true, Relaxed);
        }
        match datagram::send_connected(&association.backend, bytes) {
            Ok(()) => {
                association.endpoint.count_bytes(bytes.len(), 0);
                association.keep(bytes);
            }
            // The error belongs to an earlier datagram (udp(7)): this one was not sent.
            Err(e) if refused(&e) => {
                association.keep(bytes);
                self.move_on(association);
            }
            Err(_) => self.shared.counters.datagrams_dropped.inc(),
        }
    }

    /// Starts an association, either continuing that of another process, or with an endpoint that
    /// is not among `tried`.
    fn begin(
        self: &Arc<Self>,
        key: Key,
        listener: &Arc<Listener>,
        inherited: Option<Inherited>,
        mut tried: Tried,
    ) -> Option<Arc<Association>> {
        let mut ticket = self.admit(&flow(key))?;
        if !ticket.try_take_descriptors() {
            return self.exhausted("file descriptors");
        }
        let (endpoint, begun) = self.find(key, inherited, &mut tried)?;
        let Begun {
            backend,
            local,
            place,
            exchange,
        } = begun;
        ticket.enter(&endpoint);
        endpoint.connected();
        let address = endpoint.address;
        let association = Arc::new(Association {
            number: self.shared.udp.next_number(),
            key,
            backend,
            local,
            endpoint,
            listener: Arc::clone(listener),
            place,
            sent: AtomicU32::new(exchange.sent),
            received: AtomicU32::new(exchange.received),
            converses: AtomicBool::new(exchange.converses),
            leaves: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            unanswered: Mutex::default(),
            tried: Mutex::new(tried),
            ticket,
        });
        let before = self.table.lock().insert(key, Arc::clone(&association));
        if let Some(before) = before {
            before.end();
        }
        self.shared.counters.udp_associations.inc();
        self.remember(key, address, Ok(&association.backend));
        tokio::task::spawn_local(Arc::clone(self).answers(Arc::clone(&association)));
        // It may have been added too late to be ended with others.
        if listener.of.closed.load(Relaxed) || !self.serves(address) {
            self.remove(&association);
        }
        Some(association)
    }

    /// A ticket for a flow; `None` if its Service or its client is at its limit.
    fn admit(&self, flow: &Flow) -> Option<Ticket> {
        let (shared, group) = (&self.shared, &self.group);
        let limits = group.limits(shared.options.limits);
        Ticket::request(shared, group, Protocol::Udp, limits)?.admit(flow, limits)
    }

    /// Handles an endpoint's refusal of the client: starts an association with the next endpoint
    /// and sends it the unanswered datagram. If all refused, or nothing may be sent twice, the
    /// client's next datagram starts over.
    fn move_on(self: &Arc<Self>, old: &Arc<Association>) {
        let endpoint = old.endpoint.address;
        self.group.failed(endpoint);
        self.shared.counters.dial_failures.inc();
        self.remember(old.key, endpoint, Err(&"it refused a datagram"));
        let retry = self.group.routing().preferences().retry;
        let again = retry.unwrap_or_default() == Retry::FirstFlight;
        if !self.remove(old) || !again {
            return;
        }
        let mut tried = std::mem::take(&mut *old.tried.lock());
        tried.add(endpoint);
        old.ticket.uncount();
        let Some(next) = self.begin(old.key, &old.listener, None, tried) else {
            return;
        };
        self.shared.counters.dial_retries.inc();
        let unanswered = std::mem::take(&mut *old.unanswered.lock());
        if !unanswered.is_empty() {
            self.send(&next, &unanswered);
        }
    }

    /// Ends the association. Returns whether its client has no other one.
    fn remove(&self, association: &Arc<Association>) -> bool {
        if association.leaves.load(Relaxed) {
            association.end();
            let mut leaving = self.leaving.lock();
            leaving.retain(|one| !Arc::ptr_eq(one, association));
            return !self.table.lock().contains_key(&association.key);
        }
        let mut table = self.table.lock();
        let current = table
            .get(&association.key)
            .is_some_and(|a| Arc::ptr_eq(a, association));
        if current {
            table.remove(&association.key);
            association.end();
        }
        current
    }

    /// Forwards the backend's answers to the client until the association ends.
    async fn answers(self: Arc<Self>, association: Arc<Association>) {
        let (client, called) = association.key;
        let mut check = Box::pin(tokio::time::sleep(
            self.idle_limit(&association).min(IDLE_CHECK),
        ));
        let leaves = || association.leaves.load(Relaxed);
        loop {
            tokio::select! {
                ready = association.backend.ready(ANSWER_OR_REFUSAL),
                    if !association.is_left.load(Relaxed) =>
                {
                    let Ok(ready) = ready else { break };
                    let received = receive_answer(&association.backend, ready, |bytes| {
                        self.answered(&association);
                        association.place.used();
                        let sent = datagram::send_from(&association.listener.socket, bytes, called, client);
                        match sent {
                            Ok(()) => association.endpoint.count_bytes(0, bytes.len()),
                            Err(_) => self.shared.counters.datagrams_dropped.inc(),
                        }
                    });
                    match received {
                        Err(e) if refused(&e) => {
                            self.move_on(&association);
                            break;
                        }
                        // Any other error only concerns one datagram.
                        _ => {}
                    }
                }
                () = association.place.activity().changed() => {
                    if association.place.activity().ends() { break }
                    check.as_mut().reset(Instant::now() + LAST_ANSWERS);
                }
                () = &mut check => {
                    if leaves() { break }
                    let limit = self.idle_limit(&association);
                    let left = limit.saturating_sub(association.place.idle());
                    if left.is_zero() { break }
                    check.as_mut().reset(Instant::now() + left.min(IDLE_CHECK));
                }
            }
        }
        self.remove(&association);
        self.shared.counters.udp_associations.dec();
    }

    /// Makes clients of endpoints that were removed from the Service, or do not serve, use others
    /// from their next datagram on. The endpoints may still answer earlier datagrams.
    pub fn end_gone(&self) {
        let mut leaving = self.leaving.lock();
        let mut table = self.table.lock();
        let routing = self.group.routing();
        let keeping: HashSet<SocketAddr> = routing.servers().map(|server| server.address).collect();
        let gone = table.extract_if(|_, a| !keeping.contains(&a.endpoint.address));
        for (_, association) in gone {
            association.leaves.store(true, Relaxed);
            association.place.activity().wake();
            // The client's next datagram starts an association that counts instead.
            association.ticket.uncount();
            leaving.push(association);
        }
    }

    /// Ends the associations of clients that arrived at `listener`: as long as one exists here, the
    /// socket stays open, even if no task runs any more.
    pub(super) fn end_at(&self, listener: &Arc<Listener>) {
        let came_in_there = |a: &Association| Arc::ptr_eq(&a.listener, listener);
        let mut leaving = self.leaving.lock();
        let leaving = leaving.extract_if(.., |a| came_in_there(a));
        leaving.for_each(|association| association.end());
        let mut table = self.table.lock();
        let ending = table.extract_if(|_, a| came_in_there(a));
        ending.for_each(|(_, association)| association.end());
    }

    fn serves(&self, endpoint: SocketAddr) -> bool {
        let routing = self.group.routing();
        routing.servers().any(|server| server.address == endpoint)
    }

    /// Records that the backend answered.
    fn answered(&self, association: &Association) {
        if association.received.fetch_add(1, Relaxed) == 0 {
            self.group.answered(association.endpoint.address);
            *association.unanswered.lock() = Vec::new();
        }
    }

    /// Maximum idle time of the association.
    fn idle_limit(&self, association: &Association) -> Duration {
        let timeout = self.shared.options.udp_timeout;
        if self.shared.descriptors.short() {
            return timeout.min(SHORT_OF_DESCRIPTORS);
        }
        if association.has_all_answers() && self.shared.udp.flows.are_many() {
            return timeout.min(ANSWERED);
        }
        timeout
    }
}

impl Association {
    fn is_answered(&self) -> bool {
        self.received.load(Relaxed) > 0
    }

    fn end(&self) {
        self.place.activity().end();
    }

    /// Returns whether the client sent few datagrams, all before the first answer, and got as many
    /// answers.
    fn has_all_answers(&self) -> bool {
        let sent = self.sent.load(Relaxed);
        let at_once = sent <= FEW && !self.converses.load(Relaxed);
        at_once && self.received.load(Relaxed) == sent
    }

    /// Keeps the first datagram until the backend has answered.
    fn keep(&self, bytes: &[u8]) {
        if !self.is_answered() && bytes.len() <= LONGEST_REPEATED {
            let mut unanswered = self.unanswered.lock();
            if unanswered.is_empty() {
                unanswered.extend_from_slice(bytes);
            }
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

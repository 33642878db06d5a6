//! Flows that continue in the next process, with their sockets, so that endpoints see the same
//! source port as before.
//!
//! A client of another process that has not sent anything to this one yet is *inherited*: its
//! endpoint is known, and its flow if the other process passed on the socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hashbrown::{HashMap, hash_map::Entry};
use socket2::Socket;
use tokio::{net::UdpSocket, time::Instant};

use super::{
    super::{
        super::{backends::Tried, descriptors::Permits},
        Listener, Local,
    },
    Association, Associations, Key, flow,
};
use crate::kernel::socket::local_ports::PortLease;

/// Flows that continue before a worker's other tasks get a turn.
const TURN: usize = 64;

/// A flow that another process passed on.
#[derive(Debug)]
pub struct PassedFlow {
    /// The address of the socket that received its client's datagrams.
    pub listener: SocketAddr,
    /// The socket, connected to the endpoint.
    pub socket: Socket,
    /// Datagrams exchanged so far.
    pub exchange: Exchange,
    /// Whether the other process runs, and continues the flow unless this one has the socket at
    /// which its client's datagrams come in.
    pub is_shared: bool,
}

/// Datagrams exchanged by a client and its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Number of the client's datagrams.
    pub sent: u32,
    /// Number of answers that were forwarded to it.
    pub received: u32,
    /// Whether the client sent something after an answer.
    pub converses: bool,
}

/// A client of another process.
pub(super) struct Inherited {
    pub(super) endpoint: SocketAddr,
    pub(super) passed: Option<Passed>,
}

/// A flow that can continue in this process.
pub(super) struct Passed {
    flow: PassedFlow,
    lease: PortLease,
    /// How long it had been idle when it was passed on.
    idle: Duration,
    since: Instant,
    _descriptor: Permits,
}

impl Passed {
    /// Returns whether this process continues the flow if its client's datagrams come in at
    /// `listener`.
    fn is_ours_at(&self, listener: &Listener) -> bool {
        !self.flow.is_shared || listener.address() == Some(self.flow.listener)
    }

    /// How long the flow has been idle.
    pub(super) fn idle(&self) -> Duration {
        self.idle.saturating_add(self.since.elapsed())
    }

    /// Takes over the flow. The other process reads no more answers of it.
    pub(super) fn take_over(self) -> io::Result<(UdpSocket, Local, Exchange)> {
        let PassedFlow {
            socket, exchange, ..
        } = self.flow;
        socket.set_nonblocking(true)?;
        let backend = UdpSocket::from_std(socket.into())?;
        Ok((backend, Local::Port { _lease: self.lease }, exchange))
    }
}

/// All inherited clients of one service group.
#[derive(Default)]
pub(super) struct InheritedClients {
    clients: HashMap<Key, Inherited>,
    /// When they expire and are treated like new clients.
    until: Option<Instant>,
}

impl InheritedClients {
    /// Returns whether there were any within the maximum idle time of a flow.
    fn are_any(&self) -> bool {
        self.until.is_some()
    }

    fn take(&mut self, key: &Key) -> Option<Inherited> {
        self.drop_expired();
        self.clients.remove(key)
    }

    fn drop_expired(&mut self) {
        if self.until.is_some_and(|until| until < Instant::now()) {
            *self = InheritedClients::default();
        }
    }
}

impl Associations {
    /// Keeps a client on its endpoint, as returned by [`Associations::assigned`] of another process.
    /// A `flow` that this process passed on continues with its socket: at once when this process
    /// listens on the address that receives the client's datagrams, or with the next datagram.
    pub fn inherit(
        &self,
        (key, endpoint, idle): (Key, SocketAddr, Duration),
        flow: Option<PassedFlow>,
    ) {
        let timeout = self.shared.options.udp_timeout;
        if idle >= timeout {
            return;
        }
        let passed = flow.and_then(|flow| {
            Some(Passed {
                lease: self.shared.udp.ports.adopt(&flow.socket, endpoint)?,
                flow,
                idle,
                since: Instant::now(),
                _descriptor: self.shared.descriptors.try_take(1)?,
            })
        });
        let mut inherited = self.inherited.lock();
        inherited.until = Some(Instant::now() + timeout);
        let has_socket = passed.is_some();
        let client = Inherited { endpoint, passed };
        // The client may have started another flow after the first one was passed on.
        match inherited.clients.entry(key) {
            Entry::Occupied(mut there) if has_socket => drop(there.insert(client)),
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => drop(place.insert(client)),
        }
    }

    /// Closes the sockets of flows that could not continue: this process does not listen on their
    /// address, and their clients sent nothing within the maximum idle time of a flow.
    pub fn drop_expired(&self) {
        self.inherited.lock().drop_expired();
    }

    /// The clients whose flows can continue because a socket listens on `address`.
    pub fn passed_at(&self, address: SocketAddr) -> Vec<Key> {
        let inherited = self.inherited.lock();
        let came_in_there = |client: &Inherited| {
            let passed = client.passed.as_ref();
            passed.is_some_and(|passed| passed.flow.listener == address)
        };
        let all = inherited.clients.iter();
        let there = all.filter(|(_, client)| came_in_there(client));
        there.map(|(key, _)| *key).collect()
    }

    /// Continues the flows of `clients` that another process passed on. Answers are sent through
    /// `listener`. Runs inside a worker's runtime.
    pub async fn go_on(self: &Arc<Self>, listener: &Arc<Listener>, clients: &[Key]) {
        for (number, key) in clients.iter().enumerate() {
            if number % TURN == TURN - 1 {
                // Connections are accepted meanwhile.
                tokio::task::yield_now().await;
            }
            // Held until the association exists: the client's next datagram may arrive at another
            // worker, which would choose an endpoint.
            let mut inherited = self.inherited.lock();
            let Some(client) = inherited.take(key) else {
                continue;
            };
            if self.serves(client.endpoint) && self.group.admits(&flow(*key)) {
                self.begin(*key, listener, Some(client), Tried::default());
            }
        }
    }

    /// Starts the association of a client that has none in this process.
    pub(super) fn begin_first(
        self: &Arc<Self>,
        key: Key,
        listener: &Arc<Listener>,
    ) -> Option<Arc<Association>> {
        let begin = |client| self.begin(key, listener, client, Tried::default());
        let mut inherited = self.inherited.lock();
        if let Some(mut client) = inherited.take(&key) {
            client.passed = client.passed.filter(|passed| passed.is_ours_at(listener));
            return begin(Some(client));
        }
        let may_be_known = inherited.are_any();
        drop(inherited);
        // Another worker may just have continued its flow.
        let known = may_be_known.then(|| self.table.lock().get(&key).cloned());
        known.flatten().or_else(|| begin(None))
    }
}

impl Associations {
    /// The flows that can continue in another process. Excludes flows that are bound to the
    /// client's own address, because that process binds the same address, and flows that already
    /// continue in another process, which passes them on itself.
    pub fn to_pass_on(&self) -> Vec<Arc<Association>> {
        let table = self.table.lock();
        let all = table.values();
        let is_ours = |one: &&Arc<Association>| {
            matches!(one.local, Local::Port { .. }) && !one.is_left.load(Relaxed)
        };
        let ours = all.filter(is_ours);
        ours.cloned().collect()
    }
}

impl Association {
    /// Number that identifies it within this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The address that receives its client's datagrams; `None` if the kernel does not return it.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Its client, the endpoint, and how long it has been idle.
    pub fn assigned(&self) -> (Key, SocketAddr, Duration) {
        (self.key, self.endpoint.address, self.place.idle())
    }

    /// Datagrams exchanged so far.
    pub fn exchange(&self) -> Exchange {
        Exchange {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
            converses: self.converses.load(Relaxed),
        }
    }

    /// Leaves the answers to another process, or takes them back.
    pub fn leave_answers(&self, to_another: bool) {
        self.is_left.store(to_another, Relaxed);
        self.place.activity().wake();
    }
}

impl AsFd for Association {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.as_fd()
    }
}

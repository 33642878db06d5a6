//! The UDP data path: one association per client address, each with its own
//! connected socket to a backend.

mod association;
mod backlog;
mod flows;
#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    io,
    net::SocketAddr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{Interest, Ready},
    net::UdpSocket,
};

use self::backlog::Backlog;
pub use self::{
    association::{Association, Associations, Exchange, PassedFlow},
    flows::Flows,
};
use super::{Shared, descriptors::Descriptors, listener, transparent::Bound};
use crate::{
    kernel::socket::{
        datagram,
        local_ports::{Failure, LocalPorts, PortLease},
        poller::Remaining,
    },
    log_once::LoggedFlag,
    sched::Flow,
};

/// Resources shared by all UDP flows of this process.
#[derive(Debug)]
pub struct Resources {
    flows: Arc<Flows>,
    ports: Arc<LocalPorts>,
    /// Whether it was logged that descriptors or ports run out.
    exhaustion_logged: LoggedFlag,
    /// Number of associations that were started.
    begun: AtomicU64,
}

/// Number of flows that take half of the clients' descriptors.
fn most(descriptors: &Descriptors) -> usize {
    descriptors.for_clients() / 2
}

impl Resources {
    /// Returns whether a client that has `flows` flows of `service` should leave the rest to other
    /// clients of it.
    pub fn is_for_others(&self, service: &Arc<str>, flows: usize) -> bool {
        let (room, of_service) = self.flows.room(service);
        room.is_for_other_clients(flows, of_service)
    }

    /// Ends all flows to `endpoint`: the next datagram of each client begins a new one.
    pub fn end_flows_to(&self, endpoint: SocketAddr) {
        self.flows.end_to(endpoint);
    }

    /// Adapts the maximum number of flows to the `descriptors` that listeners leave now.
    pub fn fit(&self, descriptors: &Descriptors) {
        self.flows.set_most(most(descriptors));
    }

    /// Limits flows to half of the descriptors and of the node's local `ports`: TCP and other
    /// programs on the node need the rest. Idle flows end after `timeout`.
    pub fn new(descriptors: &Descriptors, ports: Arc<LocalPorts>, timeout: Duration) -> Self {
        Resources {
            flows: Flows::new(most(descriptors), ports.most(), timeout),
            ports,
            exhaustion_logged: LoggedFlag::default(),
            begun: AtomicU64::new(0),
        }
    }

    /// The number of a new association, starting with 1.
    fn next_number(&self) -> u64 {
        self.begun.fetch_add(1, Relaxed) + 1
    }
}

/// Size of the largest datagram (RFC 768: a 16-bit length), in bytes.
const DATAGRAM: usize = 65_535;

/// Number of datagrams that one socket may receive before the worker's other tasks get a turn.
const TURN: usize = 64;

struct Buffers {
    datagram: Box<[u8]>,
    control: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        datagram: vec![0; DATAGRAM].into_boxed_slice(),
        control: datagram::control_buffer(),
    });
}

/// A listener of a service group on one worker.
pub type Listener = listener::Listener<Clients>;

/// The clients whose datagrams arrive at a listener.
pub struct Clients {
    /// The associations of all listeners of the group.
    pub associations: Arc<Associations>,
    backlog: Backlog,
    closed: AtomicBool,
}

impl Clients {
    /// The clients of `associations`.
    pub fn new(associations: Arc<Associations>) -> Self {
        Clients {
            associations,
            backlog: Backlog::default(),
            closed: AtomicBool::new(false),
        }
    }
}

/// Ends the associations of clients that arrived through a `listener`.
pub fn close(listener: &Arc<Listener>) {
    listener.of.closed.store(true, Relaxed);
    listener.of.associations.end_at(listener);
}

/// Receives datagrams that clients sent to a `listener`, but not so many that others would wait for
/// long. Returns whether there may be more. Runs inside a worker's runtime.
pub fn receive(listener: &Arc<Listener>) -> Remaining {
    let Clients {
        associations,
        backlog,
        ..
    } = &listener.of;
    let now = associations.now();
    let only_if_room = backlog.is_long(now);
    for _ in 0..TURN {
        let step = BUFFERS.with_borrow_mut(|b| {
            let got = datagram::receive(&listener.socket, &mut b.datagram, &mut b.control)?;
            let bytes = &b.datagram[..got.len];
            associations.from_client(listener, (got.from, got.to), bytes, only_if_room);
            io::Result::Ok(())
        });
        if step.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            backlog.ended();
            return Remaining::Nothing;
        }
    }
    backlog.grew(now);
    Remaining::More
}

/// Events for which a task that waits for answers wakes up: a refusal is an error without anything
/// to read (`udp(7)`).
const ANSWER_OR_REFUSAL: Interest = Interest::READABLE.add(Interest::ERROR);

/// Receives from a backend that is `ready` into the worker's buffer and passes the datagram to
/// `deliver`.
fn receive_answer(
    backend: &UdpSocket,
    ready: Ready,
    deliver: impl FnOnce(&[u8]),
) -> io::Result<()> {
    // `try_io` only accepts one interest.
    let interest = if ready.is_readable() {
        Interest::READABLE
    } else {
        Interest::ERROR
    };
    BUFFERS.with_borrow_mut(|b| {
        let n = backend.try_io(interest, || {
            let flags = MsgFlags::MSG_DONTWAIT;
            Ok(recv(backend.as_raw_fd(), &mut b.datagram, flags)?)
        })?;
        deliver(&b.datagram[..n]);
        Ok(())
    })
}

/// The address or port to which a backend's socket is bound. Must be dropped after the socket.
#[derive(Debug)]
enum Local {
    /// The client's own address and port.
    Client { _bound: Bound },
    /// A local port.
    Port { _lease: PortLease },
}

/// Creates a socket that is connected to `to`, from the client's own address if `to` may see it;
/// otherwise, or if that is not possible, from the node's. Its datagrams have `mark`.
fn connected(
    shared: &Shared,
    flow: &Flow,
    to: SocketAddr,
    mark: Option<u32>,
) -> Result<(UdpSocket, Local), Failure> {
    let transparent = &shared.transparent;
    let set_mark = |socket: &Socket| mark.map_or(Ok(()), |mark| socket.set_mark(mark));
    if transparent.shows(flow, to) {
        let shown = open(to).and_then(|socket| {
            set_mark(&socket)?;
            let bound = transparent.bind_udp(&socket, flow.client, to)?;
            socket.connect(&to.into())?;
            // Before it was connected, it received datagrams of anyone to the client's port.
            let mut buffer = [0];
            while recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_ok() {}
            let local = Local::Client { _bound: bound };
            Ok((UdpSocket::from_std(socket.into())?, local))
        });
        if let Ok(shown) = shown {
            return Ok(shown);
        }
    }
    let (socket, lease) = shared.udp.ports.connect(to, set_mark)?;
    let local = Local::Port { _lease: lease };
    Ok((UdpSocket::from_std(socket.into())?, local))
}

fn open(to: SocketAddr) -> io::Result<Socket> {
    Socket::new(
        Domain::for_address(to),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )
}

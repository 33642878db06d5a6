//! The data path on loopback: real sockets, no capture.

mod instructions;
mod loads;
mod rings;
mod tcp;
mod udp;

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use net::{Family, Frontend, Protocol};
use socket2::SockRef;

use super::{
    Counters, DialLimits, Dials, Options, Rings, Role,
    listeners::{ListenerSet, redirect_ports::RedirectPorts},
    plan::{GroupPlan, Target},
    proxy::{Shared, affinity::PinLimit, workers::Workers},
};
use crate::{
    config::{DetectLocal, NodePortAddresses},
    kernel::socket::{listening::Bind, local_ports::LocalPorts},
    node::NodePorts,
    sched::SchedulerName,
    services::{Preferences, Retry},
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Idle timeout of UDP flows.
const UDP_TIMEOUT: Duration = Duration::from_millis(300);
/// Number of local ports for UDP flows.
const UDP_PORTS: usize = 64;

/// A service group on loopback in front of `targets`.
struct Proxy {
    shared: Arc<Shared>,
    // Before the workers, which otherwise wait for a while when they end.
    listeners: ListenerSet,
    workers: Workers,
    address: SocketAddr,
}

impl Proxy {
    fn new(protocol: Protocol, targets: &[SocketAddr]) -> Proxy {
        Proxy::with_udp_timeout(UDP_TIMEOUT, protocol, targets)
    }

    fn with_udp_timeout(
        udp_timeout: Duration,
        protocol: Protocol,
        targets: &[SocketAddr],
    ) -> Proxy {
        Proxy::on("here", udp_timeout, protocol, targets)
    }

    fn on(node: &str, udp_timeout: Duration, protocol: Protocol, targets: &[SocketAddr]) -> Proxy {
        Proxy::with_rings(Rings::default(), node, udp_timeout, protocol, targets)
    }

    fn with_rings(
        rings: Rings,
        node: &str,
        udp_timeout: Duration,
        protocol: Protocol,
        targets: &[SocketAddr],
    ) -> Proxy {
        let shared = shared_with(rings, node, udp_timeout);
        let workers = Workers::start(2, &shared).unwrap();
        let mut listeners = ListenerSet::new(&shared, &plan(protocol, targets), None);
        let port = RedirectPorts::new(None, shared.descriptors.clone())
            .take(protocol, Family::V4)
            .unwrap();
        let bind = Bind::of_node(port.bound.address);
        listeners
            .open(&shared, &workers, bind, &mut Vec::new())
            .unwrap();
        let address = ([127, 0, 0, 1], port.bound.address.port()).into();
        listeners.local_port = Some(port);
        Proxy {
            shared,
            workers,
            listeners,
            address,
        }
    }

    fn retarget(&mut self, protocol: Protocol, targets: &[SocketAddr]) {
        self.listeners.reroute(&plan(protocol, targets), None);
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// The attempts to reach endpoints from number `after` on.
    fn dials(&self, protocol: Protocol, after: Option<u64>) -> Dials {
        let label = &self.listeners.group().label;
        let dials = &self.shared.dials;
        dials
            .follow(label, protocol, after, Instant::now())
            .expect("few are followed")
    }

    fn udp_client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    }
}

/// Shared state with default settings.
pub(in crate::modes::userspace) fn shared() -> Arc<Shared> {
    shared_with(Rings::default(), "here", UDP_TIMEOUT)
}

/// Default settings.
pub(in crate::modes::userspace) fn options() -> Options {
    Options {
        node: "here".into(),
        port_range: None,
        udp_timeout: UDP_TIMEOUT,
        scheduler: SchedulerName::Rr,
        node_ports: Arc::new(NodePorts::new(&NodePortAddresses::default(), None)),
        detect_local: DetectLocal::NodeCidr,
        workers: 2,
        transparent: false,
        dial: DialLimits {
            attempts: 8,
            time: Duration::from_secs(5),
        },
        tcp_user_timeout: Duration::from_secs(120),
        limits: Default::default(),
        role: Role::Mode,
        handover: Default::default(),
        rings: Rings::default(),
    }
}

fn shared_with(rings: Rings, node: &str, udp_timeout: Duration) -> Arc<Shared> {
    let options = Options {
        node: node.into(),
        udp_timeout,
        rings,
        ..options()
    };
    let counters = Counters::register(&prometheus::Registry::new()).unwrap();
    Shared::with(options, counters, None, LocalPorts::with_most(UDP_PORTS))
}

/// Requests that failures are `retry`ed.
fn retrying(retry: Retry) -> Option<Arc<Preferences>> {
    Some(Arc::new(Preferences {
        retry: Some(retry),
        ..Preferences::default()
    }))
}

fn plan(protocol: Protocol, targets: &[SocketAddr]) -> GroupPlan {
    let frontend = Frontend::service(protocol, [10, 96, 0, 1].into(), 80);
    let targets = targets.iter();
    let targets = targets.map(|&address| Target { address, weight: 1 });
    let mut plan = GroupPlan::of_cluster_ip("test", &[frontend], targets.collect());
    plan.name.port = plan.name.port.over(protocol);
    plan
}

/// Starts a backend that handles each connection in a separate thread.
fn backend(handle: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

fn echo(mut stream: TcpStream) {
    let mut from = stream.try_clone().unwrap();
    let _ = io::copy(&mut from, &mut stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// An address that refuses connections.
fn refusing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn reset(stream: &TcpStream) {
    SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "{what} did not happen");
        thread::yield_now();
    }
}

/// Bytes that do not repeat at a power of two, so that a misplaced chunk is noticed.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i / 65_521) as u8)
        .collect()
}

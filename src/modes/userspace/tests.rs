//! The data path on loopback: real sockets, no capture.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{
    Counters, Descriptors, DialLimits, Shared,
    backends::Target,
    capture::Frontend,
    gate::Gate,
    insiders::{DetectLocal, Insiders},
    listen::Owner,
    plan::{Kind, PortalName, PortalPlan},
    ports::Ports,
    transparent::Transparent,
    udp::{LocalPorts, Resources},
    workers::Workers,
};
use crate::{
    net::{Family, Protocol},
    sched::SchedulerName,
    services::{Retry, ServiceName, ServicePortName},
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// For UDP flows that are idle.
const UDP_TIMEOUT: Duration = Duration::from_millis(300);
/// Local ports for UDP flows.
const UDP_PORTS: usize = 64;

/// A portal on loopback in front of `targets`.
struct Proxy {
    shared: Arc<Shared>,
    _workers: Workers,
    gate: Gate,
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
        let insiders = Arc::new(Insiders::new(DetectLocal::PodCidrs));
        let descriptors = Descriptors::of_this_process();
        let ports = LocalPorts::with_most(UDP_PORTS);
        let shared = Arc::new(Shared {
            node: node.into(),
            udp: Resources::new(&descriptors, ports, udp_timeout),
            descriptors,
            counters: Counters::register(&prometheus::Registry::new()).unwrap(),
            udp_timeout,
            dial: DialLimits {
                attempts: 8,
                time: Duration::from_secs(5),
            },
            tcp_user_timeout: Duration::from_secs(120),
            transparent: Arc::new(Transparent::new(Arc::clone(&insiders))),
            insiders,
            next_worker: Default::default(),
            told_of_ports: false.into(),
        });
        let workers = Workers::start(2, &shared).unwrap();
        let mut gate = Gate::new(&shared, &plan(protocol, targets), None);
        let held = Ports::new(None, shared.descriptors.clone())
            .hold(protocol, Family::V4)
            .unwrap();
        gate.open(&shared, &workers, held.address, protocol, Owner::Node)
            .unwrap();
        let address = ([127, 0, 0, 1], held.address.port()).into();
        gate.held = Some(held);
        Proxy {
            shared,
            _workers: workers,
            gate,
            address,
        }
    }

    fn retarget(&mut self, protocol: Protocol, targets: &[SocketAddr]) {
        self.gate.reroute(&plan(protocol, targets), None);
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn udp_client(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    }
}

fn plan(protocol: Protocol, targets: &[SocketAddr]) -> PortalPlan {
    let name = ServicePortName {
        service: ServiceName {
            namespace: "default".into(),
            name: "test".into(),
        },
        port: "".into(),
        protocol,
        family: Family::V4,
    };
    PortalPlan {
        cluster_ip: Some([10, 96, 0, 1].into()),
        frontends: vec![Frontend {
            protocol,
            family: Family::V4,
            address: Some([10, 96, 0, 1].into()),
            port: 80,
        }],
        targets: targets
            .iter()
            .map(|&address| Target { address, weight: 1 })
            .collect(),
        inside: None,
        allowed: Box::default(),
        scheduler: SchedulerName::Rr,
        affinity: None,
        proxy_protocol: None,
        retry: Retry::FirstFlight,
        not_at: [].into(),
        name: PortalName {
            port: name,
            kind: Kind::Internal,
        },
    }
}

/// A backend that handles each connection in a thread of its own.
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

/// Bytes that repeat with no power of two, so that a chunk in the wrong place shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i % 251) as u8 ^ (i / 65_521) as u8)
        .collect()
}

#[test]
fn short_messages_go_back_and_forth() {
    let proxy = Proxy::new(Protocol::Tcp, &[backend(echo)]);
    let mut client = proxy.connect();
    for i in 0..1000u32 {
        client.write_all(&i.to_be_bytes()).unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, i.to_be_bytes());
    }
}

#[test]
fn bulk_arrives_whole_in_both_directions_at_once() {
    let proxy = Proxy::new(Protocol::Tcp, &[backend(echo)]);
    let mut client = proxy.connect();
    let data = pattern(48 << 20);
    let mut writer = client.try_clone().unwrap();
    let expected = data.clone();
    let sender = thread::spawn(move || {
        writer.write_all(&data).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::with_capacity(expected.len());
    client.read_to_end(&mut got).unwrap();
    sender.join().unwrap();
    assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
}

#[test]
fn a_slow_reader_holds_the_sender_back_and_loses_nothing() {
    let size = 64 << 20;
    let proxy = Proxy::new(
        Protocol::Tcp,
        &[backend(move |mut s| {
            let _ = s.write_all(&pattern(size));
        })],
    );
    let mut client = proxy.connect();
    let (mut got, mut chunk) = (Vec::with_capacity(size), vec![0; 7919]);
    loop {
        match client.read(&mut chunk).unwrap() {
            0 => break,
            n => got.extend_from_slice(&chunk[..n]),
        }
    }
    assert!(got == pattern(size), "{} bytes", got.len());
}

#[test]
fn either_side_may_close_its_direction_first() {
    // The backend speaks only after the client has ended, and the other way.
    let after = backend(|mut s| {
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        s.write_all(&all).unwrap();
    });
    let proxy = Proxy::new(Protocol::Tcp, &[after]);
    let mut client = proxy.connect();
    client.write_all(&pattern(300_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got == pattern(300_000));

    let (send, receive) = std::sync::mpsc::channel();
    let first = backend(move |mut s| {
        s.write_all(b"goodbye").unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        send.send(all).unwrap();
    });
    let proxy = Proxy::new(Protocol::Tcp, &[first]);
    let mut client = proxy.connect();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"goodbye");
    client.write_all(&pattern(300_000)).unwrap();
    drop(client);
    assert!(receive.recv_timeout(DEADLINE).unwrap() == pattern(300_000));
    until("the end of both", || {
        proxy.shared.counters.connections.get() == 0
    });
}

#[test]
fn a_reset_reaches_the_other_side() {
    let (send, receive) = std::sync::mpsc::channel();
    let proxy = Proxy::new(
        Protocol::Tcp,
        &[backend(move |mut s| {
            s.write_all(b"x").unwrap();
            send.send(s.read(&mut [0; 8]).map_err(|e| e.kind()))
                .unwrap();
        })],
    );
    let mut client = proxy.connect();
    client.read_exact(&mut [0]).unwrap();
    reset(&client);
    drop(client);
    let seen = receive.recv_timeout(DEADLINE).unwrap();
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));

    let proxy = Proxy::new(
        Protocol::Tcp,
        &[backend(|mut s| {
            s.write_all(b"x").unwrap();
            s.read_exact(&mut [0]).unwrap();
            reset(&s);
        })],
    );
    let mut client = proxy.connect();
    client.read_exact(&mut [0]).unwrap();
    client.write_all(b"y").unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_after_half_close_is_seen_while_the_backend_is_silent() {
    let proxy = Proxy::new(
        Protocol::Tcp,
        &[backend(|mut s| {
            s.write_all(b"x").unwrap();
            let mut all = Vec::new();
            s.read_to_end(&mut all).unwrap();
            thread::park(); // never answers, never closes
        })],
    );
    let mut client = proxy.connect();
    client.read_exact(&mut [0]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    reset(&client);
    drop(client);
    until("the end", || proxy.shared.counters.connections.get() == 0);
}

#[test]
fn an_endpoint_that_refuses_costs_the_client_nothing() {
    let proxy = Proxy::new(Protocol::Tcp, &[refusing(), backend(echo), refusing()]);
    for _ in 0..50 {
        let mut client = proxy.connect();
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    assert_eq!(proxy.shared.counters.connections_failed.get(), 0);
    assert!(proxy.shared.counters.dial_failures.get() >= 1);
}

#[test]
fn when_every_endpoint_refuses_the_client_is_reset() {
    let proxy = Proxy::new(Protocol::Tcp, &[refusing(), refusing()]);
    let error = proxy.connect().read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.shared.counters.dial_failures.get(), 4);
}

#[test]
fn a_search_for_a_backend_ends_after_so_many_attempts() {
    let refusing: Vec<_> = std::iter::repeat_with(refusing).take(20).collect();
    let proxy = Proxy::new(Protocol::Tcp, &refusing);
    let error = proxy.connect().read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.shared.counters.dial_failures.get(), 8);
}

/// Each endpoint is the first one of some node's first client, and the same one
/// after a restart.
#[test]
fn nodes_begin_with_different_endpoints() {
    let name = |n: u8| {
        backend(move |mut s| {
            let _ = s.write_all(&[n]);
        })
    };
    let targets = [name(0), name(1), name(2)];
    let first = |node: &str| {
        let proxy = Proxy::on(node, UDP_TIMEOUT, Protocol::Tcp, &targets);
        let mut answer = [0];
        proxy.connect().read_exact(&mut answer).unwrap();
        usize::from(answer[0])
    };
    let mut counts = [0; 3];
    for node in 0..16 {
        let node = format!("node-{node}");
        let endpoint = first(&node);
        assert_eq!(first(&node), endpoint, "{node}");
        counts[endpoint] += 1;
    }
    assert!(!counts.contains(&0), "{counts:?}");
}

/// Nothing is won by passing over the only endpoint there is.
#[test]
fn the_last_endpoint_is_tried_however_often_it_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let proxy = Proxy::new(Protocol::Tcp, &[address, refusing()]);
    for _ in 0..5 {
        let error = proxy.connect().read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(echo));
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn what_a_dying_backend_did_not_read_goes_to_another() {
    // Closing with unread bytes makes the kernel send a reset, as it does for
    // a process that was killed.
    let dying = backend(|s| {
        s.peek(&mut [0]).unwrap();
        drop(s);
    });
    let proxy = Proxy::new(Protocol::Tcp, &[dying, backend(echo)]);
    for end_first in [false, true, false, true] {
        let mut client = proxy.connect();
        client.write_all(b"only once").unwrap();
        if end_first {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let mut answer = [0; 9];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"only once");
    }
}

#[test]
fn the_service_decides_what_is_tried_again() {
    let dying = || {
        backend(|s| {
            s.peek(&mut [0]).unwrap();
            drop(s);
        })
    };
    for (retry, refused_first, answered) in [
        (Retry::FirstFlight, true, true),
        (Retry::FirstFlight, false, true),
        (Retry::Connect, true, true),
        (Retry::Connect, false, false),
        (Retry::Off, true, false),
        (Retry::Off, false, false),
    ] {
        let first = if refused_first { refusing() } else { dying() };
        let mut proxy = Proxy::new(Protocol::Tcp, &[]);
        // The first one has all connections until it fails.
        let mut plan = plan(Protocol::Tcp, &[first, backend(echo)]);
        plan.targets[0].weight = 1_000;
        plan.scheduler = SchedulerName::Sed;
        plan.retry = retry;
        proxy.gate.reroute(&plan, None);
        let mut client = proxy.connect();
        let said = client.write_all(b"once");
        let answer = said.and_then(|()| client.read_exact(&mut [0; 4]));
        let answer = answer.map_err(|e| e.kind());
        let expected = match answered {
            true => Ok(()),
            false => Err(io::ErrorKind::ConnectionReset),
        };
        assert_eq!(answer, expected, "{retry:?}, refused: {refused_first}");
        // By then the first one is passed over.
        let mut client = proxy.connect();
        client.write_all(b"next").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
}

#[test]
fn what_a_backend_has_answered_is_not_said_again() {
    let rude = backend(|mut s| {
        s.read_exact(&mut [0; 2]).unwrap();
        s.write_all(b"no").unwrap();
        reset(&s);
    });
    let proxy = Proxy::new(Protocol::Tcp, &[rude, rude]);
    let mut client = proxy.connect();
    client.write_all(b"hi").unwrap();
    let mut got = Vec::new();
    let _ = client.read_to_end(&mut got);
    assert!(got.is_empty() || got == b"no");
    assert_eq!(proxy.shared.counters.dial_retries.get(), 0);
}

#[test]
fn a_removed_endpoint_keeps_its_connections_and_gets_no_new_ones() {
    let name = |n: &'static [u8]| {
        backend(move |mut s| {
            let mut question = [0];
            while s.read_exact(&mut question).is_ok() {
                s.write_all(n).unwrap();
            }
        })
    };
    let (a, b) = (name(b"a"), name(b"b"));
    let ask = |client: &mut TcpStream| {
        let mut answer = [0];
        client.write_all(b"?").unwrap();
        client.read_exact(&mut answer).unwrap();
        answer[0]
    };
    let mut proxy = Proxy::new(Protocol::Tcp, &[a]);
    let mut old = proxy.connect();
    assert_eq!(ask(&mut old), b'a');
    proxy.retarget(Protocol::Tcp, &[b]);
    for _ in 0..8 {
        assert_eq!(ask(&mut proxy.connect()), b'b');
    }
    assert_eq!(ask(&mut old), b'a');

    // A portal that goes closes its listener only.
    let address = proxy.address;
    let ends: Vec<SocketAddr> = proxy.gate.listens_on().collect();
    for end in ends {
        proxy.gate.close(end);
    }
    until("the refusal", || {
        TcpStream::connect(address).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    });
    assert_eq!(ask(&mut old), b'a');
}

fn udp_backend(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_535];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&answer(&buffer[..n]), from);
        }
    });
    address
}

fn ask(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let mut answer = vec![0; 65_535];
    client.send(question).unwrap();
    let n = client.recv(&mut answer).unwrap();
    answer.truncate(n);
    answer
}

#[test]
fn udp_clients_keep_their_backend_until_they_are_idle() {
    let name = |n: u8| udp_backend(move |q| [&[n], q].concat());
    let proxy = Proxy::new(Protocol::Udp, &[name(1), name(2)]);
    let clients: Vec<UdpSocket> = (0..40).map(|_| proxy.udp_client()).collect();
    let first: Vec<u8> = clients
        .iter()
        .enumerate()
        .map(|(i, c)| {
            let answer = ask(c, &[i as u8]);
            assert_eq!(answer[1], i as u8, "the answer is this client's");
            answer[0]
        })
        .collect();
    assert!(first.contains(&1) && first.contains(&2));
    for (client, backend) in clients.iter().zip(&first) {
        assert_eq!(ask(client, b"!")[0], *backend);
    }
    let largest = pattern(60_000);
    assert_eq!(ask(&clients[0], &largest)[1..], largest);
    let associations = &proxy.shared.counters.udp_associations;
    assert_eq!(associations.get(), 40);
    until("the idle timeout", || associations.get() == 0);
    assert_eq!(ask(&clients[0], b"?")[1..], *b"?");
}

#[test]
fn a_udp_client_of_a_refusing_endpoint_moves_on_with_its_datagram() {
    let closed = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let proxy = Proxy::new(Protocol::Udp, &[closed, udp_backend(<[u8]>::to_vec)]);
    for _ in 0..10 {
        assert_eq!(ask(&proxy.udp_client(), b"question"), b"question");
    }
    assert!(proxy.shared.counters.dial_retries.get() >= 1);
}

#[test]
fn a_datagram_is_not_sent_twice_against_the_services_will() {
    let closed = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    let mut proxy = Proxy::new(Protocol::Udp, &[]);
    let mut plan = plan(Protocol::Udp, &[closed(), udp_backend(<[u8]>::to_vec)]);
    plan.targets[0].weight = 1_000;
    plan.scheduler = SchedulerName::Sed;
    plan.retry = Retry::Connect;
    proxy.gate.reroute(&plan, None);
    let client = proxy.udp_client();
    client.send(b"lost").unwrap();
    until("the refusal", || {
        proxy.shared.counters.dial_failures.get() == 1
    });
    assert_eq!(ask(&client, b"again"), b"again");
    assert_eq!(proxy.shared.counters.dial_retries.get(), 0);
}

#[test]
fn associations_to_a_removed_endpoint_end_at_once() {
    let (a, b) = (
        udp_backend(|_| b"a".to_vec()),
        udp_backend(|_| b"b".to_vec()),
    );
    let mut proxy = Proxy::new(Protocol::Udp, &[a]);
    let client = proxy.udp_client();
    assert_eq!(ask(&client, b"?"), b"a");
    proxy.retarget(Protocol::Udp, &[b]);
    until("the end", || {
        proxy.shared.counters.udp_associations.get() == 0
    });
    assert_eq!(ask(&client, b"?"), b"b");
}

#[test]
fn udp_clients_that_got_all_answers_are_forgotten_sooner() {
    let backend = udp_backend(<[u8]>::to_vec);
    let proxy = Proxy::with_udp_timeout(DEADLINE * 2, Protocol::Udp, &[backend]);
    let (once, twice, thrice) = (proxy.udp_client(), proxy.udp_client(), proxy.udp_client());
    for (client, questions) in [(&once, 1), (&twice, 2), (&thrice, 3)] {
        for _ in 0..questions {
            assert_eq!(ask(client, b"?"), b"?");
        }
    }
    let associations = &proxy.shared.counters.udp_associations;
    assert_eq!(associations.get(), 3);
    until("two of three have ended", || associations.get() == 1);
    assert_eq!(ask(&thrice, b"?"), b"?");
    assert_eq!(associations.get(), 1, "the third one goes on");
}

/// Asks again until there is an answer: what is dropped where ports are short is
/// sent once more.
fn insist(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let begun = Instant::now();
    let mut answer = vec![0; 100];
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    loop {
        client.send(question).unwrap();
        if let Ok(n) = client.recv(&mut answer) {
            answer.truncate(n);
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "no answer");
    }
}

#[test]
fn many_udp_clients_are_served_through_few_ports() {
    let name = |n: u8| udp_backend(move |q| [&[n], q].concat());
    let targets = [name(1), name(2), name(3)];
    let proxy = Proxy::with_udp_timeout(DEADLINE * 2, Protocol::Udp, &targets);
    for n in 0..UDP_PORTS * 8 {
        let question = n.to_string();
        let answer = insist(&proxy.udp_client(), question.as_bytes());
        assert_eq!(&answer[1..], question.as_bytes());
    }
    let counters = &proxy.shared.counters;
    let associations = usize::try_from(counters.udp_associations.get()).unwrap();
    assert!(associations <= UDP_PORTS * targets.len(), "{associations}");
    assert!(counters.udp_ended_early.get() > 0);
    // Short of ports is not short of endpoints.
    assert_eq!(counters.dial_failures.get(), 0);
}

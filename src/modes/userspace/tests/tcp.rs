//! TCP: bytes, ends and resets, and assignment of connections to endpoints.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use testing::{in_namespace, sh};

use super::*;
use crate::{hold::InheritedSocket, kernel::socket::listening};

fn is_reset(client: &mut TcpStream) {
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Starts a backend that closes with unread bytes, which makes the kernel send a reset, as for a
/// killed process.
fn dying() -> SocketAddr {
    backend(|s| {
        s.peek(&mut [0]).unwrap();
        drop(s);
    })
}

/// Exchanges a word with an echo server.
fn greet(proxy: &Proxy) {
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
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
fn connections_that_wait_at_an_inherited_socket_survive_a_failure_to_listen() {
    let mut proxy = Proxy::new(Protocol::Tcp, &[backend(echo)]);
    let any = Bind::of_node(([127, 0, 0, 1], 0).into());
    let socket = listening::start(listening::tcp(any).unwrap()).unwrap();
    let bind = Bind::of_node(socket.local_addr().unwrap());
    let mut client = TcpStream::connect(bind.address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut inherited = vec![InheritedSocket::of_none(Protocol::Tcp, socket)];
    let free = proxy.shared.descriptors.free();
    let all = proxy.shared.descriptors.try_take(free.try_into().unwrap());
    assert!(all.is_some());
    let mut open = || {
        let listeners = &mut proxy.listeners;
        listeners.open(&proxy.shared, &proxy.workers, bind, &mut inherited)
    };
    open().expect_err("no descriptor is free");
    drop(all);
    open().unwrap();
    assert!(inherited.is_empty());
    client.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
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
    // The backend sends only after the client has ended, and the other way round.
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
    is_reset(&mut client);
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
        greet(&proxy);
    }
    assert_eq!(proxy.shared.counters.connections_failed.get(), 0);
    assert!(proxy.shared.counters.dial_failures.get() >= 1);
}

#[test]
fn when_every_endpoint_refuses_the_client_is_reset() {
    let proxy = Proxy::new(Protocol::Tcp, &[refusing(), refusing()]);
    is_reset(&mut proxy.connect());
    assert_eq!(proxy.shared.counters.dial_failures.get(), 4);
}

#[test]
fn a_search_for_a_backend_ends_after_so_many_attempts() {
    let refusing: Vec<_> = std::iter::repeat_with(refusing).take(20).collect();
    let proxy = Proxy::new(Protocol::Tcp, &refusing);
    is_reset(&mut proxy.connect());
    assert_eq!(proxy.shared.counters.dial_failures.get(), 8);
}

/// Each endpoint is chosen for some node's first client, and the same one is chosen after a
/// restart.
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

/// Skipping the only endpoint would not help.
#[test]
fn the_last_endpoint_is_tried_however_often_it_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let proxy = Proxy::new(Protocol::Tcp, &[address, refusing()]);
    for _ in 0..5 {
        is_reset(&mut proxy.connect());
    }
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(echo));
    greet(&proxy);
}

#[test]
fn what_a_dying_backend_did_not_read_goes_to_another() {
    let proxy = Proxy::new(Protocol::Tcp, &[dying(), backend(echo)]);
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

/// An endpoint that accepts connections and resets them some time later is treated like one that
/// refuses: one connection at a time tries it, after 1 s and after another 2 s.
#[test]
fn an_endpoint_that_accepts_and_resets_is_passed_over_for_longer_each_time() {
    let (calls, at_once, most) = <(Arc<_>, Arc<_>, Arc<_>)>::default();
    let count: [Arc<AtomicUsize>; 3] = [&calls, &at_once, &most].map(Arc::clone);
    let resetting = backend(move |s| {
        let [calls, at_once, most] = &count;
        calls.fetch_add(1, Relaxed);
        most.fetch_max(at_once.fetch_add(1, Relaxed) + 1, Relaxed);
        thread::sleep(Duration::from_millis(400));
        at_once.fetch_sub(1, Relaxed);
        reset(&s);
    });
    let proxy = Proxy::new(Protocol::Tcp, &[resetting, backend(echo)]);
    let begun = Instant::now();
    while calls.load(Relaxed) == 0 {
        greet(&proxy);
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while calls.load(Relaxed) < 3 {
                    greet(&proxy);
                    assert!(begun.elapsed() < DEADLINE, "it is tried again");
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    assert!(begun.elapsed() >= Duration::from_secs(3));
    assert_eq!(most.load(Relaxed), 1, "the others wait for the outcome");
}

#[test]
fn an_endpoint_that_is_silent_for_long_does_not_fail() {
    let silent = backend(|s| {
        let _ = (&s).read(&mut [0; 8]);
    });
    let proxy = Proxy::new(Protocol::Tcp, &[silent]);
    let group = proxy.listeners.group();
    let _client = proxy.connect();
    for (seconds, at_most) in [(1, 2), (2, 3), (4, 3)] {
        let failed = Instant::now();
        group.failed(silent);
        until("its time is over", || !group.passes_over(&silent));
        let at_most = Duration::from_secs(at_most);
        assert!(failed.elapsed() < at_most, "{seconds} s");
    }
}

#[test]
fn an_endpoint_for_which_the_node_has_no_local_port_does_not_fail() {
    in_namespace(|| {
        let [first, other] = [(); 2].map(|()| backend(echo));
        let mut proxy = Proxy::new(Protocol::Tcp, &[]);
        // The first one gets all connections while they reach it.
        let mut plan = plan(Protocol::Tcp, &[first, other]);
        plan.targets[0].weight = 1_000;
        plan.scheduler = SchedulerName::Sed;
        proxy.listeners.reroute(&plan, None);
        // Each address can be called once.
        sh("sysctl -qw net.ipv4.ip_local_port_range='50000 50000'");
        let _uses_it_up = TcpStream::connect(first).unwrap();
        greet(&proxy);
        assert_eq!(proxy.shared.counters.dial_failures.get(), 1);
        assert!(!proxy.listeners.group().passes_over(&first));
    });
}

#[test]
fn the_service_decides_what_is_tried_again() {
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
        // The first one gets all connections until it fails.
        let mut plan = plan(Protocol::Tcp, &[first, backend(echo)]);
        plan.targets[0].weight = 1_000;
        plan.scheduler = SchedulerName::Sed;
        plan.preferences = retrying(retry);
        proxy.listeners.reroute(&plan, None);
        let mut client = proxy.connect();
        let sent = client.write_all(b"once");
        let answer = sent.and_then(|()| client.read_exact(&mut [0; 4]));
        let answer = answer.map_err(|e| e.kind());
        let reset = io::ErrorKind::ConnectionReset;
        let expected = if answered { Ok(()) } else { Err(reset) };
        assert_eq!(answer, expected, "{retry:?}, refused: {refused_first}");
        // By then the first one is skipped.
        let mut client = proxy.connect();
        client.write_all(b"next").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
}

#[test]
fn who_follows_a_service_port_is_told_each_try() {
    for first in [refusing(), dying()] {
        let mut proxy = Proxy::new(Protocol::Tcp, &[]);
        let second = backend(echo);
        let mut plan = plan(Protocol::Tcp, &[first, second]);
        plan.targets[0].weight = 1_000;
        plan.scheduler = SchedulerName::Sed;
        proxy.listeners.reroute(&plan, None);
        let begun = proxy.dials(Protocol::Tcp, None);
        let mut client = proxy.connect();
        client.write_all(b"once").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        let tries = proxy.dials(Protocol::Tcp, Some(begun.next)).items;
        let own = client.local_addr().unwrap();
        assert!(tries.iter().all(|dial| dial.client == own), "{tries:?}");
        let failed = tries.iter().find(|dial| dial.error.is_some());
        let failed = failed.expect("the first one did not take it");
        assert_eq!((failed.endpoint, failed.from), (first, None));
        let last = tries.last().expect("the second one took it");
        assert_eq!((last.endpoint, &last.error), (second, &None));
        let from = last.from.expect("it is connected");
        assert_ne!(from, own);
        assert_eq!(from.ip(), second.ip());
    }
}

#[test]
fn what_a_backend_has_answered_is_not_sent_again() {
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

    // A service group that is removed closes only its listener.
    let address = proxy.address;
    let ends: Vec<SocketAddr> = proxy.listeners.listens_on().collect();
    for end in ends {
        proxy.listeners.close(end);
    }
    until("the refusal", || {
        TcpStream::connect(address).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    });
    assert_eq!(ask(&mut old), b'a');
}

/// The time that endpoints take before they reset counts like time in which they do not answer.
#[test]
fn a_client_that_only_listens_waits_no_longer_than_a_search_may_take() {
    let hold = Duration::from_millis(1_500);
    let slow = || {
        backend(move |s| {
            thread::sleep(hold);
            reset(&s);
        })
    };
    let slow: Vec<_> = std::iter::repeat_with(slow).take(8).collect();
    let proxy = Proxy::new(Protocol::Tcp, &slow);
    let begun = Instant::now();
    is_reset(&mut proxy.connect());
    let most = proxy.shared.options.dial.time + hold;
    assert!(begun.elapsed() < most + hold, "{:?}", begun.elapsed());
}

#[test]
fn a_connection_gives_back_all_that_it_took() {
    let endpoint = backend(echo);
    let proxy = Proxy::new(Protocol::Tcp, &[endpoint]);
    let (shared, group) = (&proxy.shared, proxy.listeners.group());
    let counts = || {
        let loads = group.routing().loads();
        [
            usize::try_from(shared.counters.connections.get()).unwrap(),
            usize::try_from(shared.counters.clients.get()).unwrap(),
            group.connections.load(Relaxed),
            group.usage.all(),
            loads[&endpoint].active.load(Relaxed) as usize,
        ]
    };
    let free = shared.descriptors.free();
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    until("it counts", || counts() == [1; 5]);
    assert_eq!(shared.descriptors.free(), free - 2);
    drop(client);
    until("its end", || {
        counts() == [0; 5] && shared.descriptors.free() == free
    });
}

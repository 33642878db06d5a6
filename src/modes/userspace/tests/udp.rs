//! UDP: assignment of clients to endpoints, and how long it lasts.

use std::{net::IpAddr, os::fd::AsFd, sync::atomic::Ordering::Relaxed};

use prometheus::IntCounter;

use super::{
    super::proxy::{
        affinity::Affinity,
        udp::{Association, Exchange, PassedFlow},
    },
    *,
};

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

/// An address that refuses datagrams.
fn refusing_udp() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
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
    // Long enough for all requests, even on a slow machine.
    let timeout = UDP_TIMEOUT * 10;
    let proxy = Proxy::with_udp_timeout(timeout, Protocol::Udp, &[name(1), name(2)]);
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
    let proxy = Proxy::new(
        Protocol::Udp,
        &[refusing_udp(), udp_backend(<[u8]>::to_vec)],
    );
    for _ in 0..10 {
        assert_eq!(ask(&proxy.udp_client(), b"question"), b"question");
    }
    assert!(proxy.shared.counters.dial_retries.get() >= 1);
}

#[test]
fn who_follows_a_service_port_is_told_each_endpoint_of_a_client() {
    let closed = refusing_udp();
    let second = udp_backend(<[u8]>::to_vec);
    let mut proxy = Proxy::new(Protocol::Udp, &[]);
    let mut plan = plan(Protocol::Udp, &[closed, second]);
    plan.targets[0].weight = 1_000;
    plan.scheduler = SchedulerName::Sed;
    proxy.listeners.reroute(&plan, None);
    let begun = proxy.dials(Protocol::Udp, None);
    let client = proxy.udp_client();
    assert_eq!(ask(&client, b"question"), b"question");
    let tries = proxy.dials(Protocol::Udp, Some(begun.next)).items;
    let own = client.local_addr().unwrap();
    let reported = tries.iter();
    let reported = reported.map(|dial| (dial.client, dial.endpoint, dial.error.is_none()));
    // A flow starts before the endpoint may refuse it.
    let expected = [
        (own, closed, true),
        (own, closed, false),
        (own, second, true),
    ];
    assert_eq!(reported.collect::<Vec<_>>(), expected, "{tries:?}");
    assert!(tries[2].from.is_some_and(|from| from != own), "{tries:?}");
}

#[test]
fn a_datagram_is_not_sent_twice_against_the_services_will() {
    let mut proxy = Proxy::new(Protocol::Udp, &[]);
    let mut plan = plan(
        Protocol::Udp,
        &[refusing_udp(), udp_backend(<[u8]>::to_vec)],
    );
    plan.targets[0].weight = 1_000;
    plan.scheduler = SchedulerName::Sed;
    plan.preferences = retrying(Retry::Connect);
    proxy.listeners.reroute(&plan, None);
    let client = proxy.udp_client();
    client.send(b"lost").unwrap();
    until("the refusal", || {
        proxy.shared.counters.dial_failures.get() == 1
    });
    assert_eq!(ask(&client, b"again"), b"again");
    assert_eq!(proxy.shared.counters.dial_retries.get(), 0);
}

#[test]
fn clients_of_a_removed_endpoint_go_to_another_at_once() {
    let (a, b) = (
        udp_backend(|_| b"a".to_vec()),
        udp_backend(|_| b"b".to_vec()),
    );
    let mut proxy = Proxy::new(Protocol::Udp, &[a]);
    let client = proxy.udp_client();
    assert_eq!(ask(&client, b"?"), b"a");
    proxy.retarget(Protocol::Udp, &[b]);
    assert_eq!(ask(&client, b"?"), b"b");
    until("the end of the first", || {
        proxy.shared.counters.udp_associations.get() <= 1
    });
}

#[test]
fn an_answer_of_an_endpoint_that_leaves_arrives() {
    let slow = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut proxy = Proxy::new(Protocol::Udp, &[slow.local_addr().unwrap()]);
    let client = proxy.udp_client();
    client.send(b"slow").unwrap();
    let mut buffer = [0; 10];
    let (_, asker) = slow.recv_from(&mut buffer).unwrap();

    let other = udp_backend(|_| b"other".to_vec());
    proxy.retarget(Protocol::Udp, &[other]);
    assert_eq!(ask(&client, b"?"), b"other", "new datagrams go elsewhere");
    slow.send_to(b"late", asker).unwrap();
    let n = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"late");
    // Its answers and its association end with it, though.
    let associations = &proxy.shared.counters.udp_associations;
    until("one is left at most", || associations.get() <= 1);
}

/// Policies, topology, weights and termination only apply to new flows.
#[test]
fn clients_of_an_endpoint_that_takes_no_new_ones_go_on_while_it_serves() {
    let name = |name: &'static [u8]| udp_backend(move |_| name.to_vec());
    let (a, b) = (name(b"a"), name(b"b"));
    let mut proxy = Proxy::with_udp_timeout(DEADLINE, Protocol::Udp, &[a]);
    let client = proxy.udp_client();
    assert_eq!(ask(&client, b"?"), b"a");
    let mut excluding = plan(Protocol::Udp, &[b]);
    excluding.keep_flows = [a].into();
    proxy.listeners.reroute(&excluding, None);
    assert_eq!(ask(&client, b"?"), b"a");
    for _ in 0..4 {
        assert_eq!(ask(&proxy.udp_client(), b"?"), b"b");
    }
    let load = || {
        let loads = proxy.listeners.group().routing().loads();
        loads.get(&a).map(|load| load.active.load(Relaxed))
    };
    assert_eq!(load(), Some(1));

    // So do clients of another process, whichever endpoint their affinity may select.
    let limit = Arc::new(PinLimit::new(None, IntCounter::new("n", "n").unwrap()));
    let affinity = Arc::new(Affinity::new("test".into(), DEADLINE, &limit));
    let mut next = Proxy::with_udp_timeout(DEADLINE, Protocol::Udp, &[]);
    next.listeners.reroute(&excluding, Some(affinity));
    let inherited = next.udp_client();
    let key = (inherited.local_addr().unwrap(), [127, 0, 0, 1].into());
    let associations = next.listeners.associations().expect("it is UDP");
    associations.inherit((key, a, Duration::ZERO), None);
    assert_eq!(ask(&inherited, b"?"), b"a");
    assert_eq!(ask(&next.udp_client(), b"?"), b"b");

    for proxy in [&mut proxy, &mut next] {
        proxy.retarget(Protocol::Udp, &[b]);
    }
    for client in [client, inherited] {
        assert_eq!(ask(&client, b"?"), b"b", "it does not serve any more");
    }
}

/// Answers twice to every second datagram, so that a client sends two before it gets an answer.
fn udp_backend_of_pairs() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            if &buffer[..n] == b"last" {
                for _ in 0..2 {
                    let _ = socket.send_to(b"!", from);
                }
            }
        }
    });
    address
}

/// Answers with the source port of the request.
fn udp_backend_of_ports() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(&from.port().to_be_bytes(), from);
        }
    });
    address
}

/// Passes a flow with its socket to another proxy, as that of `client` to `endpoint`.
fn pass_on(passed: &Association, next: &Proxy, client: &UdpSocket, endpoint: SocketAddr) {
    let socket = passed.as_fd().try_clone_to_owned().unwrap();
    let flow = PassedFlow {
        listener: passed.listener().expect("an address"),
        exchange: passed.exchange(),
        socket: socket.into(),
        is_shared: false,
    };
    let key = (client.local_addr().unwrap(), [127, 0, 0, 1].into());
    let associations = next.listeners.associations().expect("it is UDP");
    associations.inherit((key, endpoint, Duration::ZERO), Some(flow));
}

#[test]
fn a_flow_with_which_nobody_goes_on_is_closed() {
    let backend = udp_backend_of_ports();
    let new = |timeout| Proxy::with_udp_timeout(timeout, Protocol::Udp, &[backend]);
    let old = new(DEADLINE);
    ask(&old.udp_client(), b"?");
    let associations = old.listeners.associations().expect("it is UDP");
    let passed = associations.to_pass_on().pop().expect("a flow");
    let next = [UDP_TIMEOUT, DEADLINE].map(new);
    let listener = passed.listener().expect("an address");
    for next in &next {
        pass_on(&passed, next, &next.udp_client(), backend);
    }
    let waits = |next: &Proxy| {
        let associations = next.listeners.associations().expect("it is UDP");
        associations.drop_expired();
        !associations.passed_at(listener).is_empty()
    };
    until("the flow is closed", || !waits(&next[0]));
    assert!(waits(&next[1]), "its client may still call");
}

/// The endpoint sees the same source port.
#[test]
fn a_flow_that_another_process_passed_on_keeps_its_socket() {
    let backend = udp_backend_of_ports();
    let new = || Proxy::with_udp_timeout(DEADLINE, Protocol::Udp, &[backend]);
    let (old, next) = (new(), new());
    let asked = ask(&old.udp_client(), b"?");
    let associations =
        |proxy: &Proxy| Arc::clone(proxy.listeners.associations().expect("it is UDP"));
    let passed = associations(&old).to_pass_on().pop().expect("a flow");
    let inherit = |client: &UdpSocket, endpoint| pass_on(&passed, &next, client, endpoint);
    let (client, other) = (next.udp_client(), next.udp_client());
    inherit(&client, backend);
    // Two flows to one endpoint cannot have the same port.
    inherit(&other, backend);
    passed.leave_answers(true);
    for _ in 0..100 {
        assert_eq!(ask(&client, b"?"), asked, "and the old process takes none");
    }
    // Earlier exchanges also count when deciding whether it may end early.
    let exchange = |proxy: &Proxy| {
        associations(proxy)
            .to_pass_on()
            .pop()
            .map(|one| one.exchange())
    };
    let (sent, received) = (101, 101);
    let expected = Exchange {
        sent,
        received,
        converses: true,
    };
    assert_eq!(exchange(&next), Some(expected));
    assert_ne!(ask(&other, b"?"), asked);

    // Its socket is connected to another endpoint than its record says.
    let third = next.udp_client();
    inherit(&third, udp_backend_of_ports());
    assert_ne!(ask(&third, b"?"), asked);
}

/// The second datagram of a client that got an answer to the first one, as in SIP or TURN, shows
/// that the conversation continues.
#[test]
fn while_there_are_many_udp_clients_those_that_asked_once_are_forgotten_sooner() {
    let backend = udp_backend_of_ports();
    let new = || Proxy::with_udp_timeout(DEADLINE * 2, Protocol::Udp, &[backend]);
    let (few, many) = (new(), new());
    let quiet = few.udp_client();
    let quiet_port = ask(&quiet, b"?");
    many.shared.udp.limit(8);
    let (once, twice, thrice) = (many.udp_client(), many.udp_client(), many.udp_client());
    let ports = [(&twice, 2), (&thrice, 3), (&once, 1)].map(|(client, questions)| {
        let ports: Vec<_> = (0..questions).map(|_| ask(client, b"?")).collect();
        ports[0].clone()
    });
    let associations = &many.shared.counters.udp_associations;
    until("one of three has ended", || associations.get() <= 2);
    for (client, port) in [
        (&twice, &ports[0]),
        (&thrice, &ports[1]),
        (&quiet, &quiet_port),
    ] {
        assert_eq!(ask(client, b"?"), *port, "it continues");
    }
    assert_eq!(associations.get(), 2);
}

#[test]
fn two_questions_at_once_with_two_answers_are_one_exchange() {
    let proxy = Proxy::with_udp_timeout(DEADLINE * 2, Protocol::Udp, &[udp_backend_of_pairs()]);
    proxy.shared.udp.limit(1);
    let client = proxy.udp_client();
    client.send(b"first").unwrap();
    assert_eq!(ask(&client, b"last"), b"!");
    assert_eq!(client.recv(&mut [0; 100]).unwrap(), 1);
    let associations = &proxy.shared.counters.udp_associations;
    until("its end", || associations.get() == 0);
}

#[test]
fn a_client_with_affinity_is_remembered_once_its_flow_begins() {
    let limit = || Arc::new(PinLimit::new(None, IntCounter::new("n", "n").unwrap()));
    let affinity = Arc::new(Affinity::new("test".into(), DEADLINE, &limit()));
    let backend = udp_backend(<[u8]>::to_vec);
    let mut proxy = Proxy::with_udp_timeout(DEADLINE * 2, Protocol::Udp, &[backend]);
    let plan = plan(Protocol::Udp, &[backend]);
    proxy.listeners.reroute(&plan, Some(Arc::clone(&affinity)));
    proxy.shared.udp.limit(1);
    assert_eq!(ask(&proxy.udp_client(), b"?"), b"?");
    let forged = UdpSocket::bind("127.0.0.2:0").unwrap();
    forged.send_to(b"?", proxy.address).unwrap();
    let counters = &proxy.shared.counters;
    until("there is no room", || counters.udp_exhausted.get() == 1);
    let clients: Vec<_> = affinity
        .pins()
        .into_iter()
        .map(|(client, ..)| client)
        .collect();
    assert_eq!(clients, [IpAddr::from([127, 0, 0, 1])]);
}

/// Sends again until there is an answer: datagrams that are dropped because ports are short are
/// repeated.
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
    // A lack of ports does not count as a failure of endpoints.
    assert_eq!(counters.dial_failures.get(), 0);
}

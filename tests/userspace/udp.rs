//! UDP: each client has an association of its own.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::{SOON, comes_to_fail, comes_to_reach};
use crate::lab::{
    EndpointChoice, Lab, Service, Tripod, bind_new, eventually, figure, udp, udp_ask, udp_say,
};

on_each_capture!(
    a_client_keeps_its_endpoint,
    a_removed_endpoint_is_left_at_once,
    an_endpoint_that_terminates_keeps_its_clients_while_it_serves,
    a_refused_client_moves_on,
    an_endpoint_without_route_loses_nothing,
    a_client_with_two_addresses_called_gets_the_right_answers,
    large_datagrams_pass,
    a_client_that_called_too_early_is_served,
    a_client_survives_a_service_that_goes_and_comes_back,
);
on_each_capture!(a_thousand_clients_come_and_go);
on_each_capture!(more_new_clients_than_ports_leave_some_for_the_node);

/// Longer than Tripod's `--udp-timeout` here plus the time until it checks, and shorter than the
/// default.
const FORGOTTEN: Duration = Duration::from_secs(25);

fn a_client_keeps_its_endpoint(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let socket = udp(&lab.client, to).expect("a socket");
        let first = udp_say(&socket, "0").expect("an answer");
        for n in 1..20 {
            assert_eq!(udp_say(&socket, &n.to_string()).expect("an answer"), first);
        }
    }
}

fn a_thousand_clients_come_and_go(lab: &mut Lab) {
    const CLIENTS: usize = 1_000;
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    // So long that no flow ends before all have been counted.
    let tripod = Tripod::start_with(lab, &["--udp-timeout=10s"]);
    let to = web.cluster()[0];
    let before = tripod.descriptors();
    let sockets: Vec<_> = (0..CLIENTS)
        .map(|_| udp(&lab.client, to).expect("a socket"))
        .collect();
    // All questions first, so that an answer could reach the wrong client.
    let mut tally = std::collections::HashMap::new();
    for batch in sockets.chunks(100) {
        for (n, socket) in batch.iter().enumerate() {
            socket
                .send(format!("client {n} {socket:?}").as_bytes())
                .expect("sending");
        }
        for (n, socket) in batch.iter().enumerate() {
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).expect("an answer");
            let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let (name, echoed) = answer.split_once(' ').expect("a name and the question");
            assert_eq!(echoed, format!("client {n} {socket:?}"));
            *tally.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    assert_eq!(tally.len(), 3, "all backends have a part: {tally:?}");
    let during = tripod.descriptors();
    // A health check may have been open at first.
    assert!(
        during + 8 >= before + CLIENTS,
        "{during} descriptors after {before}"
    );
    let gauge = "tripod_userspace_udp_associations";
    assert_eq!(tripod.metric(&lab.node, gauge), Some(CLIENTS as f64));
    eventually("all associations end", FORGOTTEN, || {
        match (tripod.metric(&lab.node, gauge), tripod.descriptors()) {
            (Some(0.0), n) if n <= before + 8 => Ok(()),
            (all, n) => Err(format!("{all:?}, {n} descriptors, {before} before")),
        }
    });
    // A client that was forgotten counts as a new one.
    assert!(udp_say(&sockets[0], "again").is_ok());
}

/// Calls `body` with a client of each address, together with the name of its endpoint, one of
/// three.
fn each_client(lab: &mut Lab, body: impl Fn(&Lab, &Service, &UdpSocket, &str)) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        lab.publish_all(&web);
        let socket = udp(&lab.client, to).expect("a socket");
        let first = udp_say(&socket, "before").expect("an answer");
        body(lab, &web, &socket, &first);
    }
}

/// The other two endpoints.
fn all_but(first: &str) -> Vec<&'static str> {
    let mut others = vec!["a", "b", "c"];
    others.retain(|name| *name != first);
    others
}

fn a_removed_endpoint_is_left_at_once(lab: &mut Lab) {
    each_client(lab, |lab, web, socket, first| {
        let others = all_but(first);
        lab.publish(web, &others);
        comes_to_reach("another endpoint", &others, || udp_say(socket, "after"));
        for n in 0..10 {
            let name = udp_say(socket, &format!("then {n}")).expect("an answer");
            assert_ne!(name, first);
        }
    });
}

/// Like conntrack entries in the other modes: a flow is not cut off because its pod will end.
fn an_endpoint_that_terminates_keeps_its_clients_while_it_serves(lab: &mut Lab) {
    each_client(lab, |lab, web, socket, first| {
        let terminates = |serving| {
            ["a", "b", "c"].map(|name| match name == first {
                true => EndpointChoice::terminating(name, serving),
                false => EndpointChoice::ready(name),
            })
        };
        lab.publish_endpoints(web, &terminates(true));
        let to = socket.peer_addr().expect("it is connected");
        eventually("new clients go elsewhere", SOON, || {
            let answers = (0..12).map(|_| udp_ask(&lab.client, to));
            let mut answers = answers.map(|answer| answer.expect("an answer"));
            match answers.any(|name| name == first) {
                true => Err(format!("to {first}")),
                false => Ok(()),
            }
        });
        for n in 0..4 {
            let name = udp_say(socket, &format!("then {n}")).expect("an answer");
            assert_eq!(name, first);
        }
        lab.publish_endpoints(web, &terminates(false));
        let others = all_but(first);
        comes_to_reach("another endpoint", &others, || udp_say(socket, "after"));
    });
}

fn a_refused_client_moves_on(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let socket = udp(&lab.client, to).expect("a socket");
        let first = udp_say(&socket, "before").expect("an answer");
        lab.backend(&first).kill();
        let others = all_but(&first);
        // The refused datagram may be lost, like any datagram.
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .expect("a time limit");
        comes_to_reach("the next endpoint", &others, || udp_say(&socket, "after"));
        lab.backend(&first).restart();
    }
}

fn an_endpoint_without_route_loses_nothing(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for backend in &lab.backends[1..] {
        for address in backend.host().addresses {
            let length = if address.is_ipv4() { 32 } else { 128 };
            lab.node
                .ip(&[&format!("route add unreachable {address}/{length}")]);
        }
    }
    for to in web.cluster() {
        for n in 0..6 {
            // Longer than a failed endpoint is avoided.
            if n == 3 {
                std::thread::sleep(Duration::from_millis(1_100));
            }
            let socket = udp(&lab.client, to).expect("a socket");
            let answer = udp_say(&socket, "first").unwrap_or_else(|e| panic!("client {n}: {e}"));
            assert_eq!(answer, "a");
        }
    }
}

fn a_client_with_two_addresses_called_gets_the_right_answers(lab: &mut Lab) {
    let (web, dns) = (Service::new("web", 10), Service::new("dns", 11));
    lab.three_backends();
    lab.publish(&web, &["a"]);
    lab.publish(&dns, &["b"]);
    let _tripod = lab.tripod();
    for (to, other) in web.cluster().into_iter().zip(dns.cluster()) {
        // One socket and one source port, but two Services: these are two associations.
        let socket = udp(&lab.client, to).expect("a socket");
        assert_eq!(udp_say(&socket, "to web").expect("an answer"), "a");
        socket.connect(other).expect("the other Service");
        assert_eq!(udp_say(&socket, "to dns").expect("an answer"), "b");
        socket.connect(to).expect("the first Service");
        assert_eq!(udp_say(&socket, "to web again").expect("an answer"), "a");
    }
    for to in web.cluster() {
        assert_eq!(udp_ask(&lab.node, to).expect("an answer to the node"), "a");
    }
}

fn large_datagrams_pass(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        // Above the MTU, and the largest size that both families can answer.
        for size in [0, 1, 1_400, 9_000, 60_000] {
            let socket = udp(&lab.client, to).expect("a socket");
            let sent = vec![b'x'; size];
            socket.send(&sent).expect("sending");
            let mut buffer = vec![0; 65_536];
            let n = socket
                .recv(&mut buffer)
                .unwrap_or_else(|e| panic!("{size} bytes to {to}: {e}"));
            assert_eq!(n, size + "a ".len(), "{size} bytes to {to}");
            assert_eq!(&buffer[..2], b"a ");
            assert_eq!(buffer[2..n], sent);
        }
    }
}

/// For a client that keeps its socket and keeps sending, the kernel may remember where
/// its datagrams went before anything served them.
fn a_client_that_called_too_early_is_served(lab: &mut Lab) {
    let (early, empty) = (Service::new("early", 10), Service::new("empty", 11));
    lab.add_backends(&["a"]);
    lab.publish(&empty, &[]);
    let _tripod = lab.tripod();
    for from in lab.cluster_clients() {
        for there in [&early, &empty] {
            for to in there.cluster() {
                lab.publish(&empty, &[]);
                let socket = udp(from, to).expect("a socket");
                socket
                    .set_read_timeout(Some(Duration::from_millis(200)))
                    .expect("a time limit");
                comes_to_fail("there is no Service yet", || udp_say(&socket, "hello?"));
                lab.publish_all(there);
                let what = format!("the Service that came, {to} from {}", from.name());
                comes_to_reach(&what, &["a"], || udp_say(&socket, "hello"));
                if there.name == early.name {
                    lab.withdraw(&early);
                }
            }
        }
    }
}

fn a_client_survives_a_service_that_goes_and_comes_back(lab: &mut Lab) {
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.add_backends(&["a"]).publish_all(&web);
    let _tripod = lab.tripod();
    for from in lab.cluster_clients() {
        for to in web.cluster() {
            let socket = udp(from, to).expect("a socket");
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .expect("a time limit");
            comes_to_reach("at first", &["a"], || udp_say(&socket, "hello"));
            lab.withdraw(&web);
            comes_to_fail("the Service that went", || udp_say(&socket, "hello?"));
            // Meanwhile another Service may take over resources of the first one.
            lab.publish_all(&other);
            lab.publish_all(&web);
            let what = format!("the Service that came back, {to} from {}", from.name());
            comes_to_reach(&what, &["a"], || udp_say(&socket, "hello again"));
            lab.withdraw(&other);
        }
    }
}

/// Asks from a new port each time. Returns the number of clients without an answer.
fn ask_in_turn(to: SocketAddr, clients: usize) -> usize {
    let unanswered = (0..clients).filter(|n| {
        let socket = bind_new((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a socket");
        socket.connect(to).expect("the Service's address");
        let patience = Some(Duration::from_millis(300));
        socket.set_read_timeout(patience).expect("a time limit");
        // A resolver also asks again.
        (0..3).all(|_| udp_say(&socket, &n.to_string()).is_err())
    });
    unanswered.count()
}

fn more_new_clients_than_ports_leave_some_for_the_node(lab: &mut Lab) {
    const CLIENTS: usize = 6_000;
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    // Few enough that one second has more clients than there are ports.
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    lab.node
        .enter(|| std::fs::write(range, "32768 33791").expect("a range of ports"));
    let tripod = lab.tripod();
    let to = web.cluster()[0];
    let begun = Instant::now();
    for _ in 0..10 {
        let unanswered = lab.client.enter(|| ask_in_turn(to, CLIENTS / 10));
        assert_eq!(unanswered, 0, "after {:?}", begun.elapsed());
        lab.node.enter(|| {
            let own = UdpSocket::bind("0.0.0.0:0").expect("a port for the node itself");
            own.connect(("10.244.0.11", 53)).expect("a peer");
        });
    }
    let rate = CLIENTS as f64 / begun.elapsed().as_secs_f64();
    figure(
        "new UDP clients a second, one after the other",
        rate.round(),
    );
    let metric = |name: &str| tripod.metric(&lab.node, name);
    let failures = metric("tripod_userspace_dial_failures_total");
    assert_eq!(failures, Some(0.0), "no endpoint is to blame");
    assert!(metric("tripod_userspace_udp_ended_early_total") > Some(0.0));
}

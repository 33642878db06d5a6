//! ClientIP affinity.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{SOON, comes_to_reach};
use crate::lab::{Lab, Service, eventually, say, tcp_from, udp_from, udp_say};

on_each_capture!(
    clients_stick_to_their_endpoint,
    a_client_moves_when_its_endpoint_goes_and_stays_there,
    a_client_moves_when_its_endpoint_dies_and_stays_there,
    affinity_ends_after_its_timeout,
);

/// Three hours, Kubernetes' default.
const LONG: u32 = 10_800;

fn tcp_ask(lab: &Lab, from: SocketAddr, to: SocketAddr) -> io::Result<String> {
    say(&mut tcp_from(&lab.client, from, to)?, "name")
}

fn udp_ask(lab: &Lab, from: SocketAddr, to: SocketAddr) -> io::Result<String> {
    udp_say(&udp_from(&lab.client, from, to)?, "name")
}

type Ask = fn(&Lab, SocketAddr, SocketAddr) -> io::Result<String>;

const PROTOCOLS: [(&str, Ask); 2] = [("TCP", tcp_ask), ("UDP", udp_ask)];

fn clients_stick_to_their_endpoint(lab: &mut Lab) {
    let web = Service::new("web", 10).sticky(LONG);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        let clients: Vec<_> = (1..=12).map(|n| lab.another_source(to.ip(), n)).collect();
        for (protocol, ask) in PROTOCOLS {
            let mut pins: HashMap<_, String> = HashMap::new();
            for round in 0..4 {
                for from in &clients {
                    let name = ask(lab, *from, to).expect("an answer");
                    let pin = pins.entry(*from).or_insert_with(|| name.clone());
                    assert_eq!(*pin, name, "{protocol} {from} to {to}, round {round}");
                }
            }
            let different: std::collections::HashSet<_> = pins.values().collect();
            assert!(
                different.len() > 1,
                "{protocol} {to}: all twelve at {different:?}"
            );
        }
    }
}

fn a_client_moves_when_its_endpoint_goes_and_stays_there(lab: &mut Lab) {
    let web = Service::new("web", 10).sticky(LONG);
    lab.three_backends();
    let _tripod = {
        lab.publish_all(&web);
        lab.tripod()
    };
    for (protocol, ask) in PROTOCOLS {
        lab.publish_all(&web);
        let (from, to) = (
            lab.another_source(web.cluster()[0].ip(), 1),
            web.cluster()[0],
        );
        let first = ask(lab, from, to).expect("an answer");
        let others: Vec<_> = ["a", "b", "c"]
            .into_iter()
            .filter(|name| *name != first)
            .collect();
        lab.publish(&web, &others);
        comes_to_reach(protocol, &others, || ask(lab, from, to));
        let second = ask(lab, from, to).expect("an answer");
        // All endpoints again: no reason to move.
        lab.publish_all(&web);
        for _ in 0..6 {
            assert_eq!(ask(lab, from, to).expect("an answer"), second, "{protocol}");
        }
    }
}

fn a_client_moves_when_its_endpoint_dies_and_stays_there(lab: &mut Lab) {
    let web = Service::new("web", 10).sticky(LONG);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let (from, to) = (
        lab.another_source(web.cluster()[0].ip(), 1),
        web.cluster()[0],
    );
    let first = tcp_ask(lab, from, to).expect("an answer");
    lab.backend(&first).kill();
    let second = tcp_ask(lab, from, to).expect("the next endpoint is tried");
    assert_ne!(first, second);
    lab.backend(&first).restart();
    for _ in 0..6 {
        assert_eq!(tcp_ask(lab, from, to).expect("an answer"), second);
    }
}

fn affinity_ends_after_its_timeout(lab: &mut Lab) {
    let web = Service::new("web", 10).sticky(1);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for (protocol, ask) in PROTOCOLS {
        let (from, to) = (
            lab.another_source(web.cluster()[0].ip(), 1),
            web.cluster()[0],
        );
        let within_the_second = || {
            let begun = Instant::now();
            let first = ask(lab, from, to).expect("an answer");
            let second = ask(lab, from, to).expect("an answer");
            match begun.elapsed() {
                took if took > Duration::from_millis(900) => Err(format!("{took:?}")),
                _ => Ok([first, second]),
            }
        };
        let [first, second] = eventually("two quick calls", SOON, within_the_second);
        assert_eq!(first, second, "{protocol} within the second");
        eventually(protocol, SOON * 2, || {
            // The silence is part of the test; nothing else is awaited.
            std::thread::sleep(Duration::from_millis(1_200));
            let name = ask(lab, from, to).map_err(|error| error.to_string())?;
            if name == first {
                Err(format!("still at {name}"))
            } else {
                Ok(())
            }
        });
    }
}

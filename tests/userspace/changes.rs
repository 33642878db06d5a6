//! Edits take effect at once, and open connections are left alone.

use std::net::{SocketAddr, TcpStream};

use super::{SOON, comes_to_fail, comes_to_reach, reaches};
use crate::lab::{Lab, Service, ask, eventually, say, tcp, udp_ask};

on_each_capture!(
    a_removed_endpoint_keeps_its_connections_but_gets_no_new_ones,
    a_removed_service_stops_listening_but_keeps_its_connections,
    a_service_that_comes_and_its_changes_are_live,
    a_node_port_that_changes_moves,
);

fn open(lab: &Lab, to: SocketAddr) -> (TcpStream, String) {
    let mut stream = tcp(&lab.client, to).expect("a connection");
    let name = say(&mut stream, "name").expect("an answer");
    (stream, name)
}

fn still_served((stream, name): &mut (TcpStream, String)) {
    assert_eq!(
        say(stream, "name").expect("an open connection lives on"),
        *name
    );
}

fn a_removed_endpoint_keeps_its_connections_but_gets_no_new_ones(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        lab.publish_all(&web);
        comes_to_reach("b is in", &["b"], || ask(&lab.client, to));
        let mut connections: Vec<_> = (0..12).map(|_| open(lab, to)).collect();
        assert!(
            connections.iter().any(|(_, name)| name == "b"),
            "one of twelve is at b"
        );
        lab.publish(&web, &["a", "c"]);
        // The change is applied as soon as none of as many calls as there were endpoints reaches b.
        eventually("b gets no new connection", SOON, || {
            let mut answers = (0..6).map(|_| ask(&lab.client, to).expect("an answer"));
            if answers.any(|name| name == "b") {
                Err("it does".into())
            } else {
                Ok(())
            }
        });
        reaches("the others", &["a", "c"], || ask(&lab.client, to));
        connections.iter_mut().for_each(still_served);
    }
}

fn a_removed_service_stops_listening_but_keeps_its_connections(lab: &mut Lab) {
    let web = Service::new("web", 10).with_node_port();
    let other = Service::new("other", 11);
    lab.three_backends().publish_all(&web);
    lab.publish_all(&other);
    let _tripod = lab.tripod();
    let mut connections: Vec<_> = web.cluster().into_iter().map(|to| open(lab, to)).collect();
    let node_port = SocketAddr::new(lab.node.addresses[0], web.node_port());
    connections.push(open(lab, node_port));
    lab.withdraw(&web);
    for to in web.cluster().into_iter().chain([node_port]) {
        for from in lab.cluster_clients() {
            comes_to_fail("TCP to a Service that is gone", || ask(from, to));
            comes_to_fail("UDP to a Service that is gone", || udp_ask(from, to));
        }
    }
    connections.iter_mut().for_each(still_served);
    for to in other.cluster() {
        reaches("the other Service", &["a", "b", "c"], || {
            ask(&lab.client, to)
        });
    }
}

fn a_service_that_comes_and_its_changes_are_live(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends();
    let _tripod = lab.tripod();
    for endpoints in [&["a"][..], &["b"], &["b", "c"], &["a"]] {
        lab.publish(&web, endpoints);
        for from in lab.cluster_clients() {
            for to in web.cluster() {
                eventually("the edit is live", SOON, || {
                    // As many calls as there can be endpoints, old or new.
                    let answers: Vec<_> = (0..4).map(|_| ask(from, to)).collect();
                    let named = |name: &str| answers.iter().flatten().any(|a| a == name);
                    let known = |a: &Result<String, _>| {
                        a.as_ref().is_ok_and(|a| endpoints.contains(&a.as_str()))
                    };
                    if answers.iter().all(known) && endpoints.iter().all(|e| named(e)) {
                        Ok(())
                    } else {
                        Err(format!("{answers:?}, not {endpoints:?}"))
                    }
                });
                reaches("UDP", endpoints, || udp_ask(from, to));
            }
        }
    }
}

fn a_node_port_that_changes_moves(lab: &mut Lab) {
    let old = Service::new("web", 10).with_node_port();
    let new = Service::new("web", 11).with_node_port();
    lab.three_backends().publish_all(&old);
    let _tripod = lab.tripod();
    let at = |service: &Service| SocketAddr::new(lab.node.addresses[0], service.node_port());
    comes_to_reach("the old port", &["a", "b", "c"], || {
        ask(&lab.outside, at(&old))
    });
    lab.publish_all(&new);
    comes_to_reach("the new port", &["a", "b", "c"], || {
        ask(&lab.outside, at(&new))
    });
    comes_to_fail("the old port", || ask(&lab.outside, at(&old)));
}

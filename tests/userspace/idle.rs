//! The cost of an idle connection.

use crate::lab::{Lab, Service, ask, figure, say, tcp};

on_each_capture!(idle_connections_are_cheap);

const CONNECTIONS: usize = 5_000;
const AT_MOST_KIB: u64 = 40 * 1024;

fn idle_connections_are_cheap(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = lab.tripod();
    let to = web.cluster()[0];
    ask(&lab.client, to).expect("an answer");
    let before = tripod.resident_kib();
    let mut connections = Vec::new();
    for n in 0..CONNECTIONS {
        let mut stream = tcp(&lab.client, to).unwrap_or_else(|e| panic!("connection {n}: {e}"));
        say(&mut stream, "name").unwrap_or_else(|e| panic!("connection {n}: {e}"));
        connections.push(stream);
    }
    let grown = tripod.resident_kib().saturating_sub(before);
    figure(
        &format!("{}, {CONNECTIONS} idle connections", lab.capture.name()),
        format!(
            "{grown} KiB above {before} KiB, {} descriptors",
            tripod.descriptors()
        ),
    );
    assert!(grown <= AT_MOST_KIB, "{grown} KiB");
    let descriptors = tripod.descriptors();
    assert!(
        descriptors < 2 * CONNECTIONS + 200,
        "{descriptors} descriptors: two sockets a connection, and no pipes"
    );
    assert_eq!(
        say(&mut connections[CONNECTIONS - 1], "name")
            .map(|n| n.len())
            .expect("alive"),
        1
    );
}

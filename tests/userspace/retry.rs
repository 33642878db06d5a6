//! A dead endpoint among living ones is Tripod's trouble, not the client's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::RwLock;
use std::time::Duration;

use crate::lab::{FirstByte, Lab, Service, figure, say, tcp};

on_each_capture!(alone: a_killed_backend_fails_no_call, a_silent_backend_fails_no_call);

on_each_capture!(a_backend_that_dies_before_it_answers_is_replaced);

const SHORT: usize = 2_000;
const LONG: usize = 100;

fn open(lab: &Lab, to: std::net::SocketAddr) -> Vec<(TcpStream, String)> {
    (0..LONG)
        .map(|n| {
            let mut stream = tcp(&lab.client, to).unwrap_or_else(|e| panic!("long {n}: {e}"));
            let name = say(&mut stream, "name").unwrap_or_else(|e| panic!("long {n}: {e}"));
            (stream, name)
        })
        .collect()
}

fn still_served(connections: &mut [(TcpStream, String)]) {
    for (stream, name) in connections {
        assert_eq!(
            say(stream, "name").expect("an open connection lives on"),
            *name
        );
    }
}

fn a_killed_backend_fails_no_call(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let to = web.cluster()[0];
    let mut before = open(lab, to);
    let mut victim = lab.backends.remove(1);
    let gate = RwLock::new(());
    let calls = std::thread::scope(|scope| {
        let calls = scope.spawn(|| FirstByte::measure(&lab.client, to, SHORT, 16, &gate));
        crate::lab::eventually("calls run", Duration::from_secs(10), || {
            match victim.counts(&lab.node).accepted {
                n if n > LONG as u64 / 3 + 100 => Ok(()),
                n => Err(format!("{n} so far")),
            }
        });
        // Between calls: one that already reached the victim would die with it.
        let pause = gate.write();
        victim.kill();
        drop(pause);
        calls.join().expect("the caller")
    });
    assert_eq!(
        calls.failures(),
        Vec::<&str>::new(),
        "of {SHORT} short calls"
    );
    before.retain(|(_, name)| name != victim.name());
    still_served(&mut before);
    let mut during = open(lab, to);
    assert!(during.iter().all(|(_, name)| name != victim.name()));
    still_served(&mut during);
    let capture = lab.capture.name();
    figure(
        &format!("{capture}, killed backend, slowest first byte of {SHORT}"),
        format!("{:?}", calls.slowest()),
    );
}

fn a_silent_backend_fails_no_call(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let to = web.cluster()[0];
    let gate = RwLock::new(());
    let healthy = FirstByte::measure(&lab.client, to, SHORT, 32, &gate);
    assert_eq!(healthy.failures(), Vec::<&str>::new(), "while all is well");
    let mut before = open(lab, to);
    let victim = lab.backends.remove(1);
    victim.blackhole();
    let calls = FirstByte::measure(&lab.client, to, SHORT, 32, &gate);
    assert_eq!(
        calls.failures(),
        Vec::<&str>::new(),
        "of {SHORT} short calls"
    );
    before.retain(|(_, name)| name != victim.name());
    still_served(&mut before);
    let mut during = open(lab, to);
    still_served(&mut during);
    // What the machine itself takes at its worst is not the backend's doing.
    let extra = calls.slowest().saturating_sub(healthy.slowest());
    let capture = lab.capture.name();
    figure(
        &format!("{capture}, blackholed backend, first byte of {SHORT}"),
        format!(
            "slowest {:?} (healthy: median {:?}, slowest {:?})",
            calls.slowest(),
            healthy.median(),
            healthy.slowest()
        ),
    );
    assert!(
        extra <= Duration::from_millis(300),
        "{extra:?} extra for a first byte"
    );
}

/// The kernel took the connection and the question for a process that never
/// saw them; its death resets the connection.
fn a_backend_that_dies_before_it_answers_is_replaced(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        lab.backend("b").freeze();
        let mut waiting: Vec<_> = (0..9)
            .map(|_| {
                let mut stream = tcp(&lab.client, to).expect("a connection");
                stream.write_all(b"name\n").expect("a question");
                stream
            })
            .collect();
        // The living have answered; b holds the rest.
        let mut byte = [0];
        for stream in &waiting {
            stream
                .set_read_timeout(Some(Duration::from_millis(500)))
                .expect("a time limit");
        }
        waiting.retain(|stream| stream.peek(&mut byte).is_err());
        assert!(!waiting.is_empty(), "of nine calls, none went to b");
        lab.backend("b").kill();
        for stream in &mut waiting {
            assert_eq!(stream.read(&mut byte).expect("an answer by another"), 1);
            assert_ne!(byte, *b"b");
        }
        lab.backend("b").restart();
    }
}

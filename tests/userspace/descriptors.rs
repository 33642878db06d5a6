//! When descriptors run out, accepting waits; nobody is turned away.

use std::io::Write;
use std::time::Duration;

use crate::lab::{Lab, Service, Tripod, eventually, say, tcp};

on_each_capture!(connections_wait_for_descriptors);

fn connections_wait_for_descriptors(lab: &mut Lab) {
    const CONNECTIONS: usize = 60;
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with_descriptors(lab, 64);
    let to = web.cluster()[0];
    // The kernel takes them all; Tripod has descriptors for some.
    let mut waiting: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let mut stream = tcp(&lab.client, to).unwrap_or_else(|e| panic!("connection {n}: {e}"));
            writeln!(stream, "name").expect("a question");
            stream
                .set_read_timeout(Some(Duration::from_millis(20)))
                .expect("a time limit");
            stream
        })
        .collect();
    let mut answered = Vec::new();
    eventually("descriptors run out", Duration::from_secs(10), || {
        collect_answers(&mut waiting, &mut answered);
        if !answered.is_empty() && tripod.descriptors() >= 55 {
            return Ok(());
        }
        Err(format!(
            "{} answered, {} descriptors",
            answered.len(),
            tripod.descriptors()
        ))
    });
    // Out of descriptors, not out of its mind.
    let (start, window) = (tripod.processor_time(), Duration::from_secs(1));
    std::thread::sleep(window);
    let busy = tripod.processor_time() - start;
    assert!(
        busy < window / 4,
        "{busy:?} of processor time in {window:?} while waiting"
    );
    assert!(
        !waiting.is_empty(),
        "{CONNECTIONS} connections do not fit into 64 descriptors"
    );

    eventually(
        "all are served as others close",
        Duration::from_secs(30),
        || {
            answered.clear();
            collect_answers(&mut waiting, &mut answered);
            match waiting.len() {
                0 => Ok(()),
                n => Err(format!("{n} still wait")),
            }
        },
    );
    answered.clear();
    eventually(
        "the pauses are counted",
        Duration::from_secs(5),
        || match tripod.metric(&lab.node, "tripod_userspace_accept_paused_total") {
            Some(count) if count > 0.0 => Ok(()),
            other => Err(format!("{other:?}")),
        },
    );
    let mut stream = tcp(&lab.client, to).expect("a connection");
    say(&mut stream, "name").expect("an answer");
}

/// Moves connections that have their answer from one list to the other.
fn collect_answers(
    waiting: &mut Vec<std::net::TcpStream>,
    answered: &mut Vec<std::net::TcpStream>,
) {
    for mut stream in std::mem::take(waiting) {
        use std::io::{ErrorKind, Read};
        let mut answer = [0; 16];
        match stream.read(&mut answer) {
            Ok(n) if n > 0 => answered.push(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => waiting.push(stream),
            other => panic!("a waiting connection was lost: {other:?}"),
        }
    }
}

//! A connection through Tripod behaves like a TCP connection: both directions, their ends, resets,
//! back-pressure.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::lab::{
    Lab, Pattern, Service, Tripod, acceptance, eventually, figure, say, send_pattern, tcp,
    verify_pattern,
};

on_each_capture!(
    half_close_of_the_client_delivers_both_ways,
    half_close_of_the_backend_delivers_both_ways,
    a_reset_reaches_the_other_side,
    an_upload_that_the_backend_resets_does_not_end_in_order,
    a_vanished_backend_is_noticed_and_a_reader_that_pauses_is_not_cut_off,
    a_short_loss_after_a_long_pause_ends_nothing,
    a_vanished_client_is_noticed_within_two_minutes,
    a_frozen_reader_stops_the_writer,
    a_reset_is_seen_while_a_frozen_reader_stops_the_writer,
    urgent_data_holds_nothing_up,
    small_messages_are_not_delayed,
);
on_each_capture!(bulk_arrives_unharmed_both_ways);

const MIB: u64 = 1 << 20;

fn one_backend(lab: &mut Lab) -> (Tripod, [SocketAddr; 2]) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    (lab.tripod(), web.cluster())
}

fn begin(lab: &Lab, to: SocketAddr, command: &str) -> TcpStream {
    let mut stream = tcp(&lab.client, to).expect("a connection");
    writeln!(stream, "{command}").expect("a command");
    stream
}

fn half_close_of_the_client_delivers_both_ways(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    for to in cluster {
        for size in [0, 1, 1_000, 3 * MIB] {
            let mut stream = begin(lab, to, "sink");
            send_pattern(&mut stream, size).expect("sending");
            stream.shutdown(Shutdown::Write).expect("half-close");
            let mut answer = String::new();
            stream
                .read_to_string(&mut answer)
                .expect("the answer after half-close");
            assert_eq!(answer, format!("{size}\n"));

            let mut stream = begin(lab, to, &format!("late {size}"));
            send_pattern(&mut stream, MIB).expect("sending");
            stream.shutdown(Shutdown::Write).expect("half-close");
            assert_eq!(
                verify_pattern(&mut stream, None).expect("what came late"),
                size
            );
        }
    }
}

fn half_close_of_the_backend_delivers_both_ways(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    let mut drained = 0;
    for to in cluster {
        for size in [0, 1, 1_000, 3 * MIB] {
            let mut stream = begin(lab, to, &format!("source {size}"));
            assert_eq!(verify_pattern(&mut stream, None).expect("the source"), size);
            // The backend has ended its direction; ours is still open.
            send_pattern(&mut stream, 2 * MIB).expect("sending to a half-closed connection");
            drop(stream);
            drained += 2 * MIB;
            eventually(
                "the backend reads on",
                Duration::from_secs(5),
                || match lab.backends[0].counts(&lab.node).drained {
                    n if n == drained => Ok(()),
                    n => Err(format!("{n} of {drained} bytes")),
                },
            );
        }
    }
}

fn a_reset_reaches_the_other_side(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    for (resets, to) in (1..).zip(cluster) {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        say(&mut stream, "echo").expect("an answer");
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(stream);
        eventually(
            "the backend sees the reset",
            Duration::from_secs(5),
            || match lab.backends[0].counts(&lab.node).reset {
                n if n == resets => Ok(()),
                n => Err(format!("{n} resets, not {resets}")),
            },
        );

        let mut stream = begin(lab, to, "reset");
        let error = stream.read(&mut [0]).expect_err("a reset, not an end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// However far it got, and whether Tripod first notices the reset by reading or by writing.
fn an_upload_that_the_backend_resets_does_not_end_in_order(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    for to in cluster {
        for n in 0..60 {
            let mut stream = begin(lab, to, &format!("spurn {}", 1 << (n % 20)));
            // A side that writes gets the reset; after an orderly end it would get a
            // broken pipe (`tcp_reset` in net/ipv4/tcp_input.c).
            let error = send_pattern(&mut stream, u64::MAX).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "upload {n}");
        }
    }
}

fn a_vanished_backend_is_noticed_and_a_reader_that_pauses_is_not_cut_off(lab: &mut Lab) {
    const PAUSE: Duration = Duration::from_secs(3);
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    let _tripod = Tripod::start_with(lab, &["--userspace-tcp-user-timeout=1s"]);
    let size = 16 * MIB;
    let mut slow = web
        .cluster()
        .map(|to| begin(lab, to, &format!("source {size}")));
    std::thread::sleep(PAUSE);
    for stream in &mut slow {
        assert_eq!(verify_pattern(stream, None).expect("all of it"), size);
    }
    let mut waiting = web.cluster().map(|to| {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        say(&mut stream, "name").expect("an answer");
        stream
    });
    lab.backends[0].blackhole();
    for stream in &mut waiting {
        let error = say(stream, "name").expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// The limit applies to the time of the loss, not to the silence before it.
fn a_short_loss_after_a_long_pause_ends_nothing(lab: &mut Lab) {
    const LIMIT: Duration = Duration::from_secs(4);
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    let _tripod = Tripod::start_with(lab, &["--userspace-tcp-user-timeout=4s"]);
    let mut idle = web.cluster().map(|to| {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        say(&mut stream, "name").expect("an answer");
        stream
    });
    std::thread::sleep(LIMIT + Duration::from_secs(1));
    lab.backends[0].blackhole();
    for stream in &mut idle {
        stream.write_all(b"name\n").expect("a question");
    }
    std::thread::sleep(LIMIT / 2);
    lab.backends[0].heal();
    for stream in &mut idle {
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, *b"a\n");
    }
}

/// By keep-alive probes: the first after a minute without data, then three more, 15 s apart.
fn a_vanished_client_is_noticed_within_two_minutes(lab: &mut Lab) {
    let (tripod, cluster) = one_backend(lab);
    let _open = cluster.map(|to| {
        let mut stream = tcp(&lab.client, to).expect("a connection");
        say(&mut stream, "name").expect("an answer");
        stream
    });
    let connections = || tripod.metric(&lab.node, "tripod_userspace_connections");
    assert_eq!(connections(), Some(2.0));
    lab.client.ip(&["link set eth0 down"]);
    let limit = Duration::from_secs(130);
    eventually("both connections end", limit, || match connections() {
        Some(0.0) => Ok(()),
        count => Err(format!("{count:?} are open")),
    });
}

/// Data that is not read must not pile up in Tripod.
fn a_frozen_reader_stops_the_writer(lab: &mut Lab) {
    let (tripod, cluster) = one_backend(lab);
    let before = tripod.resident_kib();
    let mut stream = begin(lab, cluster[0], "stall");
    stream
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("a time limit");
    let mut pattern = Pattern::default();
    let mut sent = 0;
    let stopped = loop {
        match stream.write(pattern.next(65_536)) {
            Ok(n) => sent += n as u64,
            Err(error) => break error,
        }
        assert!(
            sent < 256 * MIB,
            "{sent} bytes went somewhere, and nothing is read"
        );
    };
    assert_eq!(stopped.kind(), ErrorKind::WouldBlock);
    let grown = tripod.resident_kib().saturating_sub(before);
    assert!(grown < 4 * 1024, "resident memory grew by {grown} KiB");
    // Others are still served.
    let mut other = tcp(&lab.client, cluster[0]).expect("a connection");
    assert_eq!(say(&mut other, "name").expect("an answer"), "a");
}

fn a_reset_is_seen_while_a_frozen_reader_stops_the_writer(lab: &mut Lab) {
    let (tripod, cluster) = one_backend(lab);
    for to in cluster {
        let mut stream = begin(lab, to, "stall");
        stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .expect("a time limit");
        let mut pattern = Pattern::default();
        while stream.write(pattern.next(65_536)).is_ok() {}
        let open = || tripod.metric(&lab.node, "tripod_userspace_connections");
        assert_eq!(open(), Some(1.0));
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(stream);
        eventually(
            "the connection ends",
            Duration::from_secs(5),
            || match open() {
                Some(0.0) => Ok(()),
                other => Err(format!("{other:?} connections")),
            },
        );
    }
}

/// The urgent byte stays in its place, and the data after it is passed on.
fn urgent_data_holds_nothing_up(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    for to in cluster {
        for _ in 0..10 {
            let mut stream = tcp(&lab.client, to).expect("a connection");
            say(&mut stream, "echo").expect("an answer");
            stream.write_all(b"before").expect("sending");
            let urgent = socket2::SockRef::from(&stream).send_out_of_band(b"!");
            assert_eq!(urgent.expect("sending"), 1);
            stream.write_all(b"after").expect("sending");
            let mut echo = [0; 12];
            stream.read_exact(&mut echo).expect("all of it");
            assert_eq!(echo, *b"before!after");
        }
        // In the middle of a bulk flow.
        let mut stream = begin(lab, to, "sink");
        let mut pattern = Pattern::default();
        let mut sent = 0;
        while sent < 8 * MIB {
            let piece = pattern.next(65_536);
            stream.write_all(piece).expect("sending");
            sent += piece.len() as u64;
        }
        let urgent = socket2::SockRef::from(&stream).send_out_of_band(pattern.next(1));
        assert_eq!(urgent.expect("sending"), 1);
        stream.write_all(pattern.next(1_000)).expect("sending");
        stream.shutdown(Shutdown::Write).expect("half-close");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the answer");
        assert_eq!(answer, format!("{}\n", sent + 1_001));
    }
}

/// Without TCP_NODELAY each exchange would wait for a delayed ACK, 40 ms.
fn small_messages_are_not_delayed(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    let mut stream = tcp(&lab.client, cluster[0]).expect("a connection");
    say(&mut stream, "echo").expect("an answer");
    let start = Instant::now();
    let mut byte = [0; 1];
    for _ in 0..100 {
        // Two small writes: Nagle's algorithm holds back the second.
        stream.write_all(b"x").expect("sending");
        stream.write_all(b"y").expect("sending");
        for _ in 0..2 {
            stream.read_exact(&mut byte).expect("the echo");
        }
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?} for 100 exchanges",
        start.elapsed()
    );
}

fn bulk_arrives_unharmed_both_ways(lab: &mut Lab) {
    let (_tripod, cluster) = one_backend(lab);
    let size = if acceptance() { 4096 * MIB } else { 64 * MIB };
    let start = Instant::now();
    let mut stream = begin(lab, cluster[0], &format!("pump {size}"));
    let mut writer = stream.try_clone().expect("a second handle");
    std::thread::scope(|scope| {
        scope.spawn(move || send_pattern(&mut writer, size).expect("sending"));
        assert_eq!(
            verify_pattern(&mut stream, Some(size)).expect("receiving"),
            size
        );
    });
    let mut answer = String::new();
    stream.shutdown(Shutdown::Write).expect("half-close");
    stream
        .read_to_string(&mut answer)
        .expect("the backend's count");
    assert_eq!(answer, format!("{size}\n"));
    figure(
        &format!(
            "{}, {} MiB each way at once",
            lab.capture.name(),
            size / MIB
        ),
        format!("{:?}", start.elapsed()),
    );
}

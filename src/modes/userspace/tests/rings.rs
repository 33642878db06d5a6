//! Connections that io_uring moves while they exchange short messages.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};

use super::*;
use crate::kernel::io_uring::or_skip;

/// Number of simultaneous connections: enough to keep a worker busy.
const CLIENTS: usize = 16;

/// A proxy whose workers have rings; `None`, with a message, if that is not possible.
fn proxy(targets: &[SocketAddr]) -> Option<Proxy> {
    let rings = or_skip(Rings::make(2))?;
    let (node, tcp) = ("here", Protocol::Tcp);
    Some(Proxy::with_rings(rings, node, UDP_TIMEOUT, tcp, targets))
}

fn moved_by_rings(proxy: &Proxy) -> u64 {
    proxy.shared.counters.connections_by_io_uring.get()
}

/// Sends `message` and simultaneously reads the same length, so that neither side has to wait.
fn exchange(client: &mut TcpStream, message: &[u8]) {
    thread::scope(|scope| {
        let mut writer = client.try_clone().unwrap();
        if message.len() > 1 << 16 {
            scope.spawn(move || writer.write_all(message).unwrap());
        } else {
            writer.write_all(message).unwrap();
        }
        let mut answer = vec![0; message.len()];
        client.read_exact(&mut answer).unwrap();
        assert!(
            answer == message,
            "another answer of {} bytes",
            message.len()
        );
    });
}

/// Actions of a client.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This many messages of up to this many bytes.
    Messages(usize, usize),
    /// Several messages before the first answer is read.
    Pipelined(usize),
    Urgent,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..80_usize, 1..4000_usize).prop_map(|(n, most)| Step::Messages(n, most)),
        1 => (1..4_usize, 4000..300_000_usize).prop_map(|(n, most)| Step::Messages(n, most)),
        2 => (1..200_usize).prop_map(Step::Pipelined),
        1 => Just(Step::Urgent),
    ]
}

fn perform(client: &mut TcpStream, step: Step) {
    match step {
        Step::Messages(count, most) => {
            for n in 0..count {
                exchange(client, &pattern(1 + (n * 7919) % most));
            }
        }
        Step::Pipelined(count) => {
            let all: Vec<_> = (0..count).map(|n| pattern(1 + n)).collect();
            for message in &all {
                client.write_all(message).unwrap();
            }
            let mut answer = vec![0; all.concat().len()];
            client.read_exact(&mut answer).unwrap();
            assert!(answer == all.concat());
        }
        Step::Urgent => {
            client.write_all(b"before").unwrap();
            assert_eq!(SockRef::from(&*client).send_out_of_band(b"!").unwrap(), 1);
            client.write_all(b"after").unwrap();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"before!after");
        }
    }
}

#[test]
fn whatever_connections_do_their_bytes_arrive_in_order_and_end_as_they_were_ended() {
    let backend = backend(|s| {
        SockRef::from(&s).set_out_of_band_inline(true).unwrap();
        echo(s);
    });
    let Some(proxy) = proxy(&[backend]) else {
        return;
    };
    let mut runner = TestRunner::new(Config::default());
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let steps = proptest::collection::vec(step(), 12);
            let steps = steps.new_tree(&mut runner).unwrap().current();
            let mut client = proxy.connect();
            client.set_nodelay(true).unwrap();
            scope.spawn(move || {
                for step in steps {
                    perform(&mut client, step);
                }
                if number % 2 == 0 {
                    client.write_all(b"last").unwrap();
                    client.shutdown(Shutdown::Write).unwrap();
                    let mut rest = Vec::new();
                    client.read_to_end(&mut rest).unwrap();
                    assert_eq!(rest, b"last");
                } else {
                    reset(&client);
                }
            });
        }
    });
    assert!(moved_by_rings(&proxy) > 0, "no ring was used");
    until("the end of all", || {
        proxy.shared.counters.connections.get() == 0
    });
}

/// Starts a backend that echoes each message of eight bytes, until `last`, which is called first,
/// says that the message was the last one.
fn backend_until(
    last: impl Fn(&mut TcpStream, &[u8]) -> bool + Clone + Send + 'static,
) -> SocketAddr {
    backend(move |mut s| {
        let mut message = [0; 8];
        while s.read_exact(&mut message).is_ok() && !last(&mut s, &message) {
            s.write_all(&message).unwrap();
        }
    })
}

/// Clients that have exchanged messages until io_uring moves them.
fn busy_clients(proxy: &Proxy) -> Vec<TcpStream> {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| proxy.connect()).collect();
    let begun = Instant::now();
    let before = moved_by_rings(proxy);
    while moved_by_rings(proxy) < before + clients.len() as u64 {
        assert!(begun.elapsed() < DEADLINE, "no ring was used");
        for client in &mut clients {
            client.write_all(b"question").unwrap();
        }
        for client in &mut clients {
            client.read_exact(&mut [0; 8]).unwrap();
        }
    }
    clients
}

#[test]
fn a_backend_that_dies_or_ends_is_seen_at_once() {
    let backend = backend_until(|s, message| match message {
        b"die die " => {
            reset(s);
            true
        }
        b"end end " => {
            s.write_all(b"bye").unwrap();
            true
        }
        _ => false,
    });
    let Some(proxy) = proxy(&[backend]) else {
        return;
    };
    let mut clients = busy_clients(&proxy);
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 2 == 0 {
            client.write_all(b"die die ").unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        } else {
            client.write_all(b"end end ").unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"bye");
        }
    }
    drop(clients);
    until("the end of all", || {
        proxy.shared.counters.connections.get() == 0
    });
}

#[test]
fn a_client_that_does_not_read_holds_its_own_backend_back_and_no_others() {
    let (full, size) = (32 << 20, 8);
    let backend = backend_until(move |s, message| {
        let floods = message == b"flood it";
        if floods {
            let _ = s.write_all(&pattern(full));
        }
        floods
    });
    let Some(proxy) = proxy(&[backend]) else {
        return;
    };
    let mut clients = busy_clients(&proxy);
    let (slow, others) = clients.split_at_mut(CLIENTS / 2);
    for client in &mut *slow {
        client.write_all(b"flood it").unwrap();
    }
    for _ in 0..200 {
        for client in &mut *others {
            client.write_all(b"question").unwrap();
            client.read_exact(&mut vec![0; size]).unwrap();
        }
    }
    for client in slow {
        let mut got = Vec::with_capacity(full);
        client.read_to_end(&mut got).unwrap();
        assert!(got == pattern(full), "{} bytes", got.len());
    }
}

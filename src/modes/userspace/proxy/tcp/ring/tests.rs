//! A ring with connections over loopback.

use std::{
    future::poll_fn,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener},
};

use socket2::SockRef;
use testing::block_on;
use tokio::{task::LocalSet, time::timeout};

use super::*;
use crate::{
    kernel::io_uring::{SIZE, or_skip},
    sched::RealServer,
};

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Both ends of a connection over loopback, the proxy's first.
fn pair() -> (Rc<TcpStream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_read_timeout(Some(DEADLINE)).unwrap();
    (Rc::new(near), far)
}

/// A connection that a ring moves, and its client and backend.
struct Lab {
    moved: RingConnection,
    client: TcpStream,
    backend: TcpStream,
    /// The proxy's ends.
    near: [Rc<TcpStream>; 2],
}

impl Lab {
    fn new() -> Lab {
        let ((to_client, client), (to_backend, backend)) = (pair(), pair());
        let driver = of_this_worker().expect("a ring");
        let server = RealServer {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            weight: 1,
            load: Default::default(),
        };
        let near = [to_client, to_backend];
        let [client_side, backend_side] = near.each_ref().map(Rc::clone);
        Lab {
            moved: driver.forward(client_side, backend_side, server.clone()),
            client,
            backend,
            near,
        }
    }

    async fn left(&self) -> Remainder {
        let left = poll_fn(|cx| self.moved.poll(cx));
        timeout(DEADLINE, left).await.expect("it is given back")
    }

    /// Reads exactly the expected bytes, while the ring gets its turns.
    async fn expect(mut stream: &TcpStream, expected: &[u8]) {
        stream.set_nonblocking(true).unwrap();
        let mut got = Vec::new();
        let read = async {
            while got.len() < expected.len() {
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer) {
                    Ok(0) => panic!("it ended after {} bytes", got.len()),
                    Ok(n) => got.extend_from_slice(&buffer[..n]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        yield_now().await;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        };
        timeout(DEADLINE, read).await.expect("it arrives");
        assert!(got == expected, "{} bytes are others", got.len());
    }
}

/// Runs `test` on a worker with a ring.
fn with_ring(test: impl AsyncFnOnce()) {
    let Some(ring) = or_skip(Ring::new()) else {
        return;
    };
    block_on(LocalSet::new().run_until(async {
        let running = tokio::task::spawn_local(run(ring));
        while of_this_worker().is_none() {
            yield_now().await;
        }
        test().await;
        running.abort();
    }));
}

#[test]
fn messages_go_both_ways_and_an_end_is_left_to_the_relay() {
    with_ring(async || {
        for client_ends in [true, false] {
            let lab = Lab::new();
            for round in 0..100_u32 {
                let message = round.to_be_bytes().repeat(1 + round as usize);
                (&lab.client).write_all(&message).unwrap();
                Lab::expect(&lab.backend, &message).await;
                (&lab.backend).write_all(&message).unwrap();
                Lab::expect(&lab.client, &message).await;
            }
            let (ends, near) = if client_ends {
                (&lab.client, &lab.near[0])
            } else {
                (&lab.backend, &lab.near[1])
            };
            (&*ends).write_all(b"last").unwrap();
            ends.shutdown(Shutdown::Write).unwrap();
            let left = lab.left().await;
            for rest in [left.out, left.back] {
                assert_eq!(
                    (rest.bytes, rest.refused, rest.failed),
                    (vec![], None, false)
                );
            }
            let other = if client_ends {
                &lab.backend
            } else {
                &lab.client
            };
            Lab::expect(other, b"last").await;
            assert_eq!((&**near).read(&mut [0]).unwrap(), 0);
        }
    });
}

#[test]
fn a_reset_is_behind_what_was_sent_before_it() {
    with_ring(async || {
        for by_client in [true, false] {
            let lab = Lab::new();
            let Lab {
                client,
                backend,
                moved,
                ..
            } = lab;
            let (resets, other) = if by_client {
                (client, backend)
            } else {
                (backend, client)
            };
            (&resets).write_all(b"question").unwrap();
            Lab::expect(&other, b"question").await;
            SockRef::from(&resets)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(resets);
            let left = timeout(DEADLINE, poll_fn(|cx| moved.poll(cx)))
                .await
                .expect("an end");
            assert_eq!((left.out.failed, left.back.failed), (by_client, !by_client));
        }
    });
}

#[test]
fn what_a_receiver_does_not_take_is_left_in_order() {
    with_ring(async || {
        let lab = Lab::new();
        lab.client.set_nonblocking(true).unwrap();
        let pattern: Vec<u8> = (0..251_u8).collect();
        let mut sent = Vec::new();
        let fill = async {
            loop {
                match (&lab.client).write(&pattern) {
                    Ok(n) => sent.extend_from_slice(&pattern[..n]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        yield_now().await;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let left = tokio::select! {
            left = lab.left() => left,
            () = fill => unreachable!("it has no end"),
        };
        lab.client.shutdown(Shutdown::Write).unwrap();
        // The bytes in the sockets come first: at the backend, then the remaining ones, then those
        // that were not received.
        let mut got = Vec::new();
        let take = |mut from: &TcpStream, got: &mut Vec<u8>| {
            let mut buffer = [0; 65536];
            loop {
                match from.read(&mut buffer) {
                    Ok(0) => return true,
                    Ok(n) => got.extend_from_slice(&buffer[..n]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                    Err(e) => panic!("{e}"),
                }
            }
        };
        lab.backend.set_nonblocking(true).unwrap();
        let sockets_hold = sent.len() - left.out.bytes.len();
        let mut unread = Vec::new();
        let begun = std::time::Instant::now();
        let mut ended = false;
        while !ended || got.len() + left.out.bytes.len() + unread.len() < sent.len() {
            assert!(
                begun.elapsed() < DEADLINE,
                "{} of {sockets_hold}",
                got.len()
            );
            take(&lab.backend, &mut got);
            ended |= take(&lab.near[0], &mut unread);
        }
        let all = [got, left.out.bytes, unread].concat();
        assert!(
            all == sent,
            "{} of {} bytes, or in another order",
            all.len(),
            sent.len()
        );
    });
}

#[test]
fn what_is_abandoned_is_closed_and_its_place_is_used_again() {
    with_ring(async || {
        for _ in 0..3 {
            let Lab {
                moved,
                client,
                backend,
                near,
            } = Lab::new();
            assert_eq!(moved.number.get(), Some(0));
            drop((moved, near));
            for mut stream in [client, backend] {
                stream.set_nonblocking(true).unwrap();
                let closed = async {
                    while !matches!(stream.read(&mut [0]), Ok(0)) {
                        yield_now().await;
                    }
                };
                timeout(DEADLINE, closed).await.expect("it is closed");
            }
        }
    });
}

#[test]
fn much_at_once_is_no_short_message() {
    with_ring(async || {
        let lab = Lab::new();
        let much = vec![b'x'; 16 * SIZE];
        (&lab.backend).write_all(&much).unwrap();
        let left = lab.left().await;
        let mut rest = left.back.bytes;
        let received = much.len() - rest.len();
        let mut unread = vec![0; much.len()];
        let mut length = 0;
        while let Ok(n) = (&*lab.near[0]).read(&mut unread[length..]) {
            length += n;
        }
        let mut near = &*lab.near[1];
        let mut buffer = [0; 4096];
        while let Ok(n) = near.read(&mut buffer) {
            rest.extend_from_slice(&buffer[..n]);
        }
        let sent = much.len() - rest.len();
        assert!(sent <= received);
        Lab::expect(&lab.client, &much[..sent]).await;
    });
}

#[test]
fn more_connections_than_buffers_are_served_beside_receivers_that_take_nothing() {
    const ALL: usize = 200;
    const SLOW: usize = 8;
    with_ring(async || {
        let labs: Vec<_> = (0..ALL).map(|_| Lab::new()).collect();
        let (slow, others) = labs.split_at(SLOW);
        for lab in slow {
            lab.backend.set_nonblocking(true).unwrap();
            while (&lab.backend).write(&[b'x'; 1 << 16]).is_ok() {}
        }
        for round in 0..20_u8 {
            for lab in others {
                (&lab.client).write_all(&[round; 100]).unwrap();
            }
            for lab in others {
                Lab::expect(&lab.backend, &[round; 100]).await;
                (&lab.backend).write_all(&[round; 200]).unwrap();
            }
            for lab in others {
                Lab::expect(&lab.client, &[round; 200]).await;
            }
        }
        for lab in slow {
            assert!(!lab.left().await.idle);
        }
    });
}

#[test]
fn what_is_idle_is_given_back() {
    with_ring(async || {
        let lab = Lab::new();
        for _ in 0..3 {
            (&lab.client).write_all(b"question").unwrap();
            Lab::expect(&lab.backend, b"question").await;
            lab.moved.give_back_if_idle();
        }
        lab.moved.give_back_if_idle();
        let left = lab.left().await;
        assert!(left.idle && !left.out.failed && left.out.bytes.is_empty());
    });
}

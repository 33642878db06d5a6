//! Effects of resets, with real sockets.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::*;
use crate::modes::userspace::tests::shared;

/// Longer than anything here takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// Both ends of a connection over loopback, the relay's first.
async fn pair() -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(Stream::connect(address, |_| Ok(())), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Resets the connection and waits until `seen_by` notices, without consuming the error.
async fn reset(stream: TcpStream, seen_by: &Stream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
    timeout(DEADLINE, seen_by.ready(Interest::ERROR))
        .await
        .expect("the reset arrives")
        .unwrap();
}

async fn run(relay: &mut Relay, client: &Stream, backend: &Stream) -> End {
    let shared = shared();
    loop {
        let step = std::future::poll_fn(|cx| relay.poll(cx, client, backend, &shared));
        match timeout(DEADLINE, step).await.expect("it ends") {
            Progress::Ended(end) => return end,
            Progress::HalfClosed(_) | Progress::Stalled | Progress::Messages => {}
        }
    }
}

/// The view of a client that sent something after the backend reset its connection, wherever the
/// kernel reports the reset first.
#[tokio::test]
async fn a_reset_by_the_backend_is_no_end() {
    struct Case {
        /// Data of the client, and whether it then ends its direction.
        says: Vec<u8>,
        ends: bool,
        bulk: bool,
        again: bool,
    }
    let case = |size, ends, bulk, again| Case {
        says: vec![b'x'; size],
        ends,
        bulk,
        again,
    };
    for Case {
        says,
        ends,
        bulk,
        again,
    } in [
        case(5, false, false, true),
        case(5, true, false, true),
        // The first error is that of shutdown(2).
        case(0, true, false, true),
        case(0, false, false, true),
        case(10_000, false, false, false),
        case(10_000, true, false, false),
        case(100_000, false, true, false),
    ] {
        let what = format!("{} bytes, ended {ends}, spliced {bulk}", says.len());
        let (client, mut far_client) = pair().await;
        let (backend, far_backend) = pair().await;
        far_client.write_all(&says).await.unwrap();
        if ends {
            far_client.shutdown().await.unwrap();
        }
        reset(far_backend, &backend).await;
        let mut relay = Relay::new(&[], FirstFlight::default());
        relay.out.bulk = bulk;
        match (run(&mut relay, &client, &backend).await, again) {
            (End::Unanswered(first), true) => assert_eq!(first.bytes, says, "{what}"),
            (End::Reset, false) => {}
            (other, _) => panic!("{what}: {other:?}"),
        }
        let seen = far_client.try_read(&mut [0]).map_err(|e| e.kind());
        assert_eq!(seen, Err(io::ErrorKind::WouldBlock), "{what}");
    }
}

/// The answer and the end were in flight before the reset.
#[tokio::test]
async fn what_the_backend_said_before_its_reset_is_delivered() {
    for ends in [true, false] {
        let (client, mut far_client) = pair().await;
        let (backend, mut far_backend) = pair().await;
        far_backend.write_all(b"no").await.unwrap();
        if ends {
            far_backend.shutdown().await.unwrap();
        }
        reset(far_backend, &backend).await;
        far_client.write_all(b"more").await.unwrap();
        client.ready(Interest::READABLE).await.unwrap();
        let mut relay = Relay::new(&[], FirstFlight::default());
        let end = run(&mut relay, &client, &backend).await;
        assert!(matches!(end, End::Reset), "{end:?}");
        let mut answer = [0; 2];
        far_client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"no");
        let after = far_client.try_read(&mut [0]).map_err(|e| e.kind());
        let nothing = Err(io::ErrorKind::WouldBlock);
        assert_eq!(after, if ends { Ok(0) } else { nothing });
    }
}

/// The ring has received the reset, which no socket reports again.
#[tokio::test]
async fn a_reset_behind_what_the_ring_left_ends_the_connection_after_it() {
    for takes in [true, false] {
        let (mut client, _far_client) = pair().await;
        let (mut backend, mut far_backend) = pair().await;
        while !takes && backend.write_unwatched(&[0; 1 << 16]).is_ok() {}
        let mut relay = Relay::new(&[], FirstFlight::default());
        let left = ring::Remainder {
            out: ring::Rest {
                bytes: b"question".to_vec(),
                refused: None,
                failed: true,
            },
            back: ring::Rest::default(),
            idle: false,
        };
        for stream in [&mut client, &mut backend] {
            stream.unwatch();
            stream.watch().unwrap();
        }
        relay.take_up(&left, &client, &backend);
        let end = run(&mut relay, &client, &backend).await;
        assert!(matches!(end, End::Reset), "{end:?}");
        if takes {
            let mut question = [0; 8];
            far_backend.read_exact(&mut question).await.unwrap();
            assert_eq!(&question, b"question");
        }
    }
}

/// A client's reset ends the connection, whichever direction notices it.
#[tokio::test]
async fn a_reset_by_the_client_is_no_end() {
    for (asked, answered) in [(false, false), (true, false), (false, true), (true, true)] {
        let (client, mut far_client) = pair().await;
        let (backend, mut far_backend) = pair().await;
        if asked {
            far_client.write_all(b"question").await.unwrap();
        }
        if answered {
            far_backend.write_all(b"answer").await.unwrap();
            backend.ready(Interest::READABLE).await.unwrap();
        }
        reset(far_client, &client).await;
        let mut relay = Relay::new(&[], FirstFlight::default());
        let end = run(&mut relay, &client, &backend).await;
        assert!(matches!(end, End::Reset), "{end:?}");
        let mut buffer = [0; 64];
        let mut seen = far_backend.try_read(&mut buffer);
        if asked && matches!(seen, Ok(n) if n > 0) {
            seen = far_backend.try_read(&mut buffer);
        }
        let seen = seen.map_err(|e| e.kind());
        assert_eq!(seen, Err(io::ErrorKind::WouldBlock));
    }
}

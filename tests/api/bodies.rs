//! Oversized bodies: each is given up, and the last known state stays.

use std::{io::Write, time::Duration};

use flate2::{Compression, write::GzEncoder};

use super::{
    cluster::SERVICES, lists::shop, pipe, recorder::Recorder, tcp_server::TcpServer, tls::Authority,
};

const SOON: Duration = Duration::from_secs(60);

/// Returns a list with an object of 40 MB, or with 40 MB in addition to its objects.
fn large(begin: &str) -> Vec<u8> {
    let mut list = begin.as_bytes().to_vec();
    list.resize(40_000_000, b'x');
    list
}

const LISTS: [(&str, &str); 2] = [
    (
        r#"{"items":[{"metadata":{"name":""#,
        "an object of a list is longer than 16 MiB",
    ),
    (
        r#"{"metadata":{"continue":""#,
        "a list has over 1 MiB in addition to its objects",
    ),
];

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_not_read_to_its_end() {
    for (begin, expected) in LISTS {
        let server = shop();
        server.script().streaming = false;
        server.script().page = Some((SERVICES, large(begin).into(), false));
        let mut recorder = Recorder::start(pipe::access(&server));
        recorder.is_quiet(SOON).await;
        let troubles = recorder.troubles();
        assert!(troubles["Services"].contains(expected), "{troubles:?}");
        server.script().page = None;
        assert_eq!(recorder.next(SOON).await, Some(5));
    }
}

/// 40 kB on the wire.
#[tokio::test]
async fn a_compressed_list_has_the_limit_of_what_it_becomes() {
    let (begin, expected) = LISTS[0];
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&large(begin)).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 100_000);
    let server = shop();
    server.script().streaming = false;
    server.script().page = Some((SERVICES, bomb.into(), true));
    let tcp = TcpServer::open(server, "bomb", &Authority::new(), false).await;
    let mut recorder = Recorder::connect(tcp.connection()).await;
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let troubles = recorder.troubles();
        let why = troubles.get("Services");
        if why.is_some_and(|why| why.contains(expected)) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{troubles:?}");
        recorder.is_quiet(Duration::from_millis(50)).await;
    }
    tcp.server.script().page = None;
    assert_eq!(recorder.next(SOON).await, Some(5));
}

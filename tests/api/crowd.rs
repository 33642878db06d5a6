//! A thousand clients at each address that answers: some are silent, some send slowly, some stop in
//! the middle of a handshake, some do not read their answer. Others are answered meanwhile, and
//! memory stays limited.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tokio_rustls::TlsConnector;

use super::{
    program::in_sandbox,
    secure::{ADDRESS, ask, cluster, start, until},
    tls,
};
use crate::lab::{Tripod, figure};

const CLIENTS: u16 = 1_000;
/// How soon others are answered, even on a slow machine: before the ten seconds after which a
/// silent client is closed.
const SOON: Duration = Duration::from_secs(6);
/// How much resident memory a crowd may add, in KiB. Tests run without optimization.
const MOST_MEMORY: u64 = 8 << 10;
/// Number of descriptors that a crowd may take: one for each open connection, and some that the
/// process opens for other purposes meanwhile.
const MOST_DESCRIPTORS: usize = 64 + 8;
const PLAIN: &str = "127.0.0.1:10249";
const SOCKET: &str = "/run/tripod/tripod.sock";
/// The beginning of a TLS client's messages: the head of a record of 512 bytes.
const HALF_A_HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];

/// A client's connection, kept open.
#[expect(dead_code, reason = "it is held")]
enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The first bytes of the client of that number.
fn first_words(number: u16, tls: bool) -> &'static [u8] {
    match (number % 4, tls) {
        (0, _) => b"",
        (1, true) => HALF_A_HELLO,
        (2, true) => &HALF_A_HELLO[..1],
        (1, false) => b"GET /metrics HT",
        (2, false) => b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        // To TLS it is garbage; elsewhere the answer is not read.
        _ => b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    }
}

/// Connects to `to`; every other client has a separate address.
fn connect(to: SocketAddr, number: u16) -> TcpStream {
    let [high, low] = number.to_be_bytes();
    let from = match number % 2 {
        0 => Ipv4Addr::LOCALHOST,
        _ => Ipv4Addr::new(127, 1, high, low),
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::new(IpAddr::V4(from), 0);
    socket.bind(&from.into()).expect("a loopback address");
    socket.connect(&to.into()).expect("it listens");
    socket.into()
}

fn crowd(at: &str) -> Vec<Client> {
    let clients = (0..CLIENTS).map(|number| {
        let words = first_words(number, at == ADDRESS);
        // A client that had to make room need not receive it.
        if at == SOCKET {
            let mut stream = UnixStream::connect(SOCKET).expect("it listens");
            let _ = stream.write_all(words);
            return Client::Unix(stream);
        }
        let mut stream = connect(at.parse().expect("an address"), number);
        let _ = stream.write_all(words);
        Client::Tcp(stream)
    });
    clients.collect()
}

fn is_answered(mut stream: impl Read + Write, path: &str) -> io::Result<bool> {
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.0 200"))
}

/// Further paths that each address answers, about the running proxy.
const PATHS: [&str; 3] = ["/", "/v1/services", "/v1/diff"];

/// Requests the page, Services and differences, and reads the answers. Only a few requests may wait
/// for a reading of the kernel at the same time; others are answered when they are repeated.
async fn all_is_answered(at: &str, tls: &TlsConnector) {
    for path in PATHS {
        let begun = Instant::now();
        let answered = async || match at {
            ADDRESS => {
                let got = ask(tls, "GET", path, Some("Bearer t2")).await?;
                Ok(got.status == 200)
            }
            PLAIN => is_answered(TcpStream::connect(PLAIN)?, path),
            // The page is for browsers, which read no unix socket.
            _ if path == "/" => Ok(true),
            _ => is_answered(UnixStream::connect(SOCKET)?, path),
        };
        while !matches!(answered().await, Ok::<_, io::Error>(true)) {
            assert!(begun.elapsed() < SOON, "{at}{path}: no answer");
        }
    }
}

/// One client that sends a request and reads the answer.
async fn one_more(at: &str, tls: &TlsConnector) -> io::Result<bool> {
    match at {
        ADDRESS => {
            let got = ask(tls, "GET", "/metrics", Some("Bearer t1")).await?;
            Ok(got.status == 200)
        }
        PLAIN => is_answered(TcpStream::connect(PLAIN)?, "/metrics"),
        _ => is_answered(UnixStream::connect(SOCKET)?, "/v1/status"),
    }
}

/// Returns the time of the slowest of some answers. While a crowd arrives, a client from an address
/// of the crowd may have to make room, and asks again.
async fn slowest(at: &str, tls: &TlsConnector, times: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..times {
        let begun = Instant::now();
        while !matches!(one_more(at, tls).await, Ok(true)) {
            assert!(begun.elapsed() < SOON, "{at}: no answer");
        }
        slowest = slowest.max(begun.elapsed());
    }
    slowest
}

async fn withstands(tripod: &Tripod, at: &str, tls: &TlsConnector) {
    // First-time costs of any use.
    slowest(at, tls, 70).await;
    let (memory, descriptors) = (tripod.resident_kib(), tripod.descriptors());
    let begun = Instant::now();
    let coming = std::thread::spawn({
        let at = at.to_owned();
        move || (crowd(&at), begun.elapsed())
    });
    // While they arrive, and while they are there.
    let mut took = Duration::ZERO;
    while !coming.is_finished() {
        took = took.max(slowest(at, tls, 1).await);
    }
    let (crowd, came) = coming.join().expect("they connect");
    took = took.max(slowest(at, tls, 20).await);
    all_is_answered(at, tls).await;
    let more = tripod.resident_kib().saturating_sub(memory);
    let opened = tripod.descriptors().saturating_sub(descriptors);
    drop(crowd);
    figure(
        &format!("{CLIENTS} clients at {at}"),
        format!(
            "came within {came:.1?}, others answered within {took:.1?}, {more} KiB, {opened} descriptors"
        ),
    );
    assert!(took < SOON, "{at}: {took:?}");
    assert!(more < MOST_MEMORY, "{at}: {more} KiB");
    assert!(opened <= MOST_DESCRIPTORS, "{at}: {opened} descriptors");
}

#[test]
fn a_thousand_clients_keep_nobody_out_and_cost_little() {
    in_sandbox(async || {
        let tcp = cluster("crowd").await;
        let tripod = start(&tcp, &[]);
        let anyone = tls::trusting_anyone();
        let scrape = async || ask(&anyone, "GET", "/metrics", Some("Bearer t1")).await;
        until("it serves", scrape, |got| got.status == 200).await;
        for at in [ADDRESS, PLAIN, SOCKET] {
            withstands(&tripod, at, &anyone).await;
        }
    });
}

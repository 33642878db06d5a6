//! What is measured: four kinds of traffic, and idle connections.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit};

/// Idle connections whose memory is measured, if there may be so many.
const IDLE: usize = 20_000;

/// What a request looks like: a byte that says what is asked for.
const ECHO: u8 = b'e';
pub const FLOOD: u8 = b'f';
/// An answer, and then nothing more.
pub const REST: u8 = b'r';

/// Size of an echoed message, in bytes.
pub const MESSAGE: usize = 128;

/// A client that waits longer has met a proxy that does not work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients at once.
const CLIENTS: usize = 32;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One connection as fast as it goes.
    Bulk,
    /// Questions and answers on connections that stay.
    Requests,
    /// One question and answer a connection.
    Connections,
    /// Questions and answers of one connection alone.
    Latency,
}

/// What one measurement found.
pub struct Measured {
    /// Bytes, requests or connections.
    pub count: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// How long each request of [`Load::Latency`] took, in microseconds, in order.
    pub latencies: Vec<f64>,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 4] = [Load::Bulk, Load::Requests, Load::Connections, Load::Latency];

    /// Its name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Load::Bulk => "bulk",
            Load::Requests => "requests",
            Load::Connections => "connections",
            Load::Latency => "latency",
        }
    }

    /// Puts it on `address` for `length`.
    pub fn run(self, address: SocketAddr, length: Duration) -> Measured {
        let count = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let clients = match self {
            Load::Bulk | Load::Latency => 1,
            Load::Requests | Load::Connections => CLIENTS,
        };
        let begun = Instant::now();
        let threads: Vec<_> = (0..clients)
            .map(|_| {
                let (count, over) = (Arc::clone(&count), Arc::clone(&over));
                thread::spawn(move || self.client(address, &count, &over))
            })
            .collect();
        // The length of the measurement, not a wait for something.
        thread::sleep(length);
        over.store(true, Relaxed);
        let (count, seconds) = (count.load(Relaxed), begun.elapsed().as_secs_f64());
        let mut latencies = Vec::new();
        for thread in threads {
            latencies.extend(thread.join().expect("a client failed"));
        }
        latencies.sort_by(f64::total_cmp);
        Measured {
            count,
            seconds,
            latencies,
        }
    }

    fn client(self, address: SocketAddr, count: &AtomicU64, over: &AtomicBool) -> Vec<f64> {
        let mut message = [ECHO; MESSAGE];
        let mut latencies = Vec::new();
        match self {
            Load::Connections => {
                while !over.load(Relaxed) {
                    let mut stream = connect(address);
                    exchange(&mut stream, &mut message);
                    count.fetch_add(1, Relaxed);
                }
            }
            Load::Requests => {
                let mut stream = connect(address);
                while !over.load(Relaxed) {
                    exchange(&mut stream, &mut message);
                    count.fetch_add(1, Relaxed);
                }
            }
            Load::Latency => {
                let mut stream = connect(address);
                while !over.load(Relaxed) {
                    let begun = Instant::now();
                    exchange(&mut stream, &mut message);
                    latencies.push(begun.elapsed().as_secs_f64() * 1e6);
                    count.fetch_add(1, Relaxed);
                }
            }
            Load::Bulk => {
                let mut stream = connect(address);
                message.fill(FLOOD);
                stream.write_all(&message).expect("a request");
                let mut chunk = vec![0; 1 << 20];
                while !over.load(Relaxed) {
                    let n = stream.read(&mut chunk).expect("a flood");
                    count.fetch_add(n as u64, Relaxed);
                }
            }
        }
        latencies
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    stream
}

fn exchange(stream: &mut TcpStream, message: &mut [u8]) {
    stream.write_all(message).expect("a question");
    stream.read_exact(message).expect("an answer");
}

/// How many idle connections are measured: [`IDLE`], or as many as nine tenths of the open
/// files allow, of which a proxy has two for each. Near the limit Tripod resets clients that
/// have much.
pub fn idle_connections() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(limit / 20 * 9).map_or(IDLE, |most| most.min(IDLE))
}

/// So many connections that say nothing after a first answer, or as many as come about.
pub fn idle(address: SocketAddr, connections: usize) -> Vec<TcpStream> {
    (0..connections)
        .map_while(|_| {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            let mut message = [REST; MESSAGE];
            stream.write_all(&message).ok()?;
            stream.read_exact(&mut message).ok()?;
            Some(stream)
        })
        .collect()
}

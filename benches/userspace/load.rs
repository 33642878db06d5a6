//! The loads: four kinds of traffic, and idle connections.

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

/// Number of idle connections whose memory is measured, if the limit of open files allows it.
const IDLE: usize = 20_000;

/// The first byte of a request tells its kind.
const ECHO: u8 = b'e';
pub const FLOOD: u8 = b'f';
/// One answer, and nothing afterwards.
pub const REST: u8 = b'r';

/// Size of an echoed message, in bytes.
pub const MESSAGE: usize = 128;

/// A client that waits longer has met a broken proxy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of simultaneous clients.
const CLIENTS: usize = 32;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One connection at full speed.
    Bulk,
    /// Requests and answers on open connections.
    Requests,
    /// One request and answer per connection.
    Connections,
    /// Requests and answers on a single connection.
    Latency,
}

/// The result of one measurement.
pub struct Measured {
    /// Bytes, requests or connections.
    pub count: u64,
    /// Its duration in seconds.
    pub seconds: f64,
    /// Duration of each request of [`Load::Latency`], in microseconds, sorted.
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

    /// Applies the load to `address` for `length`.
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

/// Number of idle connections to measure: [`IDLE`], or as many as nine tenths of the open files
/// allow, of which a proxy has two for each. Near the limit Tripod resets clients that have many.
pub fn idle_connections() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(limit / 20 * 9).map_or(IDLE, |most| most.min(IDLE))
}

/// Opens this number of connections that send nothing after a first answer, or as many as succeed.
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

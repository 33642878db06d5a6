//! What is measured: three kinds of traffic, and idle connections.

use std::{
    fmt,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Idle connections whose memory is measured.
pub const IDLE: usize = 2000;

/// What a request looks like: a byte that says what is asked for.
const ECHO: u8 = b'e';
const FLOOD: u8 = b'f';

/// Size of an echoed message, in bytes.
const MESSAGE: usize = 128;

/// A client that waits longer has met a proxy that does not work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Clients at once.
const CLIENTS: usize = 8;

/// A kind of traffic.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// One question and answer a connection.
    Connections,
    /// Questions and answers on connections that stay.
    Messages,
    /// One connection as fast as it goes.
    Bulk,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 3] = [Load::Connections, Load::Messages, Load::Bulk];

    /// What its rate counts.
    pub fn unit(self) -> &'static str {
        match self {
            Load::Connections => "connections/s",
            Load::Messages => "messages/s   ",
            Load::Bulk => "MiB/s        ",
        }
    }

    /// Puts it on `address` for `length`; answers the rate.
    pub fn run(self, address: SocketAddr, length: Duration) -> f64 {
        let count = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let clients = match self {
            Load::Bulk => 1,
            _ => CLIENTS,
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
        let total = count.load(Relaxed) as f64 / begun.elapsed().as_secs_f64();
        for thread in threads {
            thread.join().expect("a client failed");
        }
        match self {
            Load::Bulk => total / f64::from(1 << 20),
            _ => total,
        }
    }

    fn client(self, address: SocketAddr, count: &AtomicU64, over: &AtomicBool) {
        let mut message = [ECHO; MESSAGE];
        match self {
            Load::Connections => {
                while !over.load(Relaxed) {
                    let mut stream = connect(address);
                    exchange(&mut stream, &mut message);
                    count.fetch_add(1, Relaxed);
                }
            }
            Load::Messages => {
                let mut stream = connect(address);
                while !over.load(Relaxed) {
                    exchange(&mut stream, &mut message);
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
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Connections => write!(f, "A connection for each message, {CLIENTS} clients"),
            Load::Messages => write!(f, "Messages of {MESSAGE} bytes, {CLIENTS} clients"),
            Load::Bulk => write!(f, "Bulk, one connection"),
        }
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

/// `IDLE` connections that have said something once.
pub fn idle(address: SocketAddr) -> Vec<TcpStream> {
    (0..IDLE)
        .map(|_| {
            let mut stream = connect(address);
            exchange(&mut stream, &mut [ECHO; MESSAGE]);
            stream
        })
        .collect()
}

/// A backend on loopback that does what the loads ask for.
pub fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let serve = move || {
                stream.set_nodelay(true).ok()?;
                let mut message = [0; MESSAGE];
                let flood = vec![7; 1 << 20];
                while stream.read_exact(&mut message).is_ok() {
                    if message[0] == FLOOD {
                        loop {
                            stream.write_all(&flood).ok()?;
                        }
                    }
                    stream.write_all(&message).ok()?;
                }
                Some(())
            };
            thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(serve)
                .expect("a thread");
        }
    });
    address
}

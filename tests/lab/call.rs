//! Clients: their messages, and the backends that answer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::figure;
use super::host::Host;

/// No operation in a laboratory takes that long; one that hangs longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a connection from `host`, with a time limit on connecting and reading.
pub fn tcp(host: &Host, to: SocketAddr) -> io::Result<TcpStream> {
    host.enter(|| connect(None, to))
}

/// Like [`tcp`], from one of the host's addresses.
pub fn tcp_from(host: &Host, from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    host.enter(|| connect(Some(from), to))
}

/// Like [`tcp`], in the calling thread's namespace.
fn connect(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    connect_within(from, to, PATIENCE)
}

fn connect_within(
    from: Option<SocketAddr>,
    to: SocketAddr,
    patience: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.bind(&from.into())?;
    }
    socket.connect_timeout(&to.into(), patience)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends one line and reads one.
pub fn say(stream: &mut TcpStream, line: &str) -> io::Result<String> {
    writeln!(stream, "{line}")?;
    let mut answer = Vec::new();
    let mut byte = [0];
    loop {
        match stream.read(&mut byte)? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "ended before the answer",
                ));
            }
            _ if byte[0] == b'\n' => break,
            _ => answer.push(byte[0]),
        }
    }
    String::from_utf8(answer).map_err(io::Error::other)
}

/// Returns which backend answers a new connection.
pub fn ask(host: &Host, to: SocketAddr) -> io::Result<String> {
    say(&mut tcp(host, to)?, "name")
}

/// Like [`ask`], for a client that waits at most `patience` for each step.
pub fn ask_within(host: &Host, to: SocketAddr, patience: Duration) -> io::Result<String> {
    ask_from_within(host, None, to, patience)
}

/// Like [`ask_within`], from one of the host's addresses, if it is given.
pub fn ask_from_within(
    host: &Host,
    from: Option<IpAddr>,
    to: SocketAddr,
    patience: Duration,
) -> io::Result<String> {
    let from = from.map(|ip| SocketAddr::new(ip, 0));
    let mut stream = host.enter(|| connect_within(from, to, patience))?;
    say(&mut stream, "name")
}

/// Number of forbidden connections that are tried at once. It takes many calls to hit the moment at
/// which one would get through.
const AT_A_TIME: usize = 50;

/// Counts the connections that are established at once; a dropped one never is.
fn connected(to: impl Iterator<Item = SocketAddr>) -> usize {
    let calls = to.map(|to| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let _ = socket.connect(&to.into());
        socket
    });
    let calls: Vec<Socket> = calls.collect();
    std::thread::sleep(Duration::from_millis(5));
    calls.iter().filter(|call| call.peer_addr().is_ok()).count()
}

/// Makes `threads` threads of `host` call these ports of `address` over and over while `body` runs:
/// none may get through.
pub fn none_gets_through(
    host: &Host,
    threads: usize,
    address: Ipv4Addr,
    ports: Range<u16>,
    body: impl FnOnce(),
) {
    let done = AtomicBool::new(false);
    let (calls, through) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                host.enter(|| {
                    while !done.load(Ordering::Relaxed) {
                        let first = calls.fetch_add(AT_A_TIME, Ordering::Relaxed);
                        let to = (first..first + AT_A_TIME).map(|call| {
                            let port = ports.start + (call % ports.len()) as u16;
                            (address, port).into()
                        });
                        through.fetch_add(connected(to), Ordering::Relaxed);
                    }
                });
            });
        }
        body();
        done.store(true, Ordering::Relaxed);
    });
    let (calls, through) = (calls.into_inner(), through.into_inner());
    figure("calls of a forbidden client", calls);
    assert!(calls > 100, "too few calls to mean anything");
    assert_eq!(through, 0, "of {calls} calls");
}

/// The results of many calls of one kind.
#[derive(Debug, Default)]
pub struct FirstByte {
    /// Time of each call from before connect to the first line of the answer.
    pub delays: Vec<Duration>,
    /// The backend that answered, or the failure.
    pub answers: Vec<Result<String, String>>,
}

impl FirstByte {
    /// Makes `calls` connections with `workers` threads. Each call holds `between` for its whole
    /// duration, so that a writer of that lock acts between calls.
    pub fn measure(
        host: &Host,
        to: SocketAddr,
        calls: usize,
        workers: usize,
        between: &std::sync::RwLock<()>,
    ) -> FirstByte {
        let next = AtomicUsize::new(0);
        let all = std::sync::Mutex::new(FirstByte::default());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    host.enter(|| {
                        while next.fetch_add(1, Ordering::Relaxed) < calls {
                            let call = between.read();
                            let start = Instant::now();
                            let answer = connect(None, to).and_then(|mut s| say(&mut s, "name"));
                            let delay = start.elapsed();
                            drop(call);
                            let mut all = all.lock().expect("no worker panics");
                            all.delays.push(delay);
                            all.answers.push(answer.map_err(|error| error.to_string()));
                        }
                    });
                });
            }
        });
        all.into_inner().expect("no worker panics")
    }

    pub fn failures(&self) -> Vec<&str> {
        self.answers
            .iter()
            .filter_map(|a| a.as_ref().err().map(String::as_str))
            .collect()
    }

    pub fn slowest(&self) -> Duration {
        self.delays.iter().copied().max().unwrap_or_default()
    }

    pub fn median(&self) -> Duration {
        let mut sorted = self.delays.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

/// Opens a connected UDP socket.
pub fn udp(host: &Host, to: SocketAddr) -> io::Result<UdpSocket> {
    let any = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    udp_from(host, any, to)
}

/// Like [`udp`], from one of the host's addresses.
pub fn udp_from(host: &Host, from: SocketAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    host.enter(|| {
        let socket = bind_new(from)?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(socket)
    })
}

/// Binds a UDP socket; port 0 means a port that this process did not use before. The kernel might
/// choose one that was just closed, and every proxy would keep a client from that port on its
/// endpoint: it would not be a new client.
pub fn bind_new(address: SocketAddr) -> io::Result<UdpSocket> {
    match address.port() {
        0 => from_new_port(|port| UdpSocket::bind((address.ip(), port))),
        _ => UdpSocket::bind(address),
    }
}

/// Like [`tcp`], from a port that no other connection of this process has, to any address. If two
/// have the same, IPVS gives the answers of one to the other (docs/ipvs.md).
pub fn tcp_from_new_port(host: &Host, to: SocketAddr) -> io::Result<TcpStream> {
    host.enter(|| connect_from_new_port(to, PATIENCE))
}

/// Like [`tcp_from_new_port`], in the calling thread's namespace.
pub fn connect_from_new_port(to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    from_new_port(|port| connect_within(Some((any, port).into()), to, patience))
}

/// Calls `bind` with ports that this process did not use before, until one is free.
fn from_new_port<T>(bind: impl Fn(u16) -> io::Result<T>) -> io::Result<T> {
    /// These are neither the kernel's ephemeral ports, nor node ports, nor the proxy's own
    /// (10249, 10256).
    const PORTS: Range<u16> = 11_000..30_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let port = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u16;
        match bind(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
}

/// Sends `text`. Returns the name of the backend that answered. Answers to other texts, which may
/// be late, do not count; if there is no right one, the error names the last of them.
pub fn udp_say(socket: &UdpSocket, text: &str) -> io::Result<String> {
    socket.send(text.as_bytes())?;
    let (begun, patience) = (Instant::now(), socket.read_timeout()?);
    let mut other = None;
    let fails = |kind, answer| io::Error::new(kind, format!("asked {text:?}, answered {answer:?}"));
    loop {
        let mut buffer = [0; 2048];
        let n = match socket.recv(&mut buffer) {
            Ok(n) => n,
            Err(error) => {
                let kind = error.kind();
                return Err(other.map_or(error, |answer| fails(kind, answer)));
            }
        };
        let answer = String::from_utf8_lossy(&buffer[..n]).into_owned();
        match answer.split_once(' ') {
            Some((name, echoed)) if echoed == text => return Ok(name.into()),
            _ if patience.is_some_and(|patience| begun.elapsed() > patience) => {
                return Err(fails(io::ErrorKind::WouldBlock, answer));
            }
            _ => other = Some(answer),
        }
    }
}

/// Returns which backend answers a datagram from a new socket.
pub fn udp_ask(host: &Host, to: SocketAddr) -> io::Result<String> {
    udp_say(&udp(host, to)?, "name")
}

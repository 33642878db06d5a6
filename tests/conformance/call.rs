//! One call and its result.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use socket2::{Domain, Socket, Type};

use super::case::Protocol;
use super::observation::{Answer, Outcome};
use crate::lab::bind_new;

/// `IPPROTO_SCTP`.
const SCTP: i32 = 132;

/// The question to a backend; see `tests/lab/backend.rs`.
const QUESTION: &str = "who";

/// A question of this many bytes takes three packets on Ethernet.
const LARGE: usize = 4_000;

/// The first port of connections that stay open, below the range of `net.ipv4.ip_local_port_range`.
const KEPT_FROM: u16 = 20_000;
/// Number of such connections so far.
static KEPT: AtomicU16 = AtomicU16::new(0);

/// A client's open socket.
pub enum Client {
    Stream(TcpStream),
    Datagram(UdpSocket),
}

impl Client {
    /// Opens a socket in this thread's namespace.
    pub fn open(
        protocol: Protocol,
        from: Option<IpAddr>,
        to: SocketAddr,
        patience: Duration,
    ) -> io::Result<Client> {
        match protocol {
            Protocol::Udp => Client::datagram(from, to, patience),
            _ => Client::stream_from(from.map(|ip| (ip, 0).into()), protocol, to, patience),
        }
    }

    /// Does the same for a socket that stays open while others are called. A connection has a port
    /// that no other call has: otherwise IPVS mistakes its answers, if a call to another Service
    /// has the same port and endpoint (`ip_vs_conn_out_get`, docs/ipvs.md).
    pub fn open_kept(protocol: Protocol, to: SocketAddr, patience: Duration) -> io::Result<Client> {
        if protocol == Protocol::Udp {
            return Client::datagram(None, to, patience);
        }
        let port = KEPT_FROM + KEPT.fetch_add(1, Ordering::Relaxed);
        let from = SocketAddr::new(any(to), port);
        Client::stream_from(Some(from), protocol, to, patience)
    }

    fn stream_from(
        from: Option<SocketAddr>,
        protocol: Protocol,
        to: SocketAddr,
        patience: Duration,
    ) -> io::Result<Client> {
        let number = (protocol == Protocol::Sctp).then(|| SCTP.into());
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, number)?;
        if let Some(from) = from {
            socket.bind(&from.into())?;
        }
        socket.set_read_timeout(Some(patience))?;
        socket.connect_timeout(&to.into(), patience)?;
        Ok(Client::Stream(socket.into()))
    }

    fn datagram(from: Option<IpAddr>, to: SocketAddr, patience: Duration) -> io::Result<Client> {
        let socket = bind_new(SocketAddr::new(from.unwrap_or(any(to)), 0))?;
        // Otherwise there are no reports of unreachable hosts; see ip(7).
        match to {
            SocketAddr::V4(_) => setsockopt(&socket, Ipv4RecvErr, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvErr, &true)?,
        }
        socket.set_read_timeout(Some(patience))?;
        socket.connect(to)?;
        Ok(Client::Datagram(socket))
    }

    /// The connection, for TCP.
    pub fn stream(&self) -> Option<&TcpStream> {
        match self {
            Client::Stream(stream) => Some(stream),
            Client::Datagram(_) => None,
        }
    }

    /// Asks who is at the other end; over UDP optionally with a large datagram, whose answer must
    /// be as large.
    pub fn ask(&mut self, large: bool) -> Outcome {
        let answer = match self {
            Client::Stream(stream) => say(stream),
            Client::Datagram(socket) => exchange(socket, if large { LARGE } else { 0 }),
        };
        let parsed = answer.and_then(|(caller, line)| {
            let mut words = line.split_whitespace();
            let mut next = || words.next().unwrap_or_default();
            let (by, seen, port) = (next().to_owned(), next().parse(), next().parse());
            match (seen, port) {
                (Ok(seen), Ok(port)) => Ok(Outcome::Answer(Answer {
                    by,
                    seen,
                    caller,
                    port,
                })),
                _ => Err(io::Error::other(format!("odd answer {line:?}"))),
            }
        });
        parsed.unwrap_or_else(|error| outcome_of(&error))
    }
}

fn any(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Opens a socket and asks once.
pub fn once(
    protocol: Protocol,
    from: Option<IpAddr>,
    to: SocketAddr,
    patience: Duration,
    large: bool,
) -> Outcome {
    match Client::open(protocol, from, to, patience) {
        Ok(mut client) => client.ask(large),
        Err(error) => outcome_of(&error),
    }
}

/// Whether this kernel supports SCTP sockets.
pub fn sctp_here() -> bool {
    let protocol = Some(socket2::Protocol::from(SCTP));
    Socket::new(Domain::IPV4, Type::STREAM, protocol).is_ok()
}

/// Interprets a failure from the caller's view.
pub fn outcome_of(error: &io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => Outcome::Refused,
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            Outcome::Reset
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silent,
        ErrorKind::PermissionDenied if error.raw_os_error() == Some(nix::libc::EPERM) => {
            Outcome::Stopped
        }
        // The last one is the error for "prohibited" with IPv6; with IPv4 it cannot be
        // distinguished from an unreachable host.
        ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::PermissionDenied => Outcome::Unserved,
        _ => Outcome::Odd(error.to_string()),
    }
}

fn say(stream: &mut TcpStream) -> io::Result<(IpAddr, String)> {
    let caller = stream.local_addr()?.ip();
    stream.write_all(format!("{QUESTION}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 256];
    while answer.last() != Some(&b'\n') {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&buffer[..n]),
        }
    }
    let answer = String::from_utf8(answer).map_err(io::Error::other)?;
    Ok((caller, answer))
}

fn exchange(socket: &UdpSocket, least: usize) -> io::Result<(IpAddr, String)> {
    let caller = socket.local_addr()?.ip();
    socket.send(format!("{QUESTION:<least$}").as_bytes())?;
    let mut buffer = [0; LARGE + 1];
    let n = socket.recv(&mut buffer)?;
    if n < least {
        return Err(io::Error::other(format!("{n} bytes to {least}")));
    }
    Ok((caller, String::from_utf8_lossy(&buffer[..n]).into_owned()))
}

/// Asks a health-check node port.
pub fn health(to: SocketAddr, patience: Duration) -> Outcome {
    let answer = Client::open(Protocol::Tcp, None, to, patience).and_then(|client| {
        let Client::Stream(mut stream) = client else {
            return Err(io::Error::other("TCP is a stream"));
        };
        stream.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return outcome_of(&error),
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    match (head.split(' ').nth(1), body["localEndpoints"].as_u64()) {
        (Some("200"), Some(count)) if count > 0 => Outcome::Healthy(count),
        (Some("503"), Some(0)) => Outcome::Unhealthy,
        _ => Outcome::Odd(answer),
    }
}

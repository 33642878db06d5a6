//! Calls, and the server that answers them with its name.
//!
//! A caller sends a line; the server answers with one line: its name, a space, and the caller's
//! address as the server saw it.

use std::{io, net::SocketAddr, time::Duration};

use net::{Family, Protocol};
use nix::libc;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{error::Elapsed, timeout},
};

const QUESTION: &[u8] = b"who\n";
/// The longest answer that is read, in bytes: a name of Kubernetes (253) and an address.
const LONGEST: u64 = 512;

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// A connection was opened, or some server answered.
    Open,
    /// A server answered.
    Answer {
        /// The name given to the server: that of its pod, or its address.
        name: String,
        /// The caller's address, as the server saw it.
        client: SocketAddr,
    },
    /// The call was refused: by a reset, or by ICMP.
    Refused,
    /// Nothing came back in time.
    Silence,
    /// Something else, in words.
    Other(String),
}

/// How long a server waits for the question of a connected caller.
const QUESTION_WITHIN: Duration = Duration::from_secs(600);

/// Calls `to`, and waits for the answer for `patience`.
pub async fn call(to: SocketAddr, protocol: Protocol, patience: Duration) -> Seen {
    let answer = async {
        match protocol {
            Protocol::Tcp => over_tcp(to).await,
            Protocol::Udp => over_udp(to, QUESTION).await,
            Protocol::Sctp => Err(io::ErrorKind::Unsupported.into()),
        }
    };
    seen(timeout(patience, answer).await)
}

/// Asks over an open connection, and waits for the answer for `patience`.
pub async fn ask_by(stream: TcpStream, patience: Duration) -> Seen {
    seen(timeout(patience, question(stream)).await)
}

fn seen(answer: Result<io::Result<Vec<u8>>, Elapsed>) -> Seen {
    match answer {
        Err(_) => Seen::Silence,
        Ok(Ok(line)) => read(&line),
        Ok(Err(error)) => match error.kind() {
            // A route of type prohibit (EACCES).
            io::ErrorKind::PermissionDenied => Seen::Refused,
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Seen::Refused,
            io::ErrorKind::TimedOut => Seen::Silence,
            _ => Seen::Other(error.to_string()),
        },
    }
}

fn read(line: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(line);
    let words = text.trim_end().split_once(' ');
    let parsed = words.and_then(|(name, client)| Some((name, client.parse::<SocketAddr>().ok()?)));
    match parsed {
        Some((name, client)) => Seen::Answer {
            name: name.to_owned(),
            // A socket of both IP families reports IPv4 addresses within IPv6.
            client: (client.ip().to_canonical(), client.port()).into(),
        },
        None => Seen::Other("an answer of another server".to_owned()),
    }
}

async fn over_tcp(to: SocketAddr) -> io::Result<Vec<u8>> {
    question(TcpStream::connect(to).await?).await
}

async fn question(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    stream.write_all(QUESTION).await?;
    let mut line = Vec::new();
    stream.take(LONGEST).read_to_end(&mut line).await?;
    Ok(line)
}

/// Sends a datagram, and waits for one.
pub async fn over_udp(to: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let any = Family::of(&to.ip()).unspecified();
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    match socket.send(question).await {
        // If a rule of the caller's own host refuses or drops the datagram, `send` fails at once.
        // If it refuses, an ICMP message follows.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        sent => sent.map(|_| ())?,
    }
    let mut line = vec![0; LONGEST as usize];
    let length = socket.recv(&mut line).await?;
    line.truncate(length);
    Ok(line)
}

fn answer(name: &str, client: SocketAddr) -> String {
    format!("{name} {client}\n")
}

/// Answers TCP calls with `name`; runs forever.
///
/// # Errors
/// When no further connection can be accepted.
pub async fn serve_tcp(listener: TcpListener, name: &str) -> io::Result<()> {
    loop {
        let (mut stream, client) = listener.accept().await?;
        let answer = answer(name, client);
        tokio::spawn(async move {
            let mut question = [0; QUESTION.len()];
            // A caller that leaves early needs no answer.
            let _ = timeout(QUESTION_WITHIN, async {
                stream.read_exact(&mut question).await?;
                stream.write_all(answer.as_bytes()).await
            })
            .await;
        });
    }
}

/// Answers UDP calls with `name`; runs forever.
///
/// # Errors
/// When the socket fails.
pub async fn serve_udp(socket: UdpSocket, name: &str) -> io::Result<()> {
    let mut question = [0; QUESTION.len()];
    loop {
        let (_, client) = socket.recv_from(&mut question).await?;
        // If the answer cannot be sent, the caller asks again.
        let _ = socket
            .send_to(answer(name, client).as_bytes(), client)
            .await;
    }
}

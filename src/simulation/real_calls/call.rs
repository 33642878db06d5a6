//! Real calls, and servers that report at which address they were called, and from which.

use std::{io, net::SocketAddr, time::Duration};

use net::Protocol;
use nix::libc;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    time::timeout,
};

const QUESTION: &[u8] = b"who\n";

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The server at the first address answered; it saw a call from the second.
    Answer(SocketAddr, SocketAddr),
    Refused,
    Silence,
    /// Something else, in words.
    Other(String),
}

/// A connection, or a UDP socket that sends to one address.
pub(super) enum Client {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

/// Calls `to` from `source`, and waits for the answer for `patience`. Also returns a client
/// that can ask again.
pub(super) async fn call(
    protocol: Protocol,
    source: SocketAddr,
    to: SocketAddr,
    patience: Duration,
) -> (Option<Client>, Seen) {
    let opened = timeout(patience, Client::open(protocol, source, to)).await;
    match opened {
        Ok(Ok(mut client)) => {
            let seen = client.ask(patience).await;
            (Some(client), seen)
        }
        Ok(Err(error)) => (None, failed(&error)),
        Err(_) => (None, Seen::Silence),
    }
}

impl Client {
    async fn open(protocol: Protocol, source: SocketAddr, to: SocketAddr) -> io::Result<Client> {
        if protocol == Protocol::Udp {
            let socket = UdpSocket::bind(source).await?;
            socket.connect(to).await?;
            return Ok(Client::Udp(socket));
        }
        let socket = match source {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.bind(source)?;
        Ok(Client::Tcp(BufReader::new(socket.connect(to).await?)))
    }

    /// Asks who answers, and waits for `patience`.
    pub(super) async fn ask(&mut self, patience: Duration) -> Seen {
        match timeout(patience, self.answer()).await {
            Err(_) => Seen::Silence,
            Ok(Err(error)) => failed(&error),
            Ok(Ok(line)) => {
                let ends = line.trim_end().split_once(' ');
                let ends = ends.and_then(|(by, from)| Some((by.parse().ok()?, from.parse().ok()?)));
                match ends {
                    Some((by, from)) => Seen::Answer(by, from),
                    None => Seen::Other(format!("the connection ended: {line:?}")),
                }
            }
        }
    }

    async fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self {
            Client::Tcp(stream) => {
                stream.write_all(QUESTION).await?;
                stream.read_line(&mut line).await?;
            }
            Client::Udp(socket) => {
                match socket.send(QUESTION).await {
                    // A rule of the caller's own node dropped or refused it; ICMP shows
                    // which of the two.
                    Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
                    sent => sent.map(drop)?,
                }
                let mut answer = [0; 256];
                let length = socket.recv(&mut answer).await?;
                line = String::from_utf8_lossy(&answer[..length]).into_owned();
            }
        }
        Ok(line)
    }
}

fn failed(error: &io::Error) -> Seen {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Seen::Refused,
        io::ErrorKind::TimedOut => Seen::Silence,
        _ => Seen::Other(error.to_string()),
    }
}

/// Answers at each of these addresses over TCP and UDP, while this runtime does other work.
pub(super) async fn serve(at: Vec<SocketAddr>) {
    for at in at {
        let listener = TcpListener::bind(at).await.expect("a listener");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_connection(stream));
            }
        });
        let socket = UdpSocket::bind(at).await.expect("a socket");
        tokio::spawn(async move {
            let mut question = [0; QUESTION.len()];
            // An error may stem from an earlier answer, whose receiver had closed its socket.
            loop {
                if let Ok((_, from)) = socket.recv_from(&mut question).await {
                    let _ = socket
                        .send_to(format!("{at} {from}\n").as_bytes(), from)
                        .await;
                }
            }
        });
    }
}

async fn serve_connection(stream: TcpStream) -> io::Result<()> {
    let answer = format!("{} {}\n", stream.local_addr()?, stream.peer_addr()?);
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        stream.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

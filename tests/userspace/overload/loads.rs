//! Loads on one Service: thousands of clients that request more than is available.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Socket, Type};

use crate::lab::{Lab, bind_new, eventually};

/// Clients of one Service. Dropping this ends their connections with a reset, which leaves no
/// client port in TIME_WAIT.
pub struct Clients(Vec<TcpStream>);

/// Connects `count` clients without waiting for any of them.
pub fn connect(lab: &Lab, to: SocketAddr, count: usize) -> Clients {
    connect_from(lab, None, to, count)
}

/// Makes `count` clients begin a connection that is never established, since the answers to their
/// SYNs are lost.
pub fn half_open(lab: &Lab, to: SocketAddr, count: usize) -> Clients {
    let from = lab.another_source(to.ip(), 1);
    let lost = format!(
        "ip daddr {} tcp flags & (syn|ack) == (syn|ack) drop",
        from.ip()
    );
    for step in [
        "add table ip lose",
        "add chain ip lose in { type filter hook input priority 0 ; }",
        &format!("add rule ip lose in {lost}"),
    ] {
        lab.client.show(&format!("nft {step}"));
    }
    connect_from(lab, Some(from), to, count)
}

fn connect_from(lab: &Lab, from: Option<SocketAddr>, to: SocketAddr, count: usize) -> Clients {
    let client = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
        if let Some(from) = from {
            socket
                .bind(&from.into())
                .expect("the address of the client");
        }
        socket.set_nonblocking(true).expect("a socket");
        socket.set_linger(Some(Duration::ZERO)).expect("a socket");
        // The handshake continues although nobody waits for it.
        let _ = socket.connect(&to.into());
        TcpStream::from(socket)
    };
    lab.client
        .enter(|| Clients((0..count).map(|_| client()).collect()))
}

impl Clients {
    /// Makes each client whose connection is established send `bytes`, as far as they are accepted.
    /// Returns how many clients could send some.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let sent = self.0.iter_mut().map(|client| client.write(bytes));
        sent.filter(Result::is_ok).count()
    }

    /// Waits until all connections are established, and makes each client say `line`.
    pub fn say(&mut self, line: &str) {
        for (n, client) in self.0.iter_mut().enumerate() {
            let mut waits = [PollFd::new(client.as_fd(), PollFlags::POLLOUT)];
            let ready = poll(&mut waits, PollTimeout::from(10_000_u16)).expect("poll(2)");
            assert_eq!(ready, 1, "client {n} is not connected");
            writeln!(client, "{line}").unwrap_or_else(|error| panic!("client {n}: {error}"));
        }
    }

    /// Makes the clients send until nothing more is accepted for half a second.
    pub fn send_all_that_is_taken(&mut self) {
        let chunk = vec![b'x'; 64 * 1024];
        let mut last = Instant::now();
        eventually("nothing more is taken", Duration::from_secs(60), || {
            if self.send(&chunk) > 0 {
                last = Instant::now();
            }
            if last.elapsed() > Duration::from_millis(500) {
                return Ok(());
            }
            Err("some is taken".to_owned())
        });
    }

    /// The number of connections that were neither refused nor reset.
    pub fn open(&self) -> usize {
        let open = |client: &&TcpStream| match client.peek(&mut [0]) {
            Ok(n) => n > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        self.0.iter().filter(open).count()
    }
}

/// Makes `count` UDP clients send one question each, from different addresses and ports, without
/// waiting for the answer.
pub fn udp_clients(lab: &Lab, to: SocketAddr, count: usize) {
    let sources: Vec<_> = (1..=8).map(|n| lab.another_source(to.ip(), n)).collect();
    lab.client.enter(|| {
        for n in 0..count {
            let socket = bind_new(sources[n % sources.len()]).expect("a socket");
            // Fails if the answer to an earlier one was refused.
            let _ = socket.send_to(b"name", to);
        }
    });
}

//! A proxy between us and the server: HTTP with CONNECT, plain HTTP, SOCKS 5.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::server::Server;

/// A proxy; clones are the same one.
#[derive(Clone)]
pub struct ForwardProxy {
    pub address: SocketAddr,
    /// The server, by whatever name clients request it.
    server: SocketAddr,
    /// Answers requests that are not tunnelled.
    plain: Server,
    /// Heads of the received requests, or the names of their targets.
    requests: Arc<Mutex<Vec<String>>>,
    /// Counts up; tunnels with an older number transfer nothing any more, but stay open.
    stalled: Arc<watch::Sender<u64>>,
}

impl ForwardProxy {
    /// A proxy at `host` that forwards to `server`.
    pub async fn open(host: &str, server: SocketAddr, plain: Server) -> ForwardProxy {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let proxy = ForwardProxy {
            address: listener.local_addr().unwrap(),
            server,
            plain,
            requests: Arc::default(),
            stalled: Arc::new(watch::Sender::new(0)),
        };
        let same = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let proxy = same.clone();
                tokio::spawn(async move { proxy.serve(client).await });
            }
        });
        proxy
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Stalls all open tunnels; new ones work.
    pub fn stall(&self) {
        self.stalled.send_modify(|number| *number += 1);
    }

    async fn serve(self, mut client: TcpStream) -> io::Result<()> {
        let mut first = [0];
        client.peek(&mut first).await?;
        if first == [5] {
            let name = socks(&mut client).await?;
            self.requests.lock().unwrap().push(name);
        } else {
            let mut head = vec![0; 4096];
            let length = client.peek(&mut head).await?;
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let tunnel = head.starts_with("CONNECT ");
            self.requests.lock().unwrap().push(head);
            if !tunnel {
                self.plain.serve_plain(client);
                return Ok(());
            }
            let mut taken = vec![0; length];
            client.read_exact(&mut taken).await?;
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        }
        let mut server = TcpStream::connect(self.server).await?;
        let mut stalled = self.stalled.subscribe();
        tokio::select! {
            done = io::copy_bidirectional(&mut client, &mut server) => done.map(drop),
            // Both stay open.
            _ = stalled.changed() => std::future::pending().await,
        }
    }
}

/// The server's side of RFC 1928, for names; returns the requested one.
async fn socks(client: &mut TcpStream) -> io::Result<String> {
    let mut start = [0; 2];
    client.read_exact(&mut start).await?;
    let mut methods = vec![0; start[1].into()];
    client.read_exact(&mut methods).await?;
    client.write_all(&[5, 0]).await?;
    let mut request = [0; 5];
    client.read_exact(&mut request).await?;
    assert_eq!(request[..4], [5, 1, 0, 3], "CONNECT to a name");
    let mut name = vec![0; usize::from(request[4]) + 2];
    client.read_exact(&mut name).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    name.truncate(name.len() - 2);
    Ok(String::from_utf8_lossy(&name).into_owned())
}

//! `tripod test-server`: the program in the pods of `tripod test`.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
};

use tokio::{
    net::{TcpListener, UdpSocket},
    signal::unix::{SignalKind, signal},
};

use super::{
    agent,
    call::{serve_tcp, serve_udp},
};
use crate::cli::TestServer;

/// Answers calls until it is told to exit. Returns the exit status: 0, or 1 if a port cannot be
/// opened.
pub async fn serve(asked: &TestServer) -> ExitCode {
    match run(asked).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(asked: &TestServer) -> Result<(), String> {
    let explain = |port: u16| move |error| format!("port {port} cannot be served: {error}");
    let (listener, socket) = open(asked.port).await.map_err(explain(asked.port))?;
    let (agent, _) = open(asked.agent_port)
        .await
        .map_err(explain(asked.agent_port))?;
    // The first process of a container ends on a signal only if it handles it.
    let mut ends = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let listening = async {
        tokio::select! {
            done = serve_tcp(listener, &asked.name) => done,
            done = serve_udp(socket, &asked.name) => done,
            done = agent::serve(agent, &asked.token_sha256) => done,
        }
    };
    tokio::select! {
        done = listening => done.map_err(|error| format!("cannot answer any more: {error}")),
        _ = ends.recv() => Ok(()),
    }
}

/// Opens a port over TCP and UDP, for both IP families if there are two.
async fn open(port: u16) -> io::Result<(TcpListener, UdpSocket)> {
    let both: SocketAddr = (Ipv6Addr::UNSPECIFIED, port).into();
    match TcpListener::bind(both).await {
        Ok(listener) => Ok((listener, UdpSocket::bind(both).await?)),
        // A kernel without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            let one: SocketAddr = (Ipv4Addr::UNSPECIFIED, port).into();
            Ok((TcpListener::bind(one).await?, UdpSocket::bind(one).await?))
        }
        Err(error) => Err(error),
    }
}

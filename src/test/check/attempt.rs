//! One call of an address or an endpoint.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::{net::UdpSocket, time::timeout};

use super::super::cluster::{
    existing::{OPEN_WITHIN, Seen, connect},
    health,
};

/// Opens a connection, or sends a DNS query.
pub async fn attempt(to: SocketAddr, protocol: &str) -> Seen {
    match protocol {
        "UDP" => dns(to).await,
        _ => connect(to).await,
    }
}

/// A DNS query for the version of the server (RFC 4892): it answers or refuses this query itself, while
/// names of class IN may be forwarded to a server that does not answer in time. One question (RFC 1035,
/// section 4.1) for version.bind, of type TXT (16) and class CH (3).
const QUERY: &[u8] = b"TP\0\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";

async fn dns(to: SocketAddr) -> Seen {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let answer = timeout(OPEN_WITHIN, async {
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(to).await?;
        socket.send(QUERY).await?;
        socket.recv(&mut [0; 512]).await
    });
    match answer.await {
        Ok(Ok(_)) => Seen::Open,
        Ok(Err(error)) => Seen::failed(&error),
        Err(_) => Seen::Silence,
    }
}

/// Asks a health-check node port of a node; `here`: whether it must have ready endpoints, if that is
/// known. Returns what is wrong, and what to do.
pub async fn health_check(to: SocketAddr, here: Option<bool>) -> Option<(String, &'static str)> {
    let answer = timeout(OPEN_WITHIN, health::ask(to)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let remedy = "allow it in the packet filters of the node: load balancers send nothing \
                          to a node that does not answer";
            return Some((error.to_string(), remedy));
        }
    };
    let status = answer.split(' ').nth(1).unwrap_or_default();
    // A Tripod that is not healthy wants no traffic, and its status is a fault of its own.
    let is_healthy = !answer.contains("\"serviceProxyHealthy\": false");
    let promised = match here.filter(|_| is_healthy) {
        Some(true) => "200",
        Some(false) => "503",
        None => "200 or 503",
    };
    let is_right = promised.split(" or ").any(|one| one == status);
    (!is_right).then(|| {
        let problem = format!("answers with status {status:?}, not {promised}");
        let remedy = "ss -ltnp on the node shows which program listens there";
        (problem, remedy)
    })
}

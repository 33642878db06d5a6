//! One call of an address or an endpoint.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::super::{
    call::{Seen, over_udp},
    cluster::{
        existing::{OPEN_WITHIN, opened},
        health,
    },
};

/// Opens a connection, or sends a DNS query.
pub async fn attempt(to: SocketAddr, protocol: &str) -> Seen {
    match protocol {
        "UDP" => opened(over_udp(to, QUERY)).await,
        _ => opened(TcpStream::connect(to)).await,
    }
}

/// Describes the result of an attempt.
pub fn words(seen: &Seen) -> String {
    match seen {
        Seen::Open | Seen::Answer { .. } => "answers".to_owned(),
        Seen::Refused => "refuses connections".to_owned(),
        Seen::Silence => "does not answer".to_owned(),
        Seen::Other(why) => format!("cannot be reached: {why}"),
    }
}

/// A DNS query for the version of the server (RFC 4892): it answers or refuses this query itself, while
/// names of class IN may be forwarded to a server that does not answer in time. One question (RFC 1035,
/// section 4.1) for version.bind, of type TXT (16) and class CH (3).
const QUERY: &[u8] = b"TP\0\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";

/// Asks a health-check node port of a node; `here`: whether it must have ready endpoints, if that is
/// known. Returns what is wrong, and what to do.
pub async fn health_check(to: SocketAddr, here: Option<bool>) -> Option<(String, &'static str)> {
    let (status, content) = match health::ask(to, OPEN_WITHIN).await {
        Ok(answer) => answer,
        Err(error) => {
            let remedy = "allow it in the packet filters of the node: load balancers send nothing \
                          to a node that does not answer";
            return Some((error, remedy));
        }
    };
    // A Tripod that is not healthy wants no traffic, and its status is a fault of its own.
    let is_healthy = content["serviceProxyHealthy"] != false;
    let (promised, is_right) = match here.filter(|_| is_healthy) {
        Some(true) => ("200", status == 200),
        Some(false) => ("503", status == 503),
        None => ("200 or 503", [200, 503].contains(&status)),
    };
    (!is_right).then(|| {
        let problem = format!("answers with status {status}, not {promised}");
        let remedy = "ss -ltnp on the node shows which program listens there";
        (problem, remedy)
    })
}

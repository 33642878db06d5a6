//! Calls existing Services from this node, and compares the results with the answers of the running
//! Tripod.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use net::Family;
use tokio::{net::TcpStream, time::timeout};

use super::{
    super::{
        call::Seen,
        report::{Check, Finding, Outcome},
    },
    promise::summary,
};
use crate::{
    ask,
    listing::first_of,
    status_api::{Address, Explanation, ServicePort},
};

/// Number of connections to each address.
const CONNECTIONS: usize = 10;

/// Maximum number of endpoints that are named.
const NAMED: usize = 4;

/// How long opening a connection may take. A kernel sends the SYN again after 1 s (RFC 6298).
pub const OPEN_WITHIN: Duration = Duration::from_millis(2500);

/// Calls these Services.
///
/// # Errors
/// Says why there is nothing to call, for example because there is no such Service.
pub async fn test(services: &[(String, String)], socket: &Path) -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for (namespace, name) in services {
        let ports = ask::service_ports(socket, Some(namespace), Some(name)).await?;
        for port in &ports {
            for address in &port.addresses {
                checks.push(one(port, address, socket).await);
            }
        }
    }
    Ok(checks)
}

async fn one(port: &ServicePort, address: &Address, socket: &Path) -> Check {
    let to = destination(port, address);
    let finding = match to {
        Ok(_) if address.last_port.is_some() => {
            Finding::skipped("a server need not listen at all ports of a range".to_owned())
        }
        Ok(to) => judge(port, to, socket).await,
        Err(why) => Finding::skipped(why.to_owned()),
    };
    Check {
        name: kind(address).to_owned(),
        service_port: format!("{}/{}:{}", port.namespace, port.name, port.port),
        to: to.map_or_else(|_| format!("node:{}", address.port), |to| to.to_string()),
        protocol: port.protocol.clone(),
        from: "this node".to_owned(),
        finding,
    }
}

/// Names the kind of an address.
pub fn kind(address: &Address) -> &str {
    match &*address.kind {
        "clusterIP" => "cluster IP",
        "externalIP" => "external IP",
        "loadBalancerIP" => "load-balancer IP",
        "nodePort" => "node port",
        other => other,
    }
}

/// Returns the address at which the ServicePort is called. A node port is called at the address
/// from which this node calls others.
fn destination(port: &ServicePort, address: &Address) -> Result<SocketAddr, &'static str> {
    let ip = match &address.ip {
        Some(ip) => ip.parse().ok(),
        None => node_ip(&port.family),
    };
    let ip = ip.ok_or("this node has no address of that IP family")?;
    Ok((ip, address.port).into())
}

/// Returns the address from which this node calls others.
pub fn node_ip(family: &str) -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849). No packet is sent.
    let other = match family {
        "IPv4" => "192.0.2.1:9",
        _ => "[2001:db8::1]:9",
    };
    let other: SocketAddr = other.parse().ok()?;
    let socket = UdpSocket::bind((Family::of(&other.ip()).unspecified(), 0)).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

async fn judge(port: &ServicePort, to: SocketAddr, socket: &Path) -> Finding {
    if port.protocol != "TCP" {
        let why = format!(
            "cannot see whether a server of {} is reached",
            port.protocol
        );
        return Finding::skipped(why);
    }
    let explanation =
        match ask::explanation(socket, ask::PATIENCE, to, &port.protocol, "node").await {
            Ok(explanation) => explanation,
            Err(why) => return Finding::skipped(why),
        };
    let mut seen = Vec::new();
    for _ in 0..CONNECTIONS {
        seen.push(opened(TcpStream::connect(to)).await);
    }
    let mut finding = compare(&seen, &explanation);
    if finding.outcome == Outcome::Failed && explanation.verdict == "forwarded" {
        finding.seen += "; do the endpoints themselves answer?";
    }
    finding
}

/// Waits for the first answer to an attempt to reach a server.
pub async fn opened<T>(attempt: impl Future<Output = io::Result<T>>) -> Seen {
    match timeout(OPEN_WITHIN, attempt).await {
        Ok(Ok(_)) => Seen::Open,
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Seen::Refused,
            io::ErrorKind::TimedOut => Seen::Silence,
            // The kernel, or a router, says that it cannot be reached.
            kind => Seen::Other(kind.to_string()),
        },
        Err(_) => Seen::Silence,
    }
}

/// Compares the results of attempts with the prediction of the running Tripod.
pub fn compare(seen: &[Seen], explanation: &Explanation) -> Finding {
    let endpoints = explanation.candidates.iter();
    let endpoints = first_of(endpoints.map(|one| &*one.address), NAMED);
    let all = |expected: Seen| seen.iter().all(|one| *one == expected);
    let (promised, kept) = match &*explanation.verdict {
        "forwarded" => (format!("sent to one of {endpoints}"), all(Seen::Open)),
        "refused" => ("refused".to_owned(), all(Seen::Refused)),
        "dropped" => ("no answer".to_owned(), !seen.contains(&Seen::Open)),
        _ => {
            let steps = explanation.steps.last().cloned().unwrap_or_default();
            return Finding::skipped(format!("nothing is promised: {steps}"));
        }
    };
    Finding::tried(promised, summary(seen), kept)
}

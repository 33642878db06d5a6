//! Calls existing Services from this node, and compares the results with the answers of the running
//! Tripod.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use super::super::report::{Check, Finding, Outcome};
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
pub fn destination(port: &ServicePort, address: &Address) -> Result<SocketAddr, &'static str> {
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
    let (any, documentation): (IpAddr, IpAddr) = if family == "IPv4" {
        (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        )
    } else {
        let documentation = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        (Ipv6Addr::UNSPECIFIED.into(), documentation.into())
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((documentation, 9)).ok()?;
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
    let mut connected = Connected::default();
    for _ in 0..CONNECTIONS {
        connected.add(&connect(to).await);
    }
    let mut finding = connected.compare(&explanation);
    if finding.outcome == Outcome::Failed && explanation.verdict == "forwarded" {
        finding.seen += "; do the endpoints themselves answer?";
    }
    finding
}

/// Opens a connection, and closes it.
pub async fn connect(to: SocketAddr) -> Seen {
    match timeout(OPEN_WITHIN, TcpStream::connect(to)).await {
        Ok(Ok(_)) => Seen::Open,
        Ok(Err(error)) => Seen::failed(&error),
        Err(_) => Seen::Silence,
    }
}

/// The result of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Open,
    Refused,
    Silence,
    /// The kernel, or a router, says that it cannot be reached.
    Failed(io::ErrorKind),
}

impl Seen {
    /// Describes the failure of an attempt.
    pub fn failed(error: &io::Error) -> Seen {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Seen::Refused,
            io::ErrorKind::TimedOut => Seen::Silence,
            kind => Seen::Failed(kind),
        }
    }

    /// Describes it.
    pub fn words(self) -> String {
        match self {
            Seen::Open => "answers".to_owned(),
            Seen::Refused => "refuses connections".to_owned(),
            Seen::Silence => "does not answer".to_owned(),
            Seen::Failed(kind) => format!("cannot be reached: {kind}"),
        }
    }
}

/// Results of connection attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connected {
    pub open: usize,
    refused: usize,
    silent: usize,
    failed: usize,
    /// Why the last one failed.
    why: Option<io::ErrorKind>,
}

impl Connected {
    /// Counts one more attempt.
    pub fn add(&mut self, seen: &Seen) {
        *match seen {
            Seen::Open => &mut self.open,
            Seen::Refused => &mut self.refused,
            Seen::Silence => &mut self.silent,
            Seen::Failed(kind) => {
                self.why = Some(*kind);
                &mut self.failed
            }
        } += 1;
    }

    /// Compares them with the prediction of the running Tripod.
    pub fn compare(&self, explanation: &Explanation) -> Finding {
        let Connected {
            open,
            refused,
            silent,
            failed,
            why,
        } = *self;
        let all = open + refused + silent + failed;
        let endpoints = explanation.candidates.iter();
        let endpoints = first_of(endpoints.map(|one| &*one.address), NAMED);
        let (promised, kept) = match &*explanation.verdict {
            "forwarded" => (format!("sent to one of {endpoints}"), open == all),
            "refused" => ("refused".to_owned(), refused == all),
            "dropped" => ("no answer".to_owned(), open == 0),
            _ => {
                let steps = explanation.steps.last().cloned().unwrap_or_default();
                return Finding::skipped(format!("nothing is promised: {steps}"));
            }
        };
        let why = why.map(|why| why.to_string()).unwrap_or_default();
        let parts = [
            (open, "open"),
            (refused, "refused"),
            (silent, "no answer"),
            (failed, &why),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, what)| format!("{what} {count}"))
            .collect();
        let seen = format!("of {all} connections: {}", parts.join(", "));
        Finding::tried(promised, seen, kept)
    }
}

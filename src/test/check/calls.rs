//! Calls addresses and endpoints from this node.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Instant,
};

use tokio::{net::UdpSocket, sync::Semaphore, time::timeout};

use super::{
    super::{
        cluster::{
            existing::{Connected, OPEN_WITHIN, Seen, connect, destination, kind, node_ip},
            health,
        },
        many::all,
        report::Outcome,
    },
    endpoints::Called,
    sample::Target,
};
use crate::{
    ask::{self, check::Finding},
    cli::Check,
    status_api::{Endpoint, Explanation, ServicePort},
};

/// Number of connections to an address that forwards them.
const CONNECTIONS: usize = 3;

/// Number of connections to a node port of another node of which none gets through.
const AT_OTHERS: usize = 8;

/// Maximum number of simultaneous calls; each may have a question to Tripod, which keeps 16
/// connections open.
const AT_ONCE: usize = 12;

/// Maximum number of endpoints of a ServicePort that are called.
const OF_PORT: usize = 8;

/// Maximum number of endpoints that are called.
const ENDPOINTS: usize = 200;

/// Calls until a deadline.
pub struct Calls<'a> {
    asked: &'a Check,
    node: &'a str,
    until: Instant,
    turns: Semaphore,
    /// Number of calls that were made, and of those for which no time was left.
    pub made: Cell<usize>,
    pub left: Cell<usize>,
}

/// Whether an endpoint, with its protocol, answered.
type Answers<'a> = BTreeMap<(SocketAddr, &'a str), bool>;

impl<'a> Calls<'a> {
    pub fn new(asked: &'a Check, node: &'a str, until: Instant) -> Calls<'a> {
        Calls {
            asked,
            node,
            until,
            turns: Semaphore::new(AT_ONCE),
            made: Cell::new(0),
            left: Cell::new(0),
        }
    }

    /// Calls the endpoints of these ServicePorts directly.
    pub async fn endpoints(&self, sample: &[Target<'_>]) -> Vec<Called> {
        let mut wanted: BTreeMap<(SocketAddr, &str), (&ServicePort, &Endpoint)> = BTreeMap::new();
        for Target { port, .. } in sample {
            let used = port.endpoints.iter().filter(|endpoint| endpoint.in_use);
            for endpoint in used.take(OF_PORT) {
                if let Ok(address) = endpoint.address.parse()
                    && wanted.len() < ENDPOINTS
                {
                    let key = (address, &*port.protocol);
                    wanted.entry(key).or_insert((*port, endpoint));
                }
            }
        }
        let calls = wanted
            .into_iter()
            .map(async |((address, _), (port, endpoint))| {
                let _turn = self.turn().await?;
                Some(Called {
                    service_port: name(port),
                    protocol: port.protocol.clone(),
                    address,
                    node: endpoint.node.clone(),
                    seen: reach(address, port).await,
                })
            });
        all(calls).await.into_iter().flatten().collect()
    }

    /// Calls these addresses, and node ports at other nodes. Returns the faults.
    pub async fn addresses(
        &self,
        ports: &[ServicePort],
        sample: &[Target<'_>],
        called: &[Called],
    ) -> Vec<Finding> {
        let answers = called.iter();
        let answers: Answers<'_> = answers
            .map(|one| ((one.address, &*one.protocol), one.seen == Seen::Open))
            .collect();
        let found = all(sample.iter().map(async |target| {
            let _turn = self.turn().await?;
            self.address(target, &answers).await
        }));
        let at_nodes = sample.iter().filter(|target| target.address.ip.is_none());
        let at_nodes = at_nodes.flat_map(|target| {
            let others = self.others_of(&target.port.family);
            others.map(move |(other, ip)| (target, other, ip))
        });
        let at_others = all(at_nodes.map(async |(target, other, ip)| {
            let _turn = self.turn().await?;
            self.node_port(target, (other, ip), &answers).await
        }));
        let mut faults: Vec<Finding> = found.await.into_iter().flatten().collect();
        faults.extend(at_others.await.into_iter().flatten());
        faults.extend(self.health_checks(ports, sample).await);
        faults
    }

    /// Waits for a turn; `None` if no time is left.
    async fn turn(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let turn = self.turns.acquire().await.ok()?;
        let in_time = Instant::now() < self.until;
        let count = if in_time { &self.made } else { &self.left };
        count.set(count.get() + 1);
        in_time.then_some(turn)
    }

    fn others_of(&self, family: &str) -> impl Iterator<Item = (&str, IpAddr)> {
        let is_v4 = family == "IPv4";
        let others = self.asked.others.iter().map(|(name, ip)| (&**name, *ip));
        others.filter(move |(name, ip)| *name != self.node && ip.is_ipv4() == is_v4)
    }

    /// Asks the running Tripod what happens to a call of this node.
    async fn explain(&self, to: SocketAddr, protocol: &str) -> Option<Explanation> {
        let explained = ask::explanation(
            &self.asked.common.socket,
            ask::PATIENCE,
            to,
            protocol,
            "node",
        )
        .await;
        explained.ok()
    }

    /// Calls an address a second time before it is at fault: a packet may get lost, and its Service
    /// may change in between.
    async fn address(&self, target: &Target<'_>, answers: &Answers<'_>) -> Option<Finding> {
        let (port, to) = (target.port, destination(target.port, target.address).ok()?);
        let mut last = None;
        for _ in 0..2 {
            let explained = self.explain(to, &port.protocol).await?;
            let candidates = explained.candidates.iter();
            let known = candidates.map(|one| answered(&one.address, port, answers));
            let known: Vec<Option<bool>> = known.collect();
            if known.contains(&Some(false)) {
                return None;
            }
            // One that was not called may be out of reach.
            let all_answer = !known.contains(&None);
            let (count, remedy) = match &*explained.verdict {
                "forwarded" => (
                    CONNECTIONS,
                    "its endpoints answer, so a rule of this node is in the way: tripod trace to \
                     this address shows which",
                ),
                _ => (
                    1,
                    "another program answers, or drops the refusal: tripod trace to this address \
                     shows the rule",
                ),
            };
            let mut connected = Connected::default();
            let mut finding = connected.compare(&explained);
            for _ in 0..count {
                connected.add(&attempt(to, port).await);
                finding = connected.compare(&explained);
                if finding.outcome != Outcome::Passed && all_answer {
                    break;
                }
            }
            if finding.outcome != Outcome::Failed || !all_answer && connected.open > 0 {
                return None;
            }
            let object = format!(
                "{} {to} {} of {}",
                kind(target.address),
                port.protocol,
                name(port)
            );
            let problem = format!("promised: {}; {}", finding.promised, finding.seen);
            last = Some(Finding::new(self.node, object, problem, remedy));
        }
        last
    }

    /// Calls a node port at another node, if an endpoint must answer there.
    async fn node_port(
        &self,
        target: &Target<'_>,
        (other, ip): (&str, IpAddr),
        answers: &Answers<'_>,
    ) -> Option<Finding> {
        let port = target.port;
        let own = destination(port, target.address).ok()?;
        if self.explain(own, &port.protocol).await?.verdict == "notServed" {
            return None;
        }
        let is_local = port.external_traffic_policy == "Local";
        let takes =
            |one: &&Endpoint| one.in_use && (!is_local || one.node.as_deref() == Some(other));
        let mut endpoints = port.endpoints.iter().filter(takes).peekable();
        endpoints.peek()?;
        if endpoints.any(|one| answered(&one.address, port, answers) == Some(false)) {
            return None;
        }
        let to = SocketAddr::new(ip, target.address.port);
        // From there, an endpoint may be out of reach that answers here: that is another fault.
        let mut seen = attempt(to, port).await;
        if seen != Seen::Open {
            let others = all((1..AT_OTHERS).map(|_| attempt(to, port))).await;
            seen = others
                .into_iter()
                .find(|seen| *seen == Seen::Open)
                .unwrap_or(seen);
        }
        let object = format!("node port {to} {} of {}", port.protocol, name(port));
        let remedy = "its endpoints answer: allow node ports in the packet filters of the node, and \
                      between the nodes";
        let finding = Finding::new(other, object, seen.words(), remedy).seen_from(self.node);
        (seen != Seen::Open).then_some(finding)
    }

    /// Asks the health-check node ports, at this node and at others.
    async fn health_checks(&self, ports: &[ServicePort], sample: &[Target<'_>]) -> Vec<Finding> {
        let service = |port: &ServicePort| format!("{}/{}", port.namespace, port.name);
        let chosen = sample.iter().map(|target| target.port);
        let chosen = chosen.filter(|port| port.health_check.is_some());
        let chosen: BTreeSet<String> = chosen.map(service).collect();
        // The port, and the number of ready endpoints here, of each Service and IP family.
        let mut checks: BTreeMap<(String, &str), (u16, usize)> = BTreeMap::new();
        for port in ports {
            if let Some(check) = port.health_check
                && chosen.contains(&service(port))
            {
                let known = checks.entry((service(port), &port.family)).or_default();
                *known = (check.port, known.1.max(check.local_endpoints));
            }
        }
        let asked = checks.iter().flat_map(|((service, family), (port, here))| {
            let own = node_ip(family).map(|ip| (self.node, ip, Some(*here)));
            let others = self.others_of(family).map(|(other, ip)| (other, ip, None));
            let all = own.into_iter().chain(others);
            all.map(move |(node, ip, here)| (service, node, SocketAddr::new(ip, *port), here))
        });
        let asked = all(asked.map(async |(service, node, to, here)| {
            let _turn = self.turn().await?;
            health_check(to, here).await?;
            let (problem, remedy) = health_check(to, here).await?;
            if here.is_some() && self.explain(to, "tcp").await?.verdict != "answered" {
                return None;
            }
            let object = format!("health-check node port {to} of {service}");
            Some(Finding::new(node, object, problem, remedy).seen_from(self.node))
        }));
        asked.await.into_iter().flatten().collect()
    }
}

/// Asks a health-check node port of a node with `here` ready endpoints. Returns what is wrong, and
/// what to do.
async fn health_check(to: SocketAddr, here: Option<usize>) -> Option<(String, &'static str)> {
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
    let promised = here.map(|here| if here > 0 { "200" } else { "503" });
    let is_right = promised.map_or(["200", "503"].contains(&status), |promised| {
        promised == status
    });
    let promised = promised.unwrap_or("200 or 503");
    (!is_right).then(|| {
        let problem = format!("answers with status {status:?}, not {promised}");
        (
            problem,
            "ss -ltnp on the node shows which program listens there",
        )
    })
}

/// Returns whether this endpoint of `port` answered; `None` if it was not called.
fn answered(address: &str, port: &ServicePort, answers: &Answers<'_>) -> Option<bool> {
    let key = (address.parse().ok()?, &*port.protocol);
    answers.get(&key).copied()
}

fn name(port: &ServicePort) -> String {
    let colon = if port.port.is_empty() { "" } else { ":" };
    format!("{}/{}{colon}{}", port.namespace, port.name, port.port)
}

/// Calls a second time if nothing answers: a packet may get lost.
async fn reach(to: SocketAddr, port: &ServicePort) -> Seen {
    match attempt(to, port).await {
        Seen::Open => Seen::Open,
        _ => attempt(to, port).await,
    }
}

async fn attempt(to: SocketAddr, port: &ServicePort) -> Seen {
    match &*port.protocol {
        "UDP" => dns(to).await,
        _ => connect(to).await,
    }
}

/// A DNS query for the name servers of the root zone (RFC 1035, section 4.1), without recursion: one
/// question of type NS and class IN. Any answer shows that a server is reached.
const QUERY: [u8; 17] = [0x54, 0x50, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

async fn dns(to: SocketAddr) -> Seen {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let answer = timeout(OPEN_WITHIN, async {
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(to).await?;
        socket.send(&QUERY).await?;
        socket.recv(&mut [0; 512]).await
    });
    match answer.await {
        Ok(Ok(_)) => Seen::Open,
        Ok(Err(_)) => Seen::Refused,
        Err(_) => Seen::Silence,
    }
}

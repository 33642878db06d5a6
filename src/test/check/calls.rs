//! Calls in turn, until a deadline, and repeats those that are not as promised.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use futures_util::{
    StreamExt,
    future::{self, join_all},
    stream,
};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    super::{call::Seen, cluster::existing::node_ip},
    attempt::attempt,
    endpoints::Called,
    sample::{Target, is_called, name},
};
use crate::{
    ask::{self, check::Finding},
    cli::Check,
    status_api::{Endpoint, Explanation, ServicePort},
};

/// Maximum number of simultaneous calls of addresses, and of endpoints: those that do not answer take
/// no time from the addresses.
const AT_ONCE: usize = 48;

/// Maximum number of simultaneous questions to Tripod, which keeps 16 connections open.
const QUESTIONS: usize = 12;

/// How long an answer of Tripod may take; a sync may delay it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time after which a call that is not as promised is repeated. Most changes have been applied by
/// then.
const MOMENT: Duration = Duration::from_secs(1);

/// Maximum number of endpoints of a ServicePort that are called.
pub const OF_PORT: usize = 8;

/// Maximum number of endpoints that are called.
const ENDPOINTS: usize = 200;

/// Calls until a deadline.
pub struct Calls<'a> {
    pub asked: &'a Check,
    pub node: &'a str,
    until: Instant,
    /// For addresses.
    turns: Semaphore,
    questions: Semaphore,
    /// Number of calls that were made, and of those for which no time was left.
    pub made: Cell<usize>,
    pub left: Cell<usize>,
    /// Whether Tripod stopped answering.
    is_lost: Cell<bool>,
}

/// Why a call does not show that all is well.
#[derive(Debug)]
pub enum Doubt {
    /// It is not as promised.
    Wrong(Finding),
    /// It cannot be judged.
    Unknown,
    /// No time was left for it.
    Late,
}

/// What a call shows.
pub type Judged = Result<(), Doubt>;

impl<'a> Calls<'a> {
    pub fn new(asked: &'a Check, node: &'a str) -> Calls<'a> {
        Calls {
            asked,
            node,
            until: Instant::now() + asked.timeout,
            turns: Semaphore::new(AT_ONCE),
            questions: Semaphore::new(QUESTIONS),
            made: Cell::new(0),
            left: Cell::new(0),
            is_lost: Cell::new(false),
        }
    }

    /// Calls the endpoints of these ServicePorts directly.
    pub async fn endpoints(&self, sample: &[Target<'_>]) -> Vec<Called> {
        let mut wanted: BTreeMap<(SocketAddr, &str), (&ServicePort, &Endpoint)> = BTreeMap::new();
        for Target { port, .. } in sample {
            let called = port.endpoints.iter().filter(|one| is_called(one));
            for endpoint in called.take(OF_PORT) {
                if let Ok(address) = endpoint.address.parse()
                    && wanted.len() < ENDPOINTS
                {
                    let key = (address, &*port.protocol);
                    wanted.entry(key).or_insert((*port, endpoint));
                }
            }
        }
        let wanted = stream::iter(wanted);
        let calls = wanted.map(async |((address, _), (port, endpoint))| {
            self.begin().ok()?;
            Some(Called {
                seen: self.endpoint(port, endpoint, address).await?,
                service_port: name(port),
                namespace: port.namespace.clone(),
                protocol: port.protocol.clone(),
                address,
                node: endpoint.node.clone(),
            })
        });
        let called = calls.buffer_unordered(AT_ONCE);
        called.filter_map(future::ready).collect().await
    }

    /// Calls an endpoint; a second time, if it is still one. Otherwise returns `None`.
    async fn endpoint(&self, port: &ServicePort, one: &Endpoint, to: SocketAddr) -> Option<Seen> {
        let seen = attempt(to, &port.protocol).await;
        if seen == Seen::Open {
            return Some(seen);
        }
        sleep(MOMENT).await;
        if let Ok(now) = self.read_again(port).await {
            let mut endpoints = now.iter().flat_map(|port| &port.endpoints);
            endpoints.find(|now| now.address == one.address && is_called(now))?;
        }
        Some(attempt(to, &port.protocol).await)
    }

    /// Calls endpoints directly, each with its share of the calls. Returns whether all answer this
    /// node; if so few do that calls may fail for that reason, they cannot be judged.
    pub async fn all_answer(
        &self,
        mut endpoints: Vec<(SocketAddr, f64)>,
        port: &ServicePort,
    ) -> Result<bool, Doubt> {
        let is_sample = endpoints.len() > OF_PORT;
        endpoints.truncate(OF_PORT);
        let calls = endpoints.iter().map(async |(to, share)| {
            let is_open = attempt(*to, &port.protocol).await == Seen::Open;
            share * f64::from(u8::from(is_open))
        });
        let open: f64 = join_all(calls).await.iter().sum();
        let total: f64 = endpoints.iter().map(|(_, share)| share).sum();
        let all_answer = open >= total && !is_sample;
        let is_sticky = port.affinity_seconds.is_some();
        if open == 0.0 || !all_answer && (is_sticky || open < total / 2.0) {
            return Err(Doubt::Unknown);
        }
        Ok(all_answer)
    }

    /// Counts a call, unless no time is left for it.
    fn begin(&self) -> Result<(), Doubt> {
        let in_time = Instant::now() < self.until && !self.is_lost.get();
        let count = if in_time { &self.made } else { &self.left };
        count.set(count.get() + 1);
        in_time.then_some(()).ok_or(Doubt::Late)
    }

    /// Returns the address at which this node serves node ports.
    pub fn own_ip(&self, family: &str) -> Option<IpAddr> {
        let own = self.named(family).find(|(name, _)| *name == self.node);
        own.map(|(_, ip)| ip).or_else(|| node_ip(family))
    }

    /// Returns the addresses of other nodes.
    pub fn others(&self, family: &str) -> impl Iterator<Item = (&'a str, IpAddr)> {
        self.named(family).filter(|(name, _)| *name != self.node)
    }

    fn named(&self, family: &str) -> impl Iterator<Item = (&'a str, IpAddr)> + use<'a> {
        let is_v4 = family == "IPv4";
        let all = self.asked.others.iter().map(|(name, ip)| (&**name, *ip));
        all.filter(move |(_, ip)| ip.is_ipv4() == is_v4)
    }

    /// Asks the running Tripod what happens to a call of this node.
    pub async fn explain(&self, to: SocketAddr, protocol: &str) -> Result<Explanation, Doubt> {
        let socket = &self.asked.common.socket;
        let question = ask::explanation(socket, ask::PATIENCE, to, protocol, "node");
        self.question(question).await
    }

    /// Reads the ServicePorts of the Service of `port` again.
    async fn read_again(&self, port: &ServicePort) -> Result<Vec<ServicePort>, Doubt> {
        let (namespace, name) = (Some(&*port.namespace), Some(&*port.name));
        let socket = &self.asked.common.socket;
        self.question(ask::service_ports(socket, namespace, name))
            .await
    }

    /// Waits for an answer of the running Tripod.
    pub async fn question<T>(
        &self,
        answer: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Doubt> {
        let _turn = self.questions.acquire().await;
        if self.is_lost.get() {
            return Err(Doubt::Late);
        }
        let none = |_| Err(format!("no answer within {} s", PATIENCE.as_secs()));
        let answer = timeout(PATIENCE, answer).await.unwrap_or_else(none);
        answer.map_err(|why| {
            let problem = format!("stopped answering during the check: {why}");
            let remedy = "see its log, or restart it";
            Doubt::Wrong(Finding::new(self.node, "Tripod", problem, remedy))
        })
    }

    /// Calls a ServicePort, in turn. Repeats a call that is wrong, with the Service as it is then: a
    /// packet may get lost, and endpoints may change.
    pub async fn judged(
        &self,
        ports: &[ServicePort],
        port: &ServicePort,
        call: impl AsyncFn(&[ServicePort], &ServicePort) -> Judged,
    ) -> Judged {
        let _turn = self.turns.acquire().await;
        self.begin()?;
        let first = call(ports, port).await;
        if !matches!(first, Err(Doubt::Wrong(_))) {
            return first;
        }
        sleep(MOMENT).await;
        let now = self.read_again(port).await;
        let now = now.inspect_err(|_| self.is_lost.set(true))?;
        let is_same = |one: &&ServicePort| {
            let of = |port: &ServicePort| (name(port), port.protocol.clone(), port.family.clone());
            of(one) == of(port)
        };
        match now.iter().find(is_same) {
            None => Ok(()),
            // A limit of connections kept calls out.
            Some(same) if same.limited.is_some() && same.limited != port.limited => {
                Err(Doubt::Unknown)
            }
            Some(same) => call(&now, same).await,
        }
    }
}

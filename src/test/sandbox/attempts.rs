//! Makes the calls of each check.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use net::{Family, Protocol};
use tokio::sync::Semaphore;

use super::{
    network::Network,
    proxy::SOCKET,
    subnets::{Link, Subnets},
};
use crate::{
    ask,
    config::ModeName,
    services::AddressKind,
    test::{
        call::{Seen, call},
        declared::{Declared, Frontend},
        judge::{disagreement, judge},
        promise::{Answers, Call, Caller, Promise, REFUSALS},
        report::{Check, Finding},
    },
};

/// Time limit for an answer, or a refusal.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time without an answer after which a promised silence counts as kept.
const SILENCE: Duration = Duration::from_secs(1);
/// Maximum number of simultaneous calls.
const CALLS: usize = 128;
/// Maximum number of simultaneous calls with promised silence: they cost only the wait.
const SILENT: usize = 256;
/// Number of unanswered calls after which others must be answered within [`SILENCE`], so that a
/// total failure is reported soon.
const UNANSWERED: usize = 4;
/// Maximum number of simultaneous questions to Tripod, which allows few connections.
const QUESTIONS: usize = 8;
/// Maximum number of simultaneous calls for one promise.
const AT_ONCE: usize = 8;
/// Maximum number of checks that make all their calls. If there are more, calls end once every
/// endpoint has answered.
pub(super) const THOROUGH: usize = 1000;

/// The event for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// An answer, or to be refused.
    Answer,
    /// Nothing: the call counts as unanswered when the time is over.
    Silence,
}

/// Everything needed to test a ServicePort.
pub(super) struct Attempts {
    network: Network,
    subnets: Subnets,
    mode: ModeName,
    node: String,
    /// Number of checks.
    checks: usize,
    /// Number of calls that should have been answered but were not.
    unanswered: AtomicUsize,
    turns: Semaphore,
    silent_turns: Semaphore,
    questions: Semaphore,
}

impl Attempts {
    /// Tests `ports` in `network`, where Tripod runs in `mode` as `node`. Returns a check for each
    /// address and caller, sorted by ServicePort.
    pub(super) async fn run(
        network: Network,
        subnets: Subnets,
        (mode, node): (ModeName, String),
        ports: Vec<Declared>,
    ) -> Vec<Check> {
        let checks: usize = ports.iter().map(|port| pairs(port).count()).sum();
        let attempts = Attempts {
            network,
            subnets,
            mode,
            node,
            checks,
            unanswered: AtomicUsize::new(0),
            turns: Semaphore::new(CALLS),
            silent_turns: Semaphore::new(SILENT),
            questions: Semaphore::new(QUESTIONS),
        };
        let done = join_all(ports.iter().map(|port| attempts.port(port)));
        done.await.concat()
    }

    /// Tests ServicePort `port`, one check after another, because with session affinity earlier
    /// calls matter.
    async fn port(&self, port: &Declared) -> Vec<Check> {
        let mut checks = Vec::new();
        for (frontend, caller) in pairs(port) {
            let to = self.destination(frontend, port.name.family);
            let finding = self.finding(port, frontend, caller, to).await;
            checks.push(Check {
                name: frontend.kind.to_string(),
                service_port: port.name.to_string(),
                to: to.to_string(),
                protocol: port.name.protocol.name().to_owned(),
                from: caller.words().to_owned(),
                finding,
            });
        }
        checks
    }

    async fn finding(
        &self,
        port: &Declared,
        frontend: Frontend,
        caller: Caller,
        to: SocketAddr,
    ) -> Finding {
        let family = port.name.family;
        let from = self.address(caller, family);
        if !self.network.families.contains(&family) {
            return Finding::skipped(format!("this kernel has no {family}"));
        }
        let call = Call {
            port,
            kind: frontend.kind,
            caller,
            node: &self.node,
            mode: self.mode,
            checks: self.checks,
        };
        if let Some(why) = call.not_tried() {
            return Finding::skipped(why);
        }
        let protocol = port.name.protocol;
        let promise = match self.promise(&call, to, from).await {
            Ok(promise) => promise,
            Err(why) => return disagreement(why),
        };
        let seen = match &promise {
            Promise::Nothing(_) => Vec::new(),
            Promise::Refused | Promise::Silence => {
                let wait = match promise {
                    Promise::Silence => Wait::Silence,
                    _ => Wait::Answer,
                };
                self.calls(REFUSALS, caller, to, protocol, wait).await
            }
            Promise::Answers(answers) => self.answers(answers, caller, to, protocol).await,
        };
        judge(&promise, &seen, from)
    }

    /// Derives the promise of the running Tripod, unless the objects contradict it.
    async fn promise(
        &self,
        call: &Call<'_>,
        to: SocketAddr,
        from: IpAddr,
    ) -> Result<Promise, String> {
        let _turn = self.questions.acquire().await;
        let protocol = call.port.name.protocol.name().to_lowercase();
        let (socket, from) = (Path::new(SOCKET), from.to_string());
        let answer = ask::explanation(socket, ask::PATIENCE, to, &protocol, &from).await;
        call.promise(&answer?)
    }

    async fn answers(
        &self,
        answers: &Answers,
        caller: Caller,
        to: SocketAddr,
        protocol: Protocol,
    ) -> Vec<Seen> {
        // Simultaneous calls might all be the first of their client, before it has an endpoint to
        // stay on.
        let mut seen = vec![self.call(caller, to, protocol, Wait::Answer).await];
        let is_answer = |seen: &Seen| matches!(seen, Seen::Answer { .. });
        while seen.len() < answers.calls && seen.iter().all(is_answer) {
            if self.checks > THOROUGH && answers.are_seen(&seen) {
                break;
            }
            let number = AT_ONCE.min(answers.calls - seen.len());
            let more = self.calls(number, caller, to, protocol, Wait::Answer);
            seen.extend(more.await);
        }
        seen
    }

    /// Makes `number` calls at once.
    async fn calls(
        &self,
        number: usize,
        caller: Caller,
        to: SocketAddr,
        protocol: Protocol,
        wait: Wait,
    ) -> Vec<Seen> {
        join_all((0..number).map(|_| self.call(caller, to, protocol, wait))).await
    }

    async fn call(&self, caller: Caller, to: SocketAddr, protocol: Protocol, wait: Wait) -> Seen {
        // The semaphores are never closed.
        let _turn = match wait {
            Wait::Answer => self.turns.acquire().await,
            Wait::Silence => self.silent_turns.acquire().await,
        };
        let is_hopeful = self.unanswered.load(Ordering::Relaxed) < UNANSWERED;
        let patience = if wait == Wait::Answer && is_hopeful {
            PATIENCE
        } else {
            SILENCE
        };
        let there = match caller {
            // This process is in the node's namespace.
            Caller::Node => None,
            Caller::Pod => Some(&self.network.caller),
            Caller::Outside => Some(&self.network.outside),
        };
        let seen = match there {
            None => Ok(call(to, protocol, patience).await),
            Some(there) => there.run(call(to, protocol, patience)).await,
        };
        let seen = seen.unwrap_or_else(|error| Seen::Other(error.to_string()));
        if wait == Wait::Answer && seen == Seen::Silence {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        seen
    }

    /// Returns the source address of calls by `caller`.
    fn address(&self, caller: Caller, family: Family) -> IpAddr {
        let net = match caller {
            Caller::Pod => self.subnets.other_end(Link::Caller, family),
            Caller::Node => self.subnets.node(Link::Outside, family),
            Caller::Outside => self.subnets.other_end(Link::Outside, family),
        };
        net.addr()
    }

    fn destination(&self, frontend: Frontend, family: Family) -> SocketAddr {
        let node = || self.subnets.node(Link::Outside, family).addr();
        SocketAddr::new(frontend.ip.unwrap_or_else(node), frontend.port)
    }
}

/// Returns the test cases for `port`: each address with each caller that has a route to it.
fn pairs(port: &Declared) -> impl Iterator<Item = (Frontend, Caller)> {
    let of = |frontend: &Frontend| {
        let frontend = *frontend;
        // Cluster IPs are not routed to the node from outside.
        let callers = Caller::ALL.into_iter().filter(move |caller| {
            frontend.kind != AddressKind::ClusterIp || *caller != Caller::Outside
        });
        callers.map(move |caller| (frontend, caller))
    };
    port.frontends.iter().flat_map(of)
}

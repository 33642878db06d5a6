//! Judges endpoints by the connections to them. Pure: the caller passes the time and the kernel's
//! reports.
//!
//! A connection is looked up a quarter of a second after it began, and once more a second
//! later unless it was answered in the meantime:
//! - packets came back: the endpoint answers;
//! - the kernel notified that a reset, the only answer, ended the entry: the endpoint refused
//!   the connection;
//! - the entry is gone for another reason, or the notification was lost: that says nothing about
//!   the endpoint. The kernel deletes unanswered entries when the table is full (`early_drop` in
//!   `net/netfilter/nf_conntrack_core.c`), and others delete all of them (`conntrack -F`);
//! - nothing came back: it is not answered. If the client sent its SYN again meanwhile, which it
//!   does after a second (RFC 6298), two packets were lost, not one. That can be seen only where
//!   such a SYN renews the entry, as in older kernels (later ones: "do not renew timeout on SYN
//!   retransmit" in `net/netfilter/nf_conntrack_proto_tcp.c`).
//!
//! One lost packet ejects no endpoint: it takes two connections, or one with two SYNs. A
//! connection counts only if no later one was answered: otherwise it is the client that cannot
//! reach the endpoint.
//!
//! Connections through one Service say nothing about the endpoint as one of another Service:
//! anyone who may create a Service can name any endpoint in it. And clients alone eject no
//! endpoint: one can begin connections that no endpoint answers (a TCP option that the server does
//! not accept). Therefore, after the first unanswered connection, the node connects to the endpoint
//! itself. The endpoint is ejected only if it does not answer the node either; if it does, that
//! counts like any other answered connection.

use std::{
    collections::VecDeque,
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use netlink::conntrack::flows::{Flow, Snapshot};
use tokio::time::Instant;

use crate::services::ServiceName;

/// From the beginning of a connection until it is first looked up: longer than an answer
/// takes from anywhere.
const FIRST_LOOKUP: Duration = Duration::from_millis(250);

/// From the first lookup to the second: longer than a client waits before it sends its SYN again.
const SECOND_LOOKUP: Duration = Duration::from_millis(1050);

/// Maximum number of connections that wait for each of their lookups at a time: to one endpoint,
/// from one client to it, and of all. Those that wait for the second lookup are counted apart from
/// new ones: they are unanswered, which says nothing if later ones are answered.
const OF_ENDPOINT: usize = 8;
const OF_CLIENT: usize = 4;
const OF_ALL: usize = 512;

/// From half of a limit of all on, only namespaces that use less than this part of it get more:
/// otherwise one with many endpoints that do not answer would keep others from ejection.
const SHARE: usize = 8;

/// Number of signs of failure that eject an endpoint.
const ENOUGH: u32 = 2;

/// How long the first ejection lasts; each further one in a row lasts twice as long.
const SHORTEST: Duration = Duration::from_secs(10);

/// The longest ejection, and how long an ejection is remembered.
const LONGEST: Duration = Duration::from_secs(300);

/// How long a failed connection from the node itself counts.
const BELIEVED: Duration = Duration::from_secs(5);

/// Maximum number of connections from the node itself at a time.
const PROBES: usize = 256;

/// An endpoint as one of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The Service that requests ejection.
    pub service: ServiceName,
    /// Address and port of the endpoint.
    pub endpoint: SocketAddr,
}

/// The evidence about watched endpoints.
#[derive(Debug, Default)]
pub struct Evidence {
    endpoints: HashMap<Target, Known>,
    /// Endpoints to which the node will connect, and those to which it is connecting, each with the
    /// namespace of the Service that caused that.
    to_probe: Vec<(SocketAddr, Arc<str>)>,
    probing: HashMap<SocketAddr, (Instant, Arc<str>)>,
    /// Connections to look up, in the order in which they are due.
    first: VecDeque<Asked>,
    second: VecDeque<Asked>,
}

/// The evidence about one endpoint.
#[derive(Debug, Default)]
struct Known {
    /// The clients of its connections that wait for their first lookup.
    first: Vec<IpAddr>,
    /// Number of its connections that wait for their second lookup.
    second: usize,
    /// Number of signs of failure since it answered.
    failures: u32,
    /// Start of the last connection that it answered; `None` if there was none.
    answered: Option<Instant>,
    ejection: Option<Ejection>,
    /// Start of the node's last own connection that it did not answer.
    probe_failed: Option<Instant>,
    /// Start of the last connection that it did not answer.
    failed: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    length: Duration,
    /// Start of the last connection that it failed to answer.
    failed: Instant,
    /// Whether its time is over, and the endpoint gets connections again.
    is_over: bool,
}

/// A connection to look up.
#[derive(Debug)]
pub struct Asked {
    service: ServiceName,
    flow: Flow,
    began: Instant,
    due: Instant,
    /// Seconds until the entry would expire, according to the first lookup.
    expired_in: Option<u32>,
    is_first: bool,
    /// Whether a reset was the only answer.
    refused: bool,
}

/// The decision to eject an endpoint from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The ejected endpoint.
    pub target: Target,
    /// Time for which it gets no new connections.
    pub length: Duration,
}

impl Asked {
    /// Returns the connection as it was when it began.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    fn target(&self) -> Target {
        Target {
            service: self.service.clone(),
            endpoint: self.flow.reply.source,
        }
    }
}

impl Evidence {
    /// Records that a connection to a watched endpoint began through `service`.
    pub fn began(&mut self, service: ServiceName, flow: Flow, now: Instant) {
        let target = Target {
            service: service.clone(),
            endpoint: flow.reply.source,
        };
        let known = self.endpoints.entry(target).or_default();
        let client = flow.original.source.ip();
        let of_client = known.first.iter().filter(|one| **one == client).count();
        let waiting = self.first.iter().chain(&self.second);
        let namespaces = waiting.map(|asked| &asked.service.namespace);
        if known.first.len() >= OF_ENDPOINT
            || of_client >= OF_CLIENT
            || !has_room(OF_ALL, namespaces, &service.namespace)
        {
            return;
        }
        known.first.push(client);
        self.first.push_back(Asked {
            service,
            flow,
            began: now,
            due: now + FIRST_LOOKUP,
            expired_in: None,
            is_first: true,
            refused: false,
        });
    }

    /// Records that a reset, the only answer, ended the entry of a connection.
    pub fn refused(&mut self, flow: &Flow) {
        let mut asked = self.first.iter_mut().chain(&mut self.second);
        if let Some(asked) = asked.find(|asked| asked.flow.is_same(flow)) {
            asked.refused = true;
        }
    }

    /// When the next lookup is due or the next ejection ends; `None` if nothing is pending.
    pub fn due(&self) -> Option<Instant> {
        let lookups = [self.first.front(), self.second.front()];
        let lookups = lookups.into_iter().flatten().map(|asked| asked.due);
        let ejections = self.endpoints.values().filter_map(|known| known.ejection);
        let ends = ejections.filter(|ejection| !ejection.is_over);
        lookups.chain(ends.map(|ejection| ejection.until)).min()
    }

    /// Returns a connection whose lookup is due at `now`; `None` if there is none left, and expired
    /// ejections have ended.
    pub fn next(&mut self, now: Instant) -> Option<Asked> {
        for queue in [&mut self.first, &mut self.second] {
            if queue.front().is_some_and(|asked| asked.due <= now) {
                return queue.pop_front();
            }
        }
        for known in self.endpoints.values_mut() {
            if let Some(ejection) = &mut known.ejection
                && ejection.until <= now
            {
                ejection.is_over = true;
                known.failures = 0;
            }
        }
        self.endpoints.retain(|_, known| {
            let ejection = known.ejection.as_ref();
            !known.first.is_empty()
                || known.second > 0
                || known.failures > 0
                || ejection.is_some_and(|ejection| now < ejection.until + LONGEST)
        });
        None
    }

    /// Records the kernel's report about a connection; `None` if it has no entry for it any more.
    /// Returns the endpoint if this ejects it.
    pub fn found(
        &mut self,
        mut asked: Asked,
        found: Option<Snapshot>,
        now: Instant,
    ) -> Option<Verdict> {
        let target = asked.target();
        // The endpoint may not be watched any more.
        let known = self.endpoints.get_mut(&target)?;
        known.looked_up(&asked);
        let signs = match found {
            Some(found) if found.state.is_answered() => {
                known.answers(asked.began);
                return None;
            }
            _ if known.is_answered_after(asked.began) => 0,
            Some(_) if asked.is_first && known.second >= OF_ENDPOINT => return None,
            Some(found) if asked.is_first => {
                known.second += 1;
                asked.expired_in = found.expires_in;
                asked.is_first = false;
                asked.due = now + SECOND_LOOKUP;
                self.second.push_back(asked);
                if !known.is_ejected() {
                    self.probe(target.endpoint, &target.service);
                }
                return None;
            }
            // The client has sent again: otherwise the entry would expire sooner than at the first
            // lookup.
            Some(found) if found.expires_in.is_some() && found.expires_in >= asked.expired_in => {
                ENOUGH
            }
            Some(_) => 1,
            None if asked.refused => 1,
            None => 0,
        };
        if signs == 0 {
            return None;
        }
        known.failures += signs;
        known.failed = known.failed.max(Some(asked.began));
        let verdict = known.decide(now);
        if verdict.is_none() && !known.is_ejected() {
            self.probe(target.endpoint, &target.service);
        }
        verdict.map(|length| Verdict { target, length })
    }

    /// Makes the node connect to an endpoint of `service`, unless it is connecting already.
    fn probe(&mut self, endpoint: SocketAddr, service: &ServiceName) {
        let mut waiting = self.to_probe.iter();
        if self.probing.contains_key(&endpoint) || waiting.any(|(of, _)| *of == endpoint) {
            return;
        }
        let namespace = &service.namespace;
        let waiting = self.to_probe.iter().map(|(_, of)| of);
        let all = waiting.chain(self.probing.values().map(|(_, of)| of));
        if has_room(PROBES, all, namespace) {
            self.to_probe.push((endpoint, Arc::clone(namespace)));
        }
    }

    /// Takes the endpoints to which the node should connect now.
    pub fn take_probes(&mut self, now: Instant) -> Vec<SocketAddr> {
        let probes = mem::take(&mut self.to_probe);
        let endpoints = probes.iter().map(|(endpoint, _)| *endpoint).collect();
        let begun = probes.into_iter();
        self.probing
            .extend(begun.map(|(endpoint, of)| (endpoint, (now, of))));
        endpoints
    }

    /// Records whether the endpoint answered the node; `None` if unknown. Returns a verdict for
    /// each target that this ejects.
    pub fn probed(
        &mut self,
        endpoint: SocketAddr,
        answered: Option<bool>,
        now: Instant,
    ) -> Vec<Verdict> {
        let began = self.probing.remove(&endpoint);
        let (Some((began, _)), Some(answered)) = (began, answered) else {
            return Vec::new();
        };
        let of_endpoint = self.endpoints.iter_mut();
        let of_endpoint = of_endpoint.filter(|(target, _)| target.endpoint == endpoint);
        let mut verdicts = Vec::new();
        let mut again = None;
        for (target, known) in of_endpoint {
            if answered {
                known.answers(began);
            } else {
                known.probe_failed = known.probe_failed.max(Some(began));
                let length = known.decide(now);
                let target = target.clone();
                verdicts.extend(length.map(|length| Verdict { target, length }));
            }
            if known.is_suspect() {
                again = Some(target.service.clone());
            }
        }
        if let Some(service) = again {
            self.probe(endpoint, &service);
        }
        verdicts
    }

    /// Records that the outcome of a connection is unknown.
    pub fn dropped(&mut self, asked: &Asked) {
        if let Some(known) = self.endpoints.get_mut(&asked.target()) {
            known.looked_up(asked);
        }
    }

    /// Returns the endpoints that are ejected.
    pub fn ejected(&self) -> impl Iterator<Item = &Target> {
        let all = self.endpoints.iter();
        all.filter_map(|(target, known)| {
            let ejection = known.ejection.filter(|ejection| !ejection.is_over);
            ejection.map(|_| target)
        })
    }

    /// Forgets the endpoints that are not watched any more.
    pub fn retain(&mut self, is_watched: impl Fn(&Target) -> bool) {
        self.endpoints.retain(|target, _| is_watched(target));
        for queue in [&mut self.first, &mut self.second] {
            queue.retain(|asked| is_watched(&asked.target()));
        }
    }
}

/// Returns whether one more of `namespace` has room among those of all `namespaces`, of which there
/// are at most `most`.
fn has_room<'a>(
    most: usize,
    namespaces: impl Iterator<Item = &'a Arc<str>> + Clone,
    namespace: &Arc<str>,
) -> bool {
    // The number is known without a walk through them.
    let (number, _) = namespaces.size_hint();
    let of_namespace = || namespaces.filter(|of| *of == namespace).count();
    number < most / 2 || number < most && of_namespace() < most / SHARE
}

impl Known {
    /// Records that a connection does not wait for its lookup any more.
    fn looked_up(&mut self, asked: &Asked) {
        if !asked.is_first {
            self.second = self.second.saturating_sub(1);
            return;
        }
        let client = asked.flow.original.source.ip();
        if let Some(at) = self.first.iter().position(|one| *one == client) {
            self.first.swap_remove(at);
        }
    }

    /// Records that it answered a connection that began at `began`.
    fn answers(&mut self, began: Instant) {
        self.answered = self.answered.max(Some(began));
        self.failures = 0;
        if self.probe_failed.is_some_and(|failed| failed <= began) {
            self.probe_failed = None;
        }
        // It may get connections although it is ejected, if no other endpoint is left.
        let is_answer_after = |ejection: Ejection| ejection.is_over || began > ejection.failed;
        if self.ejection.is_some_and(is_answer_after) {
            self.ejection = None;
        }
    }

    /// Returns whether it answered a connection that began then or later.
    fn is_answered_after(&self, began: Instant) -> bool {
        self.answered.is_some_and(|answered| answered >= began)
    }

    fn is_ejected(&self) -> bool {
        self.ejection.is_some_and(|ejection| !ejection.is_over)
    }

    /// Returns whether it must be ejected if it does not answer the node either. One that is tried
    /// again after an ejection fails with the first sign.
    fn is_suspect(&self) -> bool {
        match self.ejection {
            None => self.failures >= ENOUGH,
            Some(ejection) => ejection.is_over && self.failures > 0,
        }
    }

    /// Decides whether to eject it now, and for how long.
    fn decide(&mut self, now: Instant) -> Option<Duration> {
        let believed = self.probe_failed.filter(|began| now < *began + BELIEVED);
        let began = self
            .failed
            .filter(|_| believed.is_some() && self.is_suspect())?;
        let length = match self.ejection {
            Some(before) => (before.length * 2).min(LONGEST),
            None => SHORTEST,
        };
        self.failures = 0;
        self.ejection = Some(Ejection {
            until: now + length,
            length,
            failed: began,
            is_over: false,
        });
        Some(length)
    }
}

#[cfg(test)]
mod tests;

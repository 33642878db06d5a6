//! The promise of a mode for a call, according to the running Tripod and the objects.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use net::Protocol;

use super::{chance, declared::Declared};
use crate::{
    config::ModeName,
    listing::all_of,
    services::{AddressKind, Forwarding, TrafficPolicy},
    status_api::Explanation,
};

/// The origin of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caller {
    /// A pod of the tested node.
    Pod,
    /// The tested node.
    Node,
    /// A host outside the cluster.
    Outside,
}

impl Caller {
    /// All of them.
    pub(super) const ALL: [Caller; 3] = [Caller::Pod, Caller::Node, Caller::Outside];

    /// The caller in words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Caller::Pod => "a pod",
            Caller::Node => "the node",
            Caller::Outside => "outside",
        }
    }
}

/// The promised result of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Promise {
    /// One of some endpoints answers.
    Answers(Answers),
    /// The caller learns at once that it is not served.
    Refused,
    /// No answer comes, and no refusal.
    Silence,
    /// Nothing is promised, or it cannot be tested; holds the reason.
    Nothing(String),
}

/// The endpoints that may answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answers {
    /// The endpoints, sorted by address.
    pub(super) endpoints: Vec<SocketAddr>,
    /// Number of calls to make.
    pub(super) calls: usize,
    /// Whether each of the endpoints must answer some of these calls.
    pub(super) every: bool,
    /// Whether one caller always gets the same one.
    pub(super) stays: bool,
    /// Whether the endpoint sees the caller's own address.
    pub(super) sees_caller: bool,
}

/// A call to one address of a ServicePort.
pub(super) struct Call<'a> {
    /// The ServicePort according to the objects.
    pub(super) port: &'a Declared,
    /// The kind of the called address.
    pub(super) kind: AddressKind,
    /// The origin of the call.
    pub(super) caller: Caller,
    /// The tested node.
    pub(super) node: &'a str,
    /// The mode that runs.
    pub(super) mode: ModeName,
    /// Number of checks like this one, each of which may miss an endpoint by chance.
    pub(super) checks: usize,
}

/// Maximum number of calls for one promise; if that is too few to see every endpoint, [`SAMPLE`]
/// calls are made, and only the promised endpoints may answer.
const MOST: usize = 1000;
/// Number of calls if shares are unknown, or are too small.
const SAMPLE: usize = 100;
/// Limits of connections below this may be reached by the calls of all checks of a Service.
const LIMIT: u32 = 10_000;
/// Number of calls by one caller that must stay on its endpoint.
const STAYING: usize = 12;
/// Number of calls that must be refused, or get no answer.
pub(super) const REFUSALS: usize = 2;
/// A session affinity shorter than this may end during the test, so it counts as none.
const SHORT: Duration = Duration::from_secs(30);

impl Call<'_> {
    /// Explains why the call is skipped, whatever is promised; `None` if it is made.
    pub(super) fn not_tried(&self) -> Option<String> {
        let preferences = self.port.preferences.as_deref();
        if self.port.is_of(Protocol::Sctp) {
            return Some("SCTP is not tested".to_owned());
        }
        if let Some(endpoint) = self
            .port
            .endpoints
            .keys()
            .find(|one| one.ip().is_loopback())
        {
            let why = format!("its endpoint {endpoint} is a loopback address of the node");
            return Some(why);
        }
        let header = preferences.is_some_and(|asked| asked.proxy_protocol);
        if header && self.mode == ModeName::Userspace && self.port.is_of(Protocol::Tcp) {
            return Some("the test servers do not read the header of proxy-protocol".to_owned());
        }
        match preferences.and_then(|asked| asked.forwarding) {
            Some(way @ (Forwarding::Dr | Forwarding::Tunnel)) if self.mode == ModeName::Ipvs => {
                let why = format!("with forwarding={way} endpoints need the service address");
                Some(why)
            }
            _ => None,
        }
    }

    /// Derives the promise of the running Tripod from its `explanation`.
    ///
    /// # Errors
    /// When it contradicts the objects; the error has the difference.
    pub(super) fn promise(&self, explanation: &Explanation) -> Result<Promise, String> {
        let last = explanation.steps.last().cloned().unwrap_or_default();
        let name = self.port.name.to_string();
        match &explanation.service_port {
            Some(owner) if *owner == name => {}
            Some(owner) => return Ok(Promise::Nothing(format!("{owner} has this address"))),
            None => return Err(format!("Tripod serves it for no Service: {last}")),
        }
        let candidates: Option<Vec<SocketAddr>> = explanation
            .candidates
            .iter()
            .map(|candidate| candidate.address.parse().ok())
            .collect();
        let candidates = candidates.ok_or("Tripod names an endpoint that is no address")?;
        if self.falls_back() && explanation.verdict == "forwarded" {
            return self.fallen_back(&candidates);
        }
        let allowed: BTreeSet<SocketAddr> = self.allowed().into_iter().collect();
        if let Some(other) = candidates.iter().find(|one| !allowed.contains(one)) {
            return Err(takes_none(*other));
        }
        match &*explanation.verdict {
            "forwarded" => match self.missing(&candidates, &allowed) {
                Some(missing) => Err(format!(
                    "Tripod does not send to {missing}, which by the EndpointSlices takes \
                     connections"
                )),
                None => Ok(match self.limit() {
                    Some(limit) => Promise::Nothing(limit),
                    None => Promise::Answers(self.answers(candidates, explanation)),
                }),
            },
            "depends" => Ok(Promise::Nothing(last)),
            _ if self.is_due(&allowed) => Err(format!(
                "by the EndpointSlices {} takes connections, but: {last}",
                all_of(&allowed)
            )),
            "refused" => Ok(Promise::Refused),
            "dropped" => Ok(Promise::Silence),
            _ => Ok(Promise::Nothing(last)),
        }
    }

    /// Names a limit of connections that the calls of all checks may reach; `None` if there is none,
    /// or the mode knows no limits.
    fn limit(&self) -> Option<String> {
        let counts = matches!(self.mode, ModeName::Nftables | ModeName::Userspace);
        let mut limits = self.port.preferences.as_deref()?.limits();
        let (what, most) = limits.find(|(_, most)| counts && most.get() < LIMIT)?;
        Some(format!("{what}={most} may keep out calls of the test"))
    }

    /// Returns whether the caller is outside, and a policy of Local leaves it no endpoint: IPVS
    /// then sends to endpoints on other nodes, which answer the caller directly.
    fn falls_back(&self) -> bool {
        self.mode == ModeName::Ipvs
            && self.kind != AddressKind::ClusterIp
            && self.caller == Caller::Outside
            && self.is_local()
            && self.port.taking(Some(self.node)).is_empty()
    }

    /// Returns the promise if IPVS [falls back](Self::falls_back): the caller gets no answer from
    /// the address that it called.
    fn fallen_back(&self, candidates: &[SocketAddr]) -> Result<Promise, String> {
        let taking = self.port.taking(None);
        match candidates.iter().find(|one| !taking.contains(one)) {
            Some(other) => Err(takes_none(*other)),
            None => Ok(Promise::Silence),
        }
    }

    /// Returns whether, according to the objects, one of the `allowed` endpoints must answer.
    fn is_due(&self, allowed: &BTreeSet<SocketAddr>) -> bool {
        let is_guarded = self.kind == AddressKind::LoadBalancerIp && self.port.has_source_ranges;
        self.port.is_plain && !is_guarded && !allowed.is_empty()
    }

    fn is_local(&self) -> bool {
        self.port.policy(self.kind) == TrafficPolicy::Local
    }

    /// Returns whether a policy of Local restricts such a call to endpoints on this node; `None` if
    /// that depends on the mode, as for pods and the node with an external policy of Local.
    fn stays_here(&self) -> Option<bool> {
        match (self.is_local(), self.kind, self.caller) {
            (false, ..) => Some(false),
            (true, AddressKind::ClusterIp, _) | (true, _, Caller::Outside) => Some(true),
            (true, ..) => None,
        }
    }

    /// Returns the endpoints that, according to the objects, may get such a call.
    fn allowed(&self) -> Vec<SocketAddr> {
        let here = || self.port.taking(Some(self.node));
        match self.stays_here() {
            Some(true) => here(),
            Some(false) => self.port.taking(None),
            None => [self.port.taking(None), here()].concat(),
        }
    }

    /// Returns an endpoint that, according to the objects, must be among `candidates` but is not.
    fn missing(
        &self,
        candidates: &[SocketAddr],
        allowed: &BTreeSet<SocketAddr>,
    ) -> Option<SocketAddr> {
        let is_certain = self.port.is_plain && self.stays_here().is_some();
        let mut missing = allowed.iter().filter(|one| !candidates.contains(one));
        missing.next().copied().filter(|_| is_certain)
    }

    fn answers(&self, mut endpoints: Vec<SocketAddr>, explanation: &Explanation) -> Answers {
        endpoints.sort_unstable();
        let stays = self.port.affinity.map(|timeout| timeout >= SHORT);
        let shares = explanation.candidates.iter();
        let shares: Option<Vec<f64>> = shares.map(|candidate| candidate.share).collect();
        let calls = shares.and_then(|shares| calls(&shares, self.checks));
        let (calls, every) = match (stays, calls) {
            (Some(_), _) => (STAYING, false),
            (None, Some(calls)) => (calls, true),
            (None, None) => (SAMPLE, false),
        };
        let asked = self.port.preferences.as_deref();
        let is_masked = self.mode == ModeName::Userspace
            || asked.and_then(|asked| asked.forwarding) == Some(Forwarding::FullNat);
        let is_shown = match self.kind {
            AddressKind::ClusterIp => self.caller == Caller::Pod,
            _ => self.caller == Caller::Outside,
        };
        Answers {
            endpoints,
            calls,
            every,
            stays: stays == Some(true),
            sees_caller: self.is_local() && is_shown && !is_masked,
        }
    }
}

fn takes_none(endpoint: SocketAddr) -> String {
    format!("Tripod sends to {endpoint}, which by the EndpointSlices takes no such connections")
}

/// Computes the number of calls needed to see each endpoint with these shares, in that many checks;
/// `None` if too many.
fn calls(shares: &[f64], checks: usize) -> Option<usize> {
    let least = shares.iter().copied().fold(1.0, f64::min);
    if least >= 1.0 {
        return Some(REFUSALS);
    }
    let calls = chance::calls_to_see(shares.len(), least, checks);
    (calls <= MOST).then_some(calls)
}

#[cfg(test)]
mod tests;

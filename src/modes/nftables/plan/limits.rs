//! Limits of the connections of a Service and of each of its clients (`tripod.proxy/max-connections`
//! and `tripod.proxy/max-connections-per-client`): a chain for each Service with a limit, which all
//! its ports share, and which the first packet of each of its connections passes after its
//! destination was translated.
//!
//! The kernel counts connections that connection tracking knows, until they have ended
//! (`net/netfilter/nf_conncount.c`). It counts by rule and by element of a set, so that the
//! connections of another rule, table or family are not counted.

use std::num::NonZeroU32;

use net::{Family, Protocol};
use nftables::{Chain, Comment, Field, Hook, Reject, Rule, Set, Statement, Type, Verdict};

use super::{
    Features, Options, Sets,
    frontend::Role,
    matches::{by_service_port, hook_of_translated, of_protocol},
    names, sets,
};
use crate::{
    kernel::probe::NftPart,
    services::{Preferences, ServiceName, ServicePort},
};

/// The chains that all Services with limits share: the first refuses connections, the second sends
/// them to the chains of their Services, and the others are called by the kernel and jump to it.
pub(super) const SHARED: [&str; 5] = [
    "over-limit",
    // `limit` is a word of `nft`, which takes it for no name.
    "limits",
    "limit-input",
    "limit-forward",
    "limit-output",
];

/// Network policies are usually enforced before (`NF_IP_PRI_FILTER`, firewalld at 10): connections that
/// they forbid are not counted.
const AFTER_POLICIES: i32 = 30;

/// The greatest limit. For each new connection, the kernel may look through all that it counts, and
/// meanwhile no other connection to the Service can begin (`nf_conncount_add`).
pub const MOST: u32 = 10_000;

/// The limits of a Service, in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Limits {
    /// The Service whose connections are counted.
    pub service: ServiceName,
    /// IP family of these connections.
    pub family: Family,
    /// Maximum number of connections.
    of_service: Option<NonZeroU32>,
    /// Maximum number of connections of each client.
    of_client: Option<NonZeroU32>,
}

impl Limits {
    /// Returns the limits that `port` asks for; `None`: it asks for none, or rules cannot count, as
    /// the connections of a range of ports.
    pub fn of(port: &ServicePort, features: Features) -> Option<Limits> {
        if port.is_range() {
            return None;
        }
        let asked = port.preferences();
        let possible = |most: &NonZeroU32| most.get() <= MOST;
        let limits = Limits {
            service: port.name.service.clone(),
            family: port.name.family,
            of_service: asked.max_connections.filter(possible),
            of_client: asked.max_connections_per_client.filter(possible),
        };
        let has_some = limits.of_service.is_some() || limits.of_client.is_some();
        (has_some && features.contains(NftPart::ConnectionCounts)).then_some(limits)
    }

    /// The name of the chain. Another limit has another chain, and counts from zero.
    pub fn chain_name(&self) -> String {
        self.name("limit")
    }

    fn name(&self, kind: &str) -> String {
        let of_service = self.of_service.map(|most| format!("-{most}"));
        let of_client = self.of_client.map(|most| format!("-per-client-{most}"));
        let [of_service, of_client] = [of_service, of_client].map(Option::unwrap_or_default);
        format!(
            "{kind}{of_service}{of_client}/{}",
            names::of_service(&self.service)
        )
    }

    /// The set of clients that have connections; `None`: clients have no limit. It grows with them, to
    /// at most [`Set::MOST_DYNAMIC`]; the connections of further clients are not counted.
    pub fn clients(&self) -> Option<Set> {
        self.of_client?;
        Some(Set {
            dynamic: true,
            comment: Some(Comment::new("clients, and their connections")),
            ..Set::new(
                &self.name("clients"),
                Type::Named(vec![sets::address(self.family)]),
            )
        })
    }

    /// The annotations of the rules of the chain, in their order.
    pub fn annotations(&self) -> impl Iterator<Item = &'static str> {
        let of_client = self
            .of_client
            .map(|_| Preferences::MAX_CONNECTIONS_PER_CLIENT);
        let of_service = self.of_service.map(|_| Preferences::MAX_CONNECTIONS);
        of_client.into_iter().chain(of_service)
    }

    /// A client that has too many connections takes nothing of what others may have: it is refused
    /// first.
    pub(super) fn rules(&self, features: Features) -> Vec<Rule> {
        let of_client = self.clients().zip(self.of_client).map(|(set, most)| {
            let address = vec![Field::SourceAddress(self.family)];
            Statement::ConnectionsOfKeyOver((&set).into(), address, most.get())
        });
        let of_service = self.of_service;
        let of_service = of_service.map(|most| Statement::ConnectionsOver(most.get()));
        let over = of_client.into_iter().chain(of_service);
        let counts = features.contains(NftPart::Counters);
        let [over_limit, ..] = SHARED;
        let refused = over.map(|over| {
            let counter = counts.then_some(Statement::Counter);
            let refuse = Statement::Verdict(Verdict::Goto(over_limit.into()));
            Rule::new([over].into_iter().chain(counter).chain([refuse]))
        });
        let refused = refused.zip(self.annotations());
        refused
            .map(|(rule, annotation)| rule.commented(annotation))
            .collect()
    }
}

/// Returns the chains that all Services with limits share.
pub(super) fn shared(options: &Options, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let [over_limit, limit, input, forward, output] = SHARED;
    let hook = |name, hook| hook_of_translated(name, hook, AFTER_POLICIES, limit);
    vec![
        (Chain::new(over_limit), refusal(options)),
        (
            Chain::new(limit),
            by_service_port(Role::Limits, options.family, sets),
        ),
        hook(input, Hook::Input),
        hook(forward, Hook::Forward),
        hook(output, Hook::Output),
    ]
}

/// A reset would reach no client of the same bridge: it leaves through the bridge with the address of
/// the endpoint, which the client did not call (`nf_send_reset` of
/// net/ipv4/netfilter/nf_reject_ipv4.c). Datagrams are dropped as those to a server that is busy.
fn refusal(options: &Options) -> Vec<Rule> {
    let refuse = Statement::Reject(Reject::PortUnreachable(options.family));
    let refuse = Rule::new([of_protocol(Protocol::Tcp), refuse]);
    let can_refuse = options.features.contains(NftPart::Reject);
    let others = Rule::new([Statement::Verdict(Verdict::Drop)]);
    let refuse = can_refuse.then_some(refuse);
    refuse.into_iter().chain([others]).collect()
}

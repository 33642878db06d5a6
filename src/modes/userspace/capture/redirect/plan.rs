//! Plans the nat and filter rules. Pure.
//!
//! ```text
//! nat PREROUTING, OUTPUT (without our mark) → TRIPOD-USERSPACE
//!     -d SERVICE ADDRESS --dport PORT      → our listener     service addresses first,
//!     --dst-type LOCAL --dport NODE PORT   → our listener     then node ports
//! filter INPUT (new connections, all of UDP) → TRIPOD-USERSPACE
//!     --ctstate DNAT, to our socket        RETURN             came through the rules above
//!     --dport OUR LISTENER                 REJECT             called directly, from anywhere
//! ```
//!
//! Our sockets have IP_TRANSPARENT, which requires CAP_NET_ADMIN or CAP_NET_RAW: if this process is
//! killed and nothing holds its sockets, another user's program can bind the ports, but receives
//! nothing that these rules redirect.
//!
//! With more than [`FEW`](super::tree::FEW) of these rules, jumps to chains of a search tree
//! replace them, so that a packet is only compared with a few:
//!
//! ```text
//! nat TRIPOD-USERSPACE
//!     -d 10.96.0.0/17                      → TRIPOD-US-…      what all service addresses have
//!         -d 10.96.0.0/21                  → TRIPOD-US-…      in common, then parts of that
//!             -d SERVICE ADDRESS --dport PORT      → our listener
//!     --dst-type LOCAL --dport 30000:30015 → TRIPOD-US-…
//!         --dport NODE PORT                → our listener
//! filter TRIPOD-USERSPACE
//!     --dport 32768:49151                  → TRIPOD-US-…
//!         --dport OUR LISTENER             REJECT
//! ```

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use data_encoding::BASE32;
use net::{Family, Frontend, Protocol};
use netlink::addresses::Address;
use sha2::{Digest, Sha256};
use xtables::{
    desired::{Chain, Contents, FixedChain, Jump, Place, RuleSet},
    extension::Extension,
    features::Features,
    observed::Interest,
    rule::{CtState, Mark, Match, Negatable, Rule, Side, Table, Target as Action},
};

use super::key::Prefix;
use crate::{
    modes::userspace::capture::{MARK, Target},
    node::Served,
};

/// Our chain to which the kernel's chains jump, in table nat and in table filter.
pub const CHAIN: &str = "TRIPOD-USERSPACE";
/// Prefix of the names of our other chains.
const PARTS: &str = "TRIPOD-US-";

/// Nearly all packets are of established connections; they skip the chain.
const STATES: &[CtState] = &[CtState::Invalid, CtState::New, CtState::Untracked];

/// The node and kernel for which rules of a family are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub family: Family,
    /// The features that rules may use.
    pub features: Features,
    /// The address to which nat rules translate; `None` for REDIRECT.
    pub destination: Option<IpAddr>,
    /// Partial rules that match "an address of this node".
    pub node: Vec<Rule>,
    /// Whether redirected packets are only accepted for sockets with IP_TRANSPARENT.
    pub only_to_ours: bool,
}

/// Listener to which nat rules redirect; nobody may call it directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener {
    /// The transport protocol that is captured.
    pub protocol: Protocol,
    /// Its local port.
    pub port: u16,
}

impl Environment {
    /// The tables that have our chain: table filter only if listeners can be guarded.
    pub fn tables(&self) -> &'static [Table] {
        if self.features.contains(Extension::Conntrack) {
            &[Table::Nat, Table::Filter]
        } else {
            &[Table::Nat]
        }
    }
}

/// Purpose of a search tree of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Service addresses, in table nat.
    Services,
    /// Node ports, in table nat.
    NodePorts,
    /// Listeners that must not be called directly, in table filter.
    Guards,
}

impl Purpose {
    pub fn table(self) -> Table {
        match self {
            Purpose::Services | Purpose::NodePorts => Table::Nat,
            Purpose::Guards => Table::Filter,
        }
    }

    /// Name of the chain for keys that have this prefix.
    pub fn chain(self, prefix: Prefix) -> String {
        let what = match self {
            Purpose::Services => "service",
            Purpose::NodePorts => "node port",
            Purpose::Guards => "listener",
        };
        // 80 bits are 16 letters; a name may have at most 28.
        let hash = Sha256::digest(format!("{what} {}", prefix.identity()));
        format!("{PARTS}{}", BASE32.encode(&hash[..10]))
    }

    /// Turns `rule` into a jump to the chain of `to`, for packets `within` a prefix.
    pub fn jump(self, rule: Rule, family: Family, within: Prefix, to: Prefix) -> Rule {
        let addresses = (self == Purpose::Services).then_some(family);
        within.within(rule, addresses).jump(self.chain(to))
    }
}

/// Returns true if a chain of one of the tables is ours, by its name.
pub fn is_ours(chain: &str) -> bool {
    chain == CHAIN || chain.starts_with(PARTS)
}

/// How a chain is compared if every differing rule must be known.
pub fn by_rule(table: Table, chain: &str) -> Interest {
    match interest(table, chain) {
        Interest::Whole => Interest::ByRule,
        other => other,
    }
}

/// How a chain is compared, which does not depend on its table.
pub fn interest(_: Table, chain: &str) -> Interest {
    if is_ours(chain) {
        Interest::Whole
    } else {
        Interest::Foreign
    }
}

/// The address to which nat rules translate. `before` is kept if possible.
///
/// REDIRECT would send packets from other machines to the address of the interface on which they
/// arrived, and *drops* them if it has none (`nf_nat_redirect_ipv4`), as for the pods' interfaces
/// of Calico and others. Therefore the rules name an address of the node, and REDIRECT is only used
/// on nodes that have none.
pub fn destination(
    addresses: &[Address],
    family: Family,
    before: Option<IpAddr>,
    services: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    // linux/if_addr.h: secondary or temporary, failed, deprecated, tentative.
    const UNSTEADY: u32 = 0x01 | 0x08 | 0x20 | 0x40;
    let fit = |a: &&Address| {
        Family::of(&a.address) == family
            && a.scope == 0
            && a.flags & UNSTEADY == 0
            && !a.address.is_loopback()
    };
    let candidates = || addresses.iter().filter(fit);
    before
        .filter(|b| candidates().any(|a| a.address == *b))
        .or_else(|| {
            // An address that is also a Service's may move to another node.
            let first =
                candidates().min_by_key(|a| (services.contains(&a.address), a.index, a.address))?;
            Some(first.address)
        })
}

/// Partial rules that match the node's own addresses that are `served`.
pub fn node(
    features: &Features,
    served: &Served,
    addresses: impl Iterator<Item = IpAddr>,
    family: Family,
) -> Vec<Rule> {
    let served = served.of(family);
    // A network alone would also match packets to other machines in it.
    let local = |rule: Rule| rule.with(Match::LocalAddress(Negatable::Is(Side::Destination)));
    match (features.contains(Extension::Addrtype), served) {
        (true, Served::All) => vec![local(Rule::new())],
        (true, Served::Within(nets)) => nets
            .iter()
            .map(|net| local(Rule::new().destination(net.trunc())))
            .collect(),
        (false, served) => {
            let own: BTreeSet<_> = addresses
                .filter(|a| Family::of(a) == family && served.contains(a))
                .collect();
            own.into_iter()
                .map(|a| Rule::new().destination(a))
                .collect()
        }
    }
}

/// Text of a comment, limited in length, without characters that could end its quotes or its line.
fn plain(name: &str) -> String {
    let fit = |c: char| c.is_ascii_alphanumeric() || "./:_-".contains(c);
    name.chars()
        .take(200)
        .map(|c| if fit(c) { c } else { '_' })
        .collect()
}

/// The complete nat rules of a frontend.
pub fn nat(frontend: &Frontend, target: &Target, environment: &Environment) -> Vec<Rule> {
    match frontend.address {
        Some(_) => vec![leading(Rule::new(), frontend, target, environment)],
        None => {
            let beginnings = environment.node.iter().cloned();
            let rules = beginnings.map(|rule| leading(rule, frontend, target, environment));
            rules.collect()
        }
    }
}

/// Completes `rule` to the nat rule of a frontend. For a node port, `rule` must match the node's
/// addresses, or be in a chain that only their packets reach.
pub fn leading(
    rule: Rule,
    frontend: &Frontend,
    target: &Target,
    environment: &Environment,
) -> Rule {
    let protocol = frontend.protocol;
    let rule = match frontend.address {
        Some(ip) => rule.destination(ip),
        None => rule,
    };
    let rule = rule.protocol(protocol);
    let rule = rule.destination_port(protocol, frontend.port);
    let rule = rule.commented(environment.features, plain(&target.name));
    rule.target(match environment.destination {
        Some(ip) => Action::Dnat(SocketAddr::new(ip, target.port)),
        None => Action::Redirect(target.port),
    })
}

/// The filter rule that lets only packets translated to our sockets reach a listener. It refuses
/// with an ICMP error: a reset for a packet of a bridge (br_netfilter) would leave through the
/// bridge with the address of the listener, which the client did not call (`nf_send_reset` of
/// net/ipv4/netfilter/nf_reject_ipv4.c).
pub fn guard(listener: Listener, features: &Features) -> Rule {
    let protocol = listener.protocol;
    let rule = Rule::new().protocol(protocol);
    let rule = rule.destination_port(protocol, listener.port);
    rule.target(match features.contains(Extension::Reject) {
        true => Action::Reject,
        false => Action::Drop,
    })
}

/// The filter rule for packets that nat rules translated.
pub fn translated(environment: &Environment) -> Rule {
    let rule = state(&[CtState::Dnat]);
    let rule = match environment.only_to_ours {
        true => rule.with(Match::TransparentListener),
        false => rule,
    };
    rule.target(Action::Return)
}

fn state(states: &'static [CtState]) -> Rule {
    Rule::new().with(Match::ConnectionState(Negatable::Is(states)))
}

/// The desired contents of the tables, with these chains of ours.
pub fn rule_set(chains: Vec<Chain>, environment: &Environment) -> RuleSet {
    let fixed = |chain: Chain| FixedChain {
        table: chain.table,
        name: chain.name.into(),
        contents: Contents::Exactly(chain.rules),
    };
    let jump = |table, from, rule: Rule| Jump {
        table,
        from,
        rule: rule
            .commented(environment.features, "Tripod: userspace capture")
            .jump(CHAIN),
        place: Place::Top,
    };
    let (value, mask) = (MARK, u32::MAX);
    let own = match environment.features.contains(Extension::Mark) {
        true => Rule::new().with(Match::Mark(Negatable::IsNot(Mark { value, mask }))),
        false => Rule::new(),
    };
    let mut jumps = vec![
        jump(Table::Nat, "PREROUTING", Rule::new()),
        jump(Table::Nat, "OUTPUT", own),
    ];
    if environment.tables().contains(&Table::Filter) {
        jumps.push(jump(Table::Filter, "INPUT", state(STATES)));
        if environment.only_to_ours {
            // The client of a UDP flow keeps sending after the socket at the other end is gone.
            let established = Match::ConnectionState(Negatable::Is(&[CtState::Established]));
            let rule = Rule::new().protocol(Protocol::Udp).with(established);
            let dnat = Match::ConnectionState(Negatable::Is(&[CtState::Dnat]));
            jumps.push(jump(Table::Filter, "INPUT", rule.with(dnat)));
        }
    }
    let chains = chains.into_iter().map(fixed).collect();
    RuleSet { chains, jumps }
}

//! Rules that do not depend on Services.

use xtables::{
    desired::{Contents, FixedChain, Jump, Place, RuleSet},
    extension::Extension,
    rule::{CtState, Match, Negatable, Rule, Table, Target},
};

use super::{Options, names};
use crate::{
    modes::masquerade::{forwarding, marking, masquerading},
    node::Served,
};

/// Counters of nfacct that rules use, those of ServicePorts as well. They must exist before the
/// rules.
pub fn accounts(options: &Options) -> Vec<&'static str> {
    let mut accounts = Vec::new();
    if options.features.contains(Extension::Nfacct) {
        if drops_invalid(options) {
            accounts.push(names::INVALID_DROPPED);
        }
        if options.serves_localhost() {
            accounts.push(names::LOCALHOST_ACCEPTED);
        }
    }
    accounts
}

/// Plans the rules that do not depend on Services: chains, those that ServicePorts share among
/// them, and jumps in the order in which kube-proxy leaves them.
pub fn fixed(options: &Options) -> RuleSet {
    let (chains, jumps) = (chains(options), jumps(options));
    RuleSet { chains, jumps }
}

/// The part of [`fixed`] that keeps neighbours from this node's loopback addresses.
pub fn loopback_guard(options: &Options) -> RuleSet {
    let (mut chains, mut jumps) = (chains(options), jumps(options));
    chains.retain(|chain| chain.name == names::FIREWALL);
    jumps.retain(|jump| jump.rule.leads_to() == Some(names::FIREWALL));
    RuleSet { chains, jumps }
}

fn chains(options: &Options) -> Vec<FixedChain> {
    let shared = |closing| Contents::Shared { closing };
    let mark = options.masquerade_mark;
    let postrouting = masquerading(mark, options.features);
    let filter = [
        (names::EXTERNAL_SERVICES, shared(Vec::new())),
        (names::FIREWALL, Contents::AtLeast(firewall(options))),
        (names::FORWARD, Contents::Exactly(forward(options))),
        (names::NODE_PORTS, shared(Vec::new())),
        (names::PROXY_FIREWALL, shared(Vec::new())),
        (names::SERVICES, shared(Vec::new())),
    ];
    let nat = [
        (names::MARK_MASQ, Contents::Exactly(vec![marking(mark)])),
        (names::POSTROUTING, Contents::Exactly(postrouting.into())),
        (names::NODE_PORTS, shared(Vec::new())),
        (names::SERVICES, shared(to_node_ports(options))),
    ];
    let of = |table, chains: Vec<(&'static str, Contents)>| {
        chains.into_iter().map(move |(name, contents)| FixedChain {
            table,
            name: name.into(),
            contents,
        })
    };
    let canaries = Table::ALL.map(|table| of(table, vec![(names::CANARY, shared(Vec::new()))]));
    let all = canaries.into_iter().flatten();
    all.chain(of(Table::Filter, filter.into()))
        .chain(of(Table::Nat, nat.into()))
        .collect()
}

/// Without this, `route_localnet` would let neighbours reach listeners on this node's loopback
/// (kubernetes issue 90259).
fn firewall(options: &Options) -> Vec<Rule> {
    if !options.serves_localhost() {
        return Vec::new();
    }
    let loopback = options.family.loopback();
    let rule = Rule::new().not_source(loopback).destination(loopback);
    let rule = rule.commented(options.features, "block incoming localnet connections");
    let answers = &[CtState::Related, CtState::Established, CtState::Dnat];
    let rule = rule.with(Match::ConnectionState(Negatable::IsNot(answers)));
    vec![rule.target(Target::Drop)]
}

/// The kernel does not translate packets that connection tracking calls
/// invalid: they would reach the client from an address that it never called,
/// and be answered with a reset (kubernetes issue 74839).
fn drops_invalid(options: &Options) -> bool {
    options.features.contains(Extension::Conntrack) && !options.tcp_be_liberal
}

fn forward(options: &Options) -> Vec<Rule> {
    let mut rules = Vec::new();
    if drops_invalid(options) {
        let invalid = Match::ConnectionState(Negatable::Is(&[CtState::Invalid]));
        let mut rule = Rule::new().with(invalid);
        if options.features.contains(Extension::Nfacct) {
            rule = rule.with(Match::Account(names::INVALID_DROPPED));
        }
        rules.push(rule.target(Target::Drop));
    }
    rules.extend(forwarding(options.masquerade_mark, options.features));
    rules
}

/// Which packets go through a jump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packets {
    All,
    /// Those that begin a connection, where connections are tracked.
    New,
}

fn jumps(options: &Options) -> Vec<Jump> {
    const SERVICES: &str = "kubernetes service portals";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    const FORWARDING: &str = "kubernetes forwarding rules";
    const HEALTH: &str = "kubernetes health check service ports";
    let jump = |table, from, packets: Packets, text: &str, to: &str| {
        let mut rule = Rule::new();
        if packets == Packets::New && options.features.contains(Extension::Conntrack) {
            rule = rule.with(Match::ConnectionState(Negatable::Is(&[CtState::New])));
        }
        if !text.is_empty() {
            rule = rule.commented(options.features, text);
        }
        Jump {
            table,
            from,
            rule: rule.jump(to),
            place: match to {
                // The kubelet's stays where it put it.
                names::FIREWALL => Place::Top,
                _ => Place::InOrder,
            },
        }
    };
    let filter = |from, packets, text, to| jump(Table::Filter, from, packets, text, to);
    let nat = |from, text, to| jump(Table::Nat, from, Packets::All, text, to);
    vec![
        filter("INPUT", Packets::All, "", names::FIREWALL),
        filter("INPUT", Packets::New, FIREWALL, names::PROXY_FIREWALL),
        filter("INPUT", Packets::All, HEALTH, names::NODE_PORTS),
        filter("INPUT", Packets::New, EXTERNAL, names::EXTERNAL_SERVICES),
        filter("FORWARD", Packets::New, FIREWALL, names::PROXY_FIREWALL),
        filter("FORWARD", Packets::All, FORWARDING, names::FORWARD),
        filter("FORWARD", Packets::New, SERVICES, names::SERVICES),
        filter("FORWARD", Packets::New, EXTERNAL, names::EXTERNAL_SERVICES),
        filter("OUTPUT", Packets::All, "", names::FIREWALL),
        filter("OUTPUT", Packets::New, FIREWALL, names::PROXY_FIREWALL),
        filter("OUTPUT", Packets::New, SERVICES, names::SERVICES),
        nat("PREROUTING", SERVICES, names::SERVICES),
        nat("OUTPUT", SERVICES, names::SERVICES),
        nat(
            "POSTROUTING",
            "kubernetes postrouting rules",
            names::POSTROUTING,
        ),
    ]
}

/// Packets to an address of the node that is no Service's may be for a node port. kube-proxy looks
/// up the node's addresses within the networks that serve node ports; here the kernel does
/// (`addrtype`), so that an address that is added or removed needs no new rule.
fn to_node_ports(options: &Options) -> Vec<Rule> {
    let loopback = options.family.loopback();
    let text = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let node_ports = |rule: Rule| rule.commented(options.features, text);
    let rules = match &options.node_ports {
        Served::All => {
            let rule = if options.serves_localhost() {
                Rule::new()
            } else {
                Rule::new().not_destination(loopback)
            };
            options.to_node(node_ports(rule))
        }
        Served::Within(networks) => {
            let mut rules = Vec::new();
            let without_loopback = !options.serves_localhost();
            if without_loopback && networks.iter().any(|network| network.contains(&loopback)) {
                rules.push(Rule::new().destination(loopback).target(Target::Return));
            }
            for network in networks {
                if without_loopback && loopback.contains(network) {
                    continue;
                }
                let rule = node_ports(Rule::new().destination(*network));
                // One address alone, as those of `primary` are, may be of another machine.
                let is_one = network.prefix_len() == network.max_prefix_len();
                let address = network.addr();
                if is_one && (address.is_loopback() || options.is_of_node(address)) {
                    rules.push(rule);
                } else {
                    rules.extend(options.to_node(rule));
                }
            }
            rules
        }
    };
    let with_target = |rule: Rule| match rule.target {
        None => rule.jump(names::NODE_PORTS),
        Some(_) => rule,
    };
    rules.into_iter().map(with_target).collect()
}

//! The rules around the virtual servers. Their number does not depend on the number of Services:
//! everything that grows with Services is in the sets.

use enumset::{EnumSet, enum_set};
use net::{Family, Protocol};
use xtables::{
    desired::{FixedChain, Jump, Place, RuleSet},
    extension::Extension,
    features::Features,
    observed::Interest,
    rule::{CtState, Match, Negatable, Physdev, Rule, Side, Table, Target},
};

use super::{DetectLocal, NodeContext, sets::Set};
use crate::modes::masquerade::{forwarding, marking, masquerading};

/// Which sets of a family have members.
pub type NonEmptySets = EnumSet<Set>;

/// The sets of which only the rules in table mangle keep callers out.
pub const MATCHED_IN_MANGLE: NonEmptySets = enum_set!(Set::NotFromNode);

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const FILTER: &str = "KUBE-IPVS-FILTER";
const OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";
const NOT_FROM_NODE: &str = "TRIPOD-NOT-FROM-NODE";

/// Every chain that ipvs mode ever makes: for clean-up.
const OWN_CHAINS: [(Table, &str); 12] = [
    (Table::Mangle, NOT_FROM_NODE),
    (Table::Filter, FORWARD),
    (Table::Filter, FILTER),
    (Table::Filter, OUT_FILTER),
    (Table::Filter, NODE_PORT),
    (Table::Filter, FIREWALL),
    (Table::Filter, SOURCE_RANGES),
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, NODE_PORT),
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, MARK_MASQ),
];

/// Returns how a chain is compared: those of `OWN_CHAINS` as a whole. Iptables mode
/// has a rule for each port of a Service in a chain of the same name, so no chain's
/// rules are kept.
pub fn interest(table: Table, chain: &str) -> Interest {
    if OWN_CHAINS.contains(&(table, chain)) {
        Interest::Whole
    } else {
        Interest::Foreign
    }
}

/// Plans the rules of `family`, where the `non_empty` sets have members.
pub fn rules(
    family: Family,
    node: &NodeContext,
    features: &Features,
    non_empty: NonEmptySets,
) -> RuleSet {
    let b = Builder {
        family,
        node,
        features,
        non_empty,
    };
    let mark = node.masquerade_mark;
    let mut chains = Vec::with_capacity(OWN_CHAINS.len());
    let mut chain = |table, name, rules| chains.push(FixedChain::exactly(table, name, rules));
    if non_empty.contains(Set::NotFromNode) {
        chain(Table::Mangle, NOT_FROM_NODE, b.not_from_node());
    }
    chain(Table::Filter, FORWARD, forwarding(mark, *features));
    chain(Table::Filter, FILTER, b.filter());
    chain(Table::Filter, OUT_FILTER, Vec::new());
    chain(Table::Filter, NODE_PORT, b.health_checks());
    chain(Table::Filter, FIREWALL, b.firewall());
    chain(Table::Filter, SOURCE_RANGES, b.source_ranges());
    chain(Table::Nat, LOAD_BALANCER, b.load_balancer());
    chain(Table::Nat, MARK_MASQ, vec![marking(mark)]);
    chain(Table::Nat, NODE_PORT, b.node_ports());
    chain(Table::Nat, POSTROUTING, b.postrouting());
    chain(Table::Nat, SERVICES, b.services());
    RuleSet {
        chains,
        jumps: b.jumps(),
    }
}

struct Builder<'a> {
    family: Family,
    node: &'a NodeContext,
    features: &'a Features,
    non_empty: NonEmptySets,
}

impl Builder<'_> {
    /// Returns a rule that so far has a comment only, where the kernel takes one.
    fn commented(&self, text: &str) -> Rule {
        Rule::new().commented(*self.features, text)
    }

    /// Matches packets to (and, where the set has a second address, from)
    /// members of `set`.
    fn in_set(&self, rule: Rule, set: Set) -> Rule {
        // A second address is the other end's.
        let all = [Side::Destination, Side::Destination, Side::Source];
        let sides = all.into_iter().take(set.kind().dimensions()).collect();
        self.match_set(rule, set, sides)
    }

    fn match_set(&self, rule: Rule, set: Set, sides: Vec<Side>) -> Rule {
        rule.with(Match::Set {
            name: set.name(self.family).to_owned(),
            sides,
        })
    }

    /// Returns a rule with the comment and match for `set`, if it has members.
    fn matching(&self, set: Set) -> Option<Rule> {
        let rule = || self.in_set(self.commented(set.comment()), set);
        self.non_empty.contains(set).then(rule)
    }

    /// Plans rules for virtual servers that this node itself must not call, before IPVS changes the
    /// destination (its hook in LOCAL_OUT comes after mangle's). The node calls an address of the
    /// dummy link from that very address: then the source ranges leave out the node, even if the
    /// address is in them.
    fn not_from_node(&self) -> Vec<Rule> {
        let set = Set::NotFromNode;
        let called = || self.in_set(self.commented(set.comment()), set);
        let from_service_ip = self.match_set(called(), Set::ServiceIps, vec![Side::Source]);
        let admitted = self.matching(Set::SourceCidr);
        [
            Some(from_service_ip.target(Target::Drop)),
            admitted.map(|rule| rule.target(Target::Return)),
            Some(called().target(Target::Drop)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Keeps clients from reaching other listeners of the node through addresses of Services
    /// (kubernetes issue 72236).
    fn filter(&self) -> Vec<Rule> {
        let served = [
            Set::LoadBalancer,
            Set::ClusterIp,
            Set::ExternalIp,
            Set::ExternalIpLocal,
            Set::HealthCheckNodePort,
        ];
        let mut rules: Vec<Rule> = served
            .map(|set| self.in_set(Rule::new(), set).target(Target::Return))
            .into();
        let new = Rule::new().with(Match::ConnectionState(Negatable::Is(&[CtState::New])));
        let refused = if self.features.contains(Extension::Reject) {
            Target::Reject
        } else {
            Target::Drop
        };
        rules.push(self.in_set(new, Set::ServiceIps).target(refused));
        rules
    }

    fn health_checks(&self) -> Vec<Rule> {
        let set = Set::HealthCheckNodePort;
        let rule = self.in_set(self.commented(set.comment()), set);
        vec![rule.target(Target::Accept)]
    }

    fn firewall(&self) -> Vec<Rule> {
        let guarded = self.matching(Set::Firewall);
        guarded
            .map(|rule| rule.jump(SOURCE_RANGES))
            .into_iter()
            .collect()
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = [Set::SourceCidr, Set::SourceIp]
            .into_iter()
            .filter_map(|set| Some(self.matching(set)?.target(Target::Return)))
            .collect();
        rules.push(Rule::new().target(Target::Drop));
        rules
    }

    fn load_balancer(&self) -> Vec<Rule> {
        let local = self.matching(Set::LoadBalancerLocal);
        let spared = local.map(|rule| rule.target(Target::Return));
        spared
            .into_iter()
            .chain([Rule::new().jump(MARK_MASQ)])
            .collect()
    }

    fn node_ports(&self) -> Vec<Rule> {
        let of = |set, transport, target| {
            let rule = self.matching(set)?;
            Some(rule.protocol(transport).target(target))
        };
        let masquerade = || Target::Jump(MARK_MASQ.to_owned());
        [
            of(Set::NodePortLocalTcp, Protocol::Tcp, Target::Return),
            of(Set::NodePortTcp, Protocol::Tcp, masquerade()),
            of(Set::NodePortLocalUdp, Protocol::Udp, Target::Return),
            of(Set::NodePortUdp, Protocol::Udp, masquerade()),
            of(Set::NodePortLocalSctp, Protocol::Sctp, Target::Return),
            of(Set::NodePortSctp, Protocol::Sctp, masquerade()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn postrouting(&self) -> Vec<Rule> {
        let random_fully = false;
        let hairpin = self.matching(Set::LoopBack);
        let hairpin = hairpin.map(|rule| rule.target(Target::Masquerade { random_fully }));
        let rest = masquerading(self.node.masquerade_mark, *self.features);
        hairpin.into_iter().chain(rest).collect()
    }

    fn services(&self) -> Vec<Rule> {
        let loopback = self.family.loopback();
        let mut rules = vec![Rule::new().source(loopback).target(Target::Return)];
        rules.extend(self.matching(Set::Direct).map(|r| r.target(Target::Accept)));
        rules.extend(self.matching(Set::FullNat).map(|r| r.jump(MARK_MASQ)));
        rules.extend(
            self.matching(Set::LoadBalancer)
                .map(|r| r.jump(LOAD_BALANCER)),
        );
        rules.extend(self.cluster_ips());
        if let Some(rule) = self.matching(Set::ExternalIp) {
            rules.push(rule.clone().jump(MARK_MASQ));
            rules.extend(self.accept_at_both_ends(rule));
        }
        if let Some(rule) = self.matching(Set::ExternalIpLocal) {
            rules.extend(self.accept_at_both_ends(rule));
        }
        rules.push(
            Rule::new()
                .with(Match::LocalAddress(Negatable::Is(Side::Destination)))
                .jump(NODE_PORT),
        );
        // Other rules of nat must not translate packets for IPVS.
        for set in [Set::ClusterIp, Set::LoadBalancer] {
            if self.non_empty.contains(set) {
                rules.push(self.in_set(Rule::new(), set).target(Target::Accept));
            }
        }
        rules
    }

    /// Masquerades clients outside the cluster that call a cluster IP.
    fn cluster_ips(&self) -> Option<Rule> {
        let set = Set::ClusterIp;
        let to = || self.matching(set);
        let rule = match self.node.detect_local.get(self.family) {
            _ if self.node.masquerade_all => to()?,
            DetectLocal::Within(pods) => to()?.not_source(*pods),
            DetectLocal::Through(link) => to()?.not_input(link.as_str()),
            // At least the node's own calls, which have the cluster IP as source.
            DetectLocal::Unknown => {
                let commented = self.commented(set.comment());
                let called = self.match_set(commented, set, vec![Side::Source, Side::Destination]);
                self.non_empty.contains(set).then_some(called)?
            }
        };
        Some(rule.jump(MARK_MASQ))
    }

    /// Ends the way through nat for packets of other hosts, and for those that are for
    /// this one.
    fn accept_at_both_ends(&self, rule: Rule) -> Vec<Rule> {
        let mut outside = rule.clone();
        if self.features.contains(Extension::Physdev) {
            outside = outside.with(Match::Physdev(Negatable::IsNot(Physdev::IsIn)));
        }
        vec![
            outside
                .with(Match::LocalAddress(Negatable::IsNot(Side::Source)))
                .target(Target::Accept),
            rule.with(Match::LocalAddress(Negatable::Is(Side::Destination)))
                .target(Target::Accept),
        ]
    }

    /// Returns the jumps in the order from top to bottom that kube-proxy leaves.
    fn jumps(&self) -> Vec<Jump> {
        let jump = |table, from, comment, to: &'static str| Jump {
            table,
            from,
            rule: self.commented(comment).jump(to),
            place: Place::InOrder,
        };
        let (filter, nat) = (Table::Filter, Table::Nat);
        let services = "kubernetes service portals";
        let access = "kubernetes ipvs access filter";
        let firewall = "kube-proxy firewall rules";
        let mut jumps = vec![
            jump(filter, "INPUT", access, FILTER),
            jump(filter, "INPUT", firewall, FIREWALL),
            jump(filter, "INPUT", "kubernetes health check rules", NODE_PORT),
            jump(filter, "FORWARD", firewall, FIREWALL),
            jump(filter, "FORWARD", "kubernetes forwarding rules", FORWARD),
            jump(filter, "OUTPUT", access, OUT_FILTER),
            jump(nat, "PREROUTING", services, SERVICES),
            jump(nat, "OUTPUT", services, SERVICES),
            jump(
                nat,
                "POSTROUTING",
                "kubernetes postrouting rules",
                POSTROUTING,
            ),
        ];
        if self.non_empty.contains(Set::NotFromNode) {
            jumps.push(jump(Table::Mangle, "OUTPUT", access, NOT_FROM_NODE));
        }
        jumps
    }
}

//! The rules around the virtual servers. Their number does not depend on how
//! many Services there are: what does is in the sets.

use super::{DetectLocal, options::Site, sets::Set};
use crate::{
    kernel::xtables::{
        features::Features,
        rule::{Match, Negatable, Physdev, Rule, Side, Table, Target, Transport},
    },
    net::Family,
};

/// Which sets of a family have members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filled(u32);

impl Filled {
    /// Notes that `set` has members.
    pub fn insert(&mut self, set: Set) {
        self.0 |= 1 << set as u32;
    }

    /// Whether `set` has members.
    pub fn contains(self, set: Set) -> bool {
        self.0 & (1 << set as u32) != 0
    }

    /// Those that have members in both.
    pub fn and(self, other: Filled) -> Filled {
        Filled(self.0 & other.0)
    }

    /// Whether those of `other` are among these.
    pub fn covers(self, other: Filled) -> bool {
        self.and(other) == other
    }

    /// Those that have members in either.
    pub fn or(self, other: Filled) -> Filled {
        Filled(self.0 | other.0)
    }
}

impl FromIterator<Set> for Filled {
    fn from_iter<I: IntoIterator<Item = Set>>(sets: I) -> Filled {
        let mut filled = Filled::default();
        sets.into_iter().for_each(|set| filled.insert(set));
        filled
    }
}

/// A chain of ours with all its rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: &'static str,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// A jump from one of the kernel's chains to one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Jump {
    /// Table of both.
    pub table: Table,
    /// The kernel's chain.
    pub from: &'static str,
    /// Ours.
    pub to: &'static str,
    /// The whole rule.
    pub rule: Rule,
}

/// What one family's tables are to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Every chain of ours, those of one table together.
    pub chains: Vec<Chain>,
    /// In the order from top to bottom that kube-proxy leaves. One that is
    /// missing goes to the top of its chain.
    pub jumps: Vec<Jump>,
}

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
pub const OWN_CHAINS: [(Table, &str); 12] = [
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

/// The rules of `family`, for sets of which those `filled` have members.
pub fn rules(family: Family, site: &Site, features: &Features, filled: Filled) -> Rules {
    let b = Builder {
        family,
        site,
        features,
        filled,
    };
    let mut chains = Vec::with_capacity(OWN_CHAINS.len());
    let mut chain = |table, name, rules| chains.push(Chain { table, name, rules });
    if filled.contains(Set::NotFromNode) {
        chain(Table::Mangle, NOT_FROM_NODE, b.not_from_node());
    }
    chain(Table::Filter, FORWARD, b.forward());
    chain(Table::Filter, FILTER, b.filter());
    chain(Table::Filter, OUT_FILTER, Vec::new());
    chain(Table::Filter, NODE_PORT, b.health_checks());
    chain(Table::Filter, FIREWALL, b.firewall());
    chain(Table::Filter, SOURCE_RANGES, b.source_ranges());
    chain(Table::Nat, LOAD_BALANCER, b.load_balancer());
    chain(Table::Nat, MARK_MASQ, vec![b.mark()]);
    chain(Table::Nat, NODE_PORT, b.node_ports());
    chain(Table::Nat, POSTROUTING, b.postrouting());
    chain(Table::Nat, SERVICES, b.services());
    Rules {
        chains,
        jumps: b.jumps(),
    }
}

struct Builder<'a> {
    family: Family,
    site: &'a Site,
    features: &'a Features,
    filled: Filled,
}

impl Builder<'_> {
    fn note(&self, text: &str) -> Rule {
        match self.features.comment {
            true => Rule::new().comment(text),
            false => Rule::new(),
        }
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

    /// Comment and match for `set`, if it has members.
    fn of(&self, set: Set) -> Option<Rule> {
        let noted = || self.in_set(self.note(set.comment()), set);
        self.filled.contains(set).then(noted)
    }

    fn mark(&self) -> Rule {
        let mark = self.site.masquerade_mark;
        Rule::new().target(Target::Mark {
            value: mark,
            mask: mark,
        })
    }

    /// What this node itself must not call, before IPVS changes the
    /// destination (its hook in LOCAL_OUT comes after mangle's). The node calls
    /// an address of the dummy link from that very address: then it is the node
    /// that the source ranges leave out, even if the address is in them.
    fn not_from_node(&self) -> Vec<Rule> {
        let set = Set::NotFromNode;
        let called = || self.in_set(self.note(set.comment()), set);
        let from_service_ip = self.match_set(called(), Set::ServiceIps, vec![Side::Source]);
        let admitted = self.of(Set::SourceCidr);
        [
            Some(from_service_ip.target(Target::Drop)),
            admitted.map(|rule| rule.target(Target::Return)),
            Some(called().target(Target::Drop)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn forward(&self) -> Vec<Rule> {
        let mark = self.site.masquerade_mark;
        vec![
            self.note("kubernetes forwarding rules")
                .with(Match::Mark(Negatable::is((mark, mark))))
                .target(Target::Accept),
            self.note("kubernetes forwarding conntrack rule")
                .with(Match::ConnectionState(Negatable::is("RELATED,ESTABLISHED")))
                .target(Target::Accept),
        ]
    }

    /// Keeps what listens on the node from being reached through addresses of
    /// Services (kubernetes issue 72236).
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
        let new = Rule::new().with(Match::ConnectionState(Negatable::is("NEW")));
        let refused = match self.features.reject {
            true => Target::Reject,
            false => Target::Drop,
        };
        rules.push(self.in_set(new, Set::ServiceIps).target(refused));
        rules
    }

    fn health_checks(&self) -> Vec<Rule> {
        let set = Set::HealthCheckNodePort;
        let rule = self.in_set(self.note(set.comment()), set);
        vec![rule.target(Target::Accept)]
    }

    fn firewall(&self) -> Vec<Rule> {
        let guarded = self.of(Set::Firewall);
        guarded
            .map(|rule| rule.jump(SOURCE_RANGES))
            .into_iter()
            .collect()
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = [Set::SourceCidr, Set::SourceIp]
            .into_iter()
            .filter_map(|set| Some(self.of(set)?.target(Target::Return)))
            .collect();
        rules.push(Rule::new().target(Target::Drop));
        rules
    }

    fn load_balancer(&self) -> Vec<Rule> {
        let local = self.of(Set::LoadBalancerLocal);
        let spared = local.map(|rule| rule.target(Target::Return));
        spared
            .into_iter()
            .chain([Rule::new().jump(MARK_MASQ)])
            .collect()
    }

    fn node_ports(&self) -> Vec<Rule> {
        let of = |set, transport, target| {
            let rule: Rule = self.of(set)?;
            Some(rule.protocol(transport).target(target))
        };
        let masquerade = || Target::Jump(MARK_MASQ.to_owned());
        [
            of(Set::NodePortLocalTcp, Transport::Tcp, Target::Return),
            of(Set::NodePortTcp, Transport::Tcp, masquerade()),
            of(Set::NodePortLocalUdp, Transport::Udp, Target::Return),
            of(Set::NodePortUdp, Transport::Udp, masquerade()),
            of(Set::NodePortLocalSctp, Transport::Sctp, Target::Return),
            of(Set::NodePortSctp, Transport::Sctp, masquerade()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn postrouting(&self) -> Vec<Rule> {
        let mark = self.site.masquerade_mark;
        let hairpin = self.of(Set::LoopBack).map(|rule| {
            rule.target(Target::Masquerade {
                random_fully: false,
            })
        });
        let rest = [
            Rule::new()
                .with(Match::Mark(Negatable::is_not((mark, mark))))
                .target(Target::Return),
            // A packet that comes by again must not be masqueraded again.
            Rule::new().target(Target::Mark {
                value: mark,
                mask: 0,
            }),
            self.note("kubernetes service traffic requiring SNAT")
                .target(Target::Masquerade {
                    random_fully: self.features.random_fully,
                }),
        ];
        hairpin.into_iter().chain(rest).collect()
    }

    fn services(&self) -> Vec<Rule> {
        let loopback: ipnet::IpNet = match self.family {
            Family::V4 => ipnet::Ipv4Net::new_assert([127, 0, 0, 0].into(), 8).into(),
            Family::V6 => std::net::IpAddr::from(std::net::Ipv6Addr::LOCALHOST).into(),
        };
        let mut rules = vec![Rule::new().source(loopback).target(Target::Return)];
        rules.extend(self.of(Set::Direct).map(|r| r.target(Target::Accept)));
        rules.extend(self.of(Set::FullNat).map(|r| r.jump(MARK_MASQ)));
        rules.extend(self.of(Set::LoadBalancer).map(|r| r.jump(LOAD_BALANCER)));
        rules.extend(self.cluster_ips());
        if let Some(rule) = self.of(Set::ExternalIp) {
            rules.push(rule.clone().jump(MARK_MASQ));
            rules.extend(self.spare_elsewhere(rule));
        }
        if let Some(rule) = self.of(Set::ExternalIpLocal) {
            rules.extend(self.spare_elsewhere(rule));
        }
        rules.push(
            Rule::new()
                .with(Match::LocalAddress(Negatable::is(Side::Destination)))
                .jump(NODE_PORT),
        );
        // Other rules of nat must not lead away what IPVS is to get.
        for set in [Set::ClusterIp, Set::LoadBalancer] {
            if self.filled.contains(set) {
                rules.push(self.in_set(Rule::new(), set).target(Target::Accept));
            }
        }
        rules
    }

    /// Masquerades who calls a cluster IP from outside the cluster.
    fn cluster_ips(&self) -> Option<Rule> {
        let set = Set::ClusterIp;
        let to = || self.of(set);
        let rule = match self.site.detect_local.get(self.family) {
            _ if self.site.masquerade_all => to()?,
            DetectLocal::Within(pods) => to()?.not_source(*pods),
            DetectLocal::Through(link) => to()?.not_input(link.as_str()),
            // At least who calls from the node, with the cluster IP as source.
            DetectLocal::Unknown => {
                let noted = self.note(set.comment());
                let called = self.match_set(noted, set, vec![Side::Source, Side::Destination]);
                self.filled.contains(set).then_some(called)?
            }
        };
        Some(rule.jump(MARK_MASQ))
    }

    /// What comes from another host, and what is for this one, needs no more
    /// rules of nat.
    fn spare_elsewhere(&self, rule: Rule) -> Vec<Rule> {
        let mut outside = rule.clone();
        if self.features.physdev {
            outside = outside.with(Match::Physdev(Negatable::is_not(Physdev::IsIn)));
        }
        vec![
            outside
                .with(Match::LocalAddress(Negatable::is_not(Side::Source)))
                .target(Target::Accept),
            rule.with(Match::LocalAddress(Negatable::is(Side::Destination)))
                .target(Target::Accept),
        ]
    }

    fn jumps(&self) -> Vec<Jump> {
        let jump = |table, from, note, to: &'static str| Jump {
            table,
            from,
            to,
            rule: self.note(note).jump(to),
        };
        let (filter, nat) = (Table::Filter, Table::Nat);
        let portals = "kubernetes service portals";
        let access = "kubernetes ipvs access filter";
        let firewall = "kube-proxy firewall rules";
        let mut jumps = vec![
            jump(filter, "INPUT", access, FILTER),
            jump(filter, "INPUT", firewall, FIREWALL),
            jump(filter, "INPUT", "kubernetes health check rules", NODE_PORT),
            jump(filter, "FORWARD", firewall, FIREWALL),
            jump(filter, "FORWARD", "kubernetes forwarding rules", FORWARD),
            jump(filter, "OUTPUT", access, OUT_FILTER),
            jump(nat, "PREROUTING", portals, SERVICES),
            jump(nat, "OUTPUT", portals, SERVICES),
            jump(
                nat,
                "POSTROUTING",
                "kubernetes postrouting rules",
                POSTROUTING,
            ),
        ];
        if self.filled.contains(Set::NotFromNode) {
            let note = "kubernetes ipvs access filter";
            jumps.push(jump(Table::Mangle, "OUTPUT", note, NOT_FROM_NODE));
        }
        jumps
    }
}

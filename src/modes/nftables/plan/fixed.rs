//! Chains and rules that do not depend on ServicePorts.

use ipnet::IpNet;
use net::{Family, Protocol};
use nftables::{
    Chain, ChainType, Ct, Element, Field, Hook, MarkValue, Meta, Reject, Rule, Statement, Test,
    Value, Verdict, concat,
};

use super::{
    Options, Sets, counting,
    frontend::{Called, Role},
    matches::{
        STATE_INVALID, STATE_NEW, STATUS_DNAT, Side, is_local, is_nodes_own, is_untranslated,
        of_protocol,
    },
    sets::{self, SetId},
};
use crate::kernel::probe::NftPart;

/// Hook priority for translating destinations: just before others do (`NF_IP_PRI_NAT_DST`), so that
/// new connections are translated here as soon as the table is there, even while rules of another
/// mode or proxy are still active.
const DNAT: i32 = -101;
/// Where sources are translated (`NF_IP_PRI_NAT_SRC`).
const SNAT: i32 = 100;
/// After destinations were translated: packets that still have a service address are refused.
pub(super) const FILTER: i32 = -90;
const SERVICES: &str = "services";
const REFUSE: &str = "refuse";
/// Refuses packets to cluster IPs at which nothing is served, if [`Options::delivers`].
const REFUSE_UNSERVED: &str = "refuse-unserved";
const REFUSE_NODE_PORTS: &str = "refuse-node-ports";
/// The chain with one rule for each protocol of [`Options::refused_on_loopback`], in its order,
/// which counts the refused packets.
pub const REFUSE_ON_LOOPBACK: &str = "refuse-on-loopback";
const FROM_CLUSTER: &str = "from-cluster";
const NODE_PORTS_FROM_CLUSTER: &str = "node-ports-from-cluster";

/// Where packets to addresses with an external policy of Local go.
pub(super) const BY_CALLER: &str = "by-caller";
/// The same for node ports.
pub(super) const NODE_PORTS_BY_CALLER: &str = "node-ports-by-caller";

/// Chains with their rules, each after those to which it jumps, and the elements of
/// sets that no ServicePort adds to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Chains with their rules.
    pub chains: Vec<(Chain, Vec<Rule>)>,
    /// Elements of sets that no ServicePort adds to.
    pub elements: Vec<(SetId, Element)>,
}

/// Plans the chains that do not depend on ServicePorts.
pub fn fixed(options: &Options, sets: &Sets) -> Fixed {
    let plan = Plan {
        options,
        sets,
        family: options.family,
    };
    let node_ports = options.node_ports.iter().flatten();
    let node_ports = node_ports.map(|network| (SetId::NodePortAddresses, range(network)));
    let services = options.service_cidrs.iter();
    let services = services.map(|network| (SetId::ServiceCidrs, range(network)));
    let named = options.node_addresses.iter();
    let own = named
        .filter(|_| !options.features.contains(NftPart::Fib))
        .map(|ip| {
            let element = Element::new(concat(&[Value::Ip(*ip)]));
            (SetId::NodeAddresses, element)
        });
    Fixed {
        chains: plan.chains(),
        elements: node_ports.chain(services).chain(own).collect(),
    }
}

/// Returns the element with all addresses of `network`.
fn range(network: &IpNet) -> Element {
    let ends = [network.network(), network.broadcast()].map(|ip| concat(&[Value::Ip(ip)]));
    let [first, last] = ends;
    let end = (first != last).then(|| last.into());
    Element {
        end,
        ..Element::new(first)
    }
}

/// Lets through packets of this node that are delivered to a socket of it.
fn is_delivered() -> Rule {
    let loopback = Test::Is(Value::Name("lo".to_owned()).octets());
    Rule::new([
        Statement::Match(Field::Meta(Meta::OutputName), loopback),
        Statement::Verdict(Verdict::Return),
    ])
}

struct Plan<'a> {
    options: &'a Options,
    sets: &'a Sets,
    family: Family,
}

impl Plan<'_> {
    fn chains(&self) -> Vec<(Chain, Vec<Rule>)> {
        let jump = |chain: &str| Rule::new([Statement::Verdict(Verdict::Jump(chain.into()))]);
        let is_new = || Statement::Match(Field::Ct(Ct::State, None), Test::Any(STATE_NEW));
        let new =
            |chain: &str| Rule::new([is_new(), Statement::Verdict(Verdict::Jump(chain.into()))]);
        let nat = |name, hook, priority| Chain::base(name, ChainType::Nat, hook, priority);
        let filter = |name, hook| Chain::base(name, ChainType::Filter, hook, FILTER);
        let mut chains = Vec::new();
        let mut forward = self.drops_invalid();
        forward.push(new(REFUSE));
        let mut output = vec![new(REFUSE)];
        if self.options.delivers {
            forward.push(new(REFUSE_UNSERVED));
            output.push(new(REFUSE_UNSERVED));
            let mut rules = vec![is_delivered()];
            rules.extend(self.refuse_unserved());
            chains.push((Chain::new(REFUSE_UNSERVED), rules));
        }
        output.push(new(REFUSE_NODE_PORTS));
        let mut input = vec![new(REFUSE), new(REFUSE_NODE_PORTS)];
        let on_loopback = self.refuse_on_loopback();
        if !on_loopback.is_empty() {
            let jump = Statement::Verdict(Verdict::Jump(REFUSE_ON_LOOPBACK.into()));
            input.push(Rule::new([is_new(), self.is_to_loopback(), jump]));
            chains.push((Chain::new(REFUSE_ON_LOOPBACK), on_loopback));
        }
        chains.extend([
            (
                Chain::new(FROM_CLUSTER),
                vec![self.look_up(Role::FromCluster, Called::Address)],
            ),
            (
                Chain::new(NODE_PORTS_FROM_CLUSTER),
                vec![self.look_up(Role::FromCluster, Called::NodePort)],
            ),
            (
                Chain::new(BY_CALLER),
                self.by_caller(
                    FROM_CLUSTER,
                    self.look_up(Role::FromOutside, Called::Address),
                ),
            ),
            (
                Chain::new(NODE_PORTS_BY_CALLER),
                self.by_caller(
                    NODE_PORTS_FROM_CLUSTER,
                    self.look_up(Role::FromOutside, Called::NodePort),
                ),
            ),
            (Chain::new(SERVICES), self.services()),
            (Chain::new(REFUSE), self.refuse()),
            (Chain::new(REFUSE_NODE_PORTS), self.refuse_node_ports()),
            (filter("filter-output", Hook::Output), output),
            (filter("filter-forward", Hook::Forward), forward),
            (filter("filter-input", Hook::Input), input),
            (
                nat("postrouting", Hook::Postrouting, SNAT),
                self.postrouting(),
            ),
            (
                nat("prerouting", Hook::Prerouting, DNAT),
                vec![jump(SERVICES)],
            ),
            (nat("output", Hook::Output, DNAT), vec![jump(SERVICES)]),
        ]);
        chains.extend(counting::chains(self.options, self.sets));
        chains
    }

    fn look_up(&self, role: Role, called: Called) -> Rule {
        Rule::new([self.verdict(role, called)])
    }

    fn verdict(&self, role: Role, called: Called) -> Statement {
        let map = self.sets.get(SetId::Of(role, called));
        Statement::VerdictMap(sets::fields(called, self.family), (&**map).into())
    }

    fn contained(&self, key: Vec<Field>, id: SetId) -> Statement {
        Statement::In(key, (&**self.sets.get(id)).into())
    }

    fn refused(&self, called: Called) -> Statement {
        let key = sets::fields(called, self.family);
        self.contained(key, SetId::Of(Role::Refused, called))
    }

    /// Packets that are not let through are dropped before anything is translated.
    fn services(&self) -> Vec<Rule> {
        let service = sets::fields(Called::Address, self.family);
        let mut caller = service.clone();
        caller.push(Field::SourceAddress(self.family));
        let ranges = (&**self.sets.get(SetId::SourceRanges)).into();
        let forbidden = Rule::new([
            self.contained(service, SetId::Filtered),
            Statement::NotIn(caller, ranges),
            Statement::Verdict(Verdict::Drop),
        ]);
        let mut to_node = self.to_node();
        to_node.push(self.verdict(Role::All, Called::NodePort));
        vec![
            forbidden.commented("loadBalancerSourceRanges"),
            self.look_up(Role::All, Called::Address),
            Rule::new(to_node).commented("node ports"),
        ]
    }

    /// Matches packets to the node's addresses that serve node ports; never loopback, which the
    /// kernel does not translate.
    fn to_node(&self) -> Vec<Statement> {
        let destination = Field::DestinationAddress(self.family);
        let loopback = self.family.loopback();
        let not_loopback = Test::NotPrefix(loopback.addr(), loopback.prefix_len());
        let mut statements = vec![Statement::Match(destination.clone(), not_loopback)];
        if self.options.node_ports.is_some() {
            statements.push(self.contained(vec![destination], SetId::NodePortAddresses));
        }
        statements.push(is_nodes_own(Side::Destination, self.options, self.sets));
        statements
    }

    fn by_caller(&self, from_cluster: &str, others: Rule) -> Vec<Rule> {
        let goto = || Statement::Verdict(Verdict::Goto(from_cluster.into()));
        let mut rules = inside(self.options, self.sets, goto);
        rules.push(others);
        rules
    }

    fn reject(&self) -> Statement {
        reject(self.options)
    }

    /// An external IP may be the address of another Service's endpoint: what was translated to that
    /// is not refused.
    fn refuse(&self) -> Vec<Rule> {
        let refused = self.refused(Called::Address);
        let mut rules = vec![Rule::new([is_untranslated(), refused, self.reject()])];
        if !self.options.delivers {
            rules.extend(self.refuse_unserved());
        }
        rules
    }

    /// Packets to cluster IPs that nothing translated, and that no socket of this node gets.
    fn refuse_unserved(&self) -> Vec<Rule> {
        let address = || vec![Field::DestinationAddress(self.family)];
        let mut rules = vec![Rule::new([
            self.contained(address(), SetId::ClusterIps),
            self.reject(),
        ])];
        if !self.options.service_cidrs.is_empty() {
            let unallocated = Rule::new([
                self.contained(address(), SetId::ServiceCidrs),
                Statement::Verdict(Verdict::Drop),
            ]);
            rules.push(unallocated.commented("cluster IPs that no Service has"));
        }
        rules
    }

    fn refuse_node_ports(&self) -> Vec<Rule> {
        let mut statements = vec![is_untranslated()];
        statements.extend(self.to_node());
        statements.push(self.refused(Called::NodePort));
        statements.push(self.reject());
        vec![Rule::new(statements)]
    }

    fn is_to_loopback(&self) -> Statement {
        let loopback = self.family.loopback();
        let within = Test::Prefix(loopback.addr(), loopback.prefix_len());
        Statement::Match(Field::DestinationAddress(self.family), within)
    }

    /// Without these rules a program that listens there would get packets for the Service. An ICMP
    /// error would reach a TCP client only on its second attempt: at the first its socket is locked
    /// (`tcp_v4_err`).
    fn refuse_on_loopback(&self) -> Vec<Rule> {
        let rule = |protocol: &Protocol| {
            let counts = self.options.features.contains(NftPart::Counters);
            let matches = [
                of_protocol(*protocol),
                self.contained(
                    sets::fields(Called::NodePort, self.family),
                    SetId::LoopbackNodePorts,
                ),
            ];
            let counter = counts.then_some(Statement::Counter);
            let refusal = match protocol {
                Protocol::Tcp => reject_with(self.options, Reject::TcpReset),
                Protocol::Udp | Protocol::Sctp => self.reject(),
            };
            Rule::new(matches.into_iter().chain(counter).chain([refusal]))
        };
        let protocols = self.options.refused_on_loopback.iter();
        protocols.map(rule).collect()
    }

    /// The kernel does not translate packets that connection tracking calls
    /// invalid: they would reach the client from an address that it never called,
    /// and be answered with a reset (kubernetes issue 74839).
    fn drops_invalid(&self) -> Vec<Rule> {
        if self.options.tcp_be_liberal {
            return Vec::new();
        }
        let invalid = Statement::Match(Field::Ct(Ct::State, None), Test::Any(STATE_INVALID));
        vec![Rule::new([invalid, Statement::Verdict(Verdict::Drop)])]
    }

    /// A packet may pass here again, decapsulated or encrypted, and must not be
    /// masqueraded twice.
    fn postrouting(&self) -> Vec<Rule> {
        let mark = self.options.masquerade_mark;
        let marked = Field::Masked(Box::new(Field::Meta(Meta::Mark)), mark);
        let masquerade = Statement::Masquerade;
        let to_itself = vec![
            Field::SourceAddress(self.family),
            Field::DestinationAddress(self.family),
        ];
        vec![
            Rule::new([
                Statement::Match(marked, Test::Is(mark.to_ne_bytes().to_vec())),
                Statement::SetMark(MarkValue::Xor(mark)),
                masquerade.clone(),
            ])
            .commented("kubernetes service traffic requiring SNAT"),
            Rule::new([
                Statement::Match(Field::Ct(Ct::Status, None), Test::Any(STATUS_DNAT)),
                self.contained(to_itself, SetId::Hairpin),
                masquerade,
            ])
            .commented("endpoints that call themselves"),
        ]
    }
}

/// Returns rules for pods here and the node itself, which do not count as outside: to them an external
/// policy is Cluster, as if the call had gone out to the load balancer and come back.
pub(super) fn inside(options: &Options, sets: &Sets, goto: impl Fn() -> Statement) -> Vec<Rule> {
    let pods = is_local(&options.detect_local, options.family);
    let mark = MarkValue::Or(options.masquerade_mark);
    let node = Rule::new([
        is_nodes_own(Side::Source, options, sets),
        Statement::SetMark(mark),
        goto(),
    ]);
    let pods = pods.map(|pods| Rule::new([pods, goto()]));
    let pods = pods.map(|rule| rule.commented("pods of this node"));
    pods.into_iter()
        .chain([node.commented("the node itself")])
        .collect()
}

pub(super) fn reject(options: &Options) -> Statement {
    reject_with(options, Reject::PortUnreachable(options.family))
}

fn reject_with(options: &Options, answer: Reject) -> Statement {
    if options.features.contains(NftPart::Reject) {
        Statement::Reject(answer)
    } else {
        Statement::Verdict(Verdict::Drop)
    }
}

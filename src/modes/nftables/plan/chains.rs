//! Chains that ServicePorts share, one for each number of slots and the like: their
//! number depends on the kinds of ServicePorts, not on how many ServicePorts there are.

use std::{iter::repeat_n, sync::Arc, time::Duration};

use super::{
    Options, Sets,
    sets::{self, SetId},
    slots::LOCAL,
};
use crate::{
    kernel::{
        nftables::{
            Chain, ChainType, Ct, Direction, Dynset, DynsetOp, Field, Hook, Jhash, Mark, MarkValue,
            Meta, Numgen, Rule, Statement, Target, Test, Value, Verdict,
        },
        probe::NftPart,
    },
    modes::detect_local::DetectLocal,
    net::{Family, Protocol},
};

/// Bits of a connection's state and of its status (`enum ip_conntrack_info` and
/// `enum ip_conntrack_status`).
pub(super) const STATE_INVALID: u32 = 1;
pub(super) const STATE_NEW: u32 = 8;
pub(super) const STATUS_CONFIRMED: u32 = 8;
pub(super) const STATUS_DNAT: u32 = 32;

/// Just after the kernel translated destinations (`NF_IP_PRI_NAT_DST`).
pub(super) const AFTER_DNAT: i32 = -99;

/// The seed of the first draw by a hash; each further draw has the next number. Any
/// numbers will do except 0, for which the kernel would take a random one.
const SEED: u32 = 0x7472_6970;

/// The chains to which [`Remember`](SharedChain::Remember) belongs.
const REMEMBER: &str = "remember";

/// A chain that ServicePorts share, and that is there while one needs it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedChain {
    /// Chooses an endpoint.
    Pick(Pick),
    /// Remembers for that time where a client was sent.
    Remember(Duration),
    /// Sends new connections of clients that stay on their endpoint to the chains above.
    RememberHooks,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    /// Number of slots among which one is drawn. Some of them may have no endpoint, unless they are
    /// taken in turn.
    pub slots: u32,
    /// Endpoints among which it chooses: all, or those on this node.
    pub from: Endpoints,
    /// Kind of address that the client called.
    pub called: Called,
    /// Callers whose source address is translated.
    pub masquerade: Masquerade,
    /// Whether clients stay on their endpoint.
    pub affinity: bool,
    /// By what a slot is chosen.
    pub scheduler: Scheduler,
}

/// Which slots of an address are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoints {
    /// The first slots, those of all endpoints.
    All,
    /// Those of endpoints on this node, where the address has others, too.
    Local,
}

/// Kind of address that a client called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Called {
    /// A service address.
    Address,
    /// A node port.
    NodePort,
}

/// Which callers' source is translated to the node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Masquerade {
    /// The source of no caller is translated.
    None,
    /// The sources of callers other than this node's pods are translated.
    NotLocal,
    /// The source of every caller is translated.
    All,
}

/// By what a slot is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheduler {
    /// A random one for each connection.
    Random,
    /// By a hash of the client's address.
    SourceHash,
    /// One after the other. The kernel counts for each rule, so each ServicePort
    /// has a chain of its own, which this names.
    RoundRobin(Arc<str>),
}

impl SharedChain {
    /// Returns the chains and their rules, each after those to which it jumps.
    pub fn chains(&self, options: &Options, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
        match self {
            SharedChain::Pick(pick) => vec![(Chain::new(pick.name()), pick.rules(options, sets))],
            SharedChain::Remember(timeout) => {
                let rules = remember(*timeout, options.family, sets);
                vec![(Chain::new(remember_name(*timeout)), rules)]
            }
            SharedChain::RememberHooks => remember_hooks(options.family, sets),
        }
    }

    /// Returns the names of these chains.
    pub fn names(&self) -> Vec<String> {
        match self {
            SharedChain::Pick(pick) => vec![pick.name()],
            SharedChain::Remember(timeout) => vec![remember_name(*timeout)],
            SharedChain::RememberHooks => vec![
                REMEMBER.to_owned(),
                "remember-prerouting".to_owned(),
                "remember-output".to_owned(),
            ],
        }
    }

    /// Returns a verdict that goes to this chain.
    pub(super) fn goto(&self) -> Verdict {
        let name = self.names().into_iter().next().unwrap_or_default();
        Verdict::Goto(name.into())
    }
}

impl Pick {
    fn name(&self) -> String {
        let called = match self.called {
            Called::Address => "pick",
            Called::NodePort => "node-port",
        };
        let mut name = format!("{called}-{}", self.slots);
        if self.from == Endpoints::Local {
            name.push_str("-local");
        }
        match self.masquerade {
            Masquerade::None => {}
            Masquerade::NotLocal => name.push_str("-masquerade-not-local"),
            Masquerade::All => name.push_str("-masquerade"),
        }
        if self.affinity {
            name.push_str("-affinity");
        }
        match &self.scheduler {
            Scheduler::Random => {}
            Scheduler::SourceHash => name.push_str("-sh"),
            Scheduler::RoundRobin(owner) => {
                name.push_str("-rr/");
                name.push_str(owner);
            }
        }
        name
    }

    fn rules(&self, options: &Options, sets: &Sets) -> Vec<Rule> {
        let family = options.family;
        let mut rules = Vec::new();
        let mark = || Statement::SetMark(Mark::Packet, MarkValue::Or(options.masquerade_mark));
        match self.masquerade {
            Masquerade::None => {}
            Masquerade::NotLocal => {
                let not_local = not_local(&options.detect_local, family);
                rules.extend(not_local.map(|not_local| Rule::new([not_local, mark()])));
            }
            Masquerade::All => rules.push(Rule::new([mark()])),
        }
        let to = |key: Vec<Field>, id: SetId| {
            let target = Target::Map(key, (&**sets.get(id)).into());
            Rule::new([Statement::Dnat(family, target)])
        };
        if self.affinity {
            rules.push(to(sets::client(family), SetId::Affinity));
        }
        let (called, map) = match self.called {
            Called::Address => (sets::service(family), SetId::Endpoints),
            Called::NodePort => (sets::node_port(), SetId::NodePortEndpoints),
        };
        let with = |slot: Field| to([called.clone(), vec![slot]].concat(), map);
        let draws = self.draws().into_iter().zip(SEED..);
        rules.extend(draws.map(|(modulus, seed)| with(self.slot(options, modulus, seed))));
        rules
    }

    /// Returns for each draw, until a slot with an endpoint is found, among how many of
    /// the first slots it draws. As more than a quarter of the slots is taken, this
    /// number of draws favours no endpoint by more than one connection in a hundred.
    fn draws(&self) -> Vec<u32> {
        let times: &[(u32, usize)] = match self.scheduler {
            Scheduler::RoundRobin(_) => &[(1, 1)],
            Scheduler::Random | Scheduler::SourceHash => &[(1, 8), (2, 4), (4, 1)],
        };
        let among = |&(part, times): &(u32, usize)| repeat_n(self.slots / part, times);
        let draws = times.iter().flat_map(among).filter(|slots| *slots > 1);
        // The number of slots and what is in them change at once, but not for a
        // packet that is between two rules: the first slot is there as long as any.
        draws.chain([1]).collect()
    }

    fn offset(&self) -> u32 {
        match self.from {
            Endpoints::All => 0,
            Endpoints::Local => LOCAL,
        }
    }

    /// Returns a field that draws one of the first `modulus` slots.
    fn slot(&self, options: &Options, modulus: u32, seed: u32) -> Field {
        let (family, offset) = (options.family, self.offset());
        let number = |random| {
            Field::Numgen(Numgen {
                random,
                modulus,
                offset,
            })
        };
        let hash = |of| {
            Field::Jhash(Jhash {
                of,
                modulus,
                seed,
                offset,
            })
        };
        match self.scheduler {
            Scheduler::SourceHash => hash(vec![Field::SourceAddress(family)]),
            Scheduler::RoundRobin(_) => number(false),
            Scheduler::Random if options.features.contains(NftPart::Numgen) => number(true),
            // Each connection of a client has another port. With an address of
            // IPv6 the hash would need more registers than there are.
            Scheduler::Random => hash(match family {
                Family::V4 => vec![Field::SourceAddress(family), Field::SourcePort],
                Family::V6 => vec![Field::SourcePort],
            }),
        }
    }
}

/// Returns what matches packets that do not come from a pod of this node, if that can be known.
fn not_local(detect: &DetectLocal, family: Family) -> Option<Statement> {
    let (field, same) = local(detect, family)?;
    let other = match same {
        Test::Prefix(ip, length) => Test::NotPrefix(ip, length),
        Test::Is(octets) => Test::IsNot(octets),
        same => same,
    };
    Some(Statement::Match(field, other))
}

/// Returns what matches packets that come from a pod of this node, if that can be known.
pub(super) fn is_local(detect: &DetectLocal, family: Family) -> Option<Statement> {
    local(detect, family).map(|(field, test)| Statement::Match(field, test))
}

fn local(detect: &DetectLocal, family: Family) -> Option<(Field, Test)> {
    match detect {
        DetectLocal::Unknown => None,
        DetectLocal::Within(network) => Some((
            Field::SourceAddress(family),
            Test::Prefix(network.network(), network.prefix_len()),
        )),
        DetectLocal::Through(link) => {
            let octets = match link.strip_suffix('+') {
                // Only this part of the name is compared.
                Some(prefix) => prefix.as_bytes().to_vec(),
                None => Value::Name(link.clone()).octets(),
            };
            Some((Field::Meta(Meta::InputName), Test::Is(octets)))
        }
    }
}

fn remember_name(timeout: Duration) -> String {
    format!("{REMEMBER}-{}", timeout.as_secs())
}

/// Returns a rule for each protocol, which has to be matched before ports of a connection
/// are used.
pub(super) fn each_protocol(statement: impl Fn() -> Statement) -> Vec<Rule> {
    let of = |protocol: Protocol| {
        let octets = vec![protocol.number()];
        let matched = Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(octets));
        Rule::new([matched, statement()])
    };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .map(of)
        .into()
}

/// Returns the fields of what the client called, in a packet that was translated.
pub(super) fn called(family: Family) -> Vec<Field> {
    let original = Some(Direction::Original);
    vec![
        Field::Ct(Ct::DestinationAddress(family), original),
        Field::Meta(Meta::L4Proto),
        Field::Ct(Ct::DestinationPort, original),
    ]
}

/// Returns the rule that remembers a client. An entry that is there keeps its endpoint, and its
/// timeout begins anew.
fn remember(timeout: Duration, family: Family, sets: &Sets) -> Vec<Rule> {
    each_protocol(|| {
        let mut key = vec![Field::SourceAddress(family)];
        key.extend(called(family));
        Statement::Dynset(Dynset {
            op: DynsetOp::Update,
            set: (&**sets.get(SetId::Affinity)).into(),
            key,
            timeout: Some(timeout),
            data: sets::endpoint(family),
            counter: false,
            limit: None,
        })
    })
}

fn remember_hooks(family: Family, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let timeouts = |key: Vec<Field>, id| {
        each_protocol(|| Statement::VerdictMap(key.clone(), (&**sets.get(id)).into()))
    };
    let mut rules = timeouts(called(family), SetId::AffinityTimeouts);
    let node_port = called(family).split_off(1);
    rules.extend(timeouts(node_port, SetId::NodePortAffinityTimeouts));
    let hook = |name, hook| {
        // A packet that is repeated for want of an answer is new, too, and goes where the first one
        // went, which may have left the Service since. The entry of the first one is confirmed by
        // then (`nf_conntrack_confirm`).
        let status = Field::Masked(
            Box::new(Field::Ct(Ct::Status, None)),
            STATUS_DNAT | STATUS_CONFIRMED,
        );
        let translated = Rule::new([
            Statement::Match(Field::Ct(Ct::State, None), Test::Any(STATE_NEW)),
            Statement::Match(status, Test::Is(Value::Number(STATUS_DNAT).octets())),
            Statement::Verdict(Verdict::Jump(REMEMBER.into())),
        ]);
        let chain = Chain::base(name, ChainType::Filter, hook, AFTER_DNAT);
        (chain, vec![translated])
    };
    vec![
        (Chain::new(REMEMBER), rules),
        hook("remember-prerouting", Hook::Prerouting),
        hook("remember-output", Hook::Output),
    ]
}

//! A small interpreter of rules: the outcomes of a new connection's first packet, with every chance
//! at once.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use net::Protocol;
use xtables::{
    desired::{Contents, FixedChain},
    rule::{CtState, Mark, Match, Negatable, Rule, Side, Table, Target},
};

use super::world::{NODE_IP, ip, net};
use crate::{
    modes::iptables::plan::{self, Options},
    services::ServicePort,
};

/// All rules of a node.
pub(super) struct Ruleset {
    pub(super) chains: HashMap<(Table, String), Vec<Rule>>,
    /// How many rules were tried.
    tried: Cell<usize>,
    mark: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) source_port: u16,
    pub(super) port: u16,
    pub(super) through: &'static str,
    /// Lists of `recent` that hold the source.
    pub(super) remembered: HashSet<String>,
}

/// Outcome of a packet. Ordered so that it can be a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Sent to an endpoint; masqueraded or not.
    To(SocketAddr, bool),
    Dropped,
    Rejected,
    /// No rule had anything to say.
    Passed,
}

/// Outcomes with their chances, which add up to 1.
pub(super) type Outcomes = BTreeMap<Outcome, f64>;

#[derive(Clone)]
struct State {
    packet: Packet,
    mark: u32,
    chance: f64,
}

enum Ended {
    Verdict(Target),
    Returned,
}

impl Packet {
    /// TCP from there to there.
    pub(super) fn new(source: &str, destination: &str, port: u16) -> Packet {
        Packet {
            source: ip(source),
            destination: ip(destination),
            protocol: Protocol::Tcp,
            source_port: 40_000,
            port,
            through: "eth0",
            remembered: HashSet::new(),
        }
    }
}

fn is_local(address: IpAddr) -> bool {
    address == ip(NODE_IP) || address.is_loopback()
}

impl Ruleset {
    pub(super) fn new<'a>(
        ports: impl IntoIterator<Item = &'a ServicePort>,
        options: &Options,
    ) -> Ruleset {
        let mut set = Ruleset {
            chains: HashMap::new(),
            tried: Cell::new(0),
            mark: options.masquerade_mark,
        };
        let fixed = plan::fixed(options);
        for jump in fixed.jumps {
            set.add(jump.table, jump.from, jump.rule);
        }
        let mut closing = Vec::new();
        for FixedChain {
            table,
            name,
            contents,
        } in fixed.chains
        {
            let key = (table, name.into_owned());
            let rules = match contents {
                Contents::Exactly(rules) | Contents::AtLeast(rules) => rules,
                Contents::Shared { closing: rules } => {
                    closing.push((key.clone(), rules));
                    Vec::new()
                }
            };
            set.chains.insert(key, rules);
        }
        let mut reached = HashSet::new();
        for port in ports {
            let rules = plan::plan(port, options);
            for chain in rules.chains {
                let before = set.chains.insert((chain.table, chain.name), chain.rules);
                assert_eq!(before, None, "one chain twice");
            }
            for step in rules.steps {
                let to = (step.table, step.rule.leads_to().unwrap().to_owned());
                set.chains.entry(to.clone()).or_default();
                if reached.insert(to) {
                    set.add(step.table, &step.chain, step.rule);
                }
            }
            for entry in rules.entries {
                set.add(entry.table, &entry.chain, entry.rule);
            }
        }
        for ((table, chain), rules) in closing {
            for rule in rules {
                set.add(table, &chain, rule);
            }
        }
        set
    }

    fn add(&mut self, table: Table, chain: &str, rule: Rule) {
        let rules = self.chains.entry((table, chain.to_owned())).or_default();
        rules.push(rule);
    }

    /// Returns how many rules are tried for `packet`.
    pub(super) fn cost(&self, packet: &Packet) -> usize {
        self.tried.set(0);
        self.outcomes(packet);
        self.tried.get()
    }

    /// The possible outcomes of the packet: nat before routing, then filter on the way to its new
    /// destination, and whether it is marked for masquerade in the end.
    pub(super) fn outcomes(&self, packet: &Packet) -> Outcomes {
        let from_node = is_local(packet.source);
        let start = State {
            packet: packet.clone(),
            mark: 0,
            chance: 1.0,
        };
        let hook = if from_node { "OUTPUT" } else { "PREROUTING" };
        let mut outcomes = Outcomes::new();
        for (mut state, ended) in self.chain(Table::Nat, hook, start) {
            let mut to = None;
            if let Ended::Verdict(Target::Dnat(address)) = ended {
                to = Some(address);
                state.packet.destination = address.ip();
                state.packet.port = address.port();
            }
            let hook = if from_node {
                "OUTPUT"
            } else if is_local(state.packet.destination) {
                "INPUT"
            } else {
                "FORWARD"
            };
            let masquerade = state.mark & self.mark != 0;
            for (state, ended) in self.chain(Table::Filter, hook, state) {
                let outcome = match (ended, to) {
                    (Ended::Verdict(Target::Drop), _) => Outcome::Dropped,
                    (Ended::Verdict(Target::Reject), _) => Outcome::Rejected,
                    (_, Some(to)) => Outcome::To(to, masquerade),
                    (_, None) => Outcome::Passed,
                };
                *outcomes.entry(outcome).or_default() += state.chance;
            }
        }
        outcomes
    }

    /// Every way through a chain.
    fn chain(&self, table: Table, name: &str, state: State) -> Vec<(State, Ended)> {
        let key = (table, name.to_owned());
        let rules = self.chains.get(&key).map(Vec::as_slice);
        if rules.is_none() {
            let kernels = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT"];
            assert!(kernels.contains(&name), "no chain {name} in {table}");
        }
        let mut going = vec![state];
        let mut out = Vec::new();
        for rule in rules.unwrap_or_default() {
            let mut next = Vec::new();
            for state in going {
                self.tried.set(self.tried.get() + 1);
                let chance = chance(rule, &state);
                if chance < 1.0 {
                    let mut passes = state.clone();
                    passes.chance *= 1.0 - chance;
                    next.push(passes);
                }
                if chance == 0.0 {
                    continue;
                }
                let mut matched = state;
                matched.chance *= chance;
                match &rule.target {
                    None => next.push(matched),
                    Some(Target::Mark(Mark { value, mask })) => {
                        matched.mark = (matched.mark & !mask) ^ value;
                        next.push(matched);
                    }
                    Some(Target::Return) => out.push((matched, Ended::Returned)),
                    Some(Target::Jump(chain)) => {
                        for (state, ended) in self.chain(table, chain, matched) {
                            match ended {
                                Ended::Returned => next.push(state),
                                verdict => out.push((state, verdict)),
                            }
                        }
                    }
                    Some(verdict) => out.push((matched, Ended::Verdict(verdict.clone()))),
                }
            }
            going = next;
        }
        out.extend(going.into_iter().map(|state| (state, Ended::Returned)));
        out
    }
}

fn agrees<T>(asked: &Option<Negatable<T>>, has: impl Fn(&T) -> bool) -> bool {
    asked.as_ref().is_none_or(|asked| asked.matches(has))
}

/// The chance that a rule matches: 0, 1, or that of `statistic`.
fn chance(rule: &Rule, state: &State) -> f64 {
    let packet = &state.packet;
    let addresses = agrees(&rule.source, |net| net.contains(&packet.source))
        && agrees(&rule.destination, |net| net.contains(&packet.destination))
        && rule.source_bits.is_none_or(|(value, mask)| {
            let masked = bits(packet.source) & bits(mask);
            packet.source.is_ipv4() == value.is_ipv4() && masked == bits(value)
        });
    let link = agrees(&rule.input, |link| match link.strip_suffix('+') {
        Some(prefix) => packet.through.starts_with(prefix),
        None => packet.through == link,
    });
    if !addresses || !link || rule.protocol.is_some_and(|p| p != packet.protocol) {
        return 0.0;
    }
    let each = rule.matches.iter().map(|one| match one {
        Match::Probability(of) => f64::from(*of) / f64::from(1u32 << 31),
        other => f64::from(u8::from(matches(other, rule, state))),
    });
    each.product()
}

fn matches(one: &Match, rule: &Rule, state: &State) -> bool {
    let packet = &state.packet;
    let needs = |protocol: &Protocol| {
        assert_eq!(rule.protocol, Some(*protocol), "-m without -p: {rule:?}");
        *protocol == packet.protocol
    };
    match one {
        Match::Comment(_) | Match::Account(_) | Match::RememberSource(_) => true,
        Match::Transport(protocol) => needs(protocol),
        Match::DestinationPorts(protocol, ports) => needs(protocol) && ports.contains(&packet.port),
        Match::SourcePorts(protocol, ports) => {
            needs(protocol) && ports.contains(&packet.source_port)
        }
        Match::Mark(mark) => mark.matches(|mark| state.mark & mark.mask == mark.value),
        Match::ConnectionState(states) => states.matches(|states| states.contains(&CtState::New)),
        Match::LocalAddress(side) => side.matches(|side| match side {
            Side::Source => is_local(packet.source),
            Side::Destination => is_local(packet.destination),
        }),
        Match::RecentlySeen { list, .. } => packet.remembered.contains(list),
        other => panic!("not planned here: {other:?}"),
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[test]
fn the_interpreter_knows_return_marks_and_chances() {
    let jump = |rule: Rule, to: &str| rule.jump(to);
    let endpoint: SocketAddr = "10.0.0.9:1".parse().expect("an address");
    let half = Rule::new().with(Match::Probability(1 << 30));
    let chains = [
        (
            "PREROUTING",
            vec![jump(half.clone(), "A"), jump(Rule::new(), "B")],
        ),
        (
            "A",
            vec![
                Rule::new().target(Target::Mark(Mark::set(4))),
                half.target(Target::Return),
                Rule::new().source(net("192.0.2.0/24")).target(Target::Drop),
            ],
        ),
        ("B", vec![Rule::new().target(Target::Dnat(endpoint))]),
    ];
    let set = Ruleset {
        chains: chains
            .into_iter()
            .map(|(name, rules)| ((Table::Nat, name.to_owned()), rules))
            .collect(),
        tried: Cell::new(0),
        mark: 4,
    };
    let outcomes = set.outcomes(&Packet::new("198.51.100.1", "10.0.0.1", 80));
    let expected = Outcomes::from([
        (Outcome::To(endpoint, false), 0.5),
        (Outcome::To(endpoint, true), 0.5),
    ]);
    assert_eq!(outcomes, expected);
}

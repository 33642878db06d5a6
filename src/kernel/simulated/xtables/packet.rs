//! What becomes of a packet: its way through the chains of the kernel, with all that chance
//! may choose.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::{
    Table, Xtables,
    rule::{Asks, Rule, Target},
};
use crate::{
    kernel::{
        octets,
        simulated::packet::{Fate, Fates, Packet, Update},
    },
    net::Family,
};

/// What is known of a packet on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    destination: SocketAddr,
    mark: u32,
    updates: Vec<Update>,
}

/// How a chain ends for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// On with the rule after the one that led here, or with the policy.
    Returns,
    Accepted,
    Dropped,
    Refused,
}

type Ways = BTreeSet<(Way, End)>;

impl Xtables {
    /// Returns all that may become of a packet of `family` on a node that has the addresses
    /// `own`, each with what rules remember then.
    pub(crate) fn fates(&self, family: Family, packet: &Packet, own: &[IpAddr]) -> Fates {
        let evaluation = Evaluation {
            xtables: self,
            family,
            packet,
            own,
        };
        let first = Way {
            destination: packet.established.unwrap_or(packet.destination),
            mark: 0,
            updates: Vec::new(),
        };
        let begin: &[_] = match packet.input {
            Some(_) => &[("mangle", "PREROUTING"), ("nat", "PREROUTING")],
            None => &[
                ("mangle", "OUTPUT"),
                ("nat", "OUTPUT"),
                ("filter", "OUTPUT"),
            ],
        };
        let mut ways: Ways = [(first, End::Accepted)].into();
        for (table, chain) in begin {
            ways = evaluation.base(table, chain, ways);
        }
        let mut found = Fates::new();
        for (way, end) in ways {
            let to_node = evaluation.is_own(&way.destination.ip());
            let rest: &[_] = match (packet.input, to_node) {
                (_, true) => &[("mangle", "INPUT"), ("filter", "INPUT"), ("nat", "INPUT")],
                (Some(_), false) => &[
                    ("mangle", "FORWARD"),
                    ("filter", "FORWARD"),
                    ("mangle", "POSTROUTING"),
                    ("nat", "POSTROUTING"),
                ],
                (None, false) => &[("mangle", "POSTROUTING"), ("nat", "POSTROUTING")],
            };
            let mut ways: Ways = [(way, end)].into();
            for (table, chain) in rest {
                ways = evaluation.base(table, chain, ways);
            }
            found.extend(ways.into_iter().map(|(way, end)| {
                let fate = match end {
                    End::Returns | End::Accepted => Fate::Passes(way.destination),
                    End::Dropped => Fate::Dropped,
                    End::Refused => Fate::Refused,
                };
                (fate, way.updates)
            }));
        }
        found
    }
}

struct Evaluation<'a> {
    xtables: &'a Xtables,
    family: Family,
    packet: &'a Packet,
    own: &'a [IpAddr],
}

impl Evaluation<'_> {
    fn is_own(&self, ip: &IpAddr) -> bool {
        self.own.contains(ip) || ip.is_loopback()
    }

    /// Leads packets that were accepted so far through a chain of the kernel.
    fn base(&self, table: &'static str, chain: &str, ways: Ways) -> Ways {
        let there = self.xtables.tables.get(&(self.family, table));
        // Rules of nat see only the first packet of a connection.
        let is_passed = table == "nat" && self.packet.established.is_some();
        let Some(there) = there.filter(|_| !is_passed) else {
            return ways;
        };
        let mut next = Ways::new();
        for (way, end) in ways {
            if end != End::Accepted {
                next.insert((way, end));
                continue;
            }
            for (way, end) in self.chain(there, chain, way, 0) {
                let end = match end {
                    End::Returns => End::Accepted,
                    end => end,
                };
                next.insert((way, end));
            }
        }
        next
    }

    fn chain(&self, table: &Table, name: &str, way: Way, depth: usize) -> Ways {
        let mut ended = Ways::new();
        let Some(chain) = table.chains.get(name).filter(|_| depth < 16) else {
            return [(way, End::Dropped)].into();
        };
        let mut ways = BTreeSet::from([way]);
        for rule in &chain.rules {
            // Most rules are of other packets.
            if !ways.iter().any(|way| self.may_match(rule, way)) {
                continue;
            }
            let mut next = BTreeSet::new();
            for way in ways {
                let (found, passed_by) = self.matches(rule, way);
                next.extend(passed_by);
                if let Some(way) = found {
                    self.apply(table, rule, way, depth, &mut next, &mut ended);
                }
            }
            ways = next;
        }
        ended.extend(ways.into_iter().map(|way| (way, End::Returns)));
        ended
    }

    /// Does what a rule says with a packet that it matches.
    fn apply(
        &self,
        table: &Table,
        rule: &Rule,
        mut way: Way,
        depth: usize,
        next: &mut BTreeSet<Way>,
        ended: &mut Ways,
    ) {
        let end = match &rule.target {
            Target::Nothing => {
                next.insert(way);
                return;
            }
            Target::Mark(value, mask) => {
                way.mark = way.mark & !mask ^ value;
                next.insert(way);
                return;
            }
            Target::Jump(chain) => {
                for (way, end) in self.chain(table, chain, way, depth + 1) {
                    match end {
                        End::Returns => drop(next.insert(way)),
                        end => drop(ended.insert((way, end))),
                    }
                }
                return;
            }
            Target::Goto(chain) => {
                ended.extend(self.chain(table, chain, way, depth + 1));
                return;
            }
            Target::Dnat(to) => {
                way.destination = *to;
                End::Accepted
            }
            Target::Redirect(port) => {
                way.destination = (self.family.loopback().addr(), *port).into();
                End::Accepted
            }
            Target::Accept | Target::Masquerade => End::Accepted,
            Target::Return => End::Returns,
            Target::Drop => End::Dropped,
            Target::Reject => End::Refused,
        };
        ended.insert((way, end));
    }

    /// Returns whether a rule may match the packet.
    fn may_match(&self, rule: &Rule, way: &Way) -> bool {
        let mut asks = rule.asks.iter();
        asks.all(|(negated, asks)| {
            matches!(asks, Asks::Chance) || self.is_so(asks, way) != *negated
        })
    }

    /// Returns the packet as it is when the rule matches it, if it may, and as it is when
    /// it does not, if that may be.
    fn matches(&self, rule: &Rule, mut way: Way) -> (Option<Way>, Option<Way>) {
        if !self.may_match(rule, &way) {
            return (None, Some(way));
        }
        let by_chance = rule.asks.iter().any(|(_, asks)| *asks == Asks::Chance);
        let passed_by = by_chance.then(|| way.clone());
        for (_, asks) in &rule.asks {
            if let Asks::Remembers(list) = asks {
                way.updates.push(Update {
                    set: list.as_str().into(),
                    key: octets(&self.packet.source.ip()).into(),
                    data: None,
                    timeout: None,
                });
            }
        }
        (Some(way), passed_by)
    }

    fn is_so(&self, asks: &Asks, way: &Way) -> bool {
        let packet = self.packet;
        let (source, destination) = (packet.source, way.destination);
        match asks {
            Asks::Source(bits) => bits.contain(&source.ip()),
            Asks::Destination(bits) => bits.contain(&destination.ip()),
            Asks::Input(name) => match (name.strip_suffix('+'), packet.input) {
                (Some(prefix), Some(input)) => input.starts_with(prefix),
                (None, Some(input)) => input == name,
                (_, None) => false,
            },
            Asks::Protocol(number) => packet.protocol == *number,
            Asks::SourcePorts(ports) => ports.contains(&source.port()),
            Asks::DestinationPorts(ports) => ports.contains(&destination.port()),
            Asks::Mark(value, mask) => way.mark & mask == *value,
            Asks::States(states) => {
                let state = match packet.established {
                    Some(_) => "ESTABLISHED",
                    None => "NEW",
                };
                let is_translated = destination != packet.destination;
                states
                    .iter()
                    .any(|name| name == state || (name == "DNAT" && is_translated))
            }
            Asks::LocalSource => self.is_own(&source.ip()),
            Asks::LocalDestination => self.is_own(&destination.ip()),
            Asks::Recently(list, within) => {
                let list = self.xtables.recent.get(list.as_str());
                let at = list.and_then(|list| list.get(&source.ip()));
                at.is_some_and(|at| at.elapsed() <= *within)
            }
            Asks::Absent => false,
            Asks::Chance | Asks::Remembers(_) | Asks::Account(_) | Asks::Nothing => true,
        }
    }
}

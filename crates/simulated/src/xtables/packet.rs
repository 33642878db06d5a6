//! A packet's way through the chains of the kernel, with all choices of chance.

use std::net::{IpAddr, SocketAddr};

use net::{Family, Protocol, octets};

use super::{
    Table, Xtables,
    rule::{self, Asks, Rule, Target},
};
use crate::{
    ipset::Sets,
    ipvs::{Connection, Ipvs},
    packet::{End, Few, Outcomes, Packet, Update, Way, Ways, outcomes},
    route::Links,
};

/// State of the node that decides about packets in addition to rules.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// The node's own addresses.
    pub(crate) own: &'a [IpAddr],
    /// The sets of `-m set`.
    pub(crate) sets: &'a Sets,
    /// `None`: rules alone forward connections.
    pub(crate) ipvs: Option<Scheduling<'a>>,
}

/// IPVS, with the links by whose addresses it gets packets.
#[derive(Clone, Copy)]
pub(crate) struct Scheduling<'a> {
    pub(crate) ipvs: &'a Ipvs,
    pub(crate) links: &'a Links,
    /// Clients do not stay on real servers of weight 0 (`expire_quiescent_template`).
    pub(crate) expires_templates: bool,
}

impl Scheduling<'_> {
    /// Returns whether a packet of a client that was forwarded before is scheduled like the first
    /// one of a connection: the connection is gone, and with it the entry of connection tracking
    /// (`ip_vs_conn_expire`). Only TCP asks for a SYN (`tcp_conn_schedule`).
    fn is_scheduled_anew(&self, packet: &Packet) -> bool {
        let Some(real) = packet.established else {
            return false;
        };
        let connection = Connection {
            protocol: packet.protocol,
            client: packet.source,
            server: packet.destination,
            real,
        };
        packet.protocol != Protocol::Tcp.number() && !self.ipvs.has(&connection)
    }
}

impl Xtables {
    /// All possible outcomes for a packet of `family`, each with the elements that rules and IPVS
    /// remember then.
    pub(crate) fn outcomes(&self, family: Family, packet: &Packet, around: Around<'_>) -> Outcomes {
        let again = Packet {
            established: None,
            ..packet.clone()
        };
        let is_anew = around.ipvs.is_some_and(|of| of.is_scheduled_anew(packet));
        let packet = if is_anew { &again } else { packet };
        let evaluation = Evaluation {
            xtables: self,
            family,
            packet,
            around,
        };
        // Connection tracking translates as the rules did; IPVS has connections of its own.
        let led = packet.established.filter(|_| around.ipvs.is_none());
        let first = Way::to(led.unwrap_or(packet.destination));
        if around.ipvs.is_some() {
            return evaluation.by_ipvs(first);
        }
        let begin: &[_] = match packet.input {
            Some(_) => &[("mangle", "PREROUTING"), ("nat", "PREROUTING")],
            None => &[
                ("mangle", "OUTPUT"),
                ("nat", "OUTPUT"),
                ("filter", "OUTPUT"),
            ],
        };
        let mut ways: Ways = (first, End::Accepted).into();
        for (table, chain) in begin {
            ways = evaluation.base(table, chain, ways);
        }
        let mut found = Outcomes::new();
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
            let mut ways: Ways = (way, end).into();
            for (table, chain) in rest {
                ways = evaluation.base(table, chain, ways);
            }
            found.extend(outcomes(ways));
        }
        found
    }
}

struct Evaluation<'a> {
    xtables: &'a Xtables,
    family: Family,
    packet: &'a Packet,
    around: Around<'a>,
}

impl Evaluation<'_> {
    fn is_own(&self, ip: &IpAddr) -> bool {
        let by_link = |of: Scheduling<'_>| of.links.is_local(ip);
        self.around.own.contains(ip) || ip.is_loopback() || self.around.ipvs.is_some_and(by_link)
    }

    /// Takes a packet through chains of the kernel, one after the other.
    fn all(&self, chains: &[(&'static str, &str)], ways: Ways) -> Ways {
        let each = |ways, (table, chain): &(&'static str, &str)| self.base(table, chain, ways);
        chains.iter().fold(ways, each)
    }

    /// Takes a packet past IPVS. It gets packets for this node after the filter
    /// (`NF_IP_PRI_NAT_SRC - 2` in `LOCAL_IN`), and packets of this node after rules of nat
    /// (`NF_IP_PRI_NAT_DST + 1` in `LOCAL_OUT`). A packet that it forwards passes `LOCAL_OUT` with
    /// translated addresses (`ip_vs_nat_send_or_cont`).
    fn by_ipvs(&self, first: Way) -> Outcomes {
        let ways: Ways = (first, End::Accepted).into();
        let (begin, rest): (&[_], &[_]) = match self.packet.input {
            Some(_) => (
                &[("mangle", "PREROUTING"), ("nat", "PREROUTING")],
                &[("nat", "INPUT")],
            ),
            None => (
                &[("mangle", "OUTPUT"), ("nat", "OUTPUT")],
                &[
                    ("filter", "OUTPUT"),
                    ("mangle", "POSTROUTING"),
                    ("nat", "POSTROUTING"),
                ],
            ),
        };
        let mut found = Ways::new();
        for (way, end) in self.all(begin, ways) {
            let is_forwarded = self.packet.input.is_some() && !self.is_own(&way.destination.ip());
            let ways: Ways = (way, end).into();
            if is_forwarded {
                let chains = [
                    ("mangle", "FORWARD"),
                    ("filter", "FORWARD"),
                    ("mangle", "POSTROUTING"),
                    ("nat", "POSTROUTING"),
                ];
                found.extend(self.all(&chains, ways));
                continue;
            }
            let before: &[_] = match self.packet.input {
                Some(_) => &[("mangle", "INPUT"), ("filter", "INPUT")],
                None => &[],
            };
            for (way, end) in self.all(before, ways) {
                match self.scheduled(&way).filter(|_| end == End::Accepted) {
                    Some(led) => found.extend(led),
                    None => found.extend(self.all(rest, (way, end).into())),
                }
            }
        }
        outcomes(found)
    }

    /// Returns the ways on which IPVS forwards a packet; `None`: it leaves the packet alone.
    fn scheduled(&self, way: &Way) -> Option<Ways> {
        let Scheduling {
            ipvs,
            expires_templates,
            ..
        } = self.around.ipvs?;
        let packet = self.packet;
        let to = match packet.established {
            Some(real) => {
                let connection = Connection {
                    protocol: packet.protocol,
                    client: packet.source,
                    server: way.destination,
                    real,
                };
                vec![(ipvs.has(&connection).then_some(real)?, None)]
            }
            None => ipvs.scheduled(
                packet.protocol,
                packet.source.ip(),
                way.destination,
                expires_templates,
            )?,
        };
        if to.is_empty() {
            return Some((way.clone(), End::Refused).into());
        }
        let led = to.into_iter().map(|(destination, update)| {
            let mut way = Way {
                destination,
                ..way.clone()
            };
            way.updates.extend(update);
            (way, End::Accepted)
        });
        let chains = [
            ("mangle", "OUTPUT"),
            ("filter", "OUTPUT"),
            ("mangle", "POSTROUTING"),
            ("nat", "POSTROUTING"),
        ];
        Some(self.all(&chains, led.collect()))
    }

    /// Returns whether the values at these ends of a packet are a member of a set.
    fn is_member(&self, name: &str, ends: &[rule::End], way: &Way) -> bool {
        let ends: Vec<SocketAddr> = ends
            .iter()
            .map(|end| match end {
                rule::End::Source => self.packet.source,
                rule::End::Destination => way.destination,
            })
            .collect();
        self.around.sets.matches(name, self.packet.protocol, &ends)
    }

    /// Takes packets that were accepted so far through a chain of the kernel.
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
            return (way, End::Dropped).into();
        };
        let mut ways = Few::from(way);
        for rule in &chain.rules {
            // Most rules are about other packets.
            if !ways.iter().any(|way| self.may_match(rule, way)) {
                continue;
            }
            let mut next = Few::new();
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

    /// Applies the target of a rule to a packet that it matches.
    fn apply(
        &self,
        table: &Table,
        rule: &Rule,
        mut way: Way,
        depth: usize,
        next: &mut Few<Way>,
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
                        End::Returns => next.insert(way),
                        end => ended.insert((way, end)),
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
            Target::Masquerade => {
                way.masqueraded = true;
                End::Accepted
            }
            Target::Accept => End::Accepted,
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
            Asks::Set(name, ends) => self.is_member(name, ends, way),
            Asks::Absent => false,
            Asks::Chance | Asks::Remembers(_) | Asks::Account(_) | Asks::Nothing => true,
        }
    }
}

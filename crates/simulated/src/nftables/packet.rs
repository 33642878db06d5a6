//! A packet's way through the base chains, with all choices of chance.

use std::net::IpAddr;

use net::Family;
use nftables::{Base, ChainType, Hook, Verdict};

use super::{Ruleset, Table};
use crate::packet::{End, Few, Outcomes, Packet, Way, Ways, outcomes};

/// The mark of a way that a rule refused; no rule of ours sets it.
pub(super) const REFUSED: u32 = 0xdead_beef;

impl Ruleset {
    /// Returns all that may become of a packet of `family` on a node that has the addresses
    /// `own`, each with the elements that rules add then.
    pub fn outcomes(&self, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        let first = Way::to(packet.established.unwrap_or(packet.destination));
        let evaluation = Evaluation {
            bases: self.bases(family),
            family,
            packet,
            own,
        };
        let mut found = Outcomes::new();
        let begins = match packet.input {
            Some(_) => Hook::Prerouting,
            None => Hook::Output,
        };
        for (way, end) in evaluation.hook(begins, (first, End::Accepted).into()) {
            let is_own = own.contains(&way.destination.ip());
            let rest: &[Hook] = match (packet.input, is_own) {
                (Some(_), true) => &[Hook::Input],
                (Some(_), false) => &[Hook::Forward, Hook::Postrouting],
                (None, true) => &[],
                (None, false) => &[Hook::Postrouting],
            };
            let ways: Ways = (way, end).into();
            let on = |ways, hook: &Hook| evaluation.hook(*hook, ways);
            found.extend(outcomes(rest.iter().fold(ways, on)));
        }
        found
    }

    fn bases(&self, family: Family) -> Vec<BaseChain<'_>> {
        let tables = self.tables.iter();
        let tables = tables.filter(|((of, _), _)| *of == family.number());
        let chains = tables.flat_map(|(_, table)| table.chains.iter().map(move |of| (table, of)));
        let mut bases: Vec<_> = chains
            .filter_map(|(table, (name, chain))| {
                Some(BaseChain {
                    base: chain.base?,
                    table,
                    name,
                    drops: chain.drops,
                })
            })
            .collect();
        bases.sort_by_key(|chain| chain.base.priority);
        bases
    }
}

/// A chain of the kernel.
struct BaseChain<'a> {
    base: Base,
    table: &'a Table,
    name: &'a str,
    /// Packets are dropped that no rule accepts.
    drops: bool,
}

pub(super) struct Evaluation<'a> {
    /// In the order of their priorities.
    bases: Vec<BaseChain<'a>>,
    pub(super) family: Family,
    pub(super) packet: &'a Packet,
    pub(super) own: &'a [IpAddr],
}

impl Evaluation<'_> {
    /// Takes packets that were accepted so far through all chains of a hook.
    fn hook(&self, hook: Hook, mut ways: Ways) -> Ways {
        for chain in self.bases.iter().filter(|chain| chain.base.hook == hook) {
            // Rules of nat see only the first packet of a connection.
            if chain.base.kind == ChainType::Nat && self.packet.established.is_some() {
                continue;
            }
            let mut next = Ways::new();
            for (way, end) in ways {
                if end != End::Accepted {
                    next.insert((way, end));
                    continue;
                }
                for (way, end) in self.chain(chain.table, chain.name, way, 0) {
                    let end = match end {
                        End::Returns if chain.drops => End::Dropped,
                        End::Returns => End::Accepted,
                        end => end,
                    };
                    next.insert((way, end));
                }
            }
            ways = next;
        }
        ways
    }

    fn chain(&self, table: &Table, name: &str, way: Way, depth: usize) -> Ways {
        let mut ended = Ways::new();
        let Some(chain) = table.chains.get(name).filter(|_| depth < 16) else {
            return (way, End::Dropped).into();
        };
        let mut ways = Few::from(way);
        for rule in &chain.rules {
            let mut next = Few::new();
            for way in ways {
                for (way, verdict) in self.rule(table, &rule.expressions, way) {
                    match verdict {
                        None | Some(Verdict::Continue) => next.insert(way),
                        Some(Verdict::Accept) => ended.insert((way, End::Accepted)),
                        Some(Verdict::Drop) => ended.insert((way, End::Dropped)),
                        Some(Verdict::Return) => ended.insert((way, End::Returns)),
                        Some(Verdict::Jump(chain)) => {
                            for (way, end) in self.chain(table, &chain, way, depth + 1) {
                                match end {
                                    End::Returns => next.insert(way),
                                    end => ended.insert((way, end)),
                                }
                            }
                        }
                        Some(Verdict::Goto(chain)) => {
                            ended.extend(self.chain(table, &chain, way, depth + 1));
                        }
                    }
                }
            }
            // The mark says which ways a rule refused.
            ways = next
                .into_iter()
                .filter_map(|way| match way.mark {
                    REFUSED => {
                        ended.insert((way, End::Refused));
                        None
                    }
                    _ => Some(way),
                })
                .collect();
        }
        ended.extend(ways.into_iter().map(|way| (way, End::Returns)));
        ended
    }
}

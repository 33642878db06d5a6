//! Effects of the expressions of a rule on a packet.

use std::{net::IpAddr, sync::Arc, time::Duration};

use net::{Family, octets};
use nftables::{Access, Comparison, Datum, Expression, Header, LookupData, Register, Verdict};

use super::{
    Set, Table,
    packet::{Evaluation, REFUSED},
};
use crate::packet::{Update, Way};

/// Bits of a connection's state and status (`enum ip_conntrack_info`,
/// `enum ip_conntrack_status`).
const STATE_ESTABLISHED: u32 = 2;
const STATE_NEW: u32 = 8;
const STATUS_DNAT: u32 = 32;
/// `RTN_UNICAST` and `RTN_LOCAL` of `linux/rtnetlink.h`.
const UNICAST: u32 = 1;
const LOCAL: u32 = 2;
/// Octets of registers.
const SPACE: usize = 64;

impl Evaluation<'_> {
    /// Applies a rule to a packet; a verdict of `None` means that the next rule follows.
    pub(super) fn rule(
        &self,
        table: &Table,
        expressions: &[Expression],
        way: Way,
    ) -> Vec<(Way, Option<Verdict>)> {
        let mut ended = Vec::new();
        let running = Running {
            registers: [0; SPACE],
            way,
        };
        self.all(table, expressions, running, &mut ended);
        ended
    }

    /// Runs expressions, one after the other, and adds the end of each way that chance may choose.
    fn all(
        &self,
        table: &Table,
        expressions: &[Expression],
        mut running: Running,
        ended: &mut Vec<(Way, Option<Verdict>)>,
    ) {
        for (at, expression) in expressions.iter().enumerate() {
            if let Expression::Numgen {
                to,
                modulus,
                offset,
                ..
            }
            | Expression::Jhash {
                to,
                modulus,
                offset,
                ..
            } = expression
            {
                for number in *offset..offset + modulus {
                    let mut drawn = running.clone();
                    drawn.load(*to, &number.to_ne_bytes());
                    self.all(table, &expressions[at + 1..], drawn, ended);
                }
                return;
            }
            let verdict = match self.one(table, expression, &mut running) {
                Step::On => continue,
                Step::NextRule => None,
                Step::Ends(verdict) => Some(verdict),
                Step::Refuses => {
                    running.way.mark = REFUSED;
                    None
                }
            };
            ended.push((running.way, verdict));
            return;
        }
        ended.push((running.way, None));
    }

    fn one(&self, table: &Table, expression: &Expression, run: &mut Running) -> Step {
        match expression {
            Expression::Payload {
                header,
                offset,
                len,
                to,
            } => {
                let from = *offset as usize;
                let header = self.header(*header, &run.way);
                match header.get(from..from + *len as usize) {
                    Some(part) => run.load(*to, part),
                    None => return Step::NextRule,
                }
            }
            Expression::Meta { key, access } => return self.meta(*key, *access, run),
            Expression::Ct { key, to, .. } => return self.ct(*key, *to, run),
            Expression::Compare { from, how, with } => {
                let is = run.registers[from.octets()..][..with.len()].cmp(with);
                let holds = match how {
                    Comparison::Equal => is.is_eq(),
                    Comparison::NotEqual => is.is_ne(),
                };
                return Step::on_if(holds);
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => run.mask(*from, *to, mask, xor),
            Expression::Immediate { to, octets } => run.load(*to, octets),
            Expression::Lookup {
                set,
                from,
                inverted,
                data,
            } => return look_up(table, set, *from, *inverted, *data, run),
            Expression::Verdict(verdict) => return Step::Ends(verdict.clone()),
            Expression::Fib { to, flags, .. } => {
                let ip = match flags & 1 {
                    0 => run.way.destination.ip(),
                    _ => self.packet.source.ip(),
                };
                let is_own = self.own.contains(&ip);
                let kind = if is_own { LOCAL } else { UNICAST };
                run.load(*to, &kind.to_ne_bytes());
            }
            Expression::Dnat { address, port, .. } => {
                self.translate(*address, *port, run);
                return Step::Ends(Verdict::Accept);
            }
            Expression::Masquerade => return run.masquerade(),
            Expression::Reject { .. } => return Step::Refuses,
            Expression::Dynset {
                set,
                key,
                data: Some(data),
                timeout,
            } => return self.update(table, set, (*key, *data), *timeout, run),
            // Nothing that this kernel sees has ended or not: as if no limit were reached.
            Expression::Connections { .. } | Expression::CountedBy { .. } => return Step::NextRule,
            Expression::Counter { .. } | Expression::ToNetworkOrder { len: 1, .. } => {}
            other => panic!("the simulated kernel does not know {other:?}"),
        }
        Step::On
    }

    /// Records that the packet updates a map, whose data are endpoints.
    fn update(
        &self,
        table: &Table,
        set: &Arc<str>,
        (key, data): (Register, Register),
        timeout: Duration,
        run: &mut Running,
    ) -> Step {
        let Some(there) = table.sets.get(&**set) else {
            return Step::NextRule;
        };
        let of_key = there.key.next_multiple_of(4);
        let address = usize::from(self.family.bits() / 8);
        run.way.updates.push(Update {
            set: Arc::clone(set),
            key: run.octets(key, of_key),
            data: Some(run.octets(data, address + 4)),
            timeout: Some(timeout),
        });
        Step::On
    }

    fn translate(&self, address: Register, port: Option<Register>, run: &mut Running) {
        let length = usize::from(self.family.bits() / 8);
        let port = port.map(|at| run.octets(at, 2));
        if let Some(ip) = ip_of(&run.octets(address, length)) {
            run.way.destination.set_ip(ip);
        }
        if let Some([high, low]) = port.as_deref() {
            let port = u16::from_be_bytes([*high, *low]);
            run.way.destination.set_port(port);
        }
    }

    /// A header with the fields that rules look at: addresses or ports.
    fn header(&self, header: Header, way: &Way) -> [u8; 40] {
        let ends = [self.packet.source, way.destination];
        let mut octets = [0; 40];
        match header {
            Header::Transport => {
                for (at, end) in ends.iter().enumerate() {
                    octets[2 * at..][..2].copy_from_slice(&end.port().to_be_bytes());
                }
            }
            Header::Network => {
                let length = usize::from(self.family.bits() / 8);
                let first = match self.family {
                    Family::V4 => 12,
                    Family::V6 => 8,
                };
                for (at, end) in ends.iter().enumerate() {
                    let part = &mut octets[first + at * length..][..length];
                    match end.ip() {
                        IpAddr::V4(ip) => part.copy_from_slice(&ip.octets()),
                        IpAddr::V6(ip) => part.copy_from_slice(&ip.octets()),
                    }
                }
            }
        }
        octets
    }

    fn meta(&self, key: u32, access: Access, run: &mut Running) -> Step {
        match (key, access) {
            (3, Access::Load(to)) => {
                let mark = run.way.mark.to_ne_bytes();
                run.load(to, &mark);
            }
            (3, Access::Store(from)) => {
                let mark = run.octets(from, 4);
                run.way.mark = u32::from_ne_bytes([mark[0], mark[1], mark[2], mark[3]]);
            }
            (16, Access::Load(to)) => run.load(to, &[self.packet.protocol]),
            (6, Access::Load(to)) => {
                let mut name = self.packet.input.unwrap_or_default().as_bytes().to_vec();
                name.resize(16, 0);
                run.load(to, &name);
            }
            other => panic!("the simulated kernel does not know meta {other:?}"),
        }
        Step::On
    }

    fn ct(&self, key: u32, to: Register, run: &mut Running) -> Step {
        let original = self.packet.destination;
        let translated = run.way.destination != original;
        let state = match self.packet.established {
            Some(_) => STATE_ESTABLISHED,
            None => STATE_NEW,
        };
        match key {
            0 => run.load(to, &state.to_ne_bytes()),
            2 => {
                let status = if translated { STATUS_DNAT } else { 0 };
                run.load(to, &status.to_ne_bytes());
            }
            12 => run.load(to, &original.port().to_be_bytes()),
            20 | 22 => run.load(to, &octets(&original.ip())),
            other => panic!("the simulated kernel does not know ct {other}"),
        }
        Step::On
    }
}

#[derive(Clone)]
struct Running {
    registers: [u8; SPACE],
    way: Way,
}

impl Running {
    fn masquerade(&mut self) -> Step {
        self.way.masqueraded = true;
        Step::Ends(Verdict::Accept)
    }

    fn load(&mut self, to: Register, octets: &[u8]) {
        // The kernel fills a register with zeros first.
        let room = octets.len().next_multiple_of(4);
        let at = &mut self.registers[to.octets()..][..room];
        at.fill(0);
        at[..octets.len()].copy_from_slice(octets);
    }

    fn mask(&mut self, from: Register, to: Register, mask: &[u8], xor: &[u8]) {
        let of = &self.registers[from.octets()..][..mask.len()];
        let parts = of.iter().zip(mask).zip(xor);
        let made: Vec<u8> = parts.map(|((of, mask), xor)| of & mask ^ xor).collect();
        self.load(to, &made);
    }

    fn octets(&self, from: Register, count: usize) -> Box<[u8]> {
        self.registers[from.octets()..][..count].into()
    }
}

enum Step {
    On,
    NextRule,
    Ends(Verdict),
    Refuses,
}

impl Step {
    fn on_if(holds: bool) -> Step {
        if holds { Step::On } else { Step::NextRule }
    }
}

fn ip_of(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
    }
}

fn look_up(
    table: &Table,
    name: &str,
    from: Register,
    inverted: bool,
    data: Option<LookupData>,
    run: &mut Running,
) -> Step {
    let Some(set) = table.sets.get(name) else {
        return Step::NextRule;
    };
    let found = set.find(&run.registers[from.octets()..]);
    let Some(data) = data else {
        return Step::on_if(found.is_some() != inverted);
    };
    match (found, data) {
        (Some(Some(Datum::Verdict(verdict))), LookupData::Verdict) => Step::Ends(verdict),
        (Some(Some(Datum::Value(octets))), LookupData::Register(to)) => {
            run.load(to, &octets);
            Step::On
        }
        _ => Step::NextRule,
    }
}

impl Set {
    /// Looks up the data of the element that the registers name; `None`: there is no such element.
    fn find(&self, registers: &[u8]) -> Option<Option<Datum>> {
        let there = self.elements.iter().filter(|(_, one)| one.is_there());
        if !self.interval {
            let length = self.elements.keys().next()?.0.len();
            let key = (registers[..length].into(), None, false);
            let element = self.elements.get(&key).filter(|one| one.is_there())?;
            return Some(element.data.clone());
        }
        if !self.parts.is_empty() {
            let within = |((key, end, _), _): &(&super::Key, &super::Element)| {
                let end = end.as_ref().unwrap_or(key);
                let mut at = 0;
                self.parts.iter().all(|octets| {
                    let part = at..at + octets;
                    at += octets.next_multiple_of(4);
                    let value = &registers[part.clone()];
                    key[part.clone()] <= *value && *value <= end[part]
                })
            };
            let found = there.into_iter().find(within);
            return found.map(|(_, element)| element.data.clone());
        }
        // The last element that begins at or before the value says whether it is in a range.
        let length = self.elements.keys().next()?.0.len();
        let value = &registers[..length];
        let before = there.filter(|((key, ..), _)| **key <= *value);
        let last = before
            .max_by(|((a, _, a_ends), _), ((b, _, b_ends), _)| (a, !a_ends).cmp(&(b, !b_ends)));
        let (_, element) = last.filter(|((_, _, is_end), _)| !is_end)?;
        Some(element.data.clone())
    }
}

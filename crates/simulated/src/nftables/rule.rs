//! Effects of the expressions of a rule on a packet.

use std::{net::IpAddr, time::Duration};

use net::{Family, octets};
use nftables::{
    Datum, Expression, Verdict,
    attributes::{
        bitwise, byteorder, cmp, ct, dynset, fib, hash, immediate, lookup, meta, nat, numgen,
        payload,
    },
};

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
/// `NFT_PAYLOAD_TRANSPORT_HEADER` of `linux/netfilter/nf_tables.h`.
const TRANSPORT: u64 = 2;

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
        for (place, expression) in expressions.iter().enumerate() {
            let drawing = match &*expression.name {
                "numgen" => Some((numgen::TO, numgen::MODULUS, numgen::OFFSET)),
                "hash" => Some((hash::TO, hash::MODULUS, hash::OFFSET)),
                _ => None,
            };
            if let Some((to, modulus, offset)) = drawing {
                let [modulus, offset] = [modulus, offset].map(|kind| u32_of(expression, kind));
                for number in offset..offset + modulus {
                    let mut drawn = running.clone();
                    drawn.load(at(expression, to), &number.to_ne_bytes());
                    self.all(table, &expressions[place + 1..], drawn, ended);
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
        let register = |kind| at(expression, kind);
        let number = |kind| expression.number(kind);
        let octets = |kind| octets_of(expression, kind);
        match &*expression.name {
            "payload" => {
                let from = number(payload::OFFSET) as usize;
                let header = self.header(number(payload::BASE), &run.way);
                match header.get(from..from + number(payload::LEN) as usize) {
                    Some(part) => run.load(register(payload::TO), part),
                    None => return Step::NextRule,
                }
            }
            "meta" => return self.meta(expression, run),
            "ct" => return self.ct(number(ct::KEY), register(ct::TO), run),
            "cmp" => {
                let with = octets(cmp::WITH);
                let is = run.registers[register(cmp::FROM)..][..with.len()].cmp(with);
                return Step::on_if(match number(cmp::OP) {
                    0 => is.is_eq(),
                    1 => is.is_ne(),
                    other => panic!("the simulated kernel does not know comparison {other}"),
                });
            }
            "bitwise" => {
                let [from, to] = [bitwise::FROM, bitwise::TO].map(register);
                run.mask(from, to, octets(bitwise::MASK), octets(bitwise::XOR));
            }
            "immediate" => match expression.verdict() {
                Some(verdict) => return Step::Ends(verdict.clone()),
                None => run.load(register(immediate::TO), octets(immediate::DATA)),
            },
            "lookup" => return look_up(table, expression, run),
            "fib" => {
                let ip = match number(fib::FLAGS) & 1 {
                    0 => run.way.destination.ip(),
                    _ => self.packet.source.ip(),
                };
                let is_own = self.own.contains(&ip);
                let kind = if is_own { LOCAL } else { UNICAST };
                run.load(register(fib::TO), &kind.to_ne_bytes());
            }
            "nat" => {
                let port = expression.bytes(nat::PORT).map(|_| register(nat::PORT));
                self.translate(register(nat::ADDRESS), port, run);
                return Step::Ends(Verdict::Accept);
            }
            "masq" => return run.masquerade(),
            "reject" => return Step::Refuses,
            "dynset" if expression.bytes(dynset::DATA).is_some() => {
                return self.update(table, expression, run);
            }
            // Nothing that this kernel sees has ended or not: as if no limit were reached.
            "connlimit" => return Step::NextRule,
            "dynset" if number(dynset::OP) == u64::from(dynset::ADD) => return Step::NextRule,
            "counter" => {}
            // A single octet has no order.
            "byteorder" if number(byteorder::LEN) == 1 => {}
            _ => panic!("the simulated kernel does not know {expression:?}"),
        }
        Step::On
    }

    /// Records that the packet updates a map, whose data are endpoints.
    fn update(&self, table: &Table, expression: &Expression, run: &mut Running) -> Step {
        let set = expression.set().unwrap_or_default();
        let Some(there) = table.sets.get(set) else {
            return Step::NextRule;
        };
        let of_key = there.key.next_multiple_of(4);
        let address = usize::from(self.family.bits() / 8);
        run.way.updates.push(Update {
            set: set.into(),
            key: run.octets(at(expression, dynset::KEY), of_key),
            data: Some(run.octets(at(expression, dynset::DATA), address + 4)),
            timeout: Some(Duration::from_millis(expression.number(dynset::TIMEOUT))),
        });
        Step::On
    }

    fn translate(&self, address: usize, port: Option<usize>, run: &mut Running) {
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
    fn header(&self, header: u64, way: &Way) -> [u8; 40] {
        let ends = [self.packet.source, way.destination];
        let mut octets = [0; 40];
        match header {
            TRANSPORT => {
                for (at, end) in ends.iter().enumerate() {
                    octets[2 * at..][..2].copy_from_slice(&end.port().to_be_bytes());
                }
            }
            _ => {
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

    fn meta(&self, expression: &Expression, run: &mut Running) -> Step {
        let is_loaded = expression.bytes(meta::TO).is_some();
        match (expression.number(meta::KEY), is_loaded) {
            (3, true) => {
                let mark = run.way.mark.to_ne_bytes();
                run.load(at(expression, meta::TO), &mark);
            }
            (3, false) => {
                let mark = run.octets(at(expression, meta::FROM), 4);
                run.way.mark = u32::from_ne_bytes([mark[0], mark[1], mark[2], mark[3]]);
            }
            (16, true) => run.load(at(expression, meta::TO), &[self.packet.protocol]),
            (6, true) => {
                let mut name = self.packet.input.unwrap_or_default().as_bytes().to_vec();
                name.resize(16, 0);
                run.load(at(expression, meta::TO), &name);
            }
            other => panic!("the simulated kernel does not know meta {other:?}"),
        }
        Step::On
    }

    fn ct(&self, key: u64, to: usize, run: &mut Running) -> Step {
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

    fn load(&mut self, to: usize, octets: &[u8]) {
        // The kernel fills a register with zeros first.
        let room = octets.len().next_multiple_of(4);
        let at = &mut self.registers[to..][..room];
        at.fill(0);
        at[..octets.len()].copy_from_slice(octets);
    }

    fn mask(&mut self, from: usize, to: usize, mask: &[u8], xor: &[u8]) {
        let of = &self.registers[from..][..mask.len()];
        let parts = of.iter().zip(mask).zip(xor);
        let made: Vec<u8> = parts.map(|((of, mask), xor)| of & mask ^ xor).collect();
        self.load(to, &made);
    }

    fn octets(&self, from: usize, count: usize) -> Box<[u8]> {
        self.registers[from..][..count].into()
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

/// The octets before the register whose number an attribute has (`enum nft_registers`).
fn at(expression: &Expression, kind: u16) -> usize {
    match expression.number(kind) as usize {
        old @ 1..=4 => 16 * (old - 1),
        number @ 8..=23 => 4 * (number - 8),
        other => panic!("there is no register {other}: {expression:?}"),
    }
}

fn u32_of(expression: &Expression, kind: u16) -> u32 {
    u32::try_from(expression.number(kind)).unwrap_or(u32::MAX)
}

fn octets_of(expression: &Expression, kind: u16) -> &[u8] {
    match expression.value(kind) {
        Some(Datum::Value(octets)) => octets,
        _ => panic!("no value: {expression:?}"),
    }
}

fn look_up(table: &Table, expression: &Expression, run: &mut Running) -> Step {
    let Some(set) = expression.set().and_then(|name| table.sets.get(name)) else {
        return Step::NextRule;
    };
    let found = set.find(&run.registers[at(expression, lookup::FROM)..]);
    if expression.bytes(lookup::TO).is_none() {
        let inverted = expression.number(lookup::FLAGS) != 0;
        return Step::on_if(found.is_some() != inverted);
    }
    match found {
        // Verdicts have a register of their own.
        Some(Some(Datum::Verdict(verdict))) if expression.number(lookup::TO) == 0 => {
            Step::Ends(verdict)
        }
        Some(Some(Datum::Value(octets))) => {
            run.load(at(expression, lookup::TO), &octets);
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

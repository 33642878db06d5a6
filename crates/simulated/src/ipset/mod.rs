//! ipset: sets and their members (`net/netfilter/ipset/ip_set_core.c`,
//! `ip_set_hash_gen.h`).

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipvs::ipset::{Element, Kind};
use net::Family;
use netlink::{Message, Request, netfilter_kind};
use nix::{
    errno::Errno,
    libc::{self, c_int},
};

use super::message::{ByKind, Refusal, answer, datagram, list};

// Commands (`IPSET_CMD_*`).
const PROTOCOL: u16 = 1;
const CREATE: u16 = 2;
const DESTROY: u16 = 3;
const FLUSH: u16 = 4;
const SWAP: u16 = 6;
const LIST: u16 = 7;
const ADD: u16 = 9;
const DEL: u16 = 10;
const TYPE: u16 = 13;

/// Messages that list sets.
pub const LIST_SETS: u16 = netfilter_kind(libc::NFNL_SUBSYS_IPSET, LIST as c_int);
/// Messages that add members.
pub const ADD_MEMBERS: u16 = netfilter_kind(libc::NFNL_SUBSYS_IPSET, ADD as c_int);
/// Messages that delete members.
pub const DELETE_MEMBERS: u16 = netfilter_kind(libc::NFNL_SUBSYS_IPSET, DEL as c_int);

/// Numbers of the attributes `IPSET_ATTR_*` of `linux/netfilter/ipset/ip_set.h`.
mod attribute {
    pub const PROTOCOL: u16 = 1;
    pub const NAME: u16 = 2;
    pub const TYPE_NAME: u16 = 3;
    pub const NAME2: u16 = 3;
    pub const REVISION: u16 = 4;
    pub const OLDEST_REVISION: u16 = 10;
    pub const FAMILY: u16 = 5;
    pub const FLAGS: u16 = 6;
    pub const DATA: u16 = 7;
    pub const ADT: u16 = 8;
    pub const HASH_SIZE: u16 = 18;
    pub const MAX_MEMBERS: u16 = 19;
    pub const ELEMENTS: u16 = 24;
    pub const REFERENCES: u16 = 25;
}

// `enum ipset_errno`, and those of the kinds.
const ERR_PROTOCOL: Refusal = Refusal(4097);
const ERR_FIND_TYPE: Refusal = Refusal(4098);
const ERR_BUSY: Refusal = Refusal(4100);
const ERR_EXIST_SETNAME2: Refusal = Refusal(4101);
const ERR_TYPE_MISMATCH: Refusal = Refusal(4102);
const ERR_INVALID_CIDR: Refusal = Refusal(4104);
const ERR_INVALID_FAMILY: Refusal = Refusal(4106);
const ERR_HASH_FULL: Refusal = Refusal(4352);
const ERR_HASH_ELEM: Refusal = Refusal(4353);
const ERR_INVALID_PROTO: Refusal = Refusal(4354);

/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// The version that kernel and client speak.
const VERSION: u8 = 7;
/// The newest revision of each kind.
const NEWEST: u8 = 5;
/// `IPSET_FLAG_LIST_HEADER` of `linux/netfilter/ipset/ip_set.h`.
const LIST_HEADER: u32 = 1 << 2;
/// The most members in one message.
const MOST: usize = 50;

/// Sets of a network namespace.
#[derive(Clone, Debug, Default)]
pub struct Sets(BTreeMap<String, Set>);

#[derive(Clone, Debug)]
struct Set {
    kind: Kind,
    family: u8,
    hash_size: u32,
    max_members: u32,
    members: BTreeSet<Element>,
    /// How many rules match against it.
    references: u32,
}

impl Sets {
    /// Returns whether there is a set of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns whether a set has a member; false where there is no such set.
    pub fn contains(&self, name: &str, member: &Element) -> bool {
        self.0.get(name).is_some_and(|set| match member {
            // A network is in the set if a network of the set contains it.
            Element::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => set.members.iter().any(|there| match there {
                Element::IpPortNet {
                    ip: of,
                    protocol: by,
                    port: at,
                    net: there,
                } => (of, by, at) == (ip, protocol, port) && there.contains(net),
                _ => false,
            }),
            member => set.members.contains(member),
        })
    }

    /// Returns whether the values that a rule names are a member of a set: one end of the packet
    /// for each part of a member; false if there is no such set.
    pub fn matches(&self, name: &str, protocol: u8, ends: &[SocketAddr]) -> bool {
        let Some(set) = self.0.get(name) else {
            return false;
        };
        let end = |at: usize| ends.get(at).copied();
        let member = || {
            let ip = end(0)?.ip();
            Some(match set.kind {
                Kind::Ip => Element::Ip(ip),
                Kind::Port => Element::Port(end(0)?.port()),
                Kind::IpPort => Element::IpPort {
                    ip,
                    protocol,
                    port: end(1)?.port(),
                },
                Kind::IpPortIp => Element::IpPortIp {
                    ip,
                    protocol,
                    port: end(1)?.port(),
                    other: end(2)?.ip(),
                },
                Kind::IpPortNet => Element::IpPortNet {
                    ip,
                    protocol,
                    port: end(1)?.port(),
                    net: end(2)?.ip().into(),
                },
            })
        };
        member().is_some_and(|member| self.contains(name, &member))
    }

    /// Takes the member with this number, modulo how many there are, out of a set as
    /// another process would. Returns whether there was one.
    pub fn remove(&mut self, name: &str, at: usize) -> bool {
        let Some(set) = self.0.get_mut(name) else {
            return false;
        };
        let count = set.members.len().max(1);
        let member = set.members.iter().nth(at % count).copied();
        member.is_some_and(|member| set.members.remove(&member))
    }

    /// Sets how many rules match against each set, as `references` counts them.
    pub fn refer(&mut self, references: impl Fn(&str) -> u32) {
        for (name, set) in &mut self.0 {
            set.references = references(name);
        }
    }

    /// Takes all members out of a set as another process would.
    pub fn flush(&mut self, name: &str) {
        if let Some(set) = self.0.get_mut(name) {
            set.members.clear();
        }
    }

    /// Returns true for a request that changes nothing.
    pub(super) fn is_question(message: &Message<'_>) -> bool {
        [PROTOCOL, TYPE].contains(&(message.kind & 0xff))
    }

    /// The family of the set whose members `message` asks for; `None`: there is no such set.
    pub(super) fn asked_family(&self, message: &Message<'_>) -> Option<Family> {
        let attributes = ByKind::of(message.attributes(HEADER));
        let set = self.0.get(attributes.text(attribute::NAME)?)?;
        let mut families = Family::ALL.into_iter();
        families.find(|family| family.number() == set.family)
    }

    /// Answers a list.
    pub(super) fn dump(
        &self,
        of: &Message<'_>,
        interrupted: bool,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let attributes = ByKind::of(of.attributes(HEADER));
        let flags = attributes.u32(attribute::FLAGS).unwrap_or_default();
        let without_members = u32::from_be(flags) & LIST_HEADER != 0;
        let asked = attributes.text(attribute::NAME);
        if asked.is_some_and(|name| !self.has(name)) {
            return Err(Errno::ENOENT.into());
        }
        let all = self.0.iter();
        let all = all.filter(|(name, _)| asked.is_none_or(|asked| asked == *name));
        let listed = all.flat_map(|(name, set)| set.messages(name, without_members));
        Ok(list(of, listed.collect(), interrupted))
    }

    /// Carries a request out; returns the answer, if there is one in addition to the
    /// acknowledgement.
    pub(super) fn request(&mut self, message: &Message<'_>) -> Result<Option<Vec<u8>>, Refusal> {
        let attributes = ByKind::of(message.attributes(HEADER));
        if attributes.u8(attribute::PROTOCOL) != Some(VERSION) {
            return Err(ERR_PROTOCOL);
        }
        let name = attributes.text(attribute::NAME).unwrap_or_default();
        let answer = match message.kind & 0xff {
            PROTOCOL => Some(of(PROTOCOL).attribute(attribute::PROTOCOL, &[VERSION])),
            TYPE => {
                let kind = attributes.text(attribute::TYPE_NAME);
                kind.and_then(Kind::of).ok_or(ERR_FIND_TYPE)?;
                let range = of(TYPE).attribute(attribute::REVISION, &[NEWEST]);
                Some(range.attribute(attribute::OLDEST_REVISION, &[0]))
            }
            CREATE => self.create(name, &attributes).map(|()| None)?,
            DESTROY => {
                let set = self.0.get(name).ok_or(Errno::ENOENT)?;
                if set.references > 0 {
                    return Err(ERR_BUSY);
                }
                self.0.remove(name);
                None
            }
            FLUSH => {
                self.0.get(name).ok_or(Errno::ENOENT)?;
                self.flush(name);
                None
            }
            SWAP => {
                let other = attributes.text(attribute::NAME2).unwrap_or_default();
                self.swap(name, other).map(|()| None)?
            }
            command @ (ADD | DEL) => {
                let set = self.0.get_mut(name).ok_or(Errno::ENOENT)?;
                set.change(command, &attributes).map(|()| None)?
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        Ok(answer.map(|answer: Request| datagram(&answer, 0, message.sequence)))
    }

    fn create(&mut self, name: &str, attributes: &ByKind<'_>) -> Result<(), Refusal> {
        let kind = attributes.text(attribute::TYPE_NAME).and_then(Kind::of);
        let kind = kind.ok_or(ERR_FIND_TYPE)?;
        let family = attributes.u8(attribute::FAMILY).ok_or(ERR_PROTOCOL)?;
        let is_hash = kind != Kind::Port;
        if is_hash && Family::from_number(family).is_none() {
            return Err(ERR_INVALID_FAMILY);
        }
        let data = attributes.nested(attribute::DATA).ok_or(ERR_PROTOCOL)?;
        let size = |attribute, default| data.u32(attribute).map_or(default, u32::from_be);
        let set = Set {
            kind,
            family,
            hash_size: size(attribute::HASH_SIZE, 1024),
            max_members: size(attribute::MAX_MEMBERS, 65_536),
            members: BTreeSet::new(),
            references: 0,
        };
        match self.0.get(name) {
            None => drop(self.0.insert(name.to_owned(), set)),
            // Its family is not compared (`mtype_same_set`).
            Some(there) => {
                if there.kind != kind || is_hash && there.max_members != set.max_members {
                    return Err(Errno::EEXIST.into());
                }
            }
        }
        Ok(())
    }

    fn swap(&mut self, one: &str, other: &str) -> Result<(), Refusal> {
        let first = self.0.get(one).ok_or(Errno::ENOENT)?;
        let second = self.0.get(other).ok_or(ERR_EXIST_SETNAME2)?;
        if (first.kind, first.family) != (second.kind, second.family) {
            return Err(ERR_TYPE_MISMATCH);
        }
        let (mut first, mut second) = (first.clone(), second.clone());
        // Rules refer to the name.
        std::mem::swap(&mut first.references, &mut second.references);
        self.0.insert(one.to_owned(), second);
        self.0.insert(other.to_owned(), first);
        Ok(())
    }
}

impl Set {
    /// Adds or deletes the members of a request, up to the first that is refused.
    fn change(&mut self, command: u16, attributes: &ByKind<'_>) -> Result<(), Refusal> {
        let many = attributes.get(attribute::ADT).map(|many| many.nested());
        match many {
            Some(many) => many.flatten().try_for_each(|one| {
                self.change_one(
                    command,
                    Element::read(self.kind.name(), one.nested()).ok().flatten(),
                )
            }),
            None => {
                let one = attributes.get(attribute::DATA).ok_or(ERR_PROTOCOL)?;
                let member = Element::read(self.kind.name(), one.nested()).ok();
                self.change_one(command, member.flatten())
            }
        }
    }

    fn change_one(&mut self, command: u16, member: Option<Element>) -> Result<(), Refusal> {
        let member = self.checked(member.ok_or(ERR_PROTOCOL)?)?;
        if command == DEL {
            self.members.remove(&member);
            return Ok(());
        }
        let is_full = self.kind != Kind::Port && self.members.len() as u32 >= self.max_members;
        if is_full && !self.members.contains(&member) {
            return Err(ERR_HASH_FULL);
        }
        self.members.insert(member);
        Ok(())
    }

    /// Returns a member as the set takes it.
    fn checked(&self, member: Element) -> Result<Element, Refusal> {
        let of_family = |ip: &IpAddr| Family::of(ip).number() == self.family;
        let with_ports = |protocol: u8, port: u16| match i32::from(protocol) {
            0 => Err(ERR_INVALID_PROTO),
            libc::IPPROTO_TCP | libc::IPPROTO_UDP | libc::IPPROTO_SCTP => Ok(port),
            _ => Ok(0),
        };
        let addresses: Vec<IpAddr> = match member {
            Element::Ip(ip) | Element::IpPort { ip, .. } => vec![ip],
            Element::IpPortIp { ip, other, .. } => vec![ip, other],
            Element::IpPortNet { ip, net, .. } => vec![ip, net.addr()],
            Element::Port(_) => Vec::new(),
        };
        if !addresses.iter().all(of_family) {
            return Err(ERR_PROTOCOL);
        }
        Ok(match member {
            Element::Ip(ip) if ip.is_unspecified() => return Err(ERR_HASH_ELEM),
            Element::IpPortNet { net, .. } if net.prefix_len() == 0 => {
                return Err(ERR_INVALID_CIDR);
            }
            Element::IpPort { ip, protocol, port } => Element::IpPort {
                ip,
                protocol,
                port: with_ports(protocol, port)?,
            },
            Element::IpPortIp {
                ip,
                protocol,
                port,
                other,
            } => Element::IpPortIp {
                ip,
                protocol,
                port: with_ports(protocol, port)?,
                other,
            },
            Element::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => Element::IpPortNet {
                ip,
                protocol,
                port: with_ports(protocol, port)?,
                net: net.trunc(),
            },
            other => other,
        })
    }

    /// Returns the messages that list it; a set of many members takes several.
    fn messages(&self, name: &str, without_members: bool) -> Vec<Request> {
        let begin = || {
            let message = of(LIST).attribute(attribute::PROTOCOL, &[VERSION]);
            message.text(attribute::NAME, name)
        };
        let number = |request: Request, kind: u16, value: u32| {
            let kind = kind | libc::NLA_F_NET_BYTEORDER as u16;
            request.attribute(kind, &value.to_be_bytes())
        };
        let mut first = begin()
            .text(attribute::TYPE_NAME, self.kind.name())
            .attribute(attribute::FAMILY, &[self.family])
            .attribute(attribute::REVISION, &[NEWEST])
            .nested(attribute::DATA, |data| {
                let mut data = number(data, attribute::REFERENCES, self.references);
                if self.kind != Kind::Port {
                    data = number(data, attribute::HASH_SIZE, self.hash_size);
                    data = number(data, attribute::MAX_MEMBERS, self.max_members);
                }
                number(data, attribute::ELEMENTS, self.members.len() as u32)
            });
        if without_members {
            return vec![first];
        }
        let members: Vec<&Element> = self.members.iter().collect();
        let mut messages = Vec::new();
        let filled = |message: Request, some: &[&Element]| {
            message.nested(attribute::ADT, |list| {
                let each = |list: Request, member: &&Element| {
                    list.nested(attribute::DATA, |data| member.write(data))
                };
                some.iter().fold(list, each)
            })
        };
        for (at, some) in members.chunks(MOST).enumerate() {
            if at > 0 {
                messages.push(std::mem::replace(&mut first, begin()));
            }
            first = filled(first, some);
        }
        messages.push(first);
        messages
    }
}

fn of(command: u16) -> Request {
    let kind = netfilter_kind(libc::NFNL_SUBSYS_IPSET, command.into());
    answer(kind, libc::AF_INET as u8)
}

//! Routing netlink: links and their addresses (`net/core/rtnetlink.c`, `net/ipv4/devinet.c`,
//! `net/ipv6/addrconf.c`), each with the local route that the kernel makes for it, and other routes
//! and rules.

mod policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr};

use net::{Family, octets};
use netlink::{Message, PROTOCOL, Request, addresses::LABEL, routes::TABLE_LOCAL};
use nix::{errno::Errno, libc};

pub use self::policy::Led;
use self::policy::Policy;
use super::{
    message::{ByKind, Refusal, datagram, list},
    packet::Packet,
};

/// Size of `struct ifinfomsg`, `struct ifaddrmsg` and `struct rtmsg`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
/// The loopback link, from which packets come that the node sends itself.
const LOOPBACK: &str = "lo";
const LOOPBACK_INDEX: u32 = 1;
/// The kind of links that can be made here.
const DUMMY: &str = "dummy";
/// Scope of IPv6 addresses of a single link.
const SCOPE_LINK: u8 = libc::RT_SCOPE_LINK;

/// Links of a network namespace, with their addresses.
#[derive(Clone, Debug)]
pub struct Links {
    links: BTreeMap<u32, Link>,
    addresses: Vec<Address>,
    /// Routes other than those of addresses, and rules.
    policy: Policy,
    /// The index of the newest link.
    newest: u32,
}

#[derive(Clone, Debug)]
struct Link {
    name: String,
    /// `None`: no virtual one.
    kind: Option<String>,
}

#[derive(Clone, Debug)]
struct Address {
    index: u32,
    ip: IpAddr,
    prefix: u8,
    scope: u8,
    flags: u32,
    label: Option<String>,
    /// The kernel's own local route to it is there.
    delivered: bool,
}

impl Default for Links {
    fn default() -> Links {
        let mut links = Links {
            links: BTreeMap::new(),
            addresses: Vec::new(),
            policy: Policy::default(),
            newest: 0,
        };
        let loopback = [(Family::V4, 8), (Family::V6, 128)];
        let loopback = loopback.map(|(family, length)| (family.localhost(), length));
        links.add(LOOPBACK, &loopback);
        links
    }
}

impl Links {
    /// Adds a link that is not virtual, with its addresses and the lengths of their
    /// prefixes.
    pub fn add(&mut self, name: &str, addresses: &[(IpAddr, u8)]) {
        let index = self.insert(name, None);
        self.addresses
            .extend(addresses.iter().map(|(ip, prefix)| Address {
                index,
                ip: *ip,
                prefix: *prefix,
                scope: if ip.is_loopback() {
                    libc::RT_SCOPE_HOST
                } else {
                    libc::RT_SCOPE_UNIVERSE
                },
                flags: libc::IFA_F_PERMANENT,
                label: None,
                delivered: true,
            }));
    }

    /// Deletes a link with its addresses. Returns whether it was there.
    pub fn delete(&mut self, name: &str) -> bool {
        self.index(name).is_ok_and(|index| {
            self.links.remove(&index);
            self.addresses.retain(|address| address.index != index);
            true
        })
    }

    /// Takes the address with this number, modulo how many there are, of a family from a
    /// link as another process would. Returns whether there was one.
    pub fn remove_address(&mut self, name: &str, family: Family, at: usize) -> bool {
        let Ok(index) = self.index(name) else {
            return false;
        };
        let is_of_link =
            |address: &Address| address.index == index && Family::of(&address.ip) == family;
        !policy::remove(&mut self.addresses, is_of_link, Some(at)).is_empty()
    }

    /// Returns whether packets to an address are delivered here, by the table that is asked
    /// before all rules.
    pub fn is_local(&self, ip: &IpAddr) -> bool {
        let mut addresses = self.addresses.iter();
        let found = self.policy.found(Family::of(ip), TABLE_LOCAL, ip);
        found == Some(libc::RTN_LOCAL)
            || addresses.any(|address| address.delivered && address.ip == *ip)
    }

    /// Returns whether the node may answer from an address to which it does not deliver
    /// by the kernel's own route (`fib_validate_source`). IPv6 asks for none.
    pub fn may_answer_from(&self, ip: &IpAddr) -> bool {
        ip.is_ipv6() || self.is_local(ip) || self.addresses.iter().any(|one| one.ip == *ip)
    }

    /// Returns where a packet is routed.
    pub fn led(&self, family: Family, packet: &Packet) -> Led {
        if self.is_local(&packet.destination.ip()) {
            return Led::Here;
        }
        self.policy.led(family, packet)
    }

    /// Lists Tripod's objects: the addresses that routes or labels name, and the number of rules.
    pub fn of_tripod(&self) -> (Vec<IpAddr>, usize) {
        let labelled = self.addresses.iter().filter(|one| one.is_of_tripod());
        let labelled = labelled.map(|one| one.ip);
        let led = self.policy.destinations(PROTOCOL);
        (
            led.chain(labelled).collect(),
            self.policy.rules_of(PROTOCOL),
        )
    }

    /// Makes new routes to an address be refused; `None`: none are.
    pub fn refuse(&mut self, refused: Option<(IpAddr, Errno)>) {
        self.policy.refuse(refused);
    }

    /// Changes Tripod's objects in a family as another process would. Returns whether anything
    /// changed.
    pub fn edit(&mut self, family: Family, edit: Edit) -> bool {
        let Links {
            policy, addresses, ..
        } = self;
        match edit {
            Edit::RemoveRoutes(at) => policy.remove_routes(family, PROTOCOL, at),
            Edit::RemoveRules(at) => policy.remove_rules(family, PROTOCOL, at),
            Edit::RemoveAddress(_) | Edit::Deliver if family == Family::V6 => false,
            Edit::RemoveAddress(at) => {
                let removed = policy::remove(addresses, Address::is_of_tripod, Some(at));
                !removed.is_empty()
            }
            Edit::Deliver => {
                let labelled = addresses.iter_mut().filter(|one| one.is_of_tripod());
                labelled.fold(false, |changed, address| {
                    changed | !std::mem::replace(&mut address.delivered, true)
                })
            }
        }
    }

    /// Adds a rule and a route of another process, if there are none.
    pub fn enter(&mut self, family: Family) {
        self.policy.enter(family, libc::RTPROT_STATIC);
    }

    /// Returns whether these are there.
    pub fn has_entered(&self, family: Family) -> bool {
        self.policy.has_both(family, libc::RTPROT_STATIC)
    }

    /// Returns the deletions since the last call, as messages, each with the group that is notified
    /// of it.
    pub(super) fn take_notifications(&mut self) -> Vec<(u32, Vec<u8>)> {
        let deleted = self.policy.take_deleted().into_iter();
        deleted
            .map(|(group, message)| (group, datagram(&message, 0, 0)))
            .collect()
    }

    fn insert(&mut self, name: &str, kind: Option<&str>) -> u32 {
        self.newest += 1;
        let link = Link {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
        };
        self.links.insert(self.newest, link);
        self.newest
    }

    fn index(&self, name: &str) -> Result<u32, Errno> {
        let mut all = self.links.iter();
        let found = all.find(|(_, link)| link.name == name);
        found.map(|(index, _)| *index).ok_or(Errno::ENODEV)
    }

    /// Answers a list.
    pub(super) fn dump(
        &self,
        of: &Message<'_>,
        interrupted: bool,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let listed = match of.kind {
            libc::RTM_GETADDR => self.addresses.iter().map(Address::message).collect(),
            libc::RTM_GETLINK => {
                let all = self.links.iter();
                all.map(|(index, link)| link.message(*index)).collect()
            }
            libc::RTM_GETRULE | libc::RTM_GETROUTE => self.policy.list(of)?,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        Ok(list(of, listed, interrupted))
    }

    /// Carries a request out; returns the answer, if there is one in addition to the
    /// acknowledgement.
    pub(super) fn request(&mut self, message: &Message<'_>) -> Result<Option<Vec<u8>>, Refusal> {
        match message.kind {
            libc::RTM_GETLINK => {
                let index = self.named(message)?;
                let link = self.links.get(&index).ok_or(Errno::ENODEV)?;
                return Ok(Some(datagram(&link.message(index), 0, message.sequence)));
            }
            libc::RTM_NEWLINK => self.new_link(message)?,
            libc::RTM_DELLINK => self.delete_link(message)?,
            libc::RTM_NEWADDR => self.new_address(message)?,
            libc::RTM_DELADDR => self.delete_address(message)?,
            libc::RTM_DELROUTE if withdraws(message) => self.withdraw(message)?,
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWRULE | libc::RTM_DELRULE => {
                self.policy.request(message)?;
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        }
        Ok(None)
    }

    /// Finds the index of the link that a request is about.
    fn named(&self, message: &Message<'_>) -> Result<u32, Errno> {
        let header = message.header::<LINK_HEADER>();
        let [_, _, _, _, a, b, c, d, ..] = header.map_err(|_| Errno::EINVAL)?;
        let attributes = ByKind::of(message.attributes(LINK_HEADER));
        match (
            u32::from_ne_bytes([a, b, c, d]),
            attributes.text(libc::IFLA_IFNAME),
        ) {
            (0, Some(name)) => self.index(name),
            (0, None) => Err(Errno::EINVAL),
            (index, _) => Ok(index),
        }
    }

    fn new_link(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        if i32::from(message.flags) & libc::NLM_F_CREATE == 0 {
            // It is set up, as all are here.
            let index = self.named(message)?;
            return self.links.get(&index).map(drop).ok_or(Errno::ENODEV);
        }
        let attributes = ByKind::of(message.attributes(LINK_HEADER));
        let name = attributes.text(libc::IFLA_IFNAME).ok_or(Errno::EINVAL)?;
        if self.index(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let info = attributes.nested(libc::IFLA_LINKINFO);
        let kind = info.as_ref().and_then(|one| one.text(libc::IFLA_INFO_KIND));
        if kind != Some(DUMMY) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.insert(name, kind);
        Ok(())
    }

    fn delete_link(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let index = self.named(message)?;
        let link = self.links.get(&index).ok_or(Errno::ENODEV)?;
        if link.kind.is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        let name = link.name.clone();
        self.delete(&name);
        Ok(())
    }

    fn new_address(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let new = Address::read(message)?;
        if !self.links.contains_key(&new.index) {
            return Err(Errno::ENODEV);
        }
        let mut all = self.addresses.iter_mut();
        let there = all.find(|one| {
            let is_same = one.index == new.index && one.ip == new.ip;
            is_same && (new.ip.is_ipv6() || one.prefix == new.prefix)
        });
        match there {
            None => self.addresses.push(new),
            Some(there) => {
                let flags = i32::from(message.flags);
                if flags & libc::NLM_F_EXCL != 0 || flags & libc::NLM_F_REPLACE == 0 {
                    return Err(Errno::EEXIST);
                }
                there.flags = new.flags;
            }
        }
        Ok(())
    }

    fn delete_address(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let gone = Address::read(message)?;
        if !self.links.contains_key(&gone.index) {
            return Err(Errno::ENODEV);
        }
        let mut all = self.addresses.iter();
        let found = all.position(|one| {
            let is_same = one.index == gone.index && one.ip == gone.ip;
            let label = gone.label.is_none() || one.label == gone.label;
            is_same && one.prefix == gone.prefix && label
        });
        self.addresses.remove(found.ok_or(Errno::EADDRNOTAVAIL)?);
        Ok(())
    }

    /// Deletes the kernel's own route to an address.
    fn withdraw(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let attributes = ByKind::of(message.attributes(ROUTE_HEADER));
        let destination = attributes.get(libc::RTA_DST);
        let ip = destination.and_then(|one| one.ip().ok());
        let (ip, index) = (ip.ok_or(Errno::EINVAL)?, attributes.u32(libc::RTA_OIF));
        let mut addresses = self.addresses.iter_mut();
        let found = addresses.find(|one| {
            let is_of_link = index.is_none_or(|index| one.index == index);
            one.delivered && one.ip == ip && is_of_link
        });
        found.ok_or(Errno::ESRCH)?.delivered = false;
        Ok(())
    }
}

/// Returns whether a request deletes a route that the kernel made by itself.
pub(super) fn withdraws(message: &Message<'_>) -> bool {
    let header = message.header::<ROUTE_HEADER>();
    let of_kernel = header.is_ok_and(|header| header[5] == libc::RTPROT_KERNEL);
    message.kind == libc::RTM_DELROUTE && of_kernel
}

/// Changes that another process makes to Tripod's objects: to all, or to the object with that
/// number, modulo how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Removes routes.
    RemoveRoutes(Option<usize>),
    /// Removes rules.
    RemoveRules(Option<usize>),
    /// Removes an address.
    RemoveAddress(usize),
    /// Loopback goes down and up: the kernel makes its own routes to its addresses again.
    Deliver,
}

impl Link {
    fn message(&self, index: u32) -> Request {
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let message = Request::new(libc::RTM_NEWLINK, 0, "", "").header(&header);
        let message = message.text(libc::IFLA_IFNAME, &self.name);
        match &self.kind {
            None => message,
            Some(kind) => message.nested(libc::IFLA_LINKINFO, |info| {
                info.text(libc::IFLA_INFO_KIND, kind)
            }),
        }
    }
}

impl Address {
    /// Reads the address of a request.
    fn read(message: &Message<'_>) -> Result<Address, Errno> {
        let header = message.header::<ADDRESS_HEADER>();
        let [family, prefix, _, scope, a, b, c, d] = header.map_err(|_| Errno::EINVAL)?;
        let attributes = ByKind::of(message.attributes(ADDRESS_HEADER));
        let ip = attributes
            .get(libc::IFA_LOCAL)
            .or(attributes.get(libc::IFA_ADDRESS));
        let ip = ip.and_then(|one| one.ip().ok()).ok_or(Errno::EINVAL)?;
        if Family::of(&ip).number() != family || prefix > Family::of(&ip).bits() {
            return Err(Errno::EINVAL);
        }
        let mut flags = attributes.u32(libc::IFA_FLAGS).unwrap_or_default() | libc::IFA_F_PERMANENT;
        // `struct ifa_cacheinfo` begins with the preferred lifetime.
        let lifetime = attributes.get(libc::IFA_CACHEINFO);
        if lifetime.is_some_and(|one| one.payload.starts_with(&[0; 4])) {
            flags |= libc::IFA_F_DEPRECATED;
        }
        Ok(Address {
            index: u32::from_ne_bytes([a, b, c, d]),
            prefix,
            // The scope of an IPv6 address follows from the address.
            scope: match ip {
                IpAddr::V4(_) => scope,
                IpAddr::V6(v6) if v6.is_unicast_link_local() => SCOPE_LINK,
                IpAddr::V6(_) => libc::RT_SCOPE_UNIVERSE,
            },
            ip,
            flags,
            label: attributes.text(libc::IFA_LABEL).map(str::to_owned),
            delivered: true,
        })
    }

    fn is_of_tripod(&self) -> bool {
        self.label.as_deref() == Some(LABEL)
    }

    fn message(&self) -> Request {
        let [a, b, c, d] = self.index.to_ne_bytes();
        let number = Family::of(&self.ip).number();
        let header = [
            number,
            self.prefix,
            self.flags as u8,
            self.scope,
            a,
            b,
            c,
            d,
        ];
        let octets = octets(&self.ip);
        let mut message = Request::new(libc::RTM_NEWADDR, libc::NLM_F_MULTI as u16, "", "")
            .header(&header)
            .attribute(libc::IFA_ADDRESS, &octets);
        if self.ip.is_ipv4() {
            message = message.attribute(libc::IFA_LOCAL, &octets);
        }
        if let Some(label) = &self.label {
            message = message.text(libc::IFA_LABEL, label);
        }
        message.u32(libc::IFA_FLAGS, self.flags)
    }
}

//! Routes in their tables, and the rules that choose the table for a packet
//! (`net/core/fib_rules.c`, `net/ipv4/fib_trie.c`, `net/ipv6/route.c`). The tables main and
//! default are empty, and the kernel's own rules for them are left out.

use std::net::IpAddr;

use ipnet::IpNet;
use neli::consts::rtnl::{FrAct, Frattr};
use net::Family;
use netlink::{Message, Request, routes::TABLE_LOCAL};
use nix::{errno::Errno, libc};

use super::{
    super::{
        message::{ByKind, Stored},
        packet::Packet,
    },
    LOOPBACK,
};

/// Size of `struct rtmsg` and `struct fib_rule_hdr`.
const HEADER: usize = 12;
/// The metric of an IPv6 route that names none (`IP6_RT_PRIO_USER`).
const METRIC: u32 = 1024;
/// The table of another process's routes, and the priority of its rule.
const FOREIGN: u32 = 100;

/// All routes and rules, except those that the kernel makes for addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    routes: Vec<Route>,
    /// In the order of their priorities; rules of one priority in the order in which they were
    /// added.
    rules: Vec<Rule>,
    /// Deletions that have yet to be notified: each message with its group.
    deleted: Vec<(u32, Request)>,
    /// New routes to this address are refused, for this reason.
    refused: Option<(IpAddr, Errno)>,
}

/// Where a packet is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// To a socket of this node.
    Here,
    /// It is refused.
    Prohibited,
    /// Where it would go without these routes and rules.
    Elsewhere,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    family: Family,
    table: u32,
    destination: IpNet,
    /// Type of the route: `RTN_*` of `linux/rtnetlink.h`.
    kind: u8,
    /// Origin of the route: `RTPROT_*` of `linux/rtnetlink.h`.
    protocol: u8,
    priority: u32,
    /// Index of its link.
    link: Option<u32>,
    source: Option<IpAddr>,
    header: [u8; HEADER],
    attributes: Stored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    family: Family,
    priority: u32,
    /// Action of the rule: `FR_ACT_*` of `linux/fib_rules.h`.
    action: u8,
    table: u32,
    goto: Option<u32>,
    source: Option<IpNet>,
    input: Option<String>,
    ip_protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    mark: Option<(u32, u32)>,
    /// Origin of the rule: `RTPROT_*` of `linux/rtnetlink.h`.
    protocol: u8,
    header: [u8; HEADER],
    attributes: Stored,
}

impl Policy {
    /// Returns where a packet of `family` is routed. A port of 0 belongs to a packet without ports,
    /// such as a fragment.
    pub(super) fn led(&self, family: Family, packet: &Packet) -> Led {
        if self.found(family, TABLE_LOCAL, &packet.destination.ip()) == Some(libc::RTN_PROHIBIT) {
            return Led::Prohibited;
        }
        let rules = self.rules.iter().filter(|rule| rule.family == family);
        let mut skips = None;
        for rule in rules.filter(|rule| rule.matches(packet)) {
            if skips.is_some_and(|to| rule.priority < to) {
                continue;
            }
            skips = None;
            match rule.goto {
                // Without a rule there it does nothing.
                Some(to) => skips = self.has_rule(family, to).then_some(to),
                None => match self.found(family, rule.table, &packet.destination.ip()) {
                    Some(libc::RTN_LOCAL) => return Led::Here,
                    Some(libc::RTN_PROHIBIT) => return Led::Prohibited,
                    _ => {}
                },
            }
        }
        Led::Elsewhere
    }

    fn has_rule(&self, family: Family, priority: u32) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.family == family && rule.priority == priority)
    }

    /// Finds the kind of the route to an address in a table.
    pub(super) fn found(&self, family: Family, table: u32, ip: &IpAddr) -> Option<u8> {
        let routes = self.routes.iter().filter(|route| {
            route.family == family && route.table == table && route.destination.contains(ip)
        });
        let best = routes.min_by_key(|route| {
            let length = route.destination.prefix_len();
            (u8::MAX - length, route.priority)
        });
        best.map(|route| route.kind)
    }

    /// Makes new routes to an address be refused; `None`: none are.
    pub(super) fn refuse(&mut self, refused: Option<(IpAddr, Errno)>) {
        self.refused = refused;
    }

    /// Adds a rule and a route of `protocol`, as another process has them for a network of its
    /// own.
    pub(super) fn enter(&mut self, family: Family, protocol: u8) {
        if self.has_both(family, protocol) {
            return;
        }
        let number = family.number();
        self.routes.push(Route {
            family,
            table: FOREIGN,
            destination: IpNet::new_assert(family.unspecified(), 0),
            kind: libc::RTN_UNICAST,
            protocol,
            priority: 0,
            link: None,
            source: None,
            header: [
                number,
                0,
                0,
                0,
                0,
                protocol,
                0,
                libc::RTN_UNICAST,
                0,
                0,
                0,
                0,
            ],
            attributes: Stored::default(),
        });
        let action = u8::from(FrAct::FrActToTbl);
        let rule = Rule {
            family,
            priority: FOREIGN,
            action,
            table: FOREIGN,
            goto: None,
            source: None,
            input: None,
            ip_protocol: None,
            ports: None,
            mark: None,
            protocol,
            header: [number, 0, 0, 0, 0, 0, 0, action, 0, 0, 0, 0],
            attributes: Stored::default(),
        };
        let at = self.rules.partition_point(|one| one.priority <= FOREIGN);
        self.rules.insert(at, rule);
    }

    /// Returns whether there are a rule and a route of `protocol`.
    pub(super) fn has_both(&self, family: Family, protocol: u8) -> bool {
        let (mut rules, mut routes) = (self.rules.iter(), self.routes.iter());
        rules.any(|one| one.family == family && one.protocol == protocol)
            && routes.any(|one| one.family == family && one.protocol == protocol)
    }

    /// Returns the addresses to which routes of `protocol` lead.
    pub(super) fn destinations(&self, protocol: u8) -> impl Iterator<Item = IpAddr> {
        let of_protocol = self
            .routes
            .iter()
            .filter(move |one| one.protocol == protocol);
        of_protocol.map(|route| route.destination.addr())
    }

    /// Returns how many rules there are of `protocol`.
    pub(super) fn rules_of(&self, protocol: u8) -> usize {
        let rules = self.rules.iter();
        rules.filter(|rule| rule.protocol == protocol).count()
    }

    /// Returns a list of the routes or rules of a family.
    pub(super) fn list(&self, of: &Message<'_>) -> Result<Vec<Request>, Errno> {
        let [family, ..] = of.header::<HEADER>().map_err(|_| Errno::EINVAL)?;
        let is_asked = |one: Family| one.number() == family;
        Ok(if of.kind == libc::RTM_GETRULE {
            let all = self.rules.iter().filter(|rule| is_asked(rule.family));
            all.map(|rule| rule.message(libc::RTM_NEWRULE)).collect()
        } else {
            let all = self.routes.iter().filter(|route| is_asked(route.family));
            all.map(|route| route.message(libc::RTM_NEWROUTE)).collect()
        })
    }

    /// Carries a request out.
    pub(super) fn request(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        match message.kind {
            libc::RTM_NEWROUTE => self.add_route(Route::read(message)?, message.flags),
            libc::RTM_DELROUTE => self.delete_route(&Route::read(message)?),
            libc::RTM_NEWRULE => self.add_rule(Rule::read(message)?, message.flags),
            libc::RTM_DELRULE => self.delete_rule(&Rule::read(message)?),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn add_route(&mut self, new: Route, flags: u16) -> Result<(), Errno> {
        let refused = self.refused.filter(|(ip, _)| new.destination.addr() == *ip);
        if let Some((_, errno)) = refused {
            return Err(errno);
        }
        let mut at_its_place = self.routes.iter().filter(|one| one.is_at_place_of(&new));
        let exclusive = i32::from(flags) & libc::NLM_F_EXCL != 0;
        if at_its_place.any(|one| exclusive || *one == new) {
            return Err(Errno::EEXIST);
        }
        self.routes.push(new);
        Ok(())
    }

    fn delete_route(&mut self, gone: &Route) -> Result<(), Errno> {
        let found = self.routes.iter().position(|one| one.is_meant_by(gone));
        let route = self.routes.remove(found.ok_or(Errno::ESRCH)?);
        self.notify_of_route(&route);
        Ok(())
    }

    fn notify_of_route(&mut self, route: &Route) {
        let group = match route.family {
            Family::V4 => libc::RTNLGRP_IPV4_ROUTE,
            Family::V6 => libc::RTNLGRP_IPV6_ROUTE,
        };
        self.deleted
            .push((group, route.message(libc::RTM_DELROUTE)));
    }

    fn add_rule(&mut self, new: Rule, flags: u16) -> Result<(), Errno> {
        let exclusive = i32::from(flags) & libc::NLM_F_EXCL != 0;
        if exclusive && self.rules.iter().any(|one| one.is_same_as(&new)) {
            return Err(Errno::EEXIST);
        }
        let at = self
            .rules
            .partition_point(|one| one.priority <= new.priority);
        self.rules.insert(at, new);
        Ok(())
    }

    fn delete_rule(&mut self, gone: &Rule) -> Result<(), Errno> {
        let found = self.rules.iter().position(|one| one.is_meant_by(gone));
        let rule = self.rules.remove(found.ok_or(Errno::ENOENT)?);
        self.notify_of_rule(&rule);
        Ok(())
    }

    fn notify_of_rule(&mut self, rule: &Rule) {
        let group = match rule.family {
            Family::V4 => libc::RTNLGRP_IPV4_RULE,
            Family::V6 => libc::RTNLGRP_IPV6_RULE,
        };
        self.deleted.push((group, rule.message(libc::RTM_DELRULE)));
    }

    /// Returns the deletions since the last call, with the group that each is notified to.
    pub(super) fn take_deleted(&mut self) -> Vec<(u32, Request)> {
        std::mem::take(&mut self.deleted)
    }

    /// Deletes routes of `family` and `protocol`: all, or the one with this number, modulo
    /// how many there are. Returns whether there was one.
    pub(super) fn remove_routes(
        &mut self,
        family: Family,
        protocol: u8,
        at: Option<usize>,
    ) -> bool {
        let is_meant = |route: &Route| route.family == family && route.protocol == protocol;
        let removed = remove(&mut self.routes, is_meant, at);
        removed.iter().for_each(|route| self.notify_of_route(route));
        !removed.is_empty()
    }

    /// Does the same with rules.
    pub(super) fn remove_rules(&mut self, family: Family, protocol: u8, at: Option<usize>) -> bool {
        let is_meant = |rule: &Rule| rule.family == family && rule.protocol == protocol;
        let removed = remove(&mut self.rules, is_meant, at);
        removed.iter().for_each(|rule| self.notify_of_rule(rule));
        !removed.is_empty()
    }
}

/// Removes the objects for which `is_meant` is true: all, or the one with the number `at`, modulo
/// how many there are. Returns them.
pub(super) fn remove<T>(
    from: &mut Vec<T>,
    is_meant: impl Fn(&T) -> bool,
    at: Option<usize>,
) -> Vec<T> {
    let count = from.iter().filter(|one| is_meant(one)).count();
    let chosen = at.map(|at| at % count.max(1));
    let mut number = 0;
    let removed = from.extract_if(.., |one| {
        let meant = is_meant(one);
        let is_chosen = meant && chosen.is_none_or(|chosen| chosen == number);
        number += usize::from(meant);
        is_chosen
    });
    removed.collect()
}

fn family(header: &[u8; HEADER]) -> Result<Family, Errno> {
    Family::from_number(header[0]).ok_or(Errno::EAFNOSUPPORT)
}

impl Route {
    fn read(message: &Message<'_>) -> Result<Route, Errno> {
        let header: [u8; HEADER] = message.header().map_err(|_| Errno::EINVAL)?;
        let family = family(&header)?;
        let [_, length, _, _, table, protocol, _, kind, ..] = header;
        let attributes = ByKind::of(message.attributes(HEADER));
        let ip = |kind| attributes.get(kind).and_then(|one| one.ip().ok());
        let destination = ip(libc::RTA_DST).unwrap_or(family.unspecified());
        let usual = match family {
            Family::V4 => 0,
            Family::V6 => METRIC,
        };
        // Routes of IPv6 that refuse are loopback's.
        let refuses = family == Family::V6 && kind == libc::RTN_PROHIBIT;
        let refusing = refuses.then_some(super::LOOPBACK_INDEX);
        Ok(Route {
            family,
            table: attributes.u32(libc::RTA_TABLE).unwrap_or(u32::from(table)),
            destination: IpNet::new(destination, length).map_err(|_| Errno::EINVAL)?,
            kind,
            protocol,
            priority: attributes.u32(libc::RTA_PRIORITY).unwrap_or(usual),
            link: attributes.u32(libc::RTA_OIF).or(refusing),
            source: ip(libc::RTA_PREFSRC),
            header,
            attributes: Stored::of(message.attributes(HEADER), &[]),
        })
    }

    /// Returns whether a table can have only one of both.
    fn is_at_place_of(&self, new: &Route) -> bool {
        let place = |one: &Route| (one.family, one.table, one.destination, one.priority);
        place(self) == place(new)
    }

    /// Returns whether a request to delete `gone` means it: `fib_table_delete`, and
    /// `ip6_route_del`, which considers neither kind nor source. Missing attributes match anything.
    fn is_meant_by(&self, gone: &Route) -> bool {
        let place = |one: &Route| (one.family, one.table, one.destination);
        let asks_all = self.family == Family::V4;
        let has_priority = self.priority == gone.priority;
        let names_none = !gone.attributes.has(libc::RTA_PRIORITY);
        place(self) == place(gone)
            && (gone.protocol == 0 || gone.protocol == self.protocol)
            && (names_none || has_priority)
            && (gone.link.is_none() || self.link == gone.link)
            && (!asks_all || gone.kind == 0 || self.kind == gone.kind)
            && (!asks_all || gone.source.is_none() || self.source == gone.source)
    }

    fn message(&self, kind: u16) -> Request {
        let request = Request::new(kind, 0, "", "").header(&self.header);
        self.attributes.write(request)
    }
}

impl Rule {
    fn read(message: &Message<'_>) -> Result<Rule, Errno> {
        let header: [u8; HEADER] = message.header().map_err(|_| Errno::EINVAL)?;
        let family = family(&header)?;
        let [_, _, length, _, table, _, _, action, ..] = header;
        let attributes = ByKind::of(message.attributes(HEADER));
        let number = |kind: Frattr| attributes.u32(kind.into());
        let source = attributes.get(Frattr::Src.into());
        let source = source.and_then(|one| IpNet::new(one.ip().ok()?, length).ok());
        let ports = attributes.get(Frattr::DportRange.into());
        let ports = ports.and_then(|one| <[u8; 4]>::try_from(one.payload).ok());
        let ports = ports.map(|[a, b, c, d]| {
            let ports = [[a, b], [c, d]].map(u16::from_ne_bytes);
            (ports[0], ports[1])
        });
        if ports.is_some_and(|(first, last)| first == 0 || first > last || last == u16::MAX) {
            return Err(Errno::EINVAL);
        }
        let mark = number(Frattr::Fwmark);
        let priority = number(Frattr::Priority).ok_or(Errno::EINVAL)?;
        let goto = number(Frattr::Goto).filter(|_| action == u8::from(FrAct::FrActGoto));
        if goto.is_some_and(|to| to <= priority) {
            return Err(Errno::EINVAL);
        }
        Ok(Rule {
            family,
            priority,
            action,
            table: number(Frattr::Table).unwrap_or(u32::from(table)),
            goto,
            source,
            input: attributes.text(Frattr::Iifname.into()).map(str::to_owned),
            ip_protocol: attributes.u8(Frattr::IpProto.into()),
            ports,
            mark: mark.map(|mark| (mark, number(Frattr::Fwmask).unwrap_or(u32::MAX))),
            protocol: attributes.u8(Frattr::Protocol.into()).unwrap_or_default(),
            header,
            attributes: Stored::of(message.attributes(HEADER), &[]),
        })
    }

    /// Returns whether the kernel takes both for the same (`rule_exists`), which does not compare
    /// targets.
    fn is_same_as(&self, new: &Rule) -> bool {
        let without_target = |one: &Rule| Rule {
            goto: None,
            header: Default::default(),
            attributes: Stored::default(),
            ..one.clone()
        };
        without_target(self) == without_target(new)
    }

    /// Returns whether a request to delete `gone` means it (`rule_find`): missing attributes match
    /// anything.
    fn is_meant_by(&self, gone: &Rule) -> bool {
        fn agrees<T: PartialEq>(asked: &Option<T>, has: &Option<T>) -> bool {
            asked.is_none() || asked == has
        }
        self.family == gone.family
            && self.priority == gone.priority
            && (gone.action == 0 || gone.action == self.action)
            && (gone.table == 0 || gone.table == self.table)
            && (gone.protocol == 0 || gone.protocol == self.protocol)
            && agrees(&gone.source, &self.source)
            && agrees(&gone.input, &self.input)
            && agrees(&gone.ip_protocol, &self.ip_protocol)
            && agrees(&gone.ports, &self.ports)
            && agrees(&gone.mark, &self.mark)
    }

    fn matches(&self, packet: &Packet) -> bool {
        let port = packet.destination.port();
        let of_range = |(first, last)| (first..=last).contains(&port);
        let input = packet.input.unwrap_or(LOOPBACK);
        self.source
            .is_none_or(|from| from.contains(&packet.source.ip()))
            && self.input.as_ref().is_none_or(|name| name == input)
            && self.ip_protocol.is_none_or(|one| one == packet.protocol)
            && self.ports.is_none_or(of_range)
            && self.mark.is_none_or(|(mark, mask)| mark & mask == 0)
    }

    fn message(&self, kind: u16) -> Request {
        let request = Request::new(kind, 0, "", "").header(&self.header);
        self.attributes.write(request)
    }
}

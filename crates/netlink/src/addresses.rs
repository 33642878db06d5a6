//! Addresses of this node's interfaces (`linux/if_addr.h`).

use std::{collections::HashMap, io, net::IpAddr};

use ipnet::IpNet;
use net::{Family, octets};
use nix::{errno::Errno, libc, net::if_::if_nameindex};

use super::{links, routes};
use crate::{Error, Malformed, Message, Notifications, Protocol, Request, Socket};

/// The label of IPv4 addresses that Tripod assigns (`IFA_LABEL`).
pub const LABEL: &str = "lo:tripod";

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The IP address, without the length of its network.
    pub address: IpAddr,
    /// Length of its subnet's prefix, in bits.
    pub prefix: u8,
    /// Index of the network interface that has it.
    pub index: u32,
    /// Name of its interface; empty if the interface went meanwhile.
    pub interface: String,
    /// `RT_SCOPE_*`: 0 global, 253 link, 254 host.
    pub scope: u8,
    /// Flags, `IFA_F_*` of `linux/if_addr.h`.
    pub flags: u32,
    /// Whether Tripod assigned it, by its label.
    pub own: bool,
}

impl Address {
    /// Returns whether the kernel may choose it as the source of a packet to
    /// another host (`inet_select_addr`, which takes links that are down as
    /// well; `ipv6_dev_get_saddr`). One with a subnet never counts: [`retire`]
    /// is for addresses that are alone.
    pub fn is_eligible(&self) -> bool {
        let is_retired = match self.address {
            IpAddr::V4(_) => self.scope == libc::RT_SCOPE_HOST,
            IpAddr::V6(_) => self.flags & libc::IFA_F_DEPRECATED != 0,
        };
        !is_retired && self.prefix == Family::of(&self.address).bits()
    }

    /// Returns whether it is an IPv6 address that other hosts cannot call
    /// without naming a link (RFC 4291, 2.5.6). IPv4's 169.254.0.0/16 is
    /// different: its addresses are routed where that is configured, and node
    /// ports are served at them.
    pub fn is_of_link(&self) -> bool {
        matches!(self.address, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

/// Lists the addresses that other programs gave this node, in both families: those of its
/// interfaces, without those that Tripod assigned ([`list_assigned`]).
///
/// # Errors
/// When the kernel cannot list addresses.
pub fn list(socket: &mut Socket) -> Result<Vec<Address>, Error> {
    Ok(dump(socket)?.into_iter().filter(|a| !a.own).collect())
}

/// Returns the addresses that Tripod assigned ([`assign`]), also in an earlier
/// run.
///
/// # Errors
/// When the kernel cannot list addresses.
pub fn list_assigned(socket: &mut Socket) -> Result<Vec<Address>, Error> {
    Ok(dump(socket)?.into_iter().filter(|a| a.own).collect())
}

fn dump(socket: &mut Socket) -> Result<Vec<Address>, Error> {
    let request = Request::new(libc::RTM_GETADDR, 0, "list", "addresses").header(&[0; 8]);
    let mut addresses = socket.dump(&request, parse)?;
    let names: HashMap<u32, String> = if_nameindex()
        .map(|all| {
            all.iter()
                .map(|i| (i.index(), i.name().to_string_lossy().into_owned()))
                .collect()
        })
        .unwrap_or_default();
    for address in &mut addresses {
        if let Some(name) = names.get(&address.index) {
            address.interface.clone_from(name);
        }
    }
    Ok(addresses)
}

/// Reads an address; `None`: the message is about something else.
///
/// # Errors
/// When the message does not have the kernel's format.
pub fn parse(message: Message<'_>) -> Result<Option<Address>, Malformed> {
    // struct ifaddrmsg: family, prefix length, flags, scope, interface index.
    let [family, prefix, flags, scope, a, b, c, d] = message.header::<8>()?;
    if !matches!(message.kind, libc::RTM_NEWADDR | libc::RTM_DELADDR)
        || Family::from_number(family).is_none()
    {
        return Ok(None);
    }
    let (mut flags, mut address, mut local, mut own) = (u32::from(flags), None, None, false);
    for attribute in message.attributes(8) {
        let attribute = attribute?;
        match attribute.kind {
            libc::IFA_ADDRESS => address = Some(attribute.ip()?),
            libc::IFA_LOCAL => local = Some(attribute.ip()?),
            libc::IFA_FLAGS => flags = attribute.u32()?,
            libc::IFA_LABEL => own = attribute.text().is_ok_and(|label| label == LABEL),
            _ => {}
        }
    }
    // Of a point-to-point link IFA_ADDRESS is the peer's.
    let Some(address) = local.or(address) else {
        return Ok(None);
    };
    Ok(Some(Address {
        address,
        prefix,
        index: u32::from_ne_bytes([a, b, c, d]),
        interface: String::new(),
        scope,
        flags,
        own,
    }))
}

/// Makes IPv4 `addresses` known as this node's on interface `index`, without delivering anything to
/// them: the local route that the kernel adds for each is withdrawn in the same datagram. Such an
/// address passes the kernel's check of source addresses, so that the kernel itself may answer from
/// it (a reset, an ICMP error, a ping). Yet other routes decide which packets arrive, and ARP
/// requests for it stay unanswered. Its scope is "host", so that it is never chosen as a source
/// address. The kernel adds the route again when the interface goes down and up: repeat the call
/// then. IPv6 needs none of this: each of its addresses succeeds. Returns the outcome of each; an
/// address that is already assigned is no error.
///
/// # Errors
/// When the socket fails.
pub fn assign(
    socket: &mut Socket,
    index: u32,
    addresses: &[IpAddr],
) -> Result<Vec<Result<(), Error>>, Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let pair = |address: &IpAddr| {
        [
            labelled(libc::RTM_NEWADDR, flags, "assign", index, *address),
            routes::withdraw(*address, index),
        ]
    };
    let v4 = addresses.iter().filter(|a| a.is_ipv4());
    let requests: Vec<_> = v4.flat_map(pair).collect();
    let tolerated = [Errno::EEXIST, Errno::ESRCH, Errno::ENOENT];
    let mut outcomes = socket.batch(&requests, &tolerated)?.into_iter();
    Ok(addresses
        .iter()
        .map(|address| match address {
            IpAddr::V4(_) => {
                let assigned = outcomes.next().unwrap_or(Ok(()));
                let withdrawn = outcomes.next().unwrap_or(Ok(()));
                assigned.and(withdrawn)
            }
            IpAddr::V6(_) => Ok(()),
        })
        .collect())
}

/// Removes addresses that [`assign`] added; a missing one is no error.
///
/// # Errors
/// The first removal that the kernel refused.
pub fn unassign(socket: &mut Socket, index: u32, addresses: &[IpAddr]) -> Result<(), Error> {
    let requests: Vec<_> = addresses
        .iter()
        .filter(|a| a.is_ipv4())
        .map(|a| labelled(libc::RTM_DELADDR, 0, "unassign", index, *a))
        .collect();
    socket.batch_all(&requests, &[Errno::EADDRNOTAVAIL])
}

fn labelled(
    kind: u16,
    flags: i32,
    operation: &'static str,
    index: u32,
    address: IpAddr,
) -> Request {
    message(
        kind,
        flags,
        operation,
        index,
        address.into(),
        libc::RT_SCOPE_HOST,
    )
    // A deletion with a label deletes no address of another program.
    .text(libc::IFA_LABEL, LABEL)
}

fn message(
    kind: u16,
    flags: i32,
    operation: &'static str,
    index: u32,
    address: IpNet,
    scope: u8,
) -> Request {
    let ip = address.addr();
    let (number, bits) = (Family::of(&ip).number(), address.prefix_len());
    let [a, b, c, d] = index.to_ne_bytes();
    let object = if bits == address.max_prefix_len() {
        format!("address {ip}")
    } else {
        format!("address {address}")
    };
    Request::new(kind, flags as u16, operation, object)
        // struct ifaddrmsg
        .header(&[number, bits, 0, scope, a, b, c, d])
        .attribute(libc::IFA_LOCAL, &octets(&ip))
        .attribute(libc::IFA_ADDRESS, &octets(&ip))
}

/// Adds `addresses` to the interface `index`, each as a network of its own. Packets to them are
/// delivered here, but the kernel chooses none of them as the source of other packets, masqueraded
/// ones among them: in IPv4 their scope is "host", in IPv6 they are deprecated (RFC 6724, rule 3).
/// Returns the outcome of each; an existing one is no error.
///
/// # Errors
/// When the socket fails.
pub fn add(
    socket: &mut Socket,
    index: u32,
    addresses: &[IpAddr],
) -> Result<Vec<Result<(), Error>>, Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let requests: Vec<_> = addresses
        .iter()
        .map(|address| plain(libc::RTM_NEWADDR, flags, "add", index, *address))
        .collect();
    socket.batch(&requests, &[Errno::EEXIST])
}

/// Gives the interface `index` this address with its subnet, as `ip address add` does: the
/// kernel may choose it as a source, and the subnet is reached by that link. An IPv6
/// address answers at once.
///
/// # Errors
/// When the kernel refuses, as for an address that is there already.
pub fn add_with_subnet(socket: &mut Socket, index: u32, address: IpNet) -> Result<(), Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let scope = libc::RT_SCOPE_UNIVERSE;
    let mut request = message(libc::RTM_NEWADDR, flags, "add", index, address, scope);
    if address.addr().is_ipv6() {
        request = request.u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
    }
    socket.acknowledge(&request)
}

/// Makes `addresses` that the interface `index` has eligible as a source
/// ([`Address::is_eligible`]) as [`add`] would have made them. Packets are delivered
/// all the while. In IPv6 the lifetime can be set. In IPv4 the scope of an address
/// cannot be changed, so the address is removed and added again. Meanwhile another
/// local route stands in for the kernel's own, which goes with the address: also for
/// sockets that have the address as their source (`__ip_dev_find` asks the table of
/// local routes). Returns the outcome of each.
///
/// # Errors
/// When the socket fails.
pub fn retire(
    socket: &mut Socket,
    index: u32,
    addresses: &[IpAddr],
) -> Result<Vec<Result<(), Error>>, Error> {
    let mut outcomes = Vec::with_capacity(addresses.len());
    // All requests about an address are in one datagram: the kernel carries it out as a whole, even
    // if this process is killed.
    for some in addresses.chunks(IN_A_DATAGRAM) {
        let steps = some.iter().map(|address| match address {
            IpAddr::V4(_) => vec![
                routes::stand_in(libc::RTM_NEWROUTE, *address),
                plain(libc::RTM_DELADDR, 0, "replace", index, *address),
                plain(
                    libc::RTM_NEWADDR,
                    libc::NLM_F_CREATE,
                    "replace",
                    index,
                    *address,
                ),
                routes::stand_in(libc::RTM_DELROUTE, *address),
            ],
            IpAddr::V6(_) => {
                vec![plain(
                    libc::RTM_NEWADDR,
                    libc::NLM_F_REPLACE,
                    "deprecate",
                    index,
                    *address,
                )]
            }
        });
        let steps: Vec<Vec<Request>> = steps.collect();
        let numbers: Vec<usize> = steps.iter().map(Vec::len).collect();
        let requests: Vec<Request> = steps.into_iter().flatten().collect();
        let mut verdicts = socket.batch(&requests, &[Errno::EEXIST])?.into_iter();
        for number in numbers {
            outcomes.push(verdicts.by_ref().take(number).collect());
        }
    }
    Ok(outcomes)
}

/// Number of addresses whose requests of [`retire`] surely fit in one datagram.
const IN_A_DATAGRAM: usize = 8;

/// Removes `addresses` from the interface `index`. Returns the outcome of each; a missing one is no
/// error.
///
/// # Errors
/// When the socket fails.
pub fn remove(
    socket: &mut Socket,
    index: u32,
    addresses: &[IpAddr],
) -> Result<Vec<Result<(), Error>>, Error> {
    let requests: Vec<_> = addresses
        .iter()
        .map(|address| plain(libc::RTM_DELADDR, 0, "remove", index, *address))
        .collect();
    socket.batch(&requests, &[Errno::EADDRNOTAVAIL])
}

fn plain(kind: u16, flags: i32, operation: &'static str, index: u32, address: IpAddr) -> Request {
    let scope = libc::RT_SCOPE_HOST;
    let mut request = message(kind, flags, operation, index, address.into(), scope);
    if address.is_ipv6() {
        // It must answer at once, and no other host on a dummy link could have
        // it.
        request = request
            .u32(libc::IFA_FLAGS, libc::IFA_F_NODAD)
            .attribute(libc::IFA_CACHEINFO, &deprecated());
    }
    request
}

/// Returns a `struct ifa_cacheinfo`: preferred for no time, valid for ever, two
/// stamps.
fn deprecated() -> [u8; 16] {
    let mut info = [0; 16];
    info[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    info
}

/// A change that a notification reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An address was removed.
    Removed,
    /// An address was added or changed: [`list`] tells. Each advertisement of an IPv6
    /// router brings such a notification, for the lifetimes alone (RFC 4862, 5.5.3); and
    /// some may be lost when there are many.
    Other,
}

/// Notifies of changes of this node's addresses. Those that Tripod assigns
/// itself do not count, nor do IPv6 addresses of a single link: the kernel
/// gives one to each link that comes up, so each pod's link brings two changes
/// of its own (tentative, then not), and nothing is served at them.
pub struct AddressChanges {
    notifications: Notifications,
    ignored: Option<&'static str>,
}

impl AddressChanges {
    /// Subscribes to the changes in the current network namespace, except those on the
    /// link of the name `ignored` as long as there is one: when the link itself is
    /// deleted, the removal of its addresses counts. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open(ignored: Option<&'static str>) -> Result<AddressChanges, Error> {
        let groups = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        Ok(AddressChanges {
            notifications: Notifications::open(Protocol::Route, &groups, "addresses")?,
            ignored,
        })
    }

    /// Waits for the next change. Changes in quick succession may be reported
    /// as one, and those that came between two calls are not lost. Safe to drop
    /// while it waits.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn changed(&mut self) -> io::Result<Change> {
        loop {
            self.notifications.arrived().await?;
            let (mut removed, mut other) = (false, false);
            let ignored = self.ignored.and_then(|link| links::index(link).ok());
            let lost = self.notifications.drain(|message| match parse(message) {
                Ok(None) => {}
                Ok(Some(address))
                    if address.own || address.is_of_link() || Some(address.index) == ignored => {}
                Ok(Some(_)) if message.kind == libc::RTM_DELADDR => removed = true,
                // A message that cannot be read may have been a change.
                Ok(Some(_)) | Err(_) => other = true,
            })?;
            if removed {
                return Ok(Change::Removed);
            }
            if other || lost {
                return Ok(Change::Other);
            }
        }
    }
}

#[cfg(test)]
mod tests;

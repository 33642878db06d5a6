//! What the kernel has, and what it offers.

use std::net::IpAddr;

use nix::errno::Errno;
use socket2::{Domain, Type};

use super::plan::{Environment, Object};
use crate::{
    kernel::{addresses, links, netlink::Socket, routes, rules},
    modes::userspace::capture::Error,
    net::Family,
    node::addresses::SERVICE_LINK,
};

/// Returns what the kernel has of ours.
///
/// # Errors
/// When the kernel cannot list it.
pub fn installed(socket: &mut Socket, family: Family) -> Result<Vec<Object>, Error> {
    let mut objects: Vec<Object> = Vec::new();
    objects.extend(rules::list(socket, family)?.into_iter().map(Object::Rule));
    objects.extend(routes::list(socket, family)?.into_iter().map(Object::Route));
    let own = addresses::list_own(socket)?.into_iter();
    let own = own.filter(|a| Family::of(&a.address) == family);
    objects.extend(own.map(|a| Object::Address(a.address)));
    objects.retain(Object::is_ours);
    Ok(objects)
}

/// Returns what the kernel and the node offer, where routing rules match ports if
/// `matches_ports`; `None` if the kernel does not have the family.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn environment(
    socket: &mut Socket,
    family: Family,
    matches_ports: bool,
) -> Result<Option<Environment>, Error> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    if let Err(error) = socket2::Socket::new(domain, Type::DGRAM, None)
        && error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
    {
        return Ok(None);
    }
    let loopback = links::index("lo")?;
    // What ipvs mode has left is removed later; its addresses are still to be captured then.
    let all = addresses::list(socket)?.into_iter();
    let own: Vec<_> = all
        .filter(|address| address.interface != SERVICE_LINK)
        .collect();
    let is_loopback = |ip: &IpAddr| ip.is_loopback() && Family::of(ip) == family;
    Ok(Some(Environment {
        family,
        matches_ports,
        loopback,
        has_loopback_address: own.iter().any(|a| is_loopback(&a.address)),
        own: own.iter().map(|a| a.address).collect(),
    }))
}

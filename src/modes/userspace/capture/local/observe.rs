//! State of the kernel, and its abilities.

use std::net::IpAddr;

use net::Family;
use netlink::{
    Socket,
    addresses::{self, Address},
    links, routes, rules, sysctl,
};
use nix::errno::Errno;
use socket2::{Domain, Type};

use super::plan::{Environment, Object};
use crate::{modes::userspace::capture::Error, node::addresses::SERVICE_LINK};

/// The setting that switches off IPv6 on a node whose kernel supports it.
const OFF: &str = "net.ipv6.conf.lo.disable_ipv6";

/// Our objects in the kernel.
///
/// # Errors
/// When the kernel cannot list them.
pub fn installed(socket: &mut Socket, family: Family) -> Result<Vec<Object>, Error> {
    let mut objects: Vec<Object> = Vec::new();
    objects.extend(rules::list(socket, family)?.into_iter().map(Object::Rule));
    objects.extend(routes::list(socket, family)?.into_iter().map(Object::Route));
    let own = addresses::list_assigned(socket)?.into_iter();
    let own = own.filter(|a| Family::of(&a.address) == family);
    objects.extend(own.map(|a| Object::Address(a.address)));
    objects.retain(Object::is_ours);
    Ok(objects)
}

/// Why this node does not have `family`; `None` if it does, or if that is not known.
pub fn why_unavailable(family: Family) -> Option<String> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let opened = socket2::Socket::new(domain, Type::DGRAM, None);
    if opened.is_err_and(|error| error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)) {
        return Some(format!("this kernel has no {family}"));
    }
    // The kernel refuses routes over a link without IPv6 (`fib6_nh_init` in net/ipv6/route.c).
    let is_off = family == Family::V6 && sysctl::read(OFF).is_ok_and(|value| value == "1");
    is_off.then(|| format!("{family} is off on link lo, to which they are routed ({OFF}=1)"))
}

/// The environment of a node with the addresses `all`. Both the kernel and the node must have the
/// family; `matches_ports` tells whether routing rules match ports.
///
/// # Errors
/// When the kernel cannot be queried.
pub fn environment(
    all: Vec<Address>,
    family: Family,
    matches_ports: bool,
) -> Result<Environment, Error> {
    let loopback = links::index("lo")?;
    // Leftovers of ipvs mode are removed later; its addresses must be captured from now on.
    let own: Vec<_> = all
        .into_iter()
        .filter(|address| address.interface != SERVICE_LINK)
        .collect();
    let is_loopback = |ip: &IpAddr| ip.is_loopback() && Family::of(ip) == family;
    Ok(Environment {
        family,
        matches_ports,
        loopback,
        has_loopback_address: own.iter().any(|a| is_loopback(&a.address)),
        own: own.iter().map(|a| a.address).collect(),
    })
}

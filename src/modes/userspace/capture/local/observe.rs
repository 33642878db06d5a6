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
    let domain = Domain::for_address((family.unspecified(), 0).into());
    let opened = socket2::Socket::new(domain, Type::DGRAM, None);
    if opened.is_err_and(|error| error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)) {
        return Some(format!("this kernel has no {family}"));
    }
    // The kernel refuses routes over a link without IPv6 (`fib6_nh_init` in net/ipv6/route.c).
    let is_off = family == Family::V6 && sysctl::read(OFF).is_ok_and(|value| value == "1");
    is_off.then(|| format!("{family} is off on link lo, to which they are routed ({OFF}=1)"))
}

/// The address of the node from which its programs call service addresses, of those that it has
/// `own`. `next_to_kernel`: next to a mode of the kernel, it is none of loopback: a packet that rules
/// translate leaves the node with it.
fn source(own: &[Address], family: Family, next_to_kernel: bool) -> Option<IpAddr> {
    let mut of_family = own.iter().filter(|a| Family::of(&a.address) == family);
    if next_to_kernel {
        let outside = of_family.clone();
        let outside = outside.filter(|a| a.scope == 0 && !a.own && a.interface != "lo");
        if let Some(address) = outside.min_by_key(|a| (a.index, a.address)) {
            return Some(address.address);
        }
    }
    let has_loopback = of_family.any(|a| a.address.is_loopback());
    has_loopback.then(|| family.localhost())
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
    next_to_kernel: bool,
) -> Result<Environment, Error> {
    let loopback = links::index("lo")?;
    // Leftovers of ipvs mode are removed later; its addresses must be captured from now on.
    let own: Vec<_> = all
        .into_iter()
        .filter(|address| address.interface != SERVICE_LINK)
        .collect();
    Ok(Environment {
        family,
        matches_ports,
        loopback,
        source: source(&own, family, next_to_kernel),
        own: own.iter().map(|a| a.address).collect(),
    })
}

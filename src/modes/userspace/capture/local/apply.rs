//! Reading, adding and removing objects in the kernel.

use std::{collections::HashMap, net::IpAddr};

use super::plan::{self, Object};
use crate::{
    kernel::{
        addresses,
        netlink::{self, Socket},
        routes, rules,
    },
    modes::userspace::capture::Error,
    net::Family,
};

/// What of ours the kernel has.
pub(super) fn installed(socket: &mut Socket, family: Family) -> Result<Vec<Object>, Error> {
    let mut objects: Vec<Object> = Vec::new();
    objects.extend(rules::list(socket, family)?.into_iter().map(Object::Rule));
    objects.extend(routes::list(socket, family)?.into_iter().map(Object::Route));
    let own = addresses::list_own(socket)?.into_iter();
    let own = own.filter(|a| Family::of(&a.address) == family);
    objects.extend(own.map(|a| Object::Address(a.address)));
    objects.retain(Object::is_ours);
    Ok(objects)
}

/// Objects of the same phase and kind, for one batch.
fn split(objects: &[Object]) -> (Vec<IpAddr>, Vec<routes::Route>, Vec<rules::Rule>) {
    let (mut addresses, mut routes, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    for object in objects {
        match object {
            Object::Address(address) => addresses.push(*address),
            Object::Route(route) => routes.push(route.clone()),
            Object::Rule(rule) => rules.push(rule.clone()),
        }
    }
    (addresses, routes, rules)
}

/// Adds `objects`, what refuses packets before what lets them in; returns those
/// that the kernel refused. Programs that are connected already feel it too.
pub(super) fn insert(
    socket: &mut Socket,
    loopback: u32,
    mut objects: Vec<Object>,
) -> Result<HashMap<Object, netlink::Error>, Error> {
    let mut refused = HashMap::new();
    objects.sort_by_cached_key(|o| (o.phase(), o.clone()));
    for phase in objects.chunk_by(|a, b| a.phase() == b.phase()) {
        // A phase holds one kind of object, so the outcomes are in its order.
        let (addresses, routes, rules) = split(phase);
        let mut outcomes = addresses::assign(socket, loopback, &addresses)?;
        outcomes.extend(routes::add(socket, &routes)?);
        outcomes.extend(rules::add(socket, &rules)?);
        for (object, outcome) in phase.iter().zip(outcomes) {
            if let Err(error) = outcome {
                refused.insert(object.clone(), error);
            }
        }
    }
    let is_new = |o: &Object| matches!(o, Object::Route(r) if Family::of(&r.destination.addr()) == Family::V6);
    if objects.iter().any(is_new) {
        outdate_cached_routes(socket)?;
    }
    Ok(refused)
}

/// Makes connected IPv6 sockets look for their route again.
///
/// They keep it for as long as the node of the tree where it was found is
/// unchanged (`rt6_check`), and a route in another table leaves that alone; the
/// IPv4 code outdates all of them by itself (`rt_cache_flush`). Adding a rule
/// does it for IPv6 (`fib6_rule_flush_cache` calls `rt_genid_bump_ipv6`, since
/// Linux 6.9 and the stable releases of that time), but often there is none to
/// add, because another Service has the same port. On an older kernel such a
/// socket waits until its route changes for another reason.
fn outdate_cached_routes(socket: &mut Socket) -> Result<(), Error> {
    let scratch = [plan::scratch(Family::V6)];
    // A kernel that will not has said so for the rules that matter.
    let _ = rules::add(socket, &scratch)?;
    Ok(rules::delete(socket, &scratch)?)
}

/// Removes `objects`, the other way round.
pub(super) fn remove(
    socket: &mut Socket,
    loopback: u32,
    mut objects: Vec<Object>,
) -> Result<(), Error> {
    objects.sort_by_cached_key(|o| (u8::MAX - o.phase(), o.clone()));
    let mut outcome = Ok(());
    for phase in objects.chunk_by(|a, b| a.phase() == b.phase()) {
        let (addresses, routes, rules) = split(phase);
        outcome = outcome
            .and(rules::delete(socket, &rules))
            .and(routes::delete(socket, &routes))
            .and(addresses::unassign(socket, loopback, &addresses));
    }
    Ok(outcome?)
}

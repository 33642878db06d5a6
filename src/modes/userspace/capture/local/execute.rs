//! Adds and removes objects in the kernel.

use std::{collections::HashMap, net::IpAddr};

use net::Family;
use netlink::{Socket, addresses, routes, rules};

use super::{
    diff::Steps,
    plan::{self, Object},
};
use crate::modes::userspace::capture::Error;

/// Runs steps; returns the objects that the kernel refused to add.
///
/// # Errors
/// When the kernel could not be queried, or something could not be removed.
pub fn run(socket: &mut Socket, loopback: u32, steps: Steps) -> Result<Refused, Error> {
    remove(socket, loopback, steps.blocking)?;
    let refused = insert(socket, loopback, steps.add)?;
    remove(socket, loopback, steps.remove)?;
    Ok(refused)
}

/// Objects of the same phase and kind, for one batch.
#[derive(Default)]
struct Batch {
    addresses: Vec<IpAddr>,
    routes: Vec<routes::Route>,
    rules: Vec<rules::Rule>,
}

impl Batch {
    fn new(objects: &[Object]) -> Batch {
        let mut batch = Batch::default();
        for object in objects {
            match object {
                Object::Address(address) => batch.addresses.push(*address),
                Object::Route(route) => batch.routes.push(route.clone()),
                Object::Rule(rule) => batch.rules.push(rule.clone()),
            }
        }
        batch
    }
}

/// Adds `objects`, those that refuse packets before those that accept them. Returns objects that
/// the kernel refused, and objects that are held back because of them. The change also applies to
/// sockets that are already connected.
///
/// # Errors
/// When the kernel does not answer: its state must then be read again.
pub fn insert(
    socket: &mut Socket,
    loopback: u32,
    mut objects: Vec<Object>,
) -> Result<Refused, Error> {
    let mut refused = HashMap::new();
    objects.sort_by_cached_key(|o| (o.phase(), o.clone()));
    for phase in objects.chunk_by(|a, b| a.phase() == b.phase()) {
        let (held_back, phase) = split(phase, &refused);
        refused.extend(held_back);
        // A phase contains one kind of object, so the outcomes are in its order.
        let batch = Batch::new(&phase);
        let mut outcomes = addresses::assign(socket, loopback, &batch.addresses)?;
        outcomes.extend(routes::add(socket, &batch.routes)?);
        outcomes.extend(rules::add(socket, &batch.rules)?);
        for (object, outcome) in phase.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                refused.insert(object, error.to_string());
            }
        }
    }
    let is_new = |o: &Object| matches!(o, Object::Route(r) if Family::of(&r.destination.addr()) == Family::V6);
    if objects.iter().any(is_new) {
        outdate_cached_routes(socket)?;
    }
    Ok(refused)
}

/// Objects that were refused or are held back, each with the reason.
pub type Refused = HashMap<Object, String>;

/// Splits `objects` into those that are held back because an object that must guard them was
/// `refused`, each with the reason, and the rest.
fn split(objects: &[Object], refused: &Refused) -> (Refused, Vec<Object>) {
    let (mut held_back, mut rest) = (HashMap::new(), Vec::new());
    for object in objects {
        let mut refused = refused.iter();
        match refused.find(|(guard, _)| object.is_guarded_by(guard)) {
            Some((_, why)) => drop(held_back.insert(object.clone(), why.clone())),
            None => rest.push(object.clone()),
        }
    }
    (held_back, rest)
}

/// Makes connected IPv6 sockets look up their route again.
///
/// They keep it as long as the node of the tree where it was found is unchanged (`rt6_check`), and
/// a route in another table does not change that; the IPv4 code invalidates all cached routes by
/// itself (`rt_cache_flush`). Adding a rule does it for IPv6 (`fib6_rule_flush_cache` calls
/// `rt_genid_bump_ipv6`, since Linux 6.9 and the stable releases of that time), but often there is
/// no rule to add, because another Service has the same port. On an older kernel such a socket
/// waits until its route changes for another reason.
fn outdate_cached_routes(socket: &mut Socket) -> Result<(), Error> {
    let scratch = [plan::scratch(Family::V6)];
    // A kernel that refuses this rule has also refused the rules that matter.
    let _ = rules::add(socket, &scratch)?;
    Ok(rules::delete(socket, &scratch)?)
}

/// Removes `objects` in reverse order: objects that refuse packets stay as long as an object that
/// accepts packets could not be removed.
///
/// # Errors
/// The first object that could not be removed.
pub fn remove(socket: &mut Socket, loopback: u32, mut objects: Vec<Object>) -> Result<(), Error> {
    objects.sort_by_cached_key(|o| (u8::MAX - o.phase(), o.clone()));
    let mut outcome = Ok(());
    for phase in objects.chunk_by(|a, b| a.phase() == b.phase()) {
        if outcome.is_err() && phase.iter().any(Object::refuses) {
            break;
        }
        let batch = Batch::new(phase);
        outcome = outcome
            .and(rules::delete(socket, &batch.rules))
            .and(routes::delete(socket, &batch.routes))
            .and(addresses::unassign(socket, loopback, &batch.addresses));
    }
    Ok(outcome?)
}

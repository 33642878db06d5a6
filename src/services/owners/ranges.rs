//! Owners of ranges of ports. A Service's ranges are served at an address only if no other Service
//! takes precedence there, whatever ports that one names: so nobody takes over a port that is unused
//! at the address of somebody else.

use std::{mem, net::IpAddr, sync::Arc};

use hashbrown::{HashMap, HashSet};
use net::Frontend;

use super::{Contender, Contenders};
use crate::services::{Port, Service, ServiceName};

/// The addresses at which Services name ranges.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    places: HashMap<IpAddr, Place>,
    /// Addresses that Services began or ceased to name in this batch.
    changed: HashSet<IpAddr>,
}

/// The Services that name an address, with ranges or without.
#[derive(Debug, Default)]
struct Place {
    /// Each with its first port.
    named: HashMap<ServiceName, Contender>,
    /// The one whose ranges are served.
    owner: Option<Contender>,
    /// Whether all Services are known; otherwise only those that named it since it is a place.
    is_complete: bool,
}

fn has_ranges(service: &Service) -> bool {
    let serving = service.serving.as_ref();
    serving.is_ok_and(|serving| serving.ports.iter().any(|port| port.last_port.is_some()))
}

impl Ranges {
    /// Removes a Service that named `ip`. Returns since when it did.
    pub(super) fn remove(&mut self, ip: IpAddr, service: &ServiceName) -> Option<u32> {
        let place = self.places.get_mut(&ip)?;
        let removed = place.named.remove(service)?;
        self.changed.insert(ip);
        Some(removed.since)
    }

    /// Adds a contender for a port or a range at `ip`, if any Service has ranges there.
    pub(super) fn add(&mut self, ip: IpAddr, contender: &Contender) {
        if !self.places.contains_key(&ip) && !has_ranges(&contender.service) {
            return;
        }
        self.changed.insert(ip);
        self.places.entry(ip).or_default().add(contender);
    }

    /// Returns the Service that takes precedence over `service` at `ip`, where that names a range.
    pub(super) fn owner_instead(&self, ip: IpAddr, service: &ServiceName) -> Option<&Contender> {
        let owner = self.places.get(&ip)?.owner.as_ref()?;
        (owner.service.name != *service).then_some(owner)
    }

    /// Returns the owner of the range that contains a port.
    pub(super) fn owner_of(&self, port: &Frontend) -> Option<Contender> {
        // Most clusters have none at all.
        if self.places.is_empty() {
            return None;
        }
        let owner = self.places.get(&port.address?)?.owner.as_ref()?;
        let ports = &owner.service.serving.as_ref().ok()?.ports;
        let contains = |(_, other): &(_, &Port)| {
            let last = other.last_port.map_or(0, |last| last.get());
            other.protocol == port.protocol && (other.port..=last).contains(&port.port)
        };
        let (number, _) = (0..).zip(ports).find(contains)?;
        Some(Contender {
            port: number,
            ..owner.clone()
        })
    }

    /// Decides who owns the ranges where Services changed. `exact` are all other ports. Adds to
    /// `dirty` the Services that may own more or fewer addresses as a result.
    pub(super) fn settle(
        &mut self,
        exact: &HashMap<Frontend, Contenders>,
        dirty: &mut HashSet<ServiceName>,
    ) {
        let changed = mem::take(&mut self.changed);
        let is_new = |ip: &IpAddr| !self.places.get(ip).is_some_and(|place| place.is_complete);
        let new: HashSet<IpAddr> = changed.iter().copied().filter(is_new).collect();
        if !new.is_empty() {
            // This walks through all addresses; a Service rarely begins to have ranges.
            for (port, contenders) in exact {
                let Some(ip) = port.address.filter(|ip| new.contains(ip)) else {
                    continue;
                };
                if let Some(place) = self.places.get_mut(&ip) {
                    contenders.iter().for_each(|contender| place.add(contender));
                }
            }
        }
        for ip in changed {
            let Some(place) = self.places.get_mut(&ip) else {
                continue;
            };
            place.is_complete = true;
            place.settle(dirty);
            if !place.named.values().any(|one| has_ranges(&one.service)) {
                self.places.remove(&ip);
            }
        }
    }
}

impl Place {
    fn add(&mut self, new: &Contender) {
        let name = &new.service.name;
        let before = self.named.get(name);
        if before.is_none_or(|before| new.rank(before).is_lt()) {
            self.named.insert(name.clone(), new.clone());
        }
    }

    fn settle(&mut self, dirty: &mut HashSet<ServiceName>) {
        let owner = self.named.values().min_by(|one, other| one.rank(other));
        let is_same = |before: &Contender| {
            owner.is_some_and(|now| {
                now.kind == before.kind && Arc::ptr_eq(&now.service, &before.service)
            })
        };
        if self.owner.as_ref().is_some_and(is_same) {
            return;
        }
        // Those that were removed are dirty anyway.
        dirty.extend(self.named.keys().cloned());
        self.owner = owner.cloned();
    }
}

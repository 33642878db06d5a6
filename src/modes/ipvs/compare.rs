//! Differences between the kernel and the desired state. Nothing is changed to find them.

use hashbrown::HashSet;
use ipvs::ipset::Element;
use net::Family;
use netlink::Error;

use super::{
    clients::Clients,
    desired::{Desired, Dirty, Needs},
    diff, objects,
    observe::{Listing, Observed, RealServers, ServerDigest, Servers},
    plan::{Options, ServerId, Set, VirtualServer, is_excluded},
    settings,
};
use crate::{
    modes::{Difference, Found},
    services::ServiceMap,
};

/// Adds up the needs of the ServicePorts of `map`, on the node that `applied` is for.
pub fn desired(map: &ServiceMap, applied: &Desired) -> Desired {
    let mut desired = Desired::new(applied.node().clone());
    let mut dirty = Dirty::default();
    for port in map.iter() {
        desired.update(&port.name, Some(port), &mut dirty);
    }
    desired
}

/// The kernel's state of one family, and the desired one.
pub struct Comparison<'a> {
    /// Which of the two is compared.
    pub family: Family,
    /// The interfaces of the kernel.
    pub clients: &'a mut Clients,
    /// The desired state.
    pub desired: &'a Desired,
    /// Settings of the mode.
    pub options: &'a Options,
}

impl Comparison<'_> {
    /// Lists the differences, except those of rules. `applied` are the virtual servers that the
    /// mode added.
    ///
    /// # Errors
    /// When something cannot be listed.
    pub fn differences(
        &mut self,
        listing: &mut Listing,
        applied: &Servers,
    ) -> Result<Vec<Difference>, Error> {
        let (family, desired) = (self.family, self.desired);
        let observed = listing.take(family, self.clients, desired, applied)?;
        let mut differences = self.addresses(&observed);
        for set in Set::ALL {
            self.set(set, &observed.servers, &mut differences)?;
        }
        self.servers(&observed.servers, &mut differences)?;
        if family == Family::V4 {
            // Their names are of IPv4, also where they are for both.
            let settings = settings::desired(self.options);
            differences.extend(Difference::of_settings(settings));
        }
        differences.sort_unstable();
        Ok(differences)
    }

    fn needs(&self) -> &Needs {
        self.desired.needs()
    }

    fn addresses(&self, observed: &Observed) -> Vec<Difference> {
        let dirty = diff::dirty(self.family, observed, self.needs());
        let differing = dirty.addresses.iter().map(|ip| {
            let found = found(self.needs().has_address(ip));
            Difference::new(None, objects::address(ip), found)
        });
        differing.collect()
    }

    fn set(
        &mut self,
        set: Set,
        servers: &Servers,
        differences: &mut Vec<Difference>,
    ) -> Result<(), Error> {
        let family = self.family;
        let members = self.clients.members(set, family)?;
        let members: HashSet<Element> = members.into_iter().collect();
        let dirty = diff::dirty_members(set, family, members, servers, self.desired);
        for member in dirty.keys() {
            let frontends = self.desired.node().frontends(member);
            let owner = frontends.iter().find_map(|f| self.needs().owner(f));
            let found = found(self.needs().has_member(member));
            differences.push(Difference::new(owner, objects::member(member), found));
        }
        Ok(())
    }

    fn servers(
        &mut self,
        servers: &Servers,
        differences: &mut Vec<Difference>,
    ) -> Result<(), Error> {
        let reals = RealServers::read(self.clients, servers.len());
        for port in self.desired.ports(self.family) {
            for server in self.desired.plan(port).servers {
                let owner = self.needs().owner(&server.frontend);
                if owner != Some(&port.name) {
                    continue;
                }
                let object = objects::virtual_server(&server.frontend);
                let there = servers.get(&server.frontend);
                let Some(there) = there else {
                    differences.push(Difference::new(owner, object, Found::Missing));
                    differences.extend(server.reals.iter().map(|real| {
                        let object = objects::real_server(real.address, &server.frontend);
                        Difference::new(owner, object, Found::Missing)
                    }));
                    continue;
                };
                if *there != ServerDigest::of(&server.to_kernel()) {
                    differences.push(Difference::new(owner, object, Found::Altered));
                }
                if !reals.has_those_of(&server) {
                    self.reals(&server, differences)?;
                }
            }
        }
        let unneeded = servers.keys().filter(|frontend| {
            let is_excluded = is_excluded(&self.options.exclude, frontend.address.ip());
            self.needs().owner(frontend).is_none() && !is_excluded
        });
        let unneeded: Vec<&ServerId> = unneeded.collect();
        differences.extend(unneeded.into_iter().map(|frontend| {
            let object = objects::virtual_server(frontend);
            Difference::new(None, object, Found::Unneeded)
        }));
        Ok(())
    }

    /// Compares the real servers of one virtual server. Those of weight 0 that nothing
    /// needs are drained: they stay until their connections have ended.
    fn reals(
        &mut self,
        server: &VirtualServer,
        differences: &mut Vec<Difference>,
    ) -> Result<(), Error> {
        let there = self.clients.ipvs.list_real(&server.frontend)?;
        let owner = self.desired.needs().owner(&server.frontend);
        let mut add = |address, found| {
            let object = objects::real_server(address, &server.frontend);
            differences.push(Difference::new(owner, object, found));
        };
        for real in &server.reals {
            let mut same_address = there.iter();
            match same_address.find(|listed| listed.server.address == real.address) {
                None => add(real.address, Found::Missing),
                Some(listed) if listed.server != *real => add(real.address, Found::Altered),
                Some(_) => {}
            }
        }
        for listed in there.iter().filter(|listed| listed.server.weight > 0) {
            let address = listed.server.address;
            if !server.reals.iter().any(|real| real.address == address) {
                add(address, Found::Unneeded);
            }
        }
        Ok(())
    }
}

fn found(is_needed: bool) -> Found {
    if is_needed {
        Found::Missing
    } else {
        Found::Unneeded
    }
}

//! The kernel's virtual servers, real servers, and addresses of the dummy link. They are only read.
//! Members of sets are compared one set at a time, so that not all are in memory at once: see
//! `family`.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use hashbrown::HashMap;
use ipvs::{Forwarding, VirtualServer};
use net::{Family, PerFamily};
use netlink::{
    Error,
    addresses::{self, Address},
};

use super::{
    clients::Clients,
    desired::Desired,
    own_servers::OwnServers,
    plan::{self, NodeContext, Options, ServerId},
};
use crate::{node::Served, services::ServiceMap};

/// How a virtual server spreads connections, as a number that only shows whether two of
/// them are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerDigest(u64);

impl ServerDigest {
    pub fn of(server: &VirtualServer) -> ServerDigest {
        ServerDigest(hash(server))
    }
}

/// Virtual servers, each with how it spreads connections.
pub type Servers = HashMap<ServerId, ServerDigest>;

/// Objects that are listed for both families at once.
#[derive(Debug)]
pub struct Listing {
    /// Virtual servers of all programs, except those that schedulers are tried with.
    servers: PerFamily<Servers>,
    /// Addresses of the dummy link, except those that the kernel gave it.
    addresses: Vec<Address>,
    /// A process was killed while it tried a scheduler, and left a virtual server.
    pub has_trial: bool,
}

impl Listing {
    /// Lists virtual servers and addresses.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(clients: &mut Clients, desired: &Desired) -> Result<Listing, Error> {
        let mut servers: PerFamily<Servers> = PerFamily::default();
        let mut has_trial = false;
        for listed in clients.ipvs.list()? {
            let id = &listed.id;
            let frontend = *id;
            if id.is_trial() && desired.needs().owner(&frontend).is_none() {
                has_trial = true;
                continue;
            }
            let of_family = servers.get_mut(Family::of(&frontend.address.ip()));
            of_family.insert(frontend, ServerDigest::of(&listed));
        }
        let mut addresses = addresses::list(&mut clients.route)?;
        addresses.retain(|address| clients.is_on_link(address) && !address.is_of_link());
        Ok(Listing {
            servers,
            addresses,
            has_trial,
        })
    }

    /// Takes the part of `family`. Of the virtual servers, only ours are kept; `applied` are those
    /// that the mode added.
    ///
    /// # Errors
    /// When a set that may name a virtual server cannot be read.
    pub fn take(
        &mut self,
        family: Family,
        clients: &mut Clients,
        desired: &Desired,
        applied: &Servers,
    ) -> Result<Observed, Error> {
        let of_family = |address: &&Address| Family::of(&address.address) == family;
        let on_link = self.addresses.iter().filter(of_family);
        let addresses: BTreeSet<IpAddr> = on_link.clone().map(|a| a.address).collect();
        let eligible = on_link.filter(|a| a.is_eligible()).map(|a| a.address);
        let eligible = eligible.filter(|ip| desired.needs().has_address(ip));
        let eligible = eligible.collect();
        let mut servers = std::mem::take(self.servers.get_mut(family));
        // Kube-proxy takes every virtual server for its own. One at an address of the
        // node that no set names may be of another program, so it stays; elsewhere it is
        // ours while the link has the address, or the set of service addresses names it:
        // a process that ends in between leaves virtual servers at addresses that the
        // link does not have. Nor has the link an external IP that was the node's own: a set
        // names the virtual server with that address, which may have left the node since.
        let is_known = |frontend: &ServerId| {
            desired.needs().owner(frontend).is_some()
                || applied.contains_key(frontend)
                || addresses.contains(&frontend.address.ip())
        };
        if servers.keys().any(|f| !is_known(f)) {
            let node = desired.node().addresses.clone();
            let members = |set, family| clients.members(set, family);
            let own = OwnServers::read(members, BTreeSet::new(), node)?;
            servers.retain(|f, _| is_known(f) || own.has(f));
        }
        Ok(Observed {
            servers,
            addresses,
            eligible,
        })
    }
}

/// Observed state of one family, except members of sets and rules.
#[derive(Debug, Default)]
pub struct Observed {
    /// Virtual servers that are ours.
    pub servers: Servers,
    /// Addresses of the dummy link.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that are desired, and that the kernel may choose as a source:
    /// kube-proxy makes them so.
    pub eligible: Vec<IpAddr>,
}

/// The real servers of each virtual server, as far as the kernel shows them at once:
/// thresholds and wrapping, which Tripod never sets, are missing.
#[derive(Debug, Default)]
pub struct RealServers(HashMap<ServerId, RealsDigest>);

impl RealServers {
    /// Reads the real servers of all virtual servers, of which there are about
    /// `number`; none if the kernel does not show them at once.
    pub fn read(clients: &mut Clients, number: usize) -> RealServers {
        let mut all = HashMap::with_capacity(number);
        let outcome = clients.ipvs.each(|id, reals| {
            let reals = reals.iter();
            let digest = RealsDigest::of(reals.map(|r| (r.address, r.weight, r.forwarding)));
            all.insert(id, digest);
        });
        if let Err(error) = outcome {
            tracing::debug!("real servers are listed one virtual server at a time: {error}");
            all.clear();
        }
        RealServers(all)
    }

    /// Returns true if the kernel's virtual server has exactly the real servers of
    /// `server`.
    pub fn has_those_of(&self, server: &plan::VirtualServer) -> bool {
        let reals = server.reals.iter();
        let desired = reals.map(|real| (real.address, real.weight, real.forwarding));
        self.0.get(&server.frontend) == Some(&RealsDigest::of(desired))
    }
}

/// Real servers as one number, independent of their order, because 25,000 of them would take
/// megabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RealsDigest {
    count: u32,
    sum: u64,
}

impl RealsDigest {
    fn of(reals: impl Iterator<Item = (SocketAddr, u32, Forwarding)>) -> RealsDigest {
        reals.fold(RealsDigest::default(), |all, real| RealsDigest {
            count: all.count.saturating_add(1),
            sum: all.sum.wrapping_add(hash(&real)),
        })
    }
}

/// Returns a number for `value`, with keys that are the same for each call: it is
/// compared with others of this process only.
fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Detects the properties that plans depend on, as far as they can be read: missing schedulers are
/// found by trying.
///
/// # Errors
/// When addresses cannot be listed.
pub fn node_context(
    clients: &mut Clients,
    options: &Options,
    served: &Served,
    map: &ServiceMap,
) -> Result<NodeContext, Error> {
    let addresses = addresses::list(&mut clients.route)?;
    let own = addresses
        .iter()
        .filter(|address| !clients.is_on_link(address))
        .map(|address| address.address);
    let node = map.this_node();
    Ok(NodeContext::new(options, node, served, own))
}

//! Removing all that ipvs mode installs, kube-proxy's too.

use ipnet::IpNet;
use ipvs::{
    Change, Ipvs, ServerId,
    ipset::{IpSets, TEMPORARY},
    is_gone,
};
use net::Family;
use netlink::{
    Protocol, Socket,
    addresses::{self, Address},
    links,
};
use nix::errno::Errno;
use xtables::{
    remove::{Owned, OwnedChain, Preserved},
    rule::Table,
};

use super::{
    Error,
    own_servers::OwnServers,
    plan::{LINK, Set, interest, is_excluded},
};
use crate::{
    config::ModeName,
    modes::{
        SyncError,
        cleanup::{Cleanup, Running},
    },
};

/// The chains that are ours.
pub const OWNED: Owned = Owned {
    tables: &Table::ALL,
    interest,
    shared: None,
};

/// The objects that ipvs mode installs.
pub struct Installed;

impl Cleanup for Installed {
    async fn is_there(&self, running: &Running) -> Result<bool, SyncError> {
        if running.is(ModeName::Ipvs) {
            return Ok(false);
        }
        if links::index_if_there(LINK)?.is_some() {
            return Ok(true);
        }
        let preserved = running.preserved(ModeName::Ipvs);
        Ok(OWNED.is_there(&preserved).await.map_err(Error::Chains)?)
    }

    async fn retire(&self, running: &Running) -> Result<usize, SyncError> {
        if running.is(ModeName::Ipvs) {
            return Ok(0);
        }
        let preceded = running.with_local_capture();
        Ok(retire(&running.exclude, &preceded)? as usize)
    }

    async fn cleanup(&self, running: &Running) -> Result<(), SyncError> {
        let preserved = running.preserved(ModeName::Ipvs);
        let removed = if running.is(ModeName::Ipvs) {
            remove_rules(&preserved).await
        } else {
            remove_except(&running.exclude, &preserved).await
        };
        Ok(removed?)
    }

    fn may_need_programs(&self) -> bool {
        OWNED.may_be_there()
    }
}

/// Removes the virtual servers at addresses of the dummy link and those at this node's own that the
/// sets name, except those in `exclude`, then the link, the rules that are not `preserved`, and the
/// sets. While virtual servers cannot be removed, everything else stays: link and sets show which
/// ones are ours, and rules and sets keep callers out of them. This kernel may have no IPVS or no
/// ipset.
async fn remove_except(exclude: &[IpNet], preserved: &Preserved) -> Result<(), Error> {
    let mut sets = there(IpSets::open())?;
    let mut route = Socket::open(Protocol::Route)?;
    let servers = virtual_servers(exclude)?;
    if ipvs::is_there() {
        remove_servers(&servers)?;
    }
    let mut outcome = links::delete(&mut route, LINK).map_err(Error::from);
    outcome = outcome.and(remove_rules(preserved).await);
    if let Some(sets) = &mut sets {
        outcome = outcome.and(sets.destroy(TEMPORARY).map_err(Error::from));
        for family in Family::ALL {
            for set in Set::ALL {
                let destroyed = sets.destroy(set.name(family));
                outcome = outcome.and(destroyed.map_err(Error::from));
            }
        }
    }
    outcome
}

/// Removes the rules, except those that are `preserved`.
async fn remove_rules(preserved: &Preserved) -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in Family::ALL {
        let removed = OWNED.remove(&[family], preserved).await;
        outcome = outcome.and(removed.map_err(|source| Error::Rules { family, source }));
    }
    outcome
}

/// Lists the chains of ipvs mode that are there, by any process.
///
/// # Errors
/// When some cannot be read.
pub async fn chains() -> Result<Vec<OwnedChain>, xtables::Error> {
    OWNED.list(&Preserved::nothing()).await
}

/// Returns the virtual servers that are retired and removed as those of ipvs mode.
///
/// # Errors
/// When IPVS, sets or addresses cannot be read.
pub fn virtual_servers(exclude: &[IpNet]) -> Result<Vec<ServerId>, Error> {
    if !ipvs::is_there() {
        return Ok(Vec::new());
    }
    let mut sets = there(IpSets::open())?;
    let own = read_own(&mut Socket::open(Protocol::Route)?, sets.as_mut())?;
    let listed = Ipvs::open()?.list()?.into_iter().map(|server| server.id);
    Ok(listed
        .filter(|id| own.has(id) && !is_excluded(exclude, id.address.ip()))
        .collect())
}

/// Drains the remains of ipvs mode: its virtual servers take no new connections from now on, and
/// stay for those that they have. Returns how many those are.
///
/// In the `preceded` families, IPVS gets packets before the mode that runs. There, a virtual server
/// that takes no new connections would refuse them, so that it is deleted at once, and its
/// connections end.
fn retire(exclude: &[IpNet], preceded: &[Family]) -> Result<u32, Error> {
    let servers = virtual_servers(exclude)?;
    if servers.is_empty() {
        return Ok(0);
    }
    let mut ipvs = Ipvs::open()?;
    let (mut connections, mut changes) = (0u32, Vec::new());
    for id in servers {
        if preceded.contains(&Family::of(&id.address.ip())) {
            changes.push(Change::Delete(id));
            continue;
        }
        let reals = match ipvs.list_real(&id) {
            Err(error) if is_gone(&error) => continue,
            reals => reals?,
        };
        for real in reals {
            connections = connections
                .saturating_add(real.active)
                .saturating_add(real.inactive);
            let mut server = real.server;
            if server.weight > 0 {
                server.weight = 0;
                changes.push(Change::EditReal(id, server));
            }
        }
    }
    let outcomes = ipvs.apply(&changes)?.into_iter();
    // The proxy of that mode may run still.
    let failed = outcomes.filter(|outcome| !outcome.as_ref().is_err_and(is_gone));
    failed.collect::<Result<(), _>>()?;
    Ok(connections)
}

/// Reads the criteria that tell our virtual servers from others.
fn read_own(
    route: &mut Socket,
    mut sets: Option<&mut IpSets>,
) -> Result<OwnServers, netlink::Error> {
    let link = links::index_if_there(LINK)?;
    let (bound, own): (Vec<_>, Vec<_>) = addresses::list(route)?
        .into_iter()
        .partition(|address| Some(address.index) == link);
    let members = |set: Set, family| {
        let Some(sets) = &mut sets else {
            return Ok(Vec::new());
        };
        sets.members_if_there(set.name(family))
    };
    let ips = |addresses: Vec<Address>| addresses.into_iter().map(|one| one.address).collect();
    OwnServers::read(members, ips(bound), ips(own))
}

/// `None` where the kernel has no such thing.
pub(super) fn there<T>(opened: Result<T, netlink::Error>) -> Result<Option<T>, netlink::Error> {
    let absent = [
        Errno::EINVAL,
        Errno::ENOENT,
        Errno::EPROTONOSUPPORT,
        Errno::EOPNOTSUPP,
    ];
    match opened {
        Err(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => Ok(None),
        opened => opened.map(Some),
    }
}

fn remove_servers(servers: &[ServerId]) -> Result<(), netlink::Error> {
    let mut ipvs = Ipvs::open()?;
    let trial = ipvs.remove_trial().map(drop);
    let removed = servers.iter().map(|id| ipvs.delete(id));
    removed.fold(trial, Result::and)
}

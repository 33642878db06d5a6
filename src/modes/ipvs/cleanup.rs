//! Removing all that ipvs mode installs, kube-proxy's too.

use std::{collections::BTreeSet, fs, net::IpAddr};

use ipnet::IpNet;
use nix::errno::Errno;

use super::{
    Error,
    own_servers::{NamedFrontends, OwnServers},
    plan::{LINK, Set, interest, is_excluded},
};
use crate::{
    kernel::{
        addresses,
        ipset::{Element, IpSets, TEMPORARY},
        ipvs::{Change, Ipvs, ServerId, is_gone},
        links,
        netlink::{self, Protocol, Socket},
        xtables::{
            self,
            remove::{Owned, OwnedChain, Preserved},
            rule::Table,
        },
    },
    net::Family,
};

/// Returns whether the kernel has IPVS, which it shows by this file.
fn has_ipvs() -> bool {
    fs::exists("/proc/net/ip_vs").unwrap_or(false)
}

/// The chains that are ours.
pub const OWNED: Owned = Owned {
    tables: &Table::ALL,
    interest,
    shared: None,
};

/// Chains that iptables mode has too, by the same names.
pub const SHARED_CHAINS: [(Table, &str); 5] = [
    (Table::Filter, "KUBE-FORWARD"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    (Table::Nat, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-POSTROUTING"),
    (Table::Nat, "KUBE-MARK-MASQ"),
];

/// Removes the dummy link, the virtual servers at its addresses and those at this
/// node's own that the sets name, except what is in `exclude`, the rules, and the sets:
/// also those that an earlier process or kube-proxy left. Rules that are `preserved`,
/// because a mode that runs has them, stay. What is not there is fine, also where this
/// kernel has no IPVS or no ipset.
///
/// # Errors
/// The first thing that could not be removed, after all others were tried.
pub async fn cleanup_except(exclude: &[IpNet], preserved: &Preserved) -> Result<(), Error> {
    let mut outcome: Result<(), Error> = Ok(());
    let mut sets = there(IpSets::open())?;
    let mut route = Socket::open(Protocol::Route)?;
    // The addresses of the link show which are ours.
    let servers = virtual_servers(exclude)?;
    outcome = outcome.and(links::delete(&mut route, LINK).map_err(Error::from));
    if has_ipvs() {
        outcome = outcome.and(remove_servers(&servers).map_err(Error::from));
    }
    outcome = outcome.and(cleanup_rules(preserved).await);
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

/// Removes the rules only, except what is `preserved`: for another engine than the one
/// that this mode, which runs, has its rules in.
///
/// # Errors
/// The first program that failed, after all others did their part.
pub async fn cleanup_rules(preserved: &Preserved) -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in Family::ALL {
        let removed = OWNED.remove(&[family], preserved).await;
        outcome = outcome.and(removed.map_err(|source| Error::Rules { family, source }));
    }
    outcome
}

/// Returns whether the dummy link is there, or rules other than what is `preserved`.
///
/// # Errors
/// When that is not known.
pub async fn is_there(preserved: &Preserved) -> Result<bool, Error> {
    if links::index_if_there(LINK)?.is_some() {
        return Ok(true);
    }
    OWNED.is_there(preserved).await.map_err(Error::Chains)
}

/// Returns whether chains of ipvs mode may be there, without running a program; see
/// [`Owned::may_be_there`].
pub fn rules_may_be_there() -> bool {
    OWNED.may_be_there()
}

/// Returns the chains of ipvs mode that are there, whoever installed them.
///
/// # Errors
/// When some cannot be read.
pub async fn chains() -> Result<Vec<OwnedChain>, xtables::Error> {
    OWNED.list(&Preserved::nothing()).await
}

/// Returns the virtual servers that [`retire`] and [`cleanup_except`] take for those of
/// ipvs mode.
///
/// # Errors
/// When IPVS, sets or addresses cannot be read.
pub fn virtual_servers(exclude: &[IpNet]) -> Result<Vec<ServerId>, Error> {
    if !has_ipvs() {
        return Ok(Vec::new());
    }
    let mut sets = there(IpSets::open())?;
    let own = read_own(&mut Socket::open(Protocol::Route)?, sets.as_mut())?;
    let listed = Ipvs::open()?.list()?.into_iter().map(|server| server.id);
    Ok(listed
        .filter(|id| own.has(id) && !is_excluded(exclude, id.address.ip()))
        .collect())
}

/// Lets the connections of what ipvs mode left end by themselves: its virtual servers
/// take no new ones from now on, and stay for those that they have. Returns how many
/// those are.
///
/// In the `preceded` families, IPVS gets packets before the mode that runs. There, a virtual server
/// that takes no new connections would refuse them, so that it is deleted at once, and its
/// connections end.
///
/// # Errors
/// When IPVS cannot be read or changed.
pub fn retire(exclude: &[IpNet], preceded: &[Family]) -> Result<u32, Error> {
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

/// Reads what distinguishes our virtual servers from others'.
fn read_own(
    route: &mut Socket,
    mut sets: Option<&mut IpSets>,
) -> Result<OwnServers, netlink::Error> {
    let link = links::index_if_there(LINK)?;
    let (bound, own): (Vec<_>, Vec<_>) = addresses::list(route)?
        .into_iter()
        .partition(|address| Some(address.index) == link);
    let mut members = |set: Set, family| {
        let Some(sets) = &mut sets else {
            return Ok(Vec::new());
        };
        sets.members_if_there(set.name(family))
    };
    let node: BTreeSet<IpAddr> = own.into_iter().map(|address| address.address).collect();
    let mut services: BTreeSet<IpAddr> = bound.into_iter().map(|a| a.address).collect();
    for family in Family::ALL {
        for element in members(Set::ServiceIps, family)? {
            services.extend(match element {
                Element::Ip(ip) if !node.contains(&ip) => Some(ip),
                _ => None,
            });
        }
    }
    Ok(OwnServers {
        services,
        node,
        named: NamedFrontends::read(members)?,
    })
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

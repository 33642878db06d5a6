//! The objects that kube-proxy, or an earlier Tripod, has in the kernel, and what happens to them;
//! [`observe`] reads them, the rest is pure.

use std::{collections::BTreeMap, fmt};

use ::ipvs::ipset::IpSets;
use ::nftables::Rules;
use ipnet::IpNet;
use net::Family;
use netlink::links;
use serde::Serialize;
use xtables::{Engine, info::FilterChain, remove::OwnedChain};

use crate::{
    config::ModeName,
    modes::{
        explain::dropping_chains,
        iptables,
        ipvs::{
            self,
            plan::{LINK, Set},
        },
        nftables,
    },
};

/// The objects of kube-proxy's modes in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Chains of iptables mode.
    pub iptables: Vec<OwnedChain>,
    /// Chains of ipvs mode, some of which have the same names.
    pub ipvs: Vec<OwnedChain>,
    /// Tables of nftables mode.
    pub tables: Vec<(Family, String)>,
    /// Sets of ipvs mode.
    pub sets: Vec<String>,
    /// Virtual servers of IPVS, as ipvsadm names them.
    pub servers: Vec<String>,
    /// Whether there is a link kube-ipvs0.
    pub link: bool,
    /// Chains at hook INPUT that drop packets which none of their rules accepts; `None` if unknown.
    pub dropping: Option<Vec<String>>,
    /// Objects that could not be read, so that it is unknown whether they exist, each with the
    /// reason.
    pub unknown: Vec<String>,
}

/// Reads the existing objects. Virtual servers with addresses in `exclude` belong to other
/// programs. Tables and sets count as absent if the kernel does not support them, or does not let
/// this process see them.
pub async fn observe(exclude: &[IpNet]) -> Observed {
    let mut unknown = Vec::new();
    let named = |name: &str| [nftables::KUBE_PROXY, nftables::TABLE].contains(&name);
    let mut tables = Vec::new();
    let rules = Rules::open();
    if let Some(mut rules) = known(there(rules), "tables of nf_tables", &mut unknown) {
        for family in Family::ALL {
            let listed = there(rules.tables(family));
            let listed = known(listed, "tables of nf_tables", &mut unknown);
            let listed = listed.unwrap_or_default().into_iter();
            let ours = listed.filter(|table| named(&table.name));
            tables.extend(ours.map(|table| (family, table.name)));
        }
    }
    let sets = IpSets::open().and_then(|mut sets| sets.list());
    let sets = known(there(sets), "sets", &mut unknown).unwrap_or_default();
    let sets = sets.into_iter().map(|set| set.name);
    let servers = ipvs::virtual_servers(exclude);
    let servers = known(servers, "virtual servers", &mut unknown);
    let of_iptables = iptables::chains().await;
    let of_ipvs = ipvs::chains().await;
    let link = links::index_if_there(LINK);
    let dropping = dropping().await;
    Observed {
        iptables: known(of_iptables, "chains of iptables mode", &mut unknown),
        ipvs: known(of_ipvs, "chains of ipvs mode", &mut unknown),
        tables,
        sets: sets.filter(|name| Set::is_name(name)).collect(),
        servers: servers.iter().map(ToString::to_string).collect(),
        link: known(link, "link kube-ipvs0", &mut unknown).is_some(),
        dropping: known(dropping, "policies of chains INPUT", &mut unknown),
        unknown,
    }
}

/// Lists the chains at hook INPUT that drop packets which none of their rules accepts; `None` if
/// the kernel cannot list them.
async fn dropping() -> Result<Option<Vec<String>>, netlink::Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        match there(dropping_chains(family, &[FilterChain::Input]).await)? {
            Some(chains) => found.extend(chains),
            None => return Ok(None),
        }
    }
    // A table of family inet is at the hook in both families.
    found.sort_unstable();
    found.dedup();
    Ok(Some(found))
}

/// Unwraps a `read`; `None` if it failed for a reason that is not temporary, such as a kernel that
/// does not support it.
fn there<T>(read: Result<T, netlink::Error>) -> Result<Option<T>, netlink::Error> {
    match read {
        Err(error) if !error.is_passing() => Ok(None),
        read => read.map(Some),
    }
}

/// Unwraps a `read`; if it failed, returns nothing and adds to `unknown` why `what` could not be
/// read.
fn known<T: Default>(
    read: Result<T, impl fmt::Display>,
    what: &str,
    unknown: &mut Vec<String>,
) -> T {
    read.unwrap_or_else(|error| {
        unknown.push(format!("{what}: {error}"));
        T::default()
    })
}

/// The fate of an object after Tripod has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Becomes {
    /// The mode has the same object: differences are written, the rest stays.
    TakenOver,
    /// It is removed once the mode is applied and no connection needs it.
    Removed,
    /// No mode can run, so nothing is changed.
    Unchanged,
}

impl fmt::Display for Becomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Becomes::TakenOver => "taken over: only what differs is written",
            Becomes::Removed => {
                "removed when the mode is applied and connections through it have ended, or after \
                 15 minutes"
            }
            Becomes::Unchanged => "left as it is",
        })
    }
}

/// Objects of one kind in one place with the same fate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Kind and place, such as `chains of nat (IPv4, iptables-nft)`.
    pub what: String,
    /// Their fate.
    pub becomes: Becomes,
    /// Their names, sorted.
    pub names: Vec<String>,
}

/// Decides what happens to the `observed` objects when `mode` starts, which writes its rules to
/// `engines`; `None` if no mode can run.
pub fn groups(
    observed: &Observed,
    mode: Option<ModeName>,
    engines: &[(Family, Engine)],
) -> Vec<Group> {
    let becomes = |is_kept: bool| match mode {
        None => Becomes::Unchanged,
        Some(_) if is_kept => Becomes::TakenOver,
        Some(_) => Becomes::Removed,
    };
    let mut found: BTreeMap<(String, Becomes), Vec<String>> = BTreeMap::new();
    let mut add = |what: String, becomes, name: String| {
        let names = found.entry((what, becomes)).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    };
    let own = match mode {
        Some(ModeName::Iptables) => &observed.iptables[..],
        Some(ModeName::Ipvs) => &observed.ipvs[..],
        _ => &[],
    };
    let mut chains: Vec<&OwnedChain> = observed.iptables.iter().collect();
    chains.extend(
        observed
            .ipvs
            .iter()
            .filter(|chain| !observed.iptables.contains(chain)),
    );
    for chain in chains {
        let is_kept = engines.contains(&(chain.family, chain.engine)) && own.contains(chain);
        let what = format!(
            "chains of {} ({}, {})",
            chain.table.name(),
            chain.family,
            match chain.engine {
                Engine::NfTables => "iptables-nft",
                Engine::Legacy => "iptables-legacy",
            }
        );
        add(what, becomes(is_kept), chain.name.clone());
    }
    for (family, name) in &observed.tables {
        let is_kept = mode == Some(ModeName::Nftables) && name == nftables::TABLE;
        let what = format!("tables of nf_tables ({family})");
        add(what, becomes(is_kept), name.clone());
    }
    let is_ipvs = mode == Some(ModeName::Ipvs);
    for (what, names) in [
        ("sets", &observed.sets),
        ("virtual servers", &observed.servers),
    ] {
        for name in names {
            add(what.to_owned(), becomes(is_ipvs), name.clone());
        }
    }
    if observed.link {
        add("links".to_owned(), becomes(is_ipvs), LINK.to_owned());
    }
    let groups = found.into_iter().map(|((what, becomes), mut names)| {
        names.sort_unstable();
        Group {
            what,
            becomes,
            names,
        }
    });
    groups.collect()
}

#[cfg(test)]
mod tests {
    use xtables::rule::Table;

    use super::*;

    fn chain(engine: Engine, name: &str) -> OwnedChain {
        OwnedChain {
            family: Family::V4,
            engine,
            table: Table::Nat,
            name: name.to_owned(),
        }
    }

    fn node() -> Observed {
        let shared = chain(Engine::NfTables, "KUBE-SERVICES");
        Observed {
            iptables: vec![
                shared.clone(),
                chain(Engine::NfTables, "KUBE-SVC-X"),
                chain(Engine::Legacy, "KUBE-SVC-OLD"),
            ],
            ipvs: vec![shared, chain(Engine::NfTables, "KUBE-LOAD-BALANCER")],
            tables: vec![
                (Family::V4, "kube-proxy".into()),
                (Family::V4, "tripod".into()),
            ],
            sets: vec!["KUBE-CLUSTER-IP".into()],
            servers: vec!["TCP 10.96.0.1:443".into()],
            link: true,
            dropping: None,
            unknown: Vec::new(),
        }
    }

    /// Objects of `node` that are taken over.
    fn taken_over(mode: Option<ModeName>) -> Vec<String> {
        let engines = [(Family::V4, Engine::NfTables)];
        let groups = groups(&node(), mode, &engines).into_iter();
        let kept = groups.filter(|group| group.becomes == Becomes::TakenOver);
        kept.flat_map(|group| group.names).collect()
    }

    #[test]
    fn a_mode_takes_over_its_own_in_its_engine() {
        for (mode, expected) in [
            (
                Some(ModeName::Iptables),
                &["KUBE-SERVICES", "KUBE-SVC-X"][..],
            ),
            (
                Some(ModeName::Ipvs),
                &[
                    "KUBE-LOAD-BALANCER",
                    "KUBE-SERVICES",
                    "kube-ipvs0",
                    "KUBE-CLUSTER-IP",
                    "TCP 10.96.0.1:443",
                ],
            ),
            (Some(ModeName::Nftables), &["tripod"]),
            (Some(ModeName::Userspace), &[]),
            (None, &[]),
        ] {
            assert_eq!(taken_over(mode), expected, "{mode:?}");
        }
    }

    #[test]
    fn the_rest_is_removed_and_each_thing_is_named_once() {
        for mode in ModeName::ALL {
            let groups = groups(&node(), Some(mode), &[(Family::V4, Engine::NfTables)]);
            let names = groups.iter().map(|group| group.names.len());
            assert_eq!(names.sum::<usize>(), 9, "{mode}: {groups:?}");
        }
        let unchanged = groups(&node(), None, &[]);
        assert!(
            unchanged
                .iter()
                .all(|group| group.becomes == Becomes::Unchanged)
        );
    }
}

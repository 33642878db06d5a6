//! Chains that drop passing packets unless one of their rules accepts them. They belong to other
//! programs, such as Docker, which gives FORWARD this policy, or a firewall: no mode of Tripod has
//! such a chain.

use std::io;

use net::Family;
use netlink::Error;
use nftables::{Hook, Policy, Rules};
use xtables::{
    Engine,
    info::{self, FilterChain},
};

/// Returns the chains that drop packets of `family` at the hooks of these chains of table
/// filter, unless one of their rules accepts them. They are read on a thread of their own.
///
/// # Errors
/// When the chains of an engine that is there cannot be read.
pub async fn dropping_chains(
    family: Family,
    passed: &'static [FilterChain],
) -> Result<Vec<String>, Error> {
    // The socket belongs to the network namespace of the thread that opens it.
    let mut rules = Rules::open()?;
    let done = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for chain in passed.iter().copied() {
            let (hook, name) = match chain {
                FilterChain::Input => (Hook::Input, "INPUT"),
                FilterChain::Forward => (Hook::Forward, "FORWARD"),
            };
            found.extend(of_nf_tables(&mut rules, family, hook));
            if Engine::Legacy.has_table(family, "filter") && info::drops(family, chain)? {
                found.push(format!(
                    "chain {name} of table filter ({family}, iptables-legacy)"
                ));
            }
        }
        Ok(found)
    });
    let done = done
        .await
        .unwrap_or_else(|ended| Err(io::Error::other(ended)));
    let object = format!("table filter ({family}, iptables-legacy)");
    done.map_err(|error| Error::new("read", object, error))
}

/// The chains of nf_tables at `hook` whose policy drops packets; none if the kernel has no
/// nf_tables.
fn of_nf_tables(rules: &mut Rules, family: Family, hook: Hook) -> Vec<String> {
    let chains = rules.at_hook(family, hook).unwrap_or_default();
    let drops = chains.into_iter().filter(|(_, chain)| {
        let base = chain.base;
        base.is_some_and(|base| base.policy == Policy::Drop)
    });
    drops
        .map(|(table, chain)| format!("chain {} of table {table} (nf_tables)", chain.name))
        .collect()
}

//! Chains that drop what is forwarded unless a rule of theirs accepts it. They are other
//! programs', as Docker's, which gives FORWARD this policy, or a firewall's: no mode of
//! Tripod has such a chain.

use std::io;

use crate::{
    kernel::{
        netlink::Error,
        nftables::{Hook, Policy, Rules},
        xtables::{Engine, info},
    },
    net::Family,
};

/// Returns the chains that drop packets of `family` which this node forwards, unless one
/// of their rules accepts them. They are read on a thread of their own.
///
/// # Errors
/// When the chains of an engine that is there cannot be read.
pub async fn dropping_chains(family: Family) -> Result<Vec<String>, Error> {
    // The socket belongs to the network namespace of the thread that opens it.
    let rules = Rules::open()?;
    let done = tokio::task::spawn_blocking(move || {
        let mut found = of_nf_tables(rules, family);
        if Engine::Legacy.has_table(family, "filter") && info::forward_drops(family)? {
            found.push(legacy(family));
        }
        Ok(found)
    });
    let done = done
        .await
        .unwrap_or_else(|ended| Err(io::Error::other(ended)));
    done.map_err(|source| Error::Socket {
        operation: "read",
        object: legacy(family),
        source,
    })
}

fn legacy(family: Family) -> String {
    format!("chain FORWARD of table filter ({family}, iptables-legacy)")
}

/// Returns those of nf_tables, none where the kernel has none.
fn of_nf_tables(mut rules: Rules, family: Family) -> Vec<String> {
    let chains = rules.at_hook(family, Hook::Forward).unwrap_or_default();
    let drops = chains.into_iter().filter(|(_, chain)| {
        let base = chain.base;
        base.is_some_and(|base| base.policy == Policy::Drop)
    });
    drops
        .map(|(table, chain)| format!("chain {} of table {table} (nf_tables)", chain.name))
        .collect()
}

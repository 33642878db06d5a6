//! Removing all that iptables mode ever installs, whoever installed it: this
//! process, an earlier one, or kube-proxy.

use std::collections::HashSet;
use std::fmt::Write;

use super::{
    Error,
    adopt::{is_ours, target},
    plan::names,
};
use crate::kernel::{
    Family, nfacct,
    xtables::{
        self, Engine, Xtables,
        rule::Table,
        saved::{Saved, SavedChain},
    },
};

/// Chains by which the kubelet says that it is there, in table mangle; then
/// KUBE-FIREWALL is its own.
const KUBELET: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// Removes everything that iptables mode ever installs, in both engines of the
/// kernel and both families, also what kube-proxy's left. Nothing of others is
/// touched; twice is harmless.
///
/// # Errors
/// When something of it could not be removed; the rest is.
pub async fn cleanup() -> Result<(), Error> {
    cleanup_beside(&[]).await
}

/// As [`cleanup`], but leaves the chains of these names with what leads to them:
/// they are another mode's too, which runs.
///
/// # Errors
/// When something of it could not be removed; the rest is.
pub async fn cleanup_beside(kept: &[(Table, &str)]) -> Result<(), Error> {
    let mut outcome = Ok(());
    for family in Family::ALL {
        let mut engines: Vec<Engine> = Vec::new();
        for xtables in Xtables::installed(family) {
            let Ok(engine) = xtables.engine().await else {
                continue;
            };
            if !engines.contains(&engine) {
                engines.push(engine);
                outcome = outcome.and(remove(&xtables, engine, kept).await);
            }
        }
    }
    for account in [names::INVALID_DROPPED, names::LOCALHOST_ACCEPTED] {
        // Without the kernel's counters there is none; one that somebody else
        // counts with stays (EBUSY).
        let _ = nfacct::delete(account);
    }
    outcome.map_err(Error::from)
}

/// Removes all of it in one engine of one family.
pub(super) async fn remove(
    xtables: &Xtables,
    engine: Engine,
    kept: &[(Table, &str)],
) -> Result<(), xtables::Error> {
    let mut batch = String::new();
    let mut kubelet = false;
    // What nat leads somewhere is closed last.
    for table in [Table::Mangle, Table::Nat, Table::Filter] {
        if !engine.has_table(xtables.family(), table.name()) {
            continue;
        }
        let mut saved = Saved::default();
        let read = xtables.read(table.name(), |line| {
            saved.line(line, |chain| !is_ours(chain) || is_kept(kept, table, chain));
        });
        match read.await {
            Ok(()) => {}
            Err(error) if error.is_permission() => return Err(error),
            // A table that cannot be read for want of it holds nothing of ours.
            Err(_) => continue,
        }
        kubelet |= KUBELET
            .iter()
            .any(|chain| saved.chains.contains_key(*chain));
        batch += &removal(table, &saved, !kubelet, kept);
    }
    if batch.is_empty() {
        return Ok(());
    }
    xtables.restore(&batch).await
}

fn is_kept(kept: &[(Table, &str)], table: Table, chain: &str) -> bool {
    kept.contains(&(table, chain))
}

/// Input of `iptables-restore` that removes our chains and what leads to them.
/// A chain that somebody else's rule leads to is only emptied, for that rule
/// is not ours to remove.
fn removal(table: Table, saved: &Saved, firewall: bool, kept: &[(Table, &str)]) -> String {
    let ours = |chain: &str| {
        !is_kept(kept, table, chain)
            && (is_ours(chain) || firewall && table == Table::Filter && chain == names::FIREWALL)
    };
    let base = |chain: &str| {
        matches!(
            chain,
            "PREROUTING" | "INPUT" | "FORWARD" | "OUTPUT" | "POSTROUTING"
        )
    };
    let rules = |chain: &SavedChain| chain.rules.clone().unwrap_or_default();
    let mut jumps = String::new();
    let mut held = HashSet::new();
    for (name, chain) in saved.chains.iter().filter(|(name, _)| !ours(name)) {
        for words in rules(chain) {
            match target(&words).filter(|target| ours(target)) {
                Some(_) if base(name) => {
                    // Writing into a String does not fail.
                    let _ = writeln!(jumps, "-D {name} {words}");
                }
                Some(target) => {
                    held.insert(target.to_owned());
                }
                None => {}
            }
        }
    }
    let chains: Vec<&String> = saved.chains.keys().filter(|name| ours(name)).collect();
    if chains.is_empty() {
        return String::new();
    }
    let mut out = format!("*{table}\n");
    for chain in &chains {
        let _ = writeln!(out, ":{chain} - [0:0]");
    }
    out += &jumps;
    for chain in chains.iter().filter(|chain| !held.contains(**chain)) {
        let _ = writeln!(out, "-X {chain}");
    }
    out + "COMMIT\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_rules_and_what_they_lead_to_stay() {
        let mut saved = Saved::default();
        for line in [
            ":OUTPUT ACCEPT [0:0]",
            ":MINE - [0:0]",
            ":KUBE-SERVICES - [0:0]",
            ":KUBE-SVC-A - [0:0]",
            "-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
            "-A OUTPUT -j MINE",
            "-A MINE -j KUBE-SVC-A",
            "-A KUBE-SERVICES -j KUBE-SVC-A",
        ] {
            saved.line(line, |chain| !is_ours(chain));
        }
        let text = removal(Table::Nat, &saved, true, &[]);
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "*nat",
                "-D OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
                "-X KUBE-SERVICES",
                ":KUBE-SERVICES - [0:0]",
                ":KUBE-SVC-A - [0:0]",
                "COMMIT",
            ]
        );
        assert_eq!(removal(Table::Nat, &Saved::default(), true, &[]), "");
    }
}

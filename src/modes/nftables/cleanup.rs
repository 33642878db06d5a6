//! What the mode ever installed, and what kube-proxy's nftables mode leaves.

use crate::{
    kernel::{netlink::Error, nftables::Rules},
    net::Family,
};

/// What kube-proxy calls its tables, one of each family.
pub const KUBE_PROXY: &str = "kube-proxy";

/// Returns whether a family has a table of that name, or may have one: that is not known.
pub fn may_be_there(table: &str) -> bool {
    match Rules::with_table(table, &Family::ALL) {
        Ok(found) => found.is_some_and(|(_, families)| !families.is_empty()),
        Err(_) => true,
    }
}

/// Returns whether packets come to rules of a table of that name, or may: that is not known. A
/// table that was [retired](retire) has none in its base chains.
pub fn may_serve(table: &str) -> bool {
    let Ok(found) = Rules::with_table(table, &Family::ALL) else {
        return true;
    };
    let Some((mut rules, families)) = found else {
        return false;
    };
    families.into_iter().any(|family| {
        let mut serves = false;
        let listed = rules.chains(family, |listed| {
            serves |= listed.base && listed.table == table && listed.uses > 0;
        });
        serves || listed.is_err()
    })
}

/// Removes the tables of that name.
///
/// # Errors
/// When one could not be removed; the other is removed all the same.
pub fn cleanup(table: &str) -> Result<(), Error> {
    let mut outcome = Ok(());
    let Some((mut rules, families)) = Rules::with_table(table, &Family::ALL)? else {
        return Ok(());
    };
    for family in families {
        match rules.delete_table(family, table) {
            Ok(_) => {
                tracing::info!("removed the {family} table {table} of nf_tables");
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// Deletes the rules of the base chains of these families' tables, so that no packet reaches the
/// others, and leaves the tables; see [`iptables::retire`](crate::modes::iptables::retire). Returns
/// the families that have a table.
///
/// # Errors
/// When the kernel refuses.
pub fn retire(table: &str, families: &[Family]) -> Result<Vec<Family>, Error> {
    let Some((mut rules, found)) = Rules::with_table(table, families)? else {
        return Ok(Vec::new());
    };
    for &family in &found {
        rules.unlink_table(family, table)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::namespace::{in_namespace, sh, without_net_admin};

    #[test]
    fn a_table_that_may_not_be_listed_may_be_there() {
        in_namespace(|| {
            assert!(!may_be_there(KUBE_PROXY));
            assert!(without_net_admin(|| may_be_there(KUBE_PROXY)));
            sh("nft add table ip6 kube-proxy");
            assert!(may_be_there(KUBE_PROXY) && !may_serve(KUBE_PROXY));
            sh(
                "nft add chain ip6 kube-proxy services '{ type nat hook prerouting priority -100; }'",
            );
            assert!(!may_serve(KUBE_PROXY));
            sh("nft add rule ip6 kube-proxy services counter");
            assert!(may_serve(KUBE_PROXY) && without_net_admin(|| may_serve(KUBE_PROXY)));
            retire(KUBE_PROXY, &Family::ALL).unwrap();
            assert!(may_be_there(KUBE_PROXY) && !may_serve(KUBE_PROXY));
        });
    }
}

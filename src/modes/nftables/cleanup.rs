//! What the mode ever installed, and what kube-proxy's nftables mode leaves.

use crate::{
    kernel::{netlink::Error, nftables::Rules},
    net::Family,
};

/// What kube-proxy calls its tables, one of each family.
pub const KUBE_PROXY: &str = "kube-proxy";

/// Returns whether a family has a table of that name.
pub fn is_there(table: &str) -> bool {
    matches!(Rules::with_table(table, &Family::ALL), Ok(Some((_, families))) if !families.is_empty())
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

/// Has nothing lead to the rules of these families' tables any more, and leaves
/// them; see [`iptables::retire`](crate::modes::iptables::retire). Returns where
/// there are some.
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

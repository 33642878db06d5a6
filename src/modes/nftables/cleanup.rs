//! What the mode ever installed, and what kube-proxy's nftables mode leaves.

use nix::errno::Errno;

use crate::{
    kernel::{netlink::Error, nftables::Rules},
    net::Family,
};

/// What kube-proxy calls its tables, one of each family.
pub const KUBE_PROXY: &str = "kube-proxy";

/// Returns the families whose table is there. A kernel that does not know
/// nf_tables, or not for a family, holds none.
fn find(table: &str) -> Result<Option<(Rules, Vec<Family>)>, Error> {
    let Some(mut rules) = known(Rules::open())? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for family in Family::ALL {
        let tables = known(rules.tables(family))?.unwrap_or_default();
        if tables.iter().any(|found| found.name == table) {
            found.push(family);
        }
    }
    Ok(Some((rules, found)))
}

/// Returns whether a family has a table of that name.
pub fn is_there(table: &str) -> bool {
    matches!(find(table), Ok(Some((_, families))) if !families.is_empty())
}

/// Separates what the kernel answered from what is unknown: a refusal for lack
/// of privilege stays an error, every other one means that there is nothing.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if error.errno() == Some(Errno::EPERM) => Err(error),
        answer => Ok(answer.ok()),
    }
}

/// Removes the tables of that name.
///
/// # Errors
/// When one could not be removed; the other is removed all the same.
pub fn cleanup(table: &str) -> Result<(), Error> {
    let mut outcome = Ok(());
    let Some((mut rules, families)) = find(table)? else {
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
    let Some((mut rules, mut found)) = find(table)? else {
        return Ok(Vec::new());
    };
    found.retain(|family| families.contains(family));
    for &family in &found {
        rules.unlink_table(family, table)?;
    }
    Ok(found)
}

//! The stale state of kube-proxy's nftables mode.

use nix::errno::Errno;

use crate::{
    kernel::{netlink::Error, nftables::Rules},
    net::Family,
};

/// kube-proxy's name for its tables, one of each family.
const TABLE: &str = "kube-proxy";

/// Returns the families whose table is there. A kernel without nf_tables, or
/// without it for a family, has none.
fn find() -> Result<Option<(Rules, Vec<Family>)>, Error> {
    let Some(mut rules) = known(Rules::open())? else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for family in Family::ALL {
        let tables = known(rules.tables(family))?.unwrap_or_default();
        if tables.iter().any(|table| table.name == TABLE) {
            found.push(family);
        }
    }
    Ok(Some((rules, found)))
}

/// Returns whether some table is there.
pub(super) fn is_there() -> bool {
    matches!(find(), Ok(Some((_, families))) if !families.is_empty())
}

/// Separates what the kernel answered from what is unknown: a refusal for lack
/// of privilege stays an error, every other one means that there is nothing.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if error.errno() == Some(Errno::EPERM) => Err(error),
        answer => Ok(answer.ok()),
    }
}

/// Removes the tables.
pub(super) fn clean() -> Result<(), Error> {
    let mut outcome = Ok(());
    let Some((mut rules, families)) = find()? else {
        return Ok(());
    };
    for family in families {
        match rules.delete_table(family, TABLE) {
            Ok(_) => {
                tracing::info!("removed the {family} table {TABLE} of kube-proxy's nftables mode");
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// Unlinks the base chains of these families' tables, so that no packet reaches
/// their rules, and leaves the rest; see
/// [`iptables::retire`](crate::modes::iptables::retire). Returns the families
/// that have tables.
pub(super) fn retire(families: &[Family]) -> Result<Vec<Family>, Error> {
    let Some((mut rules, mut found)) = find()? else {
        return Ok(Vec::new());
    };
    found.retain(|family| families.contains(family));
    for &family in &found {
        rules.unlink_table(family, TABLE)?;
    }
    Ok(found)
}

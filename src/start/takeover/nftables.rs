//! What kube-proxy's nftables mode left; Tripod has no such mode.

use nix::errno::Errno;

use crate::kernel::{Family, netlink::Error, nftables::Rules};

/// What kube-proxy calls its tables, one of each family.
const TABLE: &str = "kube-proxy";

/// The families whose table is there.
fn find() -> Result<Vec<(Rules, Family)>, Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        let tables = Rules::open().and_then(|mut rules| Ok((rules.tables(family)?, rules)));
        match tables {
            Ok((names, rules)) if names.iter().any(|name| name == TABLE) => {
                found.push((rules, family));
            }
            Err(error) if error.errno() == Some(Errno::EPERM) => return Err(error),
            // A kernel that does not know nf_tables holds none.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Removes the tables.
pub(super) fn clean() -> Result<(), Error> {
    let mut outcome = Ok(());
    for (mut rules, family) in find()? {
        match rules.delete_table(family, TABLE) {
            Ok(_) => {
                tracing::info!("removed the {family} table {TABLE} of kube-proxy's nftables mode");
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// Has nothing lead to the rules of these families' tables any more, and leaves
/// them; see [`iptables::retire`](crate::modes::iptables::retire). Answers where
/// there are some.
pub(super) fn retire(families: &[Family]) -> Result<Vec<Family>, Error> {
    let mut left = Vec::new();
    for (mut rules, family) in find()? {
        if families.contains(&family) {
            rules.unlink_table(family, TABLE)?;
            left.push(family);
        }
    }
    Ok(left)
}

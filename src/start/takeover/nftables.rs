//! What kube-proxy's nftables mode left; Tripod has no such mode.

use nix::errno::Errno;

use crate::kernel::{
    Family,
    conntrack::flows,
    netlink::{Error, Protocol, Socket},
    nftables::Rules,
    xtables::Engine,
};

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

/// Empties a table that is the last to have chains of type nat in its family,
/// as far as can be told: with them goes all translation, and every connection
/// that needs some. Answers how many those are. `engines` have nat rules of the
/// mode that runs.
pub(super) fn retire(engines: &[(Family, Engine)]) -> Result<usize, Error> {
    let mut open = 0;
    for (mut rules, family) in find()? {
        let ours = engines.iter().any(|(of, _)| *of == family);
        let anybodys = || {
            let engines = [Engine::NfTables, Engine::Legacy];
            engines.iter().any(|engine| engine.has_table(family, "nat"))
        };
        if !ours && !anybodys() {
            rules.empty_table(family, TABLE)?;
            open += flows::translated(&mut Socket::open(Protocol::Netfilter)?, family)?;
        }
    }
    Ok(open)
}

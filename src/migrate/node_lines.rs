//! Reads the lines that a kernel holds of kube-proxy or Tripod: those of this node, or as
//! its programs printed them elsewhere. Nothing is changed.

use std::{fs, io, path::Path};

use ipnet::IpNet;

use super::{
    changes::{Holdings, Program},
    state::Observed,
};
use crate::{
    kernel::xtables::{Xtables, run::Writer},
    modes::ipvs,
    net::Family,
};

/// Returns what the kernel of this node holds of what was `observed`. Virtual servers
/// with addresses in `exclude` belong to other programs.
///
/// # Errors
/// When something exists and cannot be read; a readable text.
pub async fn read(observed: &Observed, exclude: &[IpNet]) -> Result<Holdings, String> {
    let mut holdings = Holdings::default();
    for family in Family::ALL {
        let chains = || observed.iptables.iter().chain(&observed.ipvs);
        let engines = Xtables::engines(family).await;
        let of_family = || chains().filter(|chain| chain.family == family);
        let unread = of_family().find_map(|chain| engines.unknown(chain.engine));
        if let Some(unknown) = unread {
            return Err(format!("cannot read the rules of {family}: {unknown}"));
        }
        for Writer { xtables, engine } in engines.writers() {
            if !chains().any(|chain| (chain.family, chain.engine) == (family, *engine)) {
                continue;
            }
            let mut text = String::new();
            let read = xtables.read(None, |line| {
                text.push_str(line);
                text.push('\n');
            });
            let read = read.await;
            read.map_err(|error| format!("cannot read the rules of {family}: {error}"))?;
            holdings.saved(Program::Iptables(family, Some(*engine)), &text);
        }
    }
    for (family, name) in &observed.tables {
        holdings.table(*family, name);
    }
    let saved = ipvs::saved(exclude);
    let saved = saved.map_err(|error| format!("cannot read what ipvs mode left: {error}"))?;
    holdings.rendered(&saved, |_| None);
    Ok(holdings)
}

/// The files that are read, and the program that prints each.
const FILES: [(&str, Program); 5] = [
    ("iptables-save.txt", Program::Iptables(Family::V4, None)),
    ("ip6tables-save.txt", Program::Iptables(Family::V6, None)),
    ("ipset-save.txt", Program::Ipset),
    ("ipvsadm-save.txt", Program::Ipvsadm),
    ("kube-ipvs0-addrs.txt", Program::Ip),
];

/// Returns what programs printed into files of `folder`; missing files count as empty.
///
/// # Errors
/// When all of them are missing, or one cannot be read; a readable text.
pub fn saved(folder: &Path) -> Result<Holdings, String> {
    let mut holdings = Holdings::default();
    let mut any = false;
    for (name, program) in FILES {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => {
                holdings.saved(program, &text);
                any = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        }
    }
    if any {
        return Ok(holdings);
    }
    let names = FILES.map(|(name, _)| name).join(", ");
    Err(format!(
        "{} has none of the files that --saved reads: {names}",
        folder.display()
    ))
}

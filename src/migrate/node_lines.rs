//! Reads kube-proxy's and Tripod's objects in a kernel as lines: those of this node, or those that
//! its programs printed elsewhere. Nothing is changed.

use std::{fs, io, path::Path};

use ipnet::IpNet;
use net::Family;
use xtables::{Xtables, run::Writer};

use super::{
    changes::{Holdings, Program},
    saved_servers,
    state::Observed,
};
use crate::modes::ipvs;

/// Reads the lines of the `observed` objects from the kernel of this node. Virtual servers with
/// addresses in `exclude` belong to other programs.
///
/// # Errors
/// When something exists but cannot be read; the error is readable.
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

/// Reads the output of programs from files in `folder`; missing files count as empty. Virtual
/// servers with addresses in `exclude` belong to other programs.
///
/// # Errors
/// When all of them are missing, or one cannot be read; the error is readable.
pub fn saved(folder: &Path, exclude: &[IpNet]) -> Result<Holdings, String> {
    let mut texts = Vec::new();
    for (name, program) in FILES {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => texts.push((program, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        }
    }
    if texts.is_empty() {
        let names = FILES.map(|(name, _)| name).join(", ");
        return Err(format!(
            "{} has none of the files that --saved reads: {names}",
            folder.display()
        ));
    }
    let text_of = |program| {
        let mut texts = texts.iter();
        texts.find_map(|(of, text)| (*of == program).then_some(text.as_str()))
    };
    let (sets, addresses) = (text_of(Program::Ipset), text_of(Program::Ip));
    let known = sets.zip(addresses);
    let known = known.map(|(sets, addresses)| saved_servers::own_servers(sets, addresses));
    let mut holdings = Holdings::default();
    for (program, text) in &texts {
        if *program == Program::Ipvsadm {
            let ours = saved_servers::ours(text, known.as_ref(), exclude);
            holdings.saved(*program, &ours);
        } else {
            holdings.saved(*program, text);
        }
    }
    Ok(holdings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::changes;

    /// As on a node where keepalived also has virtual servers.
    #[test]
    fn virtual_servers_of_other_programs_are_left_out_of_what_was_saved() {
        let folder = std::env::temp_dir().join(format!("tripod-saved-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let servers = |exclude: &[&str]| {
            let exclude = exclude.iter().map(|text| text.parse().unwrap());
            let there = saved(&folder, &exclude.collect::<Vec<_>>()).unwrap();
            let all = changes(&there, &Holdings::default()).into_iter();
            let mut servers = all.filter(|place| place.place == "virtual servers");
            servers.next().map(|place| place.goes).unwrap_or_default()
        };
        let (ours, theirs) = ("-A -t 10.96.0.1:443 -s rr", "-A -t 192.0.2.10:6443 -s rr");
        put("ipvsadm-save.txt", &format!("{ours}\n{theirs}\n"));
        assert_eq!(servers(&[]), [ours, theirs], "nothing tells whose they are");
        assert_eq!(servers(&["192.0.2.0/24"]), [ours]);
        put("ipset-save.txt", "create KUBE-CLUSTER-IP hash:ip,port\n");
        put("kube-ipvs0-addrs.txt", "inet 10.96.0.1/32\n");
        assert_eq!(servers(&[]), [ours]);
        assert_eq!(servers(&["10.96.0.0/16"]), [""; 0]);
        fs::remove_dir_all(folder).unwrap();
    }
}

//! The kernel's state of ipvs mode except rules, in the same words as [`render`] prints the desired
//! state. It is only read.
//!
//! [`render`]: super::render::render

use std::fmt::Write;

use ipnet::IpNet;
use ipvs::{Ipvs, ipset::IpSets};
use netlink::{Protocol, Socket, addresses, links};

use super::{
    Error,
    cleanup::{there, virtual_servers},
    plan::{LINK, Set},
    render::{write_address, write_server},
};

/// Lists sets with their members, virtual servers except those in `exclude`, and the addresses of
/// the dummy link, of any program; each after a line that names the program that reads such lines.
/// Parts that this kernel does not have are left out.
///
/// # Errors
/// When the kernel has a part and it cannot be read.
pub fn saved(exclude: &[IpNet]) -> Result<String, Error> {
    let mut text = String::new();
    // Writing into a String does not fail.
    let _ = writeln!(text, "# ipset restore");
    if let Some(mut sets) = there(IpSets::open())? {
        write_sets(&mut sets, &mut text)?;
    }
    let _ = writeln!(text, "# ipvsadm -R");
    let ours = virtual_servers(exclude)?;
    if !ours.is_empty() {
        let mut ipvs = Ipvs::open()?;
        for server in ipvs.list()? {
            if ours.contains(&server.id) {
                let reals = ipvs.list_real(&server.id)?;
                let reals = reals.into_iter().map(|listed| listed.server);
                let _ = write_server(&mut text, &server, reals);
            }
        }
    }
    let _ = writeln!(text, "# ip -batch -");
    if let Ok(index) = links::index(LINK) {
        let _ = writeln!(text, "link add {LINK} type dummy");
        for address in addresses::list(&mut Socket::open(Protocol::Route)?)? {
            if address.index == index && !address.is_of_link() {
                let _ = write_address(&mut text, address.address);
            }
        }
    }
    Ok(text)
}

fn write_sets(sets: &mut IpSets, text: &mut String) -> Result<(), netlink::Error> {
    for set in sets.list()? {
        if !Set::is_name(&set.name) {
            continue;
        }
        let _ = writeln!(text, "create {} {}", set.name, set.kind);
        for member in sets.members(&set.name)? {
            let _ = writeln!(text, "add {} {member}", set.name);
        }
    }
    Ok(())
}

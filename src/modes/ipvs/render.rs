//! The whole plan as text that `ipset restore`, `iptables-restore` and `ipvsadm -R` read, in the
//! order in which they must be run.

use std::{
    fmt::{self, Write},
    net::IpAddr,
};

use ipvs::{FALL_BACK, Forwarding, HASH_PORTS, RealServer, ipset::Kind};
use net::{Family, PerFamily, Protocol};
use xtables::{difference::difference, observed::Observed};

use super::{
    desired::{Desired, Dirty},
    plan::{LINK, NodeContext, Options, Set, interest, rules},
};
use crate::{
    modes::{localhost, render::choices::Choices},
    services::ServiceMap,
};

/// Writes the objects that `map` needs, each program's input after a line that names the program.
///
/// # Errors
/// Only those of `out`.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, out: &mut impl Write) -> fmt::Result {
    let options = Options::new(choices.configuration, choices.effective);
    let addresses = choices.addresses.to_vec();
    let node = NodeContext::new(&options, map.this_node(), choices.served, addresses);
    let ports = map.sorted();
    let mut desired = Desired::new(node);
    let mut dirty = Dirty::default();
    for port in &ports {
        desired.update(&port.name, Some(port), &mut dirty);
    }
    let (node, needs) = (desired.node(), desired.needs());
    let non_empty = PerFamily::each(|family| needs.non_empty(family));

    writeln!(out, "# ipset restore")?;
    for family in Family::ALL {
        for set in Set::ALL {
            if set.is_kube_proxys() || non_empty.get(family).contains(set) {
                write_set(out, set, family, needs.size(set, family))?;
            }
        }
    }
    for member in dirty.members.keys() {
        writeln!(
            out,
            "add {} {}",
            member.set.name(member.family),
            member.element
        )?;
    }
    for family in Family::ALL {
        writeln!(
            out,
            "# {}-restore --noflush",
            xtables::program_prefix(family)
        )?;
        let features = choices.kernel.features(family);
        let rules = rules(family, node, &features, *non_empty.get(family));
        let nothing = Observed::new(interest);
        write!(out, "{}", difference(&nothing, &rules, family))?;
    }
    writeln!(out, "# ipvsadm -R")?;
    for port in &ports {
        for server in &desired.plan(port).servers {
            if needs.owner(&server.frontend) == Some(&port.name) {
                let reals = server.reals.iter().copied();
                write_server(out, &server.to_kernel(), reals)?;
            }
        }
    }
    writeln!(out, "# ip -batch -")?;
    writeln!(out, "link add {LINK} type dummy")?;
    for &address in &dirty.addresses {
        write_address(out, address)?;
    }
    localhost::render(map, choices.loopback, out)
}

/// Writes how a set with room for that number of members is made, in the words of `ipset save`.
fn write_set(out: &mut impl Write, set: Set, family: Family, members: u32) -> fmt::Result {
    write!(out, "create {} {}", set.name(family), set.kind())?;
    out.write_str(match (set.kind(), family) {
        (Kind::Port, _) => return writeln!(out, " range 0-65535"),
        (_, Family::V4) => " family inet",
        (_, Family::V6) => " family inet6",
    })?;
    let plain = set.kernel_set(family);
    let sized = plain.clone().with_room_for(members);
    if sized != plain {
        let (size, most) = (sized.hash_size, sized.max_members);
        write!(out, " hashsize {size} maxelem {most}")?;
    }
    writeln!(out)
}

/// Writes a virtual server with its real servers, in the words of `ipvsadm -Sn`.
pub(super) fn write_server(
    out: &mut impl Write,
    server: &ipvs::VirtualServer,
    reals: impl IntoIterator<Item = RealServer>,
) -> fmt::Result {
    let address = server.id.address;
    let option = match server.id.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    write!(out, "-A {option} {address} -s {}", server.scheduler)?;
    if let Some(time) = server.persistence {
        write!(out, " -p {}", time.as_secs())?;
    }
    // The names by which ipvsadm knows the flags of `sh` and `mh`, the only schedulers with flags.
    let of = &server.scheduler;
    let flags = [(FALL_BACK, "fallback"), (HASH_PORTS, "port")];
    let set = flags.iter().filter(|(flag, _)| server.flags & flag != 0);
    let names: Vec<String> = set.map(|(_, name)| format!("{of}-{name}")).collect();
    if !names.is_empty() {
        write!(out, " -b {}", names.join(","))?;
    }
    writeln!(out)?;
    for real in reals {
        let method = match real.forwarding {
            Forwarding::Masquerade => "-m",
            Forwarding::DirectRoute | Forwarding::Local => "-g",
            Forwarding::Tunnel => "-i",
        };
        let (real, weight) = (real.address, real.weight);
        writeln!(out, "-a {option} {address} -r {real} {method} -w {weight}")?;
    }
    Ok(())
}

/// Writes an address of the dummy link, in the words of `ip -batch`.
pub(super) fn write_address(out: &mut impl Write, address: IpAddr) -> fmt::Result {
    let bits = Family::of(&address).bits();
    writeln!(out, "addr add {address}/{bits} dev {LINK}")
}

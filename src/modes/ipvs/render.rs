//! The whole plan as text that `ipset restore`, `iptables-restore` and
//! `ipvsadm -R` read, in the order in which it is to be applied.

use std::{
    fmt::{self, Write},
    net::SocketAddr,
};

use super::{
    desired::{Desired, Dirty},
    plan::{LINK, NodeContext, Set, VirtualServer, interest, rules},
};
use crate::{
    kernel::{
        ipset::Kind,
        ipvs::Forwarding,
        probe::Kernel,
        xtables::{self, difference::difference, observed::Observed},
    },
    net::{Family, PerFamily, Protocol},
    services::ServiceMap,
};

/// Writes what `map` needs on such a node, each program's input after a line that names
/// the program.
///
/// # Errors
/// Only those of `out`.
pub fn render(
    map: &ServiceMap,
    node: NodeContext,
    kernel: &Kernel,
    out: &mut impl Write,
) -> fmt::Result {
    let mut ports: Vec<_> = map.iter().collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    let mut desired = Desired::new(node);
    let mut dirty = Dirty::default();
    for port in &ports {
        desired.update(&port.name, Some(port), &mut dirty);
    }
    let (node, needs) = (desired.node(), desired.needs());
    let filled = PerFamily::each(|family| needs.filled(family));

    writeln!(out, "# ipset restore")?;
    for family in Family::ALL {
        for set in Set::ALL {
            if set.is_kube_proxys() || filled.get(family).contains(set) {
                let members = needs.size(set, family);
                let creation = Creation {
                    set,
                    family,
                    members,
                };
                writeln!(out, "create {creation}")?;
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
        let rules = rules(family, node, &kernel.features(family), *filled.get(family));
        let nothing = Observed::new(interest);
        write!(out, "{}", difference(&nothing, &rules, family))?;
    }
    writeln!(out, "# ipvsadm -R")?;
    for port in &ports {
        for server in &desired.plan(port).servers {
            if needs.owner(&server.frontend) == Some(&port.name) {
                write!(out, "{}", Server(server))?;
            }
        }
    }
    writeln!(out, "# ip -batch -")?;
    writeln!(out, "link add {} type dummy", LINK)?;
    for address in &dirty.addresses {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        writeln!(out, "addr add {address}/{bits} dev {}", LINK)?;
    }
    Ok(())
}

/// A set with room for so many members, in the words of `ipset save`.
struct Creation {
    set: Set,
    family: Family,
    members: u32,
}

impl fmt::Display for Creation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Creation {
            set,
            family,
            members,
        } = *self;
        write!(f, "{} {}", set.name(family), set.kind())?;
        f.write_str(match (set.kind(), family) {
            (Kind::Port, _) => return f.write_str(" range 0-65535"),
            (_, Family::V4) => " family inet",
            (_, Family::V6) => " family inet6",
        })?;
        let plain = set.kernel_set(family);
        let sized = plain.clone().with_room_for(members);
        if sized == plain {
            return Ok(());
        }
        write!(
            f,
            " hashsize {} maxelem {}",
            sized.hash_size, sized.max_members
        )
    }
}

/// A virtual server with its real servers, in the words of `ipvsadm -Sn`.
struct Server<'a>(&'a VirtualServer);

impl fmt::Display for Server<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VirtualServer {
            frontend,
            scheduler,
            persistence,
            reals,
        } = self.0;
        let option = match frontend.protocol {
            Protocol::Tcp => "-t",
            Protocol::Udp => "-u",
            Protocol::Sctp => "--sctp-service",
        };
        let address = SocketAddr::new(frontend.address, frontend.port);
        write!(f, "-A {option} {address} -s {scheduler}")?;
        if let Some(seconds) = persistence {
            write!(f, " -p {seconds}")?;
        }
        if self.0.hashes_ports() {
            f.write_str(" -b mh-port")?;
        }
        writeln!(f)?;
        for real in reals {
            let method = match real.forwarding {
                Forwarding::Masquerade => "-m",
                Forwarding::DirectRoute | Forwarding::Local => "-g",
                Forwarding::Tunnel => "-i",
            };
            let (real, weight) = (real.address, real.weight);
            writeln!(f, "-a {option} {address} -r {real} {method} -w {weight}")?;
        }
        Ok(())
    }
}

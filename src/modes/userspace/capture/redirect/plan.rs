//! Which nat and filter rules are wanted, as text. Pure.
//!
//! ```text
//! nat PREROUTING, OUTPUT → TRIPOD-USERSPACE
//!     -d SERVICE ADDRESS --dport PORT      → our listener     service addresses first,
//!     --dst-type LOCAL --dport NODE PORT   → our listener     then node ports
//! filter INPUT (new connections) → TRIPOD-USERSPACE
//!     --ctstate DNAT                       RETURN             came through the rules above
//!     --dport OUR LISTENER                 REJECT             called directly, from anywhere
//! ```

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;

use crate::{
    kernel::{addresses::Address, xtables::features as xtables},
    modes::userspace::capture::{Frontend, Target},
    net::{Family, Protocol},
    node::Served,
};

/// The chain that Tripod owns, in table nat and in table filter.
pub const CHAIN: &str = "TRIPOD-USERSPACE";
const COMMENT: &str = "-m comment --comment \"Tripod: userspace capture\" ";
/// Nearly all packets are of established connections; they skip the chain.
const STATES: &str = "-m conntrack --ctstate INVALID,NEW,UNTRACKED ";

/// What the kernel and the program can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Rules may carry comments.
    pub comment: bool,
    /// Rules can ask whether an address is the node's own.
    pub addrtype: bool,
    /// `DNAT --to-destination`.
    pub dnat: bool,
    /// Table filter with the conntrack match.
    pub guard: bool,
    /// `REJECT` in table filter.
    pub reject: bool,
}

impl From<xtables::Features> for Features {
    fn from(of: xtables::Features) -> Features {
        Features {
            comment: of.comment,
            addrtype: of.addrtype,
            dnat: of.dnat,
            guard: of.conntrack,
            reject: of.reject,
        }
    }
}

/// What rules for a family are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// What is possible.
    pub features: Features,
    /// Where nat rules lead; `None`: REDIRECT.
    pub destination: Option<IpAddr>,
    /// Matches that say "an address of this node", one rule each.
    pub node: Vec<String>,
}

/// Returns the address that nat rules lead to. `before` stays if it can.
///
/// REDIRECT would lead packets from elsewhere to the address of the interface
/// they came in through, and *drops* them where that has none
/// (`nf_nat_redirect_ipv4`), as the pods' interfaces of Calico and others: so
/// an address of the node is named, whichever, and REDIRECT is for nodes that
/// have none.
pub fn destination(
    addresses: &[Address],
    family: Family,
    before: Option<IpAddr>,
    services: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    // linux/if_addr.h: secondary or temporary, failed, deprecated, tentative.
    const UNSTEADY: u32 = 0x01 | 0x08 | 0x20 | 0x40;
    let fit = |a: &&Address| {
        Family::of(&a.address) == family
            && a.scope == 0
            && a.flags & UNSTEADY == 0
            && !a.address.is_loopback()
    };
    let candidates = || addresses.iter().filter(fit);
    before
        .filter(|b| candidates().any(|a| a.address == *b))
        .or_else(|| {
            // One that is a Service's too may move to another node.
            let first =
                candidates().min_by_key(|a| (services.contains(&a.address), a.index, a.address))?;
            Some(first.address)
        })
}

/// Matches for the node's own addresses.
pub fn node(
    features: &Features,
    served: &Served,
    addresses: &[Address],
    family: Family,
) -> Vec<String> {
    let named = match served {
        Served::All => None,
        Served::Within(nets) => Some(nets.iter()),
    };
    let named = named.map(|nets| {
        let of_family = nets.filter(|net| Family::of(&net.addr()) == family);
        of_family.collect::<Vec<_>>()
    });
    // A network of everything names none: iptables leaves it out of the rule.
    let named = named.filter(|nets| nets.iter().all(|net| net.prefix_len() > 0));
    // A network alone would catch what goes to other machines in it.
    match (features.addrtype, named) {
        (true, None) => vec!["-m addrtype --dst-type LOCAL ".to_owned()],
        (true, Some(nets)) => nets
            .iter()
            .map(|net| format!("-d {} -m addrtype --dst-type LOCAL ", net.trunc()))
            .collect(),
        (false, named) => {
            let own: BTreeSet<_> = addresses
                .iter()
                .map(|a| a.address)
                .filter(|a| Family::of(a) == family)
                .filter(|a| match &named {
                    None => true,
                    Some(nets) => nets.iter().any(|net| net.contains(a)),
                })
                .collect();
            own.into_iter()
                .map(|a| format!("-d {} ", IpNet::from(a)))
                .collect()
        }
    }
}

fn lower(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// Returns a comment's text: what cannot end its quotes or its line, and not too long.
fn plain(name: &str) -> String {
    let fit = |c: char| c.is_ascii_alphanumeric() || "./:_-".contains(c);
    name.chars()
        .take(200)
        .map(|c| if fit(c) { c } else { '_' })
        .collect()
}

/// Returns the nat rules of a frontend, without the chain.
pub fn nat(frontend: &Frontend, target: &Target, environment: &Environment) -> Vec<String> {
    let protocol = lower(frontend.protocol);
    let comment = if environment.features.comment {
        format!("-m comment --comment \"{}\" ", plain(&target.name))
    } else {
        String::new()
    };
    let action = match environment.destination {
        Some(ip) => format!("DNAT --to-destination {}", SocketAddr::new(ip, target.port)),
        None => format!("REDIRECT --to-ports {}", target.port),
    };
    let rule = |to: &str| {
        let port = frontend.port;
        format!("{to}-p {protocol} -m {protocol} --dport {port} {comment}-j {action}")
    };
    match frontend.address {
        Some(ip) => vec![rule(&format!("-d {} ", IpNet::from(ip)))],
        None => environment.node.iter().map(|to| rule(to)).collect(),
    }
}

/// Returns the filter rule that keeps direct callers from a listener.
fn guard((protocol, port): (Protocol, u16), features: &Features) -> String {
    let action = match (features.reject, protocol) {
        (false, _) => "DROP",
        (true, Protocol::Tcp) => "REJECT --reject-with tcp-reset",
        (true, _) => "REJECT",
    };
    let protocol = lower(protocol);
    format!("-p {protocol} -m {protocol} --dport {port} -j {action}")
}

/// A listener: protocol and local port.
pub type Listener = (Protocol, u16);

/// Batch text that makes our chains hold exactly `rules` and guard exactly
/// `listeners`; `jumps` are the commands that repair the ways into the chains.
pub fn full<'a>(
    rules: impl Iterator<Item = &'a String>,
    listeners: impl Iterator<Item = &'a Listener>,
    features: &Features,
    jumps: &Jumps,
) -> String {
    let mut batch = String::new();
    if features.guard {
        let _ = writeln!(batch, "*filter\n:{CHAIN} - [0:0]");
        let _ = writeln!(batch, "-A {CHAIN} -m conntrack --ctstate DNAT -j RETURN");
        for listener in listeners {
            let _ = writeln!(batch, "-A {CHAIN} {}", guard(*listener, features));
        }
        jumps.filter.iter().for_each(|j| batch.push_str(j));
        batch.push_str("COMMIT\n");
    }
    let _ = writeln!(batch, "*nat\n:{CHAIN} - [0:0]");
    for rule in rules {
        let _ = writeln!(batch, "-A {CHAIN} {rule}");
    }
    jumps.nat.iter().for_each(|j| batch.push_str(j));
    batch.push_str("COMMIT\n");
    batch
}

/// A difference to what is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// nat rules to add, each with whether it is of a node port.
    pub add: Vec<(bool, String)>,
    /// nat rules to delete.
    pub delete: Vec<String>,
    /// Listeners to guard.
    pub guard: Vec<Listener>,
    /// Listeners to guard no more.
    pub unguard: Vec<Listener>,
    /// The frontends whose rules are to be added or deleted.
    pub frontends: Vec<Frontend>,
}

impl Delta {
    /// Batch text: guards before what leads to the listeners, and the other
    /// way round. Empty if there is nothing to do.
    pub fn batch(&self, features: &Features) -> String {
        let mut batch = String::new();
        let filter = |command: char, listeners: &[Listener], batch: &mut String| {
            if features.guard && !listeners.is_empty() {
                batch.push_str("*filter\n");
                for listener in listeners {
                    let rule = guard(*listener, features);
                    let _ = writeln!(batch, "-{command} {CHAIN} {rule}");
                }
                batch.push_str("COMMIT\n");
            }
        };
        filter('A', &self.guard, &mut batch);
        if !self.add.is_empty() || !self.delete.is_empty() {
            batch.push_str("*nat\n");
            for rule in &self.delete {
                let _ = writeln!(batch, "-D {CHAIN} {rule}");
            }
            for (node_port, rule) in &self.add {
                let _ = match node_port {
                    true => writeln!(batch, "-A {CHAIN} {rule}"),
                    false => writeln!(batch, "-I {CHAIN} 1 {rule}"),
                };
            }
            batch.push_str("COMMIT\n");
        }
        filter('D', &self.unguard, &mut batch);
        batch
    }
}

/// Commands that repair the jumps into our chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jumps {
    /// For table nat.
    pub nat: Vec<String>,
    /// For table filter.
    pub filter: Vec<String>,
}

impl Jumps {
    /// From the tables as `iptables-save` prints them.
    pub fn repair(nat: &str, filter: &str, features: &Features) -> Jumps {
        let comment = if features.comment { COMMENT } else { "" };
        let into = |chain: &str, matches: &str| format!("{chain} {matches}{comment}-j {CHAIN}");
        Jumps {
            nat: repair(nat, &[into("PREROUTING", ""), into("OUTPUT", "")]),
            filter: repair(filter, &[into("INPUT", STATES)]),
        }
    }
}

/// Returns the rules of a saved table that jump to our chain, without their "-A ".
fn jumping(saved: &str) -> impl Iterator<Item = &str> {
    saved.lines().filter_map(|line| {
        let rule = line.strip_prefix("-A ")?;
        let (_, target) = rule.rsplit_once(" -j ")?;
        (target.trim() == CHAIN).then_some(rule.trim_end())
    })
}

/// Returns each wanted jump exactly once and no other.
fn repair(saved: &str, wanted: &[String]) -> Vec<String> {
    let present: Vec<_> = jumping(saved).collect();
    let mut commands = Vec::new();
    for rule in &present {
        if !wanted.iter().any(|w| w == rule) {
            commands.push(format!("-D {rule}\n"));
        }
    }
    for rule in wanted {
        match present.iter().filter(|p| *p == rule).count() {
            0 => commands.push(format!("-I {rule}\n")),
            n => commands.extend((1..n).map(|_| format!("-D {rule}\n"))),
        }
    }
    commands
}

/// Returns the lines of tables as `iptables-save` prints them that make up or lead to
/// our chains, without counters.
pub fn ours<'a>(nat: &'a str, filter: &'a str) -> Vec<&'a str> {
    nat.lines()
        .chain(filter.lines())
        .filter(|line| line.starts_with('-') && line.contains(CHAIN))
        .collect()
}

//! Ports to which the rules of an earlier process redirect. Pure.
//!
//! Its listeners ended with it, and its rules stay until the first sync replaces them: a program
//! that listens on one of its ports before that receives the clients of the Service that had the
//! port.

use std::net::SocketAddr;

use net::{Family, Frontend, Protocol};
use xtables::{
    rule::word,
    words::{Line, values},
};

use super::plan;

/// The frontend that a line of `iptables-save -t nat` captures, with the local port to which it
/// redirects; `None` if it is not such a line of ours. A node port whose rule names an address of
/// the node is taken for a service address.
pub fn captured(line: &str, family: Family) -> Option<(Frontend, u16)> {
    let Line::Rule { chain, words } = Line::parse(line)? else {
        return None;
    };
    if !plan::is_ours(chain) {
        return None;
    }
    let value = |option| values(words, option).next();
    let protocol = value("-p")?;
    let mut protocols = Protocol::ALL.into_iter();
    let frontend = Frontend {
        protocol: protocols.find(|one| word(*one) == protocol)?,
        family,
        address: value("-d").and_then(|net| net.split('/').next()?.parse().ok()),
        port: value("--dport")?.parse().ok()?,
        last_port: None,
    };
    let to = match value("--to-destination") {
        Some(to) => to.parse::<SocketAddr>().ok()?.port(),
        None => value("--to-ports")?.parse().ok()?,
    };
    Some((frontend, to))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use xtables::{
        features::Features,
        rule::{Match, Negatable, Rule, Side},
    };

    use super::*;
    use crate::modes::userspace::capture::Target;

    #[test]
    fn what_is_written_is_found_again() {
        for (family, cluster_ip, node) in [
            (Family::V4, "10.96.0.1", "192.0.2.1"),
            (Family::V6, "fd00:96::1", "2001:db8::1"),
        ] {
            let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
            let local = Match::LocalAddress(Negatable::Is(Side::Destination));
            for destination in [Some(ip(node)), None] {
                let environment = plan::Environment {
                    family,
                    features: Features::all(),
                    destination,
                    node: vec![Rule::new().with(local.clone())],
                    only_to_ours: true,
                };
                for protocol in Protocol::ALL {
                    for frontend in [
                        Frontend::service(protocol, ip(cluster_ip), 443),
                        Frontend::node_port(protocol, family, 30_443),
                    ] {
                        for rule in plan::nat(&frontend, &Target::at(40_001), &environment) {
                            let line = format!("-A {} {}", plan::CHAIN, rule.words(family));
                            let found = captured(&line, family);
                            assert_eq!(found, Some((frontend, 40_001)), "{line}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_others_write_is_passed_over() {
        for line in [
            "*nat",
            ":TRIPOD-USERSPACE - [0:0]",
            "-A DOCKER -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 1",
            "-A TRIPOD-USERSPACE -j TRIPOD-US-AAAA",
            "-A TRIPOD-USERSPACE -p tcp -m tcp --dport 80:90 -j TRIPOD-US-AAAA",
            "-A TRIPOD-USERSPACE -p tcp -m tcp --dport 80 -j REDIRECT --to-ports",
            "-A TRIPOD-USERSPACE -p icmp -j DNAT --to-destination 10.0.0.1",
        ] {
            assert_eq!(captured(line, Family::V4), None, "{line}");
        }
    }
}

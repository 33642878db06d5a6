//! Tells the virtual servers of ipvs mode from others, if they, the sets and the addresses of the
//! dummy link are known only as the output of programs; pure. On a node `ipvs::virtual_servers`
//! decides, by the same rules.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr};

use ipnet::IpNet;
use ipvs::ipset::Element;
use net::Protocol;

use crate::modes::ipvs::{
    NamedFrontends, OwnServers,
    plan::{ServerId, is_excluded},
};

/// Parses the output of `ipset save` and `ip address show kube-ipvs0`. The node's own addresses are
/// not known, so a node port may be at any address.
pub(super) fn own_servers(sets: &str, addresses: &str) -> OwnServers {
    let mut members: HashMap<&str, Vec<Element>> = HashMap::new();
    for line in sets.lines() {
        let mut words = line.split_whitespace();
        if let (Some("add"), Some(set), Some(member)) = (words.next(), words.next(), words.next()) {
            members.entry(set).or_default().extend(element(member));
        }
    }
    let Ok(named) = NamedFrontends::read(|set, family| {
        Ok::<_, Infallible>(members.remove(set.name(family)).unwrap_or_default())
    });
    let services = addresses.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_address = matches!(words.next(), Some("inet" | "inet6"));
        let network = words.next().filter(|_| is_address)?;
        network.split('/').next()?.parse().ok()
    });
    OwnServers {
        services: services.collect(),
        node: None,
        named,
    }
}

/// Keeps those lines of the output of `ipvsadm -Sn` that are about virtual servers of ipvs mode and
/// their real servers. If `own` is `None`, it is unknown which are ours: all count, except those
/// with addresses in `exclude`.
pub(super) fn ours(servers: &str, own: Option<&OwnServers>, exclude: &[IpNet]) -> String {
    let is_ours = |line: &&str| match server(line) {
        Some(id) => own.is_none_or(|own| own.has(&id)) && !is_excluded(exclude, id.address.ip()),
        // A virtual server by a mark of packets, which ipvs mode does not use.
        None => !line.split_whitespace().any(|word| word == "-f"),
    };
    let lines = servers.lines().filter(is_ours);
    lines.map(|line| format!("{line}\n")).collect()
}

/// Parses the virtual server in a line of `ipvsadm -Sn`; `None` if the line does not name it by
/// address.
fn server(line: &str) -> Option<ServerId> {
    let mut words = line.split_whitespace().skip(1);
    let protocol = match words.next()? {
        "-t" => Protocol::Tcp,
        "-u" => Protocol::Udp,
        "--sctp-service" => Protocol::Sctp,
        _ => return None,
    };
    let address: SocketAddr = words.next()?.parse().ok()?;
    Some(ServerId::new(address, protocol))
}

/// Parses a port, or an address with a port, in a member of a set; `None` if it is another kind of
/// member.
fn element(member: &str) -> Option<Element> {
    let mut parts = member.split(',');
    let first = parts.next()?;
    if let Ok(port) = first.parse() {
        return Some(Element::Port(port));
    }
    let (protocol, port) = parts.next()?.split_once(':')?;
    let protocol = Protocol::named(protocol)?;
    let (ip, port) = (first.parse().ok()?, port.parse().ok()?);
    Some(Element::ip_port(ip, protocol.number(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_server_is_ours_at_an_address_of_the_link_or_where_a_set_names_it() {
        let sets = "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\n\
                    add KUBE-NODE-PORT-TCP 30001\nadd KUBE-EXTERNAL-IP 192.0.2.12,udp:53\n\
                    add KUBE-6-LOAD-BALANCER 2001:db8::1,sctp:7\nadd KUBE-CLUSTER-IP 10.96.0.1,tcp:80\n\
                    add THEIRS 192.0.2.13,tcp:80\n";
        let addresses = "    inet 10.96.0.1/32 scope global kube-ipvs0\n    inet6 fd00:96::1/128\n\
                         link/ether 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff\n";
        let own = own_servers(sets, addresses);
        for (line, expected) in [
            ("-A -t 10.96.0.1:80 -s rr", true),
            ("-a -t 10.96.0.1:80 -r 10.244.0.6:9376 -m -w 1", true),
            ("-A -u [fd00:96::1]:53 -s rr", true),
            ("-A -t 192.0.2.10:30001 -s rr", true),
            ("-A -u 192.0.2.10:30001 -s rr", false),
            ("-A -t [2001:db8::10]:30001 -s rr", false),
            ("-A -u 192.0.2.12:53 -s rr", true),
            ("-A -t 192.0.2.12:53 -s rr", false),
            ("-A --sctp-service [2001:db8::1]:7 -s rr", true),
            ("-A -t 192.0.2.10:6443 -s rr", false),
            ("-a -t 192.0.2.10:6443 -r 192.0.2.20:6443 -g -w 1", false),
            ("-A -t 192.0.2.13:80 -s rr", false),
            ("-A -f 1 -s rr", false),
            // Without -n the address is unknown, and the line is kept.
            ("-A -t web:http -s rr", true),
        ] {
            let found = ours(line, Some(&own), &[]);
            assert_eq!(!found.is_empty(), expected, "{line}: {found:?}");
        }
    }
}

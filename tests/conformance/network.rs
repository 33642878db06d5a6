//! The network of the cases.
//!
//! ```text
//!                      wire 192.0.2.1, the router
//!        ┌────────────────┬──────────────┬─────────────┐
//!    outside .20      node .10       other .30      (no other)   
//!                   ┌────┼────┐          │
//!                client  a    b          c
//!           10.244.0.9  .11  .12     10.244.1.13
//! ```
//!
//! Pods have separate links and no bridge: answers between them pass the node, as translation
//! requires.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::addresses::{NODE, OTHER_NODE};
use super::case::Caller;
use super::endpoints::{ALL, Pod};
use crate::lab::{Backend, Group, Host, answer_in};

/// Number of the client pod's additional addresses, for session affinity: enough that they do not
/// all reach the same endpoint by chance.
pub const CLIENTS: u8 = 14;

pub struct Network {
    client: Host,
    backends: Vec<Backend>,
    /// Backends in the nodes' own namespaces.
    _on_nodes: [Group; 2],
    outside: Host,
    other: Host,
    pub node: Host,
    _wire: Host,
    pub manifests: PathBuf,
}

impl Network {
    pub fn new() -> Network {
        let wire = router();
        let node = machine(&wire, "node", NODE[0]);
        let other = machine(&wire, "other", OTHER_NODE);
        let outside = machine(
            &wire,
            "outside",
            (Ipv4Addr::new(192, 0, 2, 20), v6("2001:db8::20")),
        );
        // Lets the router report unknown destinations to pods as well.
        wire.ip(&[
            "route add 10.244.0.0/24 via 192.0.2.10",
            "route add fd00:244::/64 via 2001:db8::10",
            "route add 10.244.1.0/24 via 192.0.2.30",
            "route add fd00:244:0:1::/64 via 2001:db8::30",
        ]);
        // Never chosen as a source if the first one would do.
        let (second_v4, second_v6) = NODE[1];
        node.ip(&[
            &format!("addr add {second_v4}/24 dev eth0"),
            &format!("addr add {second_v6}/64 dev eth0 nodad preferred_lft 0"),
            "route add 10.244.1.0/24 via 192.0.2.30",
            "route add fd00:244:0:1::/64 via 2001:db8::30",
        ]);
        // Otherwise hosts would follow redirects past the node.
        node.enter(|| {
            let file = "/proc/sys/net/ipv4/conf/all/send_redirects";
            std::fs::write(file, "0").expect("no redirects");
        });
        route_through_the_node(&other);
        route_through_the_node(&outside);
        outside.ip(&[
            "route add 10.244.1.0/24 via 192.0.2.30",
            "route add fd00:244:0:1::/64 via 2001:db8::30",
        ]);

        let client = client_pod(&node);
        let backends = ALL.map(|of| {
            let host = match of.node() {
                "node" => &node,
                _ => &other,
            };
            Backend::start(pod(host, of.name(), of.addresses()))
        });
        let manifests = PathBuf::from("/run/manifests");
        std::fs::create_dir_all(&manifests).expect("a folder for manifests");
        Network {
            client,
            backends: backends.into(),
            _on_nodes: [answer_in(&node), answer_in(&other)],
            outside,
            other,
            node,
            _wire: wire,
            manifests,
        }
    }

    pub fn host(&self, caller: Caller) -> &Host {
        let backend = |of: Pod| {
            let found = self.backends.iter().find(|b| b.name() == of.name());
            found.expect("every pod has a backend").host()
        };
        match caller {
            Caller::Pod => &self.client,
            Caller::Node => &self.node,
            Caller::Backend => backend(Pod::A),
            Caller::OtherNode => &self.other,
            Caller::RemotePod => backend(Pod::C),
            Caller::Outside => &self.outside,
        }
    }

    /// Replaces all objects by `content`, in one step.
    pub fn publish(&self, content: &str) {
        write_aside(&self.manifests, "objects.json", content);
    }
}

fn write_aside(folder: &Path, file: &str, content: &str) {
    let aside = folder.join(format!(".{file}.new"));
    std::fs::write(&aside, content).expect("writing a manifest");
    std::fs::rename(&aside, folder.join(file)).expect("renaming a manifest");
}

/// The wire: a bridge, and the router that knows no hosts beyond it.
fn router() -> Host {
    let wire = Host::new("wire", Ipv4Addr::new(192, 0, 2, 1), v6("2001:db8::1"));
    wire.ip(&[
        "link add br0 type bridge",
        "link set br0 up",
        "addr add 192.0.2.1/24 dev br0",
        "addr add 2001:db8::1/64 dev br0 nodad",
        "route add unreachable default",
        "route add unreachable ::/0",
    ]);
    wire
}

/// Routes service addresses and the node's pods through the node.
fn route_through_the_node(host: &Host) {
    let v4 = [
        "10.96.0.0/24",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "10.244.0.0/24",
        "198.18.0.0/24",
    ]
    .map(|net| format!("route add {net} via 192.0.2.10"));
    let v6 = [
        "fd00:96::/64",
        "2001:db8:51::/64",
        "2001:db8:113::/64",
        "fd00:244::/64",
        "2001:db8:18::/64",
    ]
    .map(|net| format!("route add {net} via 2001:db8::10"));
    let lines: Vec<&str> = v4.iter().chain(&v6).map(|line| &**line).collect();
    host.ip(&lines);
}

/// The client pod, with its further addresses.
fn client_pod(node: &Host) -> Host {
    let addresses = (Ipv4Addr::new(10, 244, 0, 9), v6("fd00:244::9"));
    let client = pod(node, "client", addresses);
    let mut further = Vec::new();
    for number in 1..=CLIENTS {
        let (v4, v6) = further_address(number);
        further.push(format!("addr add {v4}/32 dev eth0"));
        further.push(format!("addr add {v6}/128 dev eth0 nodad preferred_lft 0"));
    }
    client.ip(&further.iter().map(|line| &**line).collect::<Vec<_>>());
    node.ip(&[
        "route add 10.244.0.96/27 dev pod-client",
        "route add fd00:244::1:0/112 dev pod-client",
    ]);
    client
}

/// One of the client pod's further addresses.
pub fn further_address(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 244, 0, 96 + number),
        Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 1, number.into()),
    )
}

/// The node's addresses, as endpoints may see them.
pub fn node_addresses() -> Vec<IpAddr> {
    let each = NODE.iter();
    each.flat_map(|(v4, v6)| [IpAddr::from(*v4), (*v6).into()])
        .collect()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

/// A host on the wire, with the router as its gateway.
fn machine(wire: &Host, name: &str, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Host {
    let host = Host::new(name, v4, v6);
    wire.ip(&[
        &format!("link add w-{name} type veth peer name eth0 netns {name}"),
        &format!("link set w-{name} master br0 up"),
    ]);
    host.ip(&[
        "link set eth0 up",
        &format!("addr add {v4}/24 dev eth0"),
        &format!("addr add {v6}/64 dev eth0 nodad"),
        "route add default via 192.0.2.1",
        "route add ::/0 via 2001:db8::1",
    ]);
    host
}

/// A pod on a separate link, with its node as the gateway.
fn pod(node: &Host, name: &str, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Host {
    let host = Host::new(name, v4, v6);
    let [gateway, _] = node.addresses;
    node.ip(&[
        &format!("link add pod-{name} type veth peer name eth0 netns {name}"),
        &format!("link set pod-{name} up"),
        &format!("addr add fe80::1/64 dev pod-{name} nodad"),
        &format!("route add {v4} dev pod-{name}"),
        &format!("route add {v6} dev pod-{name}"),
    ]);
    host.ip(&[
        "link set eth0 up",
        &format!("addr add {v4}/32 dev eth0"),
        &format!("addr add {v6}/128 dev eth0 nodad"),
        &format!("route add {gateway} dev eth0"),
        &format!("route add default via {gateway} dev eth0"),
        "route add ::/0 via fe80::1 dev eth0",
    ]);
    host
}

//! Two nodes, and pods that come and go.
//!
//! ```text
//!   node 192.0.2.10 ────── 192.0.2.30 other
//!    10.244.0.11, ...       10.244.1.11, ...
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::lab::Host;

/// The two nodes.
pub struct Network {
    pub node: Host,
    pub other: Host,
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

impl Network {
    pub fn new() -> Network {
        let node = Host::new("node", Ipv4Addr::new(192, 0, 2, 10), v6("2001:db8::10"));
        let other = Host::new("other", Ipv4Addr::new(192, 0, 2, 30), v6("2001:db8::30"));
        node.ip(&["link add eth0 type veth peer name eth0 netns other"]);
        for (host, peer, number) in [(&node, &other, 1), (&other, &node, 0)] {
            let [v4, v6] = host.addresses;
            let [peer_v4, peer_v6] = peer.addresses;
            host.ip(&[
                "link set eth0 up",
                &format!("addr add {v4}/24 dev eth0"),
                &format!("addr add {v6}/64 dev eth0 nodad"),
                &format!("route add 10.244.{number}.0/24 via {peer_v4}"),
                &format!("route add fd00:244:0:{number}::/64 via {peer_v6}"),
                &format!("route add default via {peer_v4}"),
                &format!("route add ::/0 via {peer_v6}"),
            ]);
        }
        Network { node, other }
    }

    pub fn pod(&self, name: &str, on: &str, number: u8) -> Host {
        match on {
            "node" => pod_on(&self.node, 0, name, number),
            _ => pod_on(&self.other, 1, name, number),
        }
    }
}

/// Makes a pod on a link of its own, so that its answers to other pods pass through its node, as
/// translation requires.
pub fn pod_on(node: &Host, subnet: u8, name: &str, number: u8) -> Host {
    let v4 = Ipv4Addr::new(10, 244, subnet, number);
    let v6 = Ipv6Addr::new(0xfd00, 0x244, 0, subnet.into(), 0, 0, 0, number.into());
    let host = Host::new(name, v4, v6);
    let link = format!("pod-{number}");
    let gateway: IpAddr = node.addresses[0];
    node.ip(&[
        &format!("link add {link} type veth peer name eth0 netns {name}"),
        &format!("link set {link} up"),
        &format!("addr add fe80::1/64 dev {link} nodad"),
        &format!("route add {v4} dev {link}"),
        &format!("route add {v6} dev {link}"),
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

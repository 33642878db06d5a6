//! Addresses of the test network, different from all in the folder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use net::{Family, PerFamily};

/// A link; most of them join the node with a neighbour. Each has a subnet of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// To a pod of this node, which calls.
    Caller,
    /// To the endpoints on this node.
    Here,
    /// To the endpoints on other nodes.
    Elsewhere,
    /// To a host outside, which calls.
    Outside,
    /// From the endpoints on other nodes to the host outside, bypassing the node.
    Beyond,
}

impl Link {
    /// The name of its end at the node.
    pub(super) fn name(self) -> &'static str {
        match self {
            Link::Caller => "pod-caller",
            Link::Here => "pod-endpoints",
            Link::Elsewhere => "other-nodes",
            Link::Outside | Link::Beyond => "outside",
        }
    }
}

/// A subnet for each link, in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subnets {
    v4: [u8; 3],
    v6: u16,
}

/// Number of addresses in a subnet.
const SIZE: u8 = 16;

impl Subnets {
    /// Chooses the first subnets that contain none of the `used` addresses; `None` if there are
    /// none. They are from the networks for benchmarks, which no other network should use:
    /// 198.18.0.0/15 (RFC 2544) and 2001:2::/48 (RFC 5180).
    pub(super) fn beside(used: &[IpAddr]) -> Option<Subnets> {
        let v4 = (0..=255).map(|third| [198, 18, third]).find(|prefix| {
            used.iter()
                .all(|ip| !matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == prefix[..]))
        })?;
        let v6 = (0..=u16::MAX).find(|fourth| {
            used.iter().all(
                |ip| !matches!(ip, IpAddr::V6(ip) if ip.segments()[..4] == [0x2001, 2, 0, *fourth]),
            )
        })?;
        Some(Subnets { v4, v6 })
    }

    fn address(self, link: Link, number: u8, family: Family) -> IpNet {
        let last = link as u8 * SIZE + number;
        let [a, b, c] = self.v4;
        let bits = family.bits();
        let ip = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::new(a, b, c, last)),
            Family::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, self.v6, 0, 0, 0, last.into())),
        };
        // The prefix leaves enough bits for a subnet's addresses, so it is in range.
        IpNet::new_assert(ip, bits - SIZE.ilog2() as u8)
    }

    /// Returns the node's address on that link.
    pub(super) fn node(self, link: Link, family: Family) -> IpNet {
        self.address(link, 1, family)
    }

    /// Returns the address at the other end of that link.
    pub(super) fn other_end(self, link: Link, family: Family) -> IpNet {
        self.address(link, 2, family)
    }

    /// Returns the node's addresses that outside hosts call, as `--nodeport-addresses` takes
    /// them.
    pub(super) fn of_node(self) -> String {
        let own = PerFamily::each(|family| IpNet::from(self.node(Link::Outside, family).addr()));
        format!("{},{}", own.v4, own.v6)
    }

    /// The addresses of pods that call, as `--cluster-cidr` takes them.
    pub(super) fn of_pods(self) -> String {
        let networks = PerFamily::each(|family| self.node(Link::Caller, family).trunc());
        format!("{},{}", networks.v4, networks.v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_stand_beside_what_is_used() {
        let used = ["198.18.0.7", "10.0.0.1", "2001:2::9", "2001:2:0:1::1"];
        let used = used.map(|ip| ip.parse().expect("an address"));
        let subnets = Subnets::beside(&used).expect("some are free");
        let text = |net: IpNet| net.to_string();
        assert_eq!(text(subnets.node(Link::Here, Family::V4)), "198.18.1.17/28");
        assert_eq!(
            text(subnets.other_end(Link::Outside, Family::V6)),
            "2001:2:0:2::32/124"
        );
        assert_eq!(subnets.of_pods(), "198.18.1.0/28,2001:2:0:2::/124");
    }
}

//! Whether an endpoint's answers to a client pass through this node.
//!
//! ```text
//!   client ── somewhere ── node ── link of pods ── endpoint     yes: the node is the endpoint's way out
//!   pod ── link of pods ── node ── cluster ── pod elsewhere     yes: the node is the way to its pods
//!   pod ── bridge ── endpoint                                   no: neighbours, they answer each other
//!   client ── somewhere ── node ── cluster ── pod elsewhere     no: its own node answers the client
//!   client ── node, which the endpoint shares                   no: what is sent here is not routed in
//! ```

use std::net::IpAddr;

use hashbrown::HashMap;
use net::Family;
use netlink::{
    Socket, links,
    next_hop::{self, NextHop},
};

/// Kinds of links that lead to pods of this node.
const OF_PODS: [&str; 3] = ["veth", "bridge", "netkit"];

/// The path to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// First hop of the path.
    pub hop: NextHop,
    /// Whether it uses a link whose far end can only be reached through this node.
    pub pods: bool,
}

/// Returns whether packets from `endpoint` to `client` pass through this node. An endpoint that
/// `is_pod` has a route to pods of other nodes; others may have none.
pub fn answers_pass_here(client: Path, endpoint: Path, is_pod: bool) -> bool {
    let behind = |path: Path| path.pods && matches!(path.hop, NextHop::Neighbour(_));
    match (client.hop.link(), endpoint.hop.link()) {
        (Some(c), Some(e)) => c != e && (behind(endpoint) || behind(client) && is_pod),
        _ => false,
    }
}

/// Paths to addresses, as reported by the kernel.
#[derive(Debug)]
pub struct Paths {
    socket: Socket,
    /// Whether links, by index, lead to pods. Cleared when routes are read again.
    of_pods: HashMap<(Family, u32), bool>,
}

impl Paths {
    /// Queries paths with `socket`.
    pub fn new(socket: Socket) -> Self {
        Paths {
            socket,
            of_pods: HashMap::new(),
        }
    }

    /// Returns [`answers_pass_here`] for these addresses; false if the kernel reports no path.
    pub fn answers_pass_here(&mut self, client: IpAddr, endpoint: IpAddr, is_pod: bool) -> bool {
        match (self.path(client), self.path(endpoint)) {
            (Some(client), Some(endpoint)) => answers_pass_here(client, endpoint, is_pod),
            _ => false,
        }
    }

    fn path(&mut self, address: IpAddr) -> Option<Path> {
        let hop = next_hop::to(&mut self.socket, &address).ok()??;
        let pods = match hop.link() {
            Some(link) => self.is_of_pods(Family::of(&address), link)?,
            None => false,
        };
        Some(Path { hop, pods })
    }

    fn is_of_pods(&mut self, family: Family, link: u32) -> Option<bool> {
        if let Some(known) = self.of_pods.get(&(family, link)) {
            return Some(*known);
        }
        let kind = links::kind(&mut self.socket, link).ok()?;
        let fits = kind.is_some_and(|kind| OF_PODS.contains(&kind.as_str()));
        let fits = fits && {
            let out = next_hop::with_gateways(&mut self.socket, family).ok()?;
            !out.contains(&link)
        };
        self.of_pods.insert((family, link), fits);
        Some(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_answers_come_through_this_node() {
        const OF_PODS: bool = true;
        const UNKNOWN: bool = false;
        let path = |hop, pods| Path { hop, pods };
        let here = path(NextHop::Here, false);
        let pod = |link| path(NextHop::Neighbour(link), true);
        let neighbour = path(NextHop::Neighbour(1), false);
        let far = path(NextHop::Gateway(1), false);
        let overlay = path(NextHop::Gateway(2), false);
        let behind_a_pod = path(NextHop::Gateway(8), true);
        let cases = [
            ("outside to a pod here", far, pod(7), OF_PODS, true),
            ("... whose network is unknown", far, pod(7), UNKNOWN, true),
            ("the LAN to a pod here", neighbour, pod(7), OF_PODS, true),
            (
                "pod to pod, each with a link",
                pod(8),
                pod(7),
                OF_PODS,
                true,
            ),
            ("pod to pod on one bridge", pod(7), pod(7), OF_PODS, false),
            ("pod to a pod elsewhere", pod(7), far, OF_PODS, true),
            ("... by an overlay", pod(7), overlay, OF_PODS, true),
            ("pod to what may not know pods", pod(7), far, UNKNOWN, false),
            ("outside to a pod elsewhere", far, overlay, OF_PODS, false),
            ("LAN to a pod elsewhere", neighbour, overlay, OF_PODS, false),
            ("pod to behind a pod", pod(7), behind_a_pod, UNKNOWN, false),
            ("the node to a pod", here, pod(7), OF_PODS, false),
            ("outside to the node", far, here, OF_PODS, false),
            ("pod to the node", pod(7), here, OF_PODS, false),
        ];
        for (what, client, endpoint, is_pod, expected) in cases {
            let pass = answers_pass_here(client, endpoint, is_pod);
            assert_eq!(pass, expected, "{what}");
        }
    }
}

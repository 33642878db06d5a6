//! Whether what an endpoint answers to a client comes through this node.
//!
//! ```text
//!   client ── somewhere ── node ── link of pods ── endpoint     yes: the node is the endpoint's way out
//!   pod ── link of pods ── node ── cluster ── pod elsewhere     yes: the node is the way to its pods
//!   pod ── bridge ── endpoint                                   no: neighbours, they answer each other
//!   client ── somewhere ── node ── cluster ── pod elsewhere     no: its own node answers the client
//!   client ── node, which the endpoint shares                   no: what is sent here is not routed in
//! ```

use std::{
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use hashbrown::HashMap;

use crate::{
    kernel::{
        links,
        netlink::Socket,
        next_hop::{self, NextHop},
    },
    net::Family,
};

/// How long an answer of the kernel holds.
const FRESH: Duration = Duration::from_secs(1);
/// Addresses whose way is kept in mind, at most.
const MOST: usize = 4096;

/// Kinds of links that lead to pods of this node.
const OF_PODS: [&str; 3] = ["veth", "bridge", "netkit"];

/// A way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The first step.
    pub hop: NextHop,
    /// It leads over a link whose far end has no other way than through this
    /// node.
    pub pods: bool,
}

/// Whether what comes from `endpoint` and is for `client` comes through this
/// node. `pod`: the endpoint is known to be in the pods' networks, so that it
/// knows the way to pods elsewhere.
pub fn comes_back(client: Way, endpoint: Way, pod: bool) -> bool {
    let behind = |way: Way| way.pods && matches!(way.hop, NextHop::Neighbour(_));
    match (client.hop.link(), endpoint.hop.link()) {
        (Some(c), Some(e)) => c != e && (behind(endpoint) || behind(client) && pod),
        _ => false,
    }
}

/// Ways, as the kernel tells them.
pub struct Paths {
    socket: Socket,
    known: HashMap<IpAddr, (Option<Way>, Instant)>,
    /// Links by index, until routes are looked at anew.
    of_pods: HashMap<(Family, u32), bool>,
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut paths = f.debug_struct("Paths");
        paths.field("known", &self.known).finish_non_exhaustive()
    }
}

impl Paths {
    /// Asks by `socket`.
    pub fn new(socket: Socket) -> Self {
        Paths {
            socket,
            known: HashMap::new(),
            of_pods: HashMap::new(),
        }
    }

    /// [`comes_back`] of these addresses; false when the kernel does not say.
    pub fn come_back(&mut self, client: IpAddr, endpoint: IpAddr, pod: bool) -> bool {
        match (self.way(client), self.way(endpoint)) {
            (Some(client), Some(endpoint)) => comes_back(client, endpoint, pod),
            _ => false,
        }
    }

    fn way(&mut self, address: IpAddr) -> Option<Way> {
        if let Some((way, seen)) = self.known.get(&address)
            && seen.elapsed() < FRESH
        {
            return *way;
        }
        let way = self.ask(address);
        if self.known.len() >= MOST {
            self.known.retain(|_, (_, seen)| seen.elapsed() < FRESH);
        }
        if self.known.len() < MOST {
            self.known.insert(address, (way, Instant::now()));
        }
        way
    }

    fn ask(&mut self, address: IpAddr) -> Option<Way> {
        let hop = next_hop::to(&mut self.socket, &address).ok()??;
        let pods = match hop.link() {
            Some(link) => self.is_of_pods(Family::of(&address), link)?,
            None => false,
        };
        Some(Way { hop, pods })
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
        let way = |hop, pods| Way { hop, pods };
        let here = way(NextHop::Here, false);
        let pod = |link| way(NextHop::Neighbour(link), true);
        let neighbour = way(NextHop::Neighbour(1), false);
        let far = way(NextHop::Gateway(1), false);
        let overlay = way(NextHop::Gateway(2), false);
        let behind_a_pod = way(NextHop::Gateway(8), true);
        let cases = [
            ("outside to a pod here", far, pod(7), true, true),
            ("... whose network is unknown", far, pod(7), false, true),
            ("the LAN to a pod here", neighbour, pod(7), true, true),
            ("pod to pod, each with a link", pod(8), pod(7), true, true),
            (
                "pod to pod on one bridge, or to itself",
                pod(7),
                pod(7),
                true,
                false,
            ),
            ("pod to a pod elsewhere", pod(7), far, true, true),
            ("... by an overlay", pod(7), overlay, true, true),
            ("pod to what may not know pods", pod(7), far, false, false),
            ("outside to a pod elsewhere", far, overlay, true, false),
            (
                "the LAN to a pod elsewhere",
                neighbour,
                overlay,
                true,
                false,
            ),
            (
                "pod to what is behind a pod",
                pod(7),
                behind_a_pod,
                false,
                false,
            ),
            ("the node to a pod", here, pod(7), true, false),
            ("outside to the node", far, here, true, false),
            ("pod to the node", pod(7), here, true, false),
        ];
        for (what, client, endpoint, pod, expected) in cases {
            assert_eq!(comes_back(client, endpoint, pod), expected, "{what}");
        }
    }
}

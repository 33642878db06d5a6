//! Explains packets to service addresses: the owner of the address, the endpoints that the packet
//! may reach, each with its share, or the reason for its refusal. Pure: the result follows from the
//! service map and from the behaviour of the running mode. The conformance tests ask about each of
//! their cases, and compare the answer with packets.

mod behaviour;
mod connections;
mod dead_ends;
mod decide;
mod frontend;
mod policies;
mod ranges;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;
use net::{Family, Protocol};
use xtables::info::FilterChain;

use self::decide::decide;
pub use self::{
    behaviour::{Behaviour, Carrier, Loopback, OtherPorts, Pods, Properties, Rules, Selection},
    connections::{Connection, Stale, connections, stale},
    policies::dropping_chains,
};
use crate::services::{AddressKind, Endpoint, ServiceMap, ServicePort, ServicePortName};

/// A mode, as far as it says how packets find their way in it.
pub trait Explain {
    /// Returns how packets of `family` find their way.
    ///
    /// # Errors
    /// When the node's addresses cannot be listed.
    fn behaviour(&mut self, map: &ServiceMap, family: Family) -> Result<Behaviour, netlink::Error>;

    /// Returns how an endpoint of `port` is chosen.
    fn selection(&self, port: &ServicePort) -> Selection;

    /// Endpoints of `port` that get no connections while others are there, because they did not
    /// answer lately, and whose ejection does not show in the ServicePort.
    fn ejected(&self, _: &ServicePort) -> HashSet<SocketAddr> {
        HashSet::new()
    }

    /// Lists the desired objects for `port`, in the form of [`Explanation::objects`].
    fn objects(&mut self, map: &ServiceMap, port: &ServicePort) -> Vec<String>;

    /// Explains the way of `packet`, with the desired objects for its ServicePort.
    ///
    /// # Errors
    /// When the node's addresses cannot be listed.
    fn explanation(
        &mut self,
        map: &ServiceMap,
        packet: &Packet,
    ) -> Result<Explanation, netlink::Error> {
        let behaviour = self.behaviour(map, Family::of(&packet.to.ip()))?;
        let selection = |port: &ServicePort| self.selection(port);
        let ejected = |port: &ServicePort| self.ejected(port);
        let mut explanation = decide(map, &behaviour, &selection, &ejected, packet);
        let served_by = explanation.served_by.as_ref();
        if let Some(port) = served_by.and_then(|(name, _)| map.get(name)) {
            explanation.objects = self.objects(map, port);
        }
        Ok(explanation)
    }
}

/// A packet that is asked about: the first of a connection, or of a client's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The address and port that it is sent to.
    pub to: SocketAddr,
    /// The transport protocol that it has.
    pub protocol: Protocol,
    /// Who sends it, as far as that is given.
    pub from: Caller,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The caller with this address.
    At(IpAddr),
    /// Some pod of this node.
    Pod,
    /// This node itself.
    Node,
    /// Some host that is no part of the cluster.
    Outside,
}

/// Who sends a packet, as a mode sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A pod: it is not subject to an external policy of Local.
    Pod,
    /// This node: neither is it.
    Node,
    /// A host that is neither this node nor one of its pods.
    Outside,
}

impl Packet {
    /// Returns where it is sent: a packet to the unspecified address goes to the caller
    /// itself, in IPv4 at the address that it calls from, if that is given, else at
    /// loopback (`ip_route_output_key_hash_rcu` in net/ipv4/route.c, `tcp_v6_connect`
    /// in net/ipv6/tcp_ipv6.c).
    pub fn destination(&self) -> SocketAddr {
        if !self.to.ip().is_unspecified() {
            return self.to;
        }
        let ip = match (Family::of(&self.to.ip()), self.from) {
            (Family::V4, Caller::At(from)) => from,
            (family, _) => family.localhost(),
        };
        SocketAddr::new(ip, self.to.port())
    }
}

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent to one of the candidates.
    Forwarded,
    /// Tripod itself answers it.
    Answered,
    /// Its sender learns at once that it is not served: a reset, or an ICMP message.
    Refused,
    /// It is discarded without an answer.
    Dropped,
    /// It goes where it would go without Tripod.
    NotServed,
    /// That depends on the sender's address, which is not given.
    Depends,
}

/// An endpoint that the packet may be sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share of such packets, of 1; `None`: it follows from loads, or from the
    /// client's address.
    pub share: Option<f64>,
}

/// The verdict on a packet, and the reasons for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The properties of the mode.
    pub properties: &'static Properties,
    /// Whose packet it is taken for.
    pub origin: Origin,
    /// The ServicePort that owns the destination, and which kind of address of it that is.
    pub served_by: Option<(ServicePortName, AddressKind)>,
    /// The verdict on the packet.
    pub verdict: Verdict,
    /// Its way, step by step, in words; the last step gives the decision.
    pub steps: Vec<String>,
    /// Where it may be sent, sorted by address.
    pub candidates: Vec<Candidate>,
    /// Endpoints that get no such packets although they are ready and policies allow it, each with
    /// the reason.
    pub passed_over: Vec<(SocketAddr, String)>,
    /// Why no endpoint gets it; `None`: some does, or it is not for endpoints.
    pub no_endpoints: Option<String>,
    /// The desired objects for the ServicePort in the kernel, or in this process, in the words of
    /// [`Difference::object`](crate::modes::Difference::object).
    pub objects: Vec<String>,
}

impl Explanation {
    /// The chains of table filter that such a packet and its answers pass. Packets of the node
    /// itself pass none.
    pub fn passed(&self) -> &'static [FilterChain] {
        match (self.verdict, self.properties.carrier) {
            _ if self.origin == Origin::Node => &[],
            // The packet goes to a socket of Tripod.
            (Verdict::Answered, _) | (Verdict::Forwarded, Carrier::Sockets) => {
                &[FilterChain::Input]
            }
            // IPVS is behind INPUT, and the answers of real servers pass FORWARD.
            (Verdict::Forwarded, Carrier::Ipvs) => &[FilterChain::Input, FilterChain::Forward],
            (Verdict::Forwarded, Carrier::Rules) => &[FilterChain::Forward],
            _ => &[],
        }
    }
}

/// The endpoints of `port` at `indices` that take new connections.
fn endpoints<'a>(port: &'a ServicePort, indices: &[u32]) -> Vec<&'a Endpoint> {
    let all = &port.endpoints.all;
    let named = indices.iter().filter_map(|at| all.get(*at as usize));
    named.filter(|endpoint| endpoint.weight > 0).collect()
}

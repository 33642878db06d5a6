//! What becomes of a packet to a service address: whose it is, who may be reached, with
//! which share, or who refuses it. Pure: it follows from the service map and from how the
//! running mode behaves. Every case of the conformance tests is asked about, and packets
//! are held against the answer.

mod behaviour;
mod decide;
mod frontend;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

pub use self::{
    behaviour::{Behaviour, Loopback, OtherPorts, Pods, Selection},
    decide::decide,
};
use crate::{
    net::Protocol,
    services::{ServiceMap, ServicePort, ServicePortName},
};

/// A packet that is asked about: the first of a connection, or of a client's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its destination.
    pub to: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its sender.
    pub from: Caller,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Who has this address.
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
    /// Anybody else.
    Outside,
}

/// What an address is to a ServicePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRole {
    /// `spec.clusterIP`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancerIp,
    /// An address of the node with the node port.
    NodePort,
}

/// What becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent to one of the candidates.
    Forwarded,
    /// Its sender is told that nobody answers.
    Refused,
    /// Nothing answers.
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

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Whose packet it is taken for.
    pub origin: Origin,
    /// The ServicePort whose address it is, and what that is to it.
    pub served_by: Option<(ServicePortName, AddressRole)>,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Its way, step by step, in words; the last step says what decides.
    pub steps: Vec<String>,
    /// Where it may be sent, sorted by address.
    pub candidates: Vec<Candidate>,
    /// What the kernel, or this process, is to hold for the ServicePort, in the words of
    /// [`Difference::object`](crate::modes::Difference::object).
    pub objects: Vec<String>,
}

impl Explanation {
    /// Returns the ServicePort of `map` that the packet is for.
    pub fn service_port<'a>(&self, map: &'a ServiceMap) -> Option<&'a ServicePort> {
        let (name, _) = self.served_by.as_ref()?;
        map.get(name).map(|port| &**port)
    }
}

//! Endpoints of a ServicePort, and the sets of them that traffic may reach.

use std::{net::SocketAddr, sync::Arc};

/// One endpoint of a ServicePort: an address and port that serves it, with
/// what decides whether traffic may go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port at which it listens.
    pub address: SocketAddr,
    /// It runs on this node.
    pub local: bool,
    /// It is ready: it takes new connections (`publishNotReadyAddresses` is
    /// folded in).
    pub ready: bool,
    /// It serves, whether it is terminating or not.
    pub serving: bool,
    /// It is being shut down.
    pub terminating: bool,
    /// Share of new connections that it takes beside the others; 0: none. It
    /// does not decide which sets of [`Endpoints`] it is in.
    pub weight: u16,
    /// Node it runs on, if known.
    pub node_name: Option<Arc<str>>,
}

/// The endpoints of a ServicePort, sorted by address and without duplicates,
/// and the subsets that each kind of traffic may reach, as kube-proxy's
/// `CategorizeEndpoints` defines them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// All endpoints, usable or not.
    pub all: Box<[Endpoint]>,
    /// Indices into `all`: where traffic with policy Cluster goes.
    pub cluster: Box<[u32]>,
    /// Indices into `all`: where traffic with policy Local goes.
    pub local: Box<[u32]>,
    /// Indices into `all`: union of both, each where the policies need it.
    pub all_reachable: Box<[u32]>,
    /// Some endpoint in the cluster is usable, even if none on this node is.
    pub has_any: bool,
}

impl Endpoints {
    /// Returns whether endpoints that take new connections have different
    /// weights.
    pub fn weigh_differently(&self) -> bool {
        let reachable = self.all_reachable.iter();
        let mut weights = reachable
            .filter_map(|&at| self.all.get(at as usize))
            .map(|endpoint| endpoint.weight)
            .filter(|weight| *weight > 0);
        weights
            .next()
            .is_some_and(|first| weights.any(|weight| weight != first))
    }
}

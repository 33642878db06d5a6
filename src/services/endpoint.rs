//! Endpoints of a ServicePort, and the sets of them that traffic may reach.

use std::{fmt, net::SocketAddr, sync::Arc};

use super::{Absence, Grown, TrafficPolicy};

/// One endpoint of a ServicePort: an address and port that serves it, with the facts that decide
/// whether traffic may go there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port at which it listens; port 0: at each port of the range that clients call
    /// ([`ServicePort::last_port`](super::ServicePort::last_port)).
    pub address: SocketAddr,
    /// Whether it runs on this node.
    pub local: bool,
    /// Whether it is ready, so that it takes new connections (also by `publishNotReadyAddresses`).
    pub ready: bool,
    /// Whether it serves, terminating or not.
    pub serving: bool,
    /// Whether it is being shut down.
    pub terminating: bool,
    /// Its weight in the distribution of new connections; 0: none. [`Endpoint::share`] is what it
    /// has of them. It does not decide in which sets of [`Endpoints`] it is.
    pub weight: u16,
    /// Whether it counts as ready although it is not, because it was one of the last that were.
    pub last_ready: bool,
    /// How much of its weight it has.
    pub grown: Grown,
    /// Name of the node on which it runs; `None` if not known.
    pub node_name: Option<Arc<str>>,
}

/// The endpoints of a ServicePort, sorted by address and without duplicates,
/// and the subsets that each kind of traffic may reach, as kube-proxy's
/// `CategorizeEndpoints` defines them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// All endpoints, usable or not.
    pub all: Box<[Endpoint]>,
    /// Indices into `all`: where traffic with policy Cluster goes; empty if there is no such
    /// traffic.
    pub cluster: Box<[u32]>,
    /// Indices into `all`: where traffic with policy Local goes; empty if there is no such traffic.
    pub local: Box<[u32]>,
    /// Indices into `all`: the union of both.
    pub all_reachable: Box<[u32]>,
    /// Whether some endpoint in the cluster is usable, even if none on this node is.
    pub has_any: bool,
    /// Whether some endpoint has more than the default weight, or shares grow. This does not change
    /// while endpoints become ready and unready, or are ejected.
    pub weighed: bool,
    /// Indices into `all`: those that have weight 0 because connections to them are not
    /// answered.
    pub ejected: Box<[u32]>,
    /// Endpoints that are left out because no endpoint of a Service may have their addresses; only
    /// the first ones of each slice.
    pub forbidden: Box<[SocketAddr]>,
    /// Whether others are left out because the ports of the Service have too many endpoints in
    /// total.
    pub are_too_many: bool,
    /// Why there are none, usable or not; `None` if there are some, or the reason is unknown.
    pub absence: Option<Box<Absence>>,
}

impl Endpoints {
    /// The addresses of those that are ejected.
    pub fn ejected(&self) -> impl Iterator<Item = SocketAddr> {
        let ejected = self.ejected.iter();
        let ejected = ejected.filter_map(|at| self.all.get(*at as usize));
        ejected.map(|endpoint| endpoint.address)
    }
}

impl Endpoint {
    /// Returns its share of new connections in proportion to those of the other endpoints; 0: none.
    pub fn share(&self) -> u32 {
        self.grown.share(self.weight)
    }

    /// Returns whether it may have flows, which continue: traffic was never sent to an endpoint
    /// that is neither ready nor serving. A ready one need not be serving:
    /// `publishNotReadyAddresses` makes such endpoints of those that are not ready.
    pub fn may_have_flows(&self) -> bool {
        self.ready || self.serving
    }

    /// Returns whether it gets what is sent to `address`.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        self.address == address || self.address == SocketAddr::new(address.ip(), 0)
    }
}

/// Returns the address of an endpoint in words: those that have all ports of a range are shown
/// without one.
pub fn endpoint_words(address: SocketAddr) -> String {
    match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    }
}

impl Endpoints {
    /// Returns whether some endpoint in the cluster takes new connections, even if not
    /// from here.
    pub fn any_takes_connections(&self) -> bool {
        // Terminating ones take some only while none is ready.
        let any_ready = self.all.iter().any(|endpoint| endpoint.ready);
        let takes = |endpoint: &Endpoint| {
            if any_ready {
                endpoint.ready
            } else {
                endpoint.serving && endpoint.terminating
            }
        };
        let mut all = self.all.iter();
        self.has_any && all.any(|endpoint| endpoint.weight > 0 && takes(endpoint))
    }

    /// Returns whether traffic with this policy has none although some endpoint in the cluster is
    /// usable.
    pub fn are_elsewhere(&self, policy: TrafficPolicy) -> bool {
        policy == TrafficPolicy::Local && self.local.is_empty() && self.has_any
    }

    /// Returns whether some endpoint takes new connections from here.
    pub fn any_taken_here(&self) -> bool {
        self.weights().next().is_some()
    }

    /// The weights of the endpoints that take new connections from here.
    fn weights(&self) -> impl Iterator<Item = u16> {
        let reachable = self.all_reachable.iter();
        let reachable = reachable.filter_map(|&at| self.all.get(at as usize));
        let weights = reachable.map(|endpoint| endpoint.weight);
        weights.filter(|weight| *weight > 0)
    }
}

/// Why an endpoint gets no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotUsed {
    /// It is not ready.
    NotReady,
    /// It is being shut down.
    Terminating,
    /// It is on another node, and the traffic policy is Local.
    OtherNode,
    /// Topology hints reserve it for other zones or nodes.
    Topology,
    /// Its weight is 0.
    NoWeight,
    /// It is ejected for a while: connections to it were not answered.
    Ejected,
    /// It is one of [`Endpoints::forbidden`].
    Forbidden,
}

impl fmt::Display for NotUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotUsed::NotReady => "not ready",
            NotUsed::Terminating => "terminating",
            NotUsed::OtherNode => "on another node, the traffic policy is Local",
            NotUsed::Topology => "for other zones or nodes, by topology hints",
            NotUsed::NoWeight => "weight 0",
            NotUsed::Ejected => "ejected, it did not answer lately",
            NotUsed::Forbidden => {
                "an endpoint cannot have a loopback, link-local, multicast or unspecified address"
            }
        })
    }
}

/// The connections to which a question refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those that may go to any endpoint in use.
    Any,
    /// Those that may go only to endpoints of this node, by a traffic policy of Local.
    Local,
}

impl Endpoints {
    /// Returns each endpoint, sorted by address, with the reason why it gets no new connections;
    /// `None` if it does.
    pub fn usage(&self) -> impl Iterator<Item = (&Endpoint, Option<NotUsed>)> {
        (0..)
            .zip(&self.all)
            .map(|(at, endpoint)| (endpoint, self.not_used(at, endpoint)))
    }

    /// Explains why none of them takes new connections; `None` if one does.
    pub fn none_in_use(&self, reach: Reach) -> Option<String> {
        let mut reasons: Vec<(NotUsed, usize)> = Vec::new();
        let mut count = |reason: NotUsed| {
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => reasons.push((reason, 1)),
            };
        };
        for (endpoint, why) in self.usage() {
            match (why, reach) {
                (Some(why), _) => count(why),
                (None, Reach::Local) if !endpoint.local => count(NotUsed::OtherNode),
                (None, _) => return None,
            }
        }
        for _ in &self.forbidden {
            count(NotUsed::Forbidden);
        }
        if let ([], Some(absence)) = (&*reasons, &self.absence) {
            return Some(absence.to_string());
        }
        let counted = reasons.iter().map(|(why, count)| match why {
            // This reason begins with "an endpoint cannot".
            NotUsed::Forbidden => format!("{count} ignored: {why}"),
            why => format!("{count} {why}"),
        });
        let counted: Vec<_> = counted.collect();
        Some(match &*counted {
            [] => "there is no endpoint".to_owned(),
            counted => counted.join("; "),
        })
    }

    fn not_used(&self, at: u32, endpoint: &Endpoint) -> Option<NotUsed> {
        if self.all_reachable.binary_search(&at).is_ok() {
            return match endpoint.weight {
                0 if self.ejected.contains(&at) => Some(NotUsed::Ejected),
                0 => Some(NotUsed::NoWeight),
                _ => None,
            };
        }
        Some(if endpoint.terminating {
            NotUsed::Terminating
        } else if !endpoint.ready {
            NotUsed::NotReady
        } else if self.cluster.is_empty() {
            // Some endpoint is ready, so traffic with policy Cluster would have one.
            NotUsed::OtherNode
        } else {
            NotUsed::Topology
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports;

    #[test]
    fn why_an_endpoint_gets_nothing() {
        let endpoint = |number: u8| service_ports::endpoint(([10, 1, 0, number], 80));
        let all = || {
            [
                endpoint(0),
                Endpoint {
                    weight: 0,
                    ..endpoint(1)
                },
                Endpoint {
                    ready: false,
                    ..endpoint(2)
                },
                Endpoint {
                    ready: false,
                    terminating: true,
                    ..endpoint(3)
                },
                endpoint(4),
            ]
        };
        let used = |cluster: &[u32], local: &[u32]| {
            let endpoints = Endpoints {
                weighed: false,
                ejected: Box::default(),
                forbidden: Box::default(),
                are_too_many: false,
                absence: None,
                all: Box::new(all()),
                cluster: cluster.into(),
                local: local.into(),
                all_reachable: [cluster, local].concat().into(),
                has_any: true,
            };
            let usage = endpoints.usage().map(|(_, why)| why);
            usage.collect::<Vec<_>>()
        };
        let (not_ready, terminating) = (Some(NotUsed::NotReady), Some(NotUsed::Terminating));
        for (cluster, local, expected) in [
            (
                &[0, 1][..],
                &[][..],
                [
                    None,
                    Some(NotUsed::NoWeight),
                    not_ready,
                    terminating,
                    Some(NotUsed::Topology),
                ],
            ),
            (
                &[],
                &[0],
                [
                    None,
                    Some(NotUsed::OtherNode),
                    not_ready,
                    terminating,
                    Some(NotUsed::OtherNode),
                ],
            ),
        ] {
            assert_eq!(used(cluster, local), expected, "{cluster:?} {local:?}");
        }
    }
}

//! The endpoints of a ServicePort as its rules need them.

use std::{net::SocketAddr, rc::Rc};

use super::names;
use crate::services::ServicePort;

/// An endpoint that takes new connections.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    /// Address and port as kube-proxy writes them.
    pub(super) shown: String,
    /// The name of its chain.
    pub(super) chain: String,
    /// Its share relative to the others; never 0.
    pub(super) weight: u32,
}

/// Endpoints by the traffic that may reach them. Those of weight 0 are in no set: for
/// new connections they count as gone.
#[derive(Debug)]
pub(super) struct Backends {
    /// All that some traffic may reach, in the order of kube-proxy, which sorts endpoints
    /// as text.
    pub(super) all: Vec<Rc<Backend>>,
    /// Those of the whole cluster.
    pub(super) cluster: Vec<Rc<Backend>>,
    /// Those of this node.
    pub(super) local: Vec<Rc<Backend>>,
    /// Some endpoint in the cluster is usable, even if not from here.
    pub(super) any: bool,
}

impl Backends {
    pub(super) fn of(port: &ServicePort, shown: &str, protocol: &str) -> Backends {
        let endpoints = &port.endpoints;
        let at = |index: &u32| Some((*index, endpoints.all.get(*index as usize)?));
        let mut all: Vec<(u32, Rc<Backend>)> = endpoints
            .all_reachable
            .iter()
            .filter_map(at)
            .filter(|(_, endpoint)| endpoint.weight > 0)
            .map(|(index, endpoint)| {
                let text = endpoint.address.to_string();
                let backend = Backend {
                    address: endpoint.address,
                    chain: names::endpoint(shown, protocol, &text),
                    shown: text,
                    weight: endpoint.share(),
                };
                (index, Rc::new(backend))
            })
            .collect();
        all.sort_by(|(_, a), (_, b)| a.shown.cmp(&b.shown));
        let among = |set: &[u32]| {
            let members = all
                .iter()
                .filter(|(index, _)| set.binary_search(index).is_ok());
            members.map(|(_, backend)| Rc::clone(backend)).collect()
        };
        Backends {
            cluster: among(&endpoints.cluster),
            local: among(&endpoints.local),
            any: endpoints.any_takes_connections(),
            all: all.into_iter().map(|(_, backend)| backend).collect(),
        }
    }
}

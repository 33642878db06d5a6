//! The addresses of this node, as far as they serve node ports.

use std::{collections::BTreeSet, io, net::IpAddr, sync::Arc};

use crate::{
    kernel::{addresses::AddressChanges, netlink::Error},
    modes::ipvs,
    node::{self, NodePorts, Served},
    runner::NodeAddresses,
    services::Node,
};

/// Observes which addresses serve node ports, and when they change.
pub(super) struct Addresses {
    changes: AddressChanges,
    node_ports: Arc<NodePorts>,
}

impl Addresses {
    /// Listens for changes in the current network namespace.
    ///
    /// # Errors
    /// When no netlink socket can be had.
    pub(super) fn open(node_ports: Arc<NodePorts>) -> Result<Addresses, Error> {
        Ok(Addresses {
            changes: AddressChanges::open()?.ignoring(ipvs::plan::LINK),
            node_ports,
        })
    }
}

impl NodeAddresses for Addresses {
    fn serving_node_ports(&mut self, node: Option<&Node>) -> io::Result<BTreeSet<IpAddr>> {
        self.node_ports.update(node);
        serving(&self.node_ports.served()).map_err(io::Error::other)
    }

    fn changed(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.changes.changed()
    }
}

/// Returns the node's own addresses that are `served`: neither those of
/// Services, nor those of a single link, which other hosts cannot call without
/// naming it.
///
/// # Errors
/// When the kernel cannot list them.
pub(super) fn serving(served: &Served) -> Result<BTreeSet<IpAddr>, Error> {
    let own = node::addresses::own()?.into_iter();
    Ok(own.filter(|ip| served.contains(ip)).collect())
}

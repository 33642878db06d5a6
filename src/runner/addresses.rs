//! The addresses of this node, which decide who owns a node port.

use std::{collections::BTreeSet, io, net::IpAddr};

use super::{Events, Runner};
use crate::{modes::Mode, services::Node};

/// The addresses of this node, and their changes.
pub trait NodeAddresses: Send {
    /// Addresses that serve node ports. `node` is this node's object, once it is known.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn serving_node_ports(&mut self, node: Option<&Node>) -> io::Result<BTreeSet<IpAddr>>;
    /// Waits for the next change. Cancel safe: the future may be dropped while it waits.
    ///
    /// # Errors
    /// When no further change will be noticed.
    fn changed(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl<M: Mode> Runner<M> {
    /// Lists the node's addresses again: the owner of a node port depends on them.
    pub(super) fn observe_addresses(&mut self, addresses: &mut impl NodeAddresses) {
        match addresses.serving_node_ports(self.tracker.node()) {
            Ok(addresses) => {
                self.status.set_node_port_addresses(&addresses);
                let changes = self.tracker.set_node_addresses(addresses);
                self.merge(changes, Events::default());
                self.failures.addresses_listed();
            }
            // The last known addresses stay in use.
            Err(error) => self.failures.addresses_unlisted(&error),
        }
    }
}

/// Waits for a change of addresses, as long as changes are `watched`.
pub(super) async fn changed(addresses: Option<&mut impl NodeAddresses>, watched: &mut bool) {
    match addresses {
        Some(changes) if *watched => {
            if let Err(error) = changes.changed().await {
                tracing::error!(
                    "changes of node addresses are noticed only once per sync period, until Tripod \
                     is restarted: {error}"
                );
                *watched = false;
            }
        }
        _ => std::future::pending().await,
    }
}

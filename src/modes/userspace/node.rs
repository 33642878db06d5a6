//! Keeps the node's state up to date as far as listeners depend on it.

use std::sync::Arc;

use net::PerFamily;

use super::{
    Userspace,
    capture::{self, Error, Extent},
    options::Role,
};
use crate::node;

impl Userspace {
    /// Updates the node's state that listeners depend on, if that is due or it is not known. If its
    /// addresses cannot be listed, the previous ones stay: unknown addresses are not gone, and only
    /// node ports depend on them alone.
    ///
    /// # Errors
    /// When the addresses cannot be listed and never were.
    pub(super) fn update_node(&mut self, extents: PerFamily<Option<Extent>>) -> Result<(), Error> {
        let extent = extents.v4.max(extents.v6).unwrap_or(Extent::Changed);
        self.executor.count_descriptors(extent);
        self.node.node_ports = self.executor.shared().options.node_ports.served();
        self.node.opens_listeners = !self.executor.yields();
        let role = self.executor.shared().options.role;
        let known = &mut self.node.addresses;
        if extent == Extent::Full || known.is_empty() {
            match node::addresses::own() {
                Ok(mut addresses) => {
                    addresses.sort_unstable();
                    addresses.dedup();
                    if role == (Role::Chosen { loopback: false }) {
                        addresses.retain(|ip| !ip.is_loopback());
                    }
                    *known = addresses;
                    self.unlisted = None;
                }
                Err(error) if known.is_empty() => return Err(error.into()),
                Err(error) => self.unlisted = Some(capture::addresses_stay(&error)),
            }
            self.unserved.observe(&self.capture);
            self.capture
                .serve_node_ports(Arc::clone(&self.node.node_ports));
        }
        Ok(())
    }
}

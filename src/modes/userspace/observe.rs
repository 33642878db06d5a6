//! What is read of the node.

use std::{net::IpAddr, sync::Arc};

use super::{
    Userspace,
    capture::{self, Error, Extent},
};
use crate::{net::PerFamily, node};

impl Userspace {
    /// Reads what of the node decides about listeners, if it is due or not known. Where its
    /// addresses cannot be listed, those that were listed last stay: what is unknown is not gone,
    /// and nothing but node ports depends only on them.
    ///
    /// # Errors
    /// When the addresses cannot be listed and never were.
    pub(super) fn observe(&mut self, extents: PerFamily<Option<Extent>>) -> Result<(), Error> {
        let full = |extent: &Option<Extent>| *extent == Some(Extent::Full);
        let full = full(&extents.v4) || full(&extents.v6);
        let descriptors = &self.executor.shared().descriptors;
        if full {
            descriptors.count();
        } else {
            descriptors.count_if_cheap();
        }
        self.node.node_ports = self.options.node_ports.served();
        self.node.opens_listeners = !self.yields();
        let known = &mut self.node.addresses;
        if full || known.is_empty() {
            match node_addresses() {
                Ok(addresses) => {
                    *known = addresses;
                    self.unlisted = None;
                }
                Err(error) if known.is_empty() => return Err(error),
                Err(error) => self.unlisted = Some(capture::addresses_stay(&error)),
            }
            self.unserved.observe(&self.capture);
            self.capture
                .serve_node_ports(Arc::clone(&self.node.node_ports));
        }
        Ok(())
    }
}

/// Returns the node's own addresses on which node ports can be served, sorted.
///
/// # Errors
/// When the kernel cannot list them.
fn node_addresses() -> Result<Vec<IpAddr>, Error> {
    let mut all = node::addresses::own()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

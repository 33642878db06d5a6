//! Keeps the node's state up to date as far as listeners depend on it.

use net::PerFamily;

use super::{
    Userspace,
    capture::{Error, Extent},
    observe,
};

impl Userspace {
    /// Updates the node's state that listeners and capture depend on, if that is due or it is not
    /// known. If its addresses cannot be listed, the previous ones stay: unknown addresses are not
    /// gone, and only node ports depend on them alone.
    ///
    /// # Errors
    /// When the addresses cannot be listed and never were.
    pub(super) fn update_node(&mut self, extents: PerFamily<Option<Extent>>) -> Result<(), Error> {
        let extent = extents.v4.max(extents.v6).unwrap_or(Extent::Changed);
        self.executor.count_descriptors(extent);
        self.node.node_ports = self.executor.shared().options.node_ports.served();
        self.node.opens_listeners = !self.executor.yields();
        let known = &mut self.node.addresses;
        if extent == Extent::Full || known.is_empty() {
            match observe::addresses() {
                Ok(own) => {
                    *known = observe::node_addresses(&own);
                    self.own = own;
                    self.unlisted = None;
                }
                Err(error) if known.is_empty() => return Err(error),
                Err(error) => {
                    self.unlisted = Some(format!(
                        "cannot list the addresses of this node; node ports stay at the last known \
                         ones: {error}"
                    ));
                }
            }
            self.unserved.observe(&self.capture);
        }
        Ok(())
    }
}

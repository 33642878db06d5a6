//! What is read of the node.

use std::net::IpAddr;

use super::capture::Error;
use crate::kernel::{addresses, netlink};

/// Reads from the kernel.
#[derive(Default)]
pub struct Observer {
    /// Opened when first needed.
    socket: Option<netlink::Socket>,
}

impl Observer {
    /// Returns the node's own addresses on which node ports can be served. Not
    /// those of one link only (RFC 4291 section 2.5.6), which mean nothing without
    /// it.
    ///
    /// # Errors
    /// When the kernel cannot list them.
    pub fn node_addresses(&mut self) -> Result<Vec<IpAddr>, Error> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(netlink::Socket::open(netlink::Protocol::Route)?),
        };
        let mut all: Vec<IpAddr> = addresses::list(socket)?
            .into_iter()
            .map(|a| a.address)
            .filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
            .collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

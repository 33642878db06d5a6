//! What is read of the node.

use std::net::IpAddr;

use super::capture::Error;
use crate::kernel::{addresses, netlink};

/// Returns the node's own addresses on which node ports can be served. Not those of one
/// link only (RFC 4291 section 2.5.6), which mean nothing without it.
///
/// # Errors
/// When the kernel cannot list them.
pub fn node_addresses() -> Result<Vec<IpAddr>, Error> {
    let mut socket = netlink::Socket::open(netlink::Protocol::Route)?;
    let mut all: Vec<IpAddr> = addresses::list(&mut socket)?
        .into_iter()
        .map(|a| a.address)
        .filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

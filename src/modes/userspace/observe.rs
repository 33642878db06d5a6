//! State that is read from the node.

use std::net::IpAddr;

use super::capture::Error;
use crate::node;

/// The node's own addresses on which node ports can be served, sorted.
///
/// # Errors
/// When the kernel cannot list them.
pub fn node_addresses() -> Result<Vec<IpAddr>, Error> {
    let mut all = node::addresses::own()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

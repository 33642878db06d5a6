//! State that is read from the node.

use std::net::IpAddr;

use netlink::{
    Protocol, Socket,
    addresses::{self, Address},
};

use super::capture::Error;
use crate::node;

/// All addresses of this node.
///
/// # Errors
/// When the kernel cannot list them.
pub fn addresses() -> Result<Vec<Address>, Error> {
    Ok(addresses::list(&mut Socket::open(Protocol::Route)?)?)
}

/// Those of `all` addresses on which node ports can be served, sorted.
pub fn node_addresses(all: &[Address]) -> Vec<IpAddr> {
    let own = all
        .iter()
        .filter(|address| node::addresses::is_own(address));
    let mut own: Vec<_> = own.map(|address| address.address).collect();
    own.sort_unstable();
    own.dedup();
    own
}

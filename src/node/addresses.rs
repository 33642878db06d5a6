//! The addresses that this node has.

use std::net::IpAddr;

use netlink::{
    Error, Protocol, Socket,
    addresses::{self, Address},
};

/// The dummy link on which ipvs mode has the addresses of Services, as kube-proxy calls it.
pub const SERVICE_LINK: &str = "kube-ipvs0";

/// Returns the node's own addresses, without those of Services, and without link-local ones, which
/// other hosts cannot call without naming the link.
///
/// # Errors
/// When the kernel cannot list them.
pub fn own() -> Result<Vec<IpAddr>, Error> {
    let own = list()?.into_iter();
    Ok(own.map(|address| address.address).collect())
}

/// Returns the same, with the kernel's details of each.
///
/// # Errors
/// When the kernel cannot list them.
pub fn list() -> Result<Vec<Address>, Error> {
    let all = addresses::list(&mut Socket::open(Protocol::Route)?)?;
    let own = all
        .into_iter()
        .filter(|address| address.interface != SERVICE_LINK && !address.is_of_link());
    Ok(own.collect())
}

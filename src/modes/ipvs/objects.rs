//! How objects of the kernel are named: the same in differences, repairs and
//! explanations.

use std::net::{IpAddr, SocketAddr};

use super::plan::{LINK, Member, ServerId};

/// Name of the virtual server at `frontend`.
pub fn virtual_server(frontend: &ServerId) -> String {
    format!("virtual server {frontend}")
}

/// Name of a real server of the virtual server at `frontend`.
pub fn real_server(address: SocketAddr, frontend: &ServerId) -> String {
    format!("real server {address} of virtual server {frontend}")
}

/// Name of a member of a set.
pub fn member(member: &Member) -> String {
    let set = member.set.name(member.family);
    format!("member {} of set {set}", member.element)
}

/// Name of an address of the dummy link.
pub fn address(ip: &IpAddr) -> String {
    format!("address {ip} of link {LINK}")
}

#![doc = include_str!("../README.md")]

pub mod address;
mod family;
mod frontend;
mod protocol;

use std::net::IpAddr;

pub use self::{
    family::{Family, PerFamily},
    frontend::Frontend,
    protocol::Protocol,
};

/// The 4 or 16 octets of an address in network byte order.
pub fn octets(ip: &IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

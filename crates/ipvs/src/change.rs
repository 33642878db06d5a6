//! The changes that the kernel can be asked to make.

use std::net::SocketAddr;

use super::{RealServer, ServerId, VirtualServer};

/// One change, for [`Ipvs::apply`](super::Ipvs::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a virtual server.
    Add(VirtualServer),
    /// Gives a virtual server another scheduler, persistence or flags; its real servers
    /// and connections stay.
    Edit(VirtualServer),
    /// Deletes a virtual server with its real servers. Its connections get no further
    /// packets through.
    Delete(ServerId),
    /// Adds a real server.
    AddReal(ServerId, RealServer),
    /// Gives a real server another weight, method or limits; connections stay.
    EditReal(ServerId, RealServer),
    /// Deletes a real server. Its connections get no further packets through.
    DeleteReal(ServerId, SocketAddr),
}

//! What can be asked of the kernel to be different.

use std::net::SocketAddr;

use super::{RealServer, ServerId, VirtualServer};

/// One change, for [`Ipvs::apply`](super::Ipvs::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A virtual server comes.
    Add(VirtualServer),
    /// A virtual server gets another scheduler, persistence or flags; its real
    /// servers and connections stay.
    Edit(VirtualServer),
    /// A virtual server goes with its real servers. Its connections get no
    /// further packets through.
    Delete(ServerId),
    /// A real server comes.
    AddReal(ServerId, RealServer),
    /// A real server gets another weight, method or limits; connections stay.
    EditReal(ServerId, RealServer),
    /// A real server goes. Its connections get no further packets through.
    DeleteReal(ServerId, SocketAddr),
}

//! How the configuration describes this node's pods.

use ipnet::IpNet;

/// How traffic from this node's pods is distinguished from other traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Its source is in one of these, at most one a family. If there is none,
    /// it cannot be known.
    ClusterCidr(Vec<IpNet>),
    /// Its source is in a pod CIDR of this Node.
    NodeCidr,
    /// It comes through the bridge of this name.
    BridgeInterface(String),
    /// It comes through a link whose name begins with this.
    InterfaceNamePrefix(String),
}

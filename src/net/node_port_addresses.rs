//! What the configuration says of node ports.

use ipnet::IpNet;

/// Which of the node's addresses serve node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All of them.
    All,
    /// The addresses of the Node object, one a family.
    Primary,
    /// Those within one of these.
    Within(Vec<IpNet>),
}

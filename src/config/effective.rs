//! The values that follow from a configuration, each in its own type.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use ipnet::IpNet;
use net::Family;

use crate::{
    config::{DetectLocal, ModeName, NodePortAddresses},
    sched::SchedulerName,
};

/// The values that the parts of the program use. Values that need no conversion
/// (conntrack settings, logging, request rates) are read from the
/// [`KubeProxyConfiguration`](super::KubeProxyConfiguration) itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The mode to begin with; another one runs if this kernel lacks what it needs.
    pub mode: ModeName,
    /// Whether that mode was named; otherwise it is Tripod's default.
    pub is_mode_named: bool,
    /// This node's own address, whose family is the primary one; if `None`, it is taken from the
    /// Node object.
    pub node_ip: Option<IpAddr>,
    /// The primary family: that of `bindAddress`; if that is 0.0.0.0 or `::`, that of the first
    /// network of `clusterCIDR`, if there is one.
    pub primary_family: Family,
    /// Address at which `/healthz` is served; `None` if it is not served.
    pub healthz: Option<SocketAddr>,
    /// Address at which `/metrics` is served; `None` if it is not served.
    pub metrics: Option<SocketAddr>,
    /// Bit of the packet mark that requests SNAT, 0 to 31.
    pub masquerade_bit: u8,
    /// Scheduler of Services that name none.
    pub scheduler: SchedulerName,
    /// Virtual servers with addresses in these networks belong to other
    /// programs.
    pub ipvs_exclude: Vec<IpNet>,
    /// How traffic from this node's pods is distinguished from other traffic.
    pub detect_local: DetectLocal,
    /// Which of the node's addresses serve node ports.
    pub node_ports: NodePortAddresses,
    /// Local ports for redirect capture in userspace mode; `None`: any.
    pub proxy_ports: Option<RangeInclusive<u16>>,
    /// Path of a kubeconfig file; `None` if there is none.
    pub kubeconfig: Option<PathBuf>,
}

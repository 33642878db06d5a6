//! Input of a plan apart from the Services.

use std::net::IpAddr;

use crate::{
    config::{Effective, KubeProxyConfiguration},
    kernel::probe::Kernel,
    modes::{iptables::plan::DispatchChoice, userspace::capture::Requested},
    node::Served,
    services::Namespaces,
};

/// Input of rules apart from the Services.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// The configuration, as it was read.
    pub configuration: &'a KubeProxyConfiguration,
    /// The effective settings, which follow from the configuration.
    pub effective: &'a Effective,
    /// The kernel, which decides which features rules may use.
    pub kernel: &'a Kernel,
    /// How chains are found, `--iptables-dispatch`.
    pub dispatch: DispatchChoice,
    /// How userspace mode captures, `--userspace-capture`.
    pub capture: Requested,
    /// The addresses of the node itself.
    pub addresses: &'a [IpAddr],
    /// Which of them serve node ports.
    pub served: &'a Served,
    /// The loopback addresses on which to serve node ports, in modes that listen there.
    pub loopback: &'a [IpAddr],
    /// Namespaces whose Services are counted, in nftables mode.
    pub counted: &'a Namespaces,
}

//! Configuration of ipvs mode.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use ipvs::Timeouts;
use net::Family;

use crate::config::{self, Effective, KubeProxyConfiguration};
pub use crate::node::addresses::SERVICE_LINK as LINK;

/// The scheduler of Services that ask for none, unless configured.
pub const ROUND_ROBIN: &str = "rr";

/// Returns the kernel's name of a scheduler. `mh` of ipvs mode always looks at ports, as with
/// kube-proxy.
pub fn name_in_kernel(scheduler: &str) -> &str {
    match scheduler {
        "mh-port" => "mh",
        name => name,
    }
}

/// Settings of ipvs mode.
#[derive(Clone, Debug)]
pub struct Options {
    /// The family that must be served; the other one may be missing.
    pub primary_family: Family,
    /// How traffic of this node's pods is distinguished from other traffic.
    pub detect_local: config::DetectLocal,
    /// This node's own address; `None`: it is taken from the Node object.
    pub node_ip: Option<IpAddr>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bits of the packet mark that ask for SNAT.
    pub masquerade_mark: u32,
    /// Scheduler of Services that name none, as the kernel calls it.
    pub scheduler: Arc<str>,
    /// Virtual servers with addresses in these networks belong to another program.
    pub exclude: Vec<IpNet>,
    /// The node does not answer ARP requests for addresses of Services.
    pub strict_arp: bool,
    /// How long IPVS keeps idle connections; zero leaves the kernel's value.
    pub timeouts: Timeouts,
    /// How long connections to an endpoint that left a Service may continue if the Service does not
    /// say; `None`: as long as they last.
    pub drain_timeout: Option<Duration>,
}

/// Returns whether the virtual servers at `address` belong to another program, as it is in a
/// network of `exclude`.
pub fn is_excluded(exclude: &[IpNet], address: IpAddr) -> bool {
    exclude.iter().any(|network| network.contains(&address))
}

impl Options {
    /// Reads the configuration, which has no drain timeout.
    pub fn new(configuration: &KubeProxyConfiguration, effective: &Effective) -> Options {
        let ipvs = &configuration.ipvs;
        let scheduler = match ipvs.scheduler.as_str() {
            "" => ROUND_ROBIN,
            name => name_in_kernel(name),
        };
        Options {
            primary_family: effective.primary_family,
            detect_local: effective.detect_local.clone(),
            node_ip: effective.node_ip,
            masquerade_all: configuration.masquerade_all,
            masquerade_mark: 1 << effective.masquerade_bit,
            scheduler: scheduler.into(),
            exclude: effective.ipvs_exclude.clone(),
            strict_arp: ipvs.strict_arp,
            timeouts: Timeouts {
                tcp: ipvs.tcp_timeout,
                tcp_fin: ipvs.tcp_fin_timeout,
                udp: ipvs.udp_timeout,
            },
            drain_timeout: None,
        }
    }
}

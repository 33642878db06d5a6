//! The subcommand that checks a node, `tripod check`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::Args;

use super::{Cluster, Common, test};
use crate::duration;

/// Least time in which the pods of `--make` must become ready, as for `tripod test`: their image may
/// have to be pulled.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// The settings of `tripod check`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Check {
    /// How long the calls of a node may take
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    #[arg(
        long_help = "How long the calls of a node may take; calls under way then end within some \
                       seconds. With --make, the start of its pods may take as long, or 2 minutes"
    )]
    pub timeout: Duration,
    /// Also create pods and Services, and test them
    #[arg(long, value_name = "KUBECONFIG", num_args = 0..=1, require_equals = true)]
    #[arg(
        long_help = "Also create pods and Services with this kubeconfig, test them as tripod test \
                       does, and delete them; - is standard input; without a file, as kubectl. \
                       kubectl tripod check sends the kubeconfig of kubectl, with its credentials, to \
                       the Tripod of each node that it checks"
    )]
    pub make: Option<Option<PathBuf>>,
    /// Image of the pods; without it, that of DaemonSet kube-proxy
    #[arg(long, value_name = "IMAGE", requires = "make")]
    pub image: Option<String>,
    /// Also call node ports at another node; may be repeated
    #[arg(long = "other-node", value_name = "NAME=ADDRESS", value_parser = other)]
    #[arg(
        long_help = "Also call node ports and health-check node ports at this address of another \
                       node, or call those of this node at this address of it; may be repeated. \
                       kubectl tripod check names each node and the next ones"
    )]
    pub others: Vec<(String, IpAddr)>,
    /// Only ask the running Tripod; call nothing
    #[arg(long, conflicts_with = "make")]
    #[arg(
        long_help = "Only ask the running Tripod: call nothing, and compare nothing with the kernel"
    )]
    pub no_calls: bool,
    /// How the report is printed, and the running proxy.
    #[command(flatten)]
    pub common: Common,
}

impl Check {
    /// Returns the settings of the test that makes Services.
    pub fn cluster(&self, kubeconfig: Option<PathBuf>) -> Cluster {
        Cluster {
            namespace: None,
            kubeconfig,
            image: self.image.clone(),
            keep: false,
            external: test::networks(),
            services: Vec::new(),
            timeout: self.timeout.max(STARTS_WITHIN),
        }
    }
}

fn other(text: &str) -> Result<(String, IpAddr), String> {
    let parts = text.split_once('=');
    let other = parts.and_then(|(name, ip)| Some((name.to_owned(), ip.parse().ok()?)));
    other.ok_or_else(|| "write it like node-2=192.0.2.12".to_owned())
}

pub(super) const HELP: &str = "\
Checks that the running Tripod follows the objects, has applied them, and runs in the mode
of its settings; that the kernel has what it should; and that calls from this node arrive:
TCP connections, which are closed at once, and DNS queries to Services of port 53, to a
sample of up to 100 addresses that has each kind of Service, and to their endpoints.
Changes nothing, unless --make is given. kubectl tripod check does this on all nodes, and
compares them.

Exits with 0 if there is no fault, with 1 if there are faults, and with 2 if the proxy
does not answer or cannot answer now, or the command line is wrong.

Examples:
      tripod check
      tripod check --other-node node-2=192.0.2.12 -o wide
      tripod check --make=/etc/kubernetes/admin.conf";

//! The subcommand that checks the promises of a mode, `tripod test`, and the one that its pods run.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use ipnet::IpNet;

use super::ask::Common;
use crate::{config::ModeName, duration};

/// How a live cluster is tried. Flags about created objects mean nothing where none are created.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Cluster {
    /// Namespace for the pods and Services; without it, a new one
    #[arg(long, value_name = "NAME", value_parser = named)]
    #[arg(conflicts_with_all = ["manifests", "services"])]
    pub namespace: Option<String>,
    /// Kubeconfig; - is standard input; without it, as kubectl
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "services"])]
    #[arg(
        long_help = "Kubeconfig file for creating them; - is standard input; without it, \
                       $KUBECONFIG, or .kube/config in the home directory"
    )]
    pub kubeconfig: Option<PathBuf>,
    /// Image of the pods; without it, that of DaemonSet kube-proxy
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["manifests", "services"])]
    pub image: Option<String>,
    /// Keep the pods and Services
    #[arg(long, conflicts_with_all = ["manifests", "services"])]
    pub keep: bool,
    /// Networks to use
    #[arg(
        long = "external-networks",
        value_name = "CIDR,...",
        value_delimiter = ','
    )]
    #[arg(default_value = EXTERNAL, value_parser = external)]
    #[arg(conflicts_with_all = ["manifests", "services"])]
    #[arg(long_help = "Networks from which external IPs and load-balancer IPs are taken")]
    pub external: Vec<IpNet>,
    /// Create nothing, and call this Service; may be repeated
    #[arg(long = "service", value_name = "NAMESPACE/NAME", value_parser = service)]
    #[arg(conflicts_with = "manifests")]
    pub services: Vec<(String, String)>,
    /// How long they may take to become ready
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    #[arg(conflicts_with = "manifests")]
    #[arg(long_help = "How long the pods and the running Tripod may take to become ready")]
    pub timeout: Duration,
}

/// The settings of the server in a pod of a test.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct TestServer {
    /// The name that it answers with.
    #[arg(long)]
    pub name: String,
    /// The port at which it answers, over TCP and UDP.
    #[arg(long)]
    pub port: u16,
    /// The port at which it makes calls for the tester, over TCP.
    #[arg(long)]
    pub agent_port: u16,
    /// SHA-256 of the token that entitles to calls, in hexadecimal digits.
    #[arg(long)]
    pub token_sha256: String,
}

pub(super) const HELP: &str = "\
With --manifests, tests these objects in network namespaces that it creates. Without it,
tests the Tripod that runs on this node of a cluster: creates pods and Services, calls
them from this node and from pods, removes an endpoint, and deletes everything again, also
if it is interrupted. With --service, creates nothing, and calls these Services from this
node.

Exits with 0 if all calls reach what the mode promises, with 1 if some do not, and with 2
if nothing can be tested or the command line is wrong.

Examples:
  Test the Services and EndpointSlices of a folder, in namespaces made for it:
      tripod test --manifests /etc/tripod/manifests --proxy-mode=nftables
  Test the Tripod of this node, with pods of its own image:
      tripod test --kubeconfig /etc/kubernetes/admin.conf
  The same in the pod of Tripod, with the kubeconfig of another machine:
      kubectl -n kube-system exec -i POD -- tripod test --kubeconfig - <FILE
  Call a Service of the cluster from this node:
      tripod test --service default/web";

/// The settings of `tripod test`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Test {
    /// Test a folder or file of manifests, without a cluster
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// The mode to test; without it, the best that can run here
    #[arg(
        long,
        value_name = "MODE",
        hide_possible_values = true,
        requires = "manifests"
    )]
    #[arg(
        long_help = "The mode to test: ipvs, nftables, iptables or userspace; without it, the \
                       best that this kernel can run"
    )]
    pub proxy_mode: Option<ModeName>,
    /// Node to act as; without it, this machine or the first node
    #[arg(long, value_name = "NAME", requires = "manifests")]
    #[arg(
        long_help = "Name of the node to act as, which determines the endpoints on this node and \
                       on others; without it, this machine's name if the manifests have such a \
                       node, otherwise their first node"
    )]
    pub hostname_override: Option<String>,
    /// How the Tripod of this node is tested, without manifests.
    #[command(flatten)]
    pub cluster: Cluster,
    /// How the report is printed, and the Tripod of this node.
    #[command(flatten)]
    pub common: Common,
}

/// Networks that no host is in (RFC 5737, RFC 3849).
const EXTERNAL: &str = "203.0.113.0/24,2001:db8:113::/48";

/// Returns the networks from which addresses are taken unless others are named.
pub(super) fn networks() -> Vec<IpNet> {
    EXTERNAL
        .split(',')
        .filter_map(|net| external(net).ok())
        .collect()
}

/// Reads a network that has an address for each Service of a test.
fn external(text: &str) -> Result<IpNet, String> {
    let network = text.parse::<IpNet>().ok();
    let is_large = |network: &IpNet| network.max_prefix_len() - network.prefix_len() >= 3;
    network.filter(is_large).ok_or_else(|| {
        "it must be a network of at least eight addresses, such as 203.0.113.0/24".to_owned()
    })
}

/// Reads a name of Kubernetes (RFC 1123).
fn named(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("it must be a name of lower-case letters, digits and hyphens".to_owned())
    }
}

fn service(text: &str) -> Result<(String, String), String> {
    let wrong = "it must be a namespace, a slash and a name";
    let (namespace, name) = text.split_once('/').ok_or(wrong)?;
    Ok((named(namespace)?, named(name)?))
}

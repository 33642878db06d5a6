//! `tripod migrate`: shows the effects of replacing kube-proxy by Tripod.

use std::path::PathBuf;

use clap::Args;

use super::{Options, ask::Format, flags::hostname};

pub(super) const HELP: &str = "\
Prints the mode that this node would run, and what differs from kube-proxy in that mode;
with -o wide, also the other modes, notes, and what happens to the rules of this node.
Changes nothing. Exits with 0 if there is no difference that matters in that mode, with 1
if there is one, and with 2 if the configuration cannot be read or the command line is
wrong.

Examples:
  On a node where kube-proxy runs:
      tripod migrate
  The same, and which of the node's rules would be removed, added and kept:
      mkdir objects
      kubectl get services,endpointslices,nodes -A -o yaml >objects/all.yaml
      tripod migrate --manifests=objects
  The same, from files that were saved on node-1:
      tripod migrate --config=cm.yaml --manifests=objects --saved=node-1 \
          --hostname-override=node-1
  For a cluster, from anywhere:
      kubectl -n kube-system get cm kube-proxy -o yaml |
          tripod migrate --config=- --without-node";

/// The configuration to compare, and the node.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Migrate {
    /// Accepted without effect: the command never changes anything
    #[arg(long, hide = true)]
    check: bool,
    /// kube-proxy's configuration file or ConfigMap; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    #[arg(
        long_help = "kube-proxy's configuration file, or the manifest of its ConfigMap; - reads \
                       standard input. Without it, that of the kube-proxy that runs here"
    )]
    pub config: Option<String>,
    /// The process of kube-proxy, if several run in this namespace
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Do not examine this machine's kernel and its rules
    #[arg(long)]
    pub without_node: bool,
    /// The cluster's objects: render what would change, mode by mode
    #[arg(long, value_name = "PATH")]
    #[arg(
        long_help = "The cluster's Services, EndpointSlices and Nodes, in a folder or file as the \
                       proxy reads it: render what would change, mode by mode"
    )]
    pub manifests: Option<PathBuf>,
    /// Name of the node, if it is not the machine's host name
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    #[arg(
        long_help = "Name of the node in --manifests; without it, the one in kube-proxy's \
                       configuration or flags, or the machine's host name"
    )]
    hostname_override: Option<String>,
    /// Compare with the rules of another machine, in files of this folder
    #[arg(long, value_name = "DIR", requires = "manifests")]
    #[arg(conflicts_with_all = ["without_node", "pid"])]
    #[arg(
        long_help = "Compare with the rules of another machine, in files named after what printed \
                       them: iptables-save.txt, ip6tables-save.txt, ipset-save.txt, \
                       ipvsadm-save.txt (ipvsadm -Sn), kube-ipvs0-addrs.txt (ip address)"
    )]
    pub saved: Option<PathBuf>,
    /// How the differences are printed.
    #[command(flatten)]
    pub format: Format,
}

/// Reads the name of a node; empty if none is given.
fn node_name(text: &str) -> Result<String, String> {
    let mut options = Options::default();
    hostname(&mut options, text)?;
    Ok(options.hostname_override.unwrap_or_default())
}

impl Migrate {
    /// Returns the name of the node whose rules are compared, unless the configuration or the machine's
    /// host name has it.
    pub fn node(&self) -> Option<&str> {
        let given = self.hostname_override.as_deref();
        given.filter(|name| !name.is_empty())
    }

    /// Returns whether this machine is the node, so that its kernel and rules are examined.
    pub fn is_of_this_machine(&self) -> bool {
        !self.without_node && self.saved.is_none()
    }
}

//! `tripod migrate`: shows the effects of replacing kube-proxy by Tripod.

use std::path::PathBuf;

use clap::Args;

use super::{Options, Output, ask::Format, flags::hostname};

/// The configuration to compare, and where to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrate {
    /// Where kube-proxy's configuration is.
    pub from: Origin,
    /// Whether this machine is the node.
    pub machine: Machine,
    /// A folder with the cluster's objects; if `None`, no changes are listed line by line.
    pub manifests: Option<PathBuf>,
    /// The name of the node whose rules are compared; if `None`, the configuration has it, or it is
    /// the machine's host name.
    pub hostname_override: Option<String>,
    /// How the differences are printed.
    pub output: Output,
}

/// Where kube-proxy's configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// That of the process in this network namespace.
    Running,
    /// That of the process with this PID.
    Process(u32),
    /// A configuration file, or a manifest with the ConfigMap that holds one.
    File(PathBuf),
    /// The same from standard input.
    Input,
}

/// Whether the kernel and rules of this machine are those that Tripod will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// They are, and are examined.
    Node,
    /// They belong to another machine, and are left out.
    Elsewhere,
    /// They belong to another machine, whose programs printed its rules into files of this folder.
    Saved(PathBuf),
}

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

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Accepted without effect: the command never changes anything
    #[arg(long, hide = true)]
    check: bool,
    /// kube-proxy's configuration file or ConfigMap; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    #[arg(
        long_help = "kube-proxy's configuration file, or the manifest of its ConfigMap; - reads \
                       standard input. Without it, that of the kube-proxy that runs here"
    )]
    config: Option<String>,
    /// The process of kube-proxy, if several run in this namespace
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Do not examine this machine's kernel and its rules
    #[arg(long)]
    without_node: bool,
    /// The cluster's objects: render what would change, mode by mode
    #[arg(long, value_name = "PATH")]
    #[arg(
        long_help = "The cluster's Services, EndpointSlices and Nodes, in a folder or file as the \
                       proxy reads it: render what would change, mode by mode"
    )]
    manifests: Option<PathBuf>,
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
    saved: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

/// Reads the name of a node; empty if none is given.
fn node_name(text: &str) -> Result<String, String> {
    let mut options = Options::default();
    hostname(&mut options, text)?;
    Ok(options.hostname_override.unwrap_or_default())
}

impl From<Flags> for Migrate {
    fn from(flags: Flags) -> Migrate {
        Migrate {
            from: match (flags.config.as_deref(), flags.pid) {
                (Some("-"), _) => Origin::Input,
                (Some(path), _) => Origin::File(path.into()),
                (None, Some(pid)) => Origin::Process(pid),
                (None, None) => Origin::Running,
            },
            machine: match flags.saved {
                Some(folder) => Machine::Saved(folder),
                None if flags.without_node => Machine::Elsewhere,
                None => Machine::Node,
            },
            manifests: flags.manifests,
            hostname_override: flags.hostname_override.filter(|name| !name.is_empty()),
            output: flags.format.output,
        }
    }
}

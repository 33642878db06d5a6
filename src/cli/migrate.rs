//! `tripod migrate`: shows the effects of replacing kube-proxy by Tripod.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, builder::ValueParser, value_parser};

use super::{Options, Output, ask, flags::hostname, help};

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

const HELP: &str = "\
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

pub(super) fn command() -> Command {
    let about = "Show what changes when Tripod replaces kube-proxy on this node";
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    help::with_text(Command::new("migrate").about(about), HELP)
        .arg(
            flag(
                "check",
                "Accepted without effect: the command never changes anything",
            )
            .hide(true),
        )
        .arg(help::explained(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .conflicts_with("pid"),
            "kube-proxy's configuration file or ConfigMap; - is standard input",
            "kube-proxy's configuration file, or the manifest of its ConfigMap; - reads standard \
             input. Without it, that of the kube-proxy that runs here",
        ))
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID")
                .value_parser(value_parser!(u32))
                .help("The process of kube-proxy, if several run in this namespace"),
        )
        .arg(flag(
            "without-node",
            "Do not examine this machine's kernel and its rules",
        ))
        .arg(help::explained(
            path("manifests", "PATH"),
            "The cluster's objects: render what would change, mode by mode",
            "The cluster's Services, EndpointSlices and Nodes, in a folder or file as the proxy \
             reads it: render what would change, mode by mode",
        ))
        .arg(help::explained(
            Arg::new("hostname-override")
                .long("hostname-override")
                .value_name("NAME")
                .value_parser(ValueParser::new(node_name)),
            "Name of the node, if it is not the machine's host name",
            "Name of the node in --manifests; without it, the one in kube-proxy's configuration or \
             flags, or the machine's host name",
        ))
        .arg(help::explained(
            path("saved", "DIR")
                .requires("manifests")
                .conflicts_with_all(["without-node", "pid"]),
            "Compare with the rules of another machine, in files of this folder",
            "Compare with the rules of another machine, in files named after what printed them: \
             iptables-save.txt, ip6tables-save.txt, ipset-save.txt, ipvsadm-save.txt \
             (ipvsadm -Sn), kube-ipvs0-addrs.txt (ip address)",
        ))
        .arg(ask::output())
}

fn path(name: &'static str, value_name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value_name)
        .value_parser(value_parser!(PathBuf))
}

/// Reads the name of a node; empty if none is given.
fn node_name(text: &str) -> Result<Option<String>, String> {
    let mut options = Options::default();
    hostname(&mut options, text)?;
    Ok(options.hostname_override)
}

pub(super) fn read(matches: &ArgMatches) -> Migrate {
    let file = matches.get_one::<String>("config").map(String::as_str);
    let from = match (file, matches.get_one::<u32>("pid")) {
        (Some("-"), _) => Origin::Input,
        (Some(path), _) => Origin::File(path.into()),
        (None, Some(pid)) => Origin::Process(*pid),
        (None, None) => Origin::Running,
    };
    Migrate {
        from,
        machine: match matches.get_one::<PathBuf>("saved") {
            Some(folder) => Machine::Saved(folder.clone()),
            None if matches.get_flag("without-node") => Machine::Elsewhere,
            None => Machine::Node,
        },
        manifests: matches.get_one::<PathBuf>("manifests").cloned(),
        hostname_override: matches
            .get_one::<Option<String>>("hostname-override")
            .cloned()
            .flatten(),
        output: ask::chosen(matches),
    }
}

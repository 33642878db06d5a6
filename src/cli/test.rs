//! The subcommand that checks the promises of a mode, `tripod test`, and the one that its pods run.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, value_parser};
use ipnet::IpNet;

use super::{Output, ask, help};
use crate::{config::ModeName, duration};

/// The settings of `tripod test`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Whose Services are called, and in which mode.
    pub place: Place,
    /// How the report is printed.
    pub output: Output,
}

/// Where a test takes place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In network namespaces of its own, with the Services of a folder of manifests.
    Manifests(FolderTest),
    /// On this node of a cluster, with the Tripod that runs here.
    Cluster(Cluster),
}

/// A folder of manifests that is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderTest {
    /// The folder of manifests, read like `--manifests` of the proxy.
    pub folder: PathBuf,
    /// The mode; `None`: the best that this kernel can run.
    pub mode: Option<ModeName>,
    /// Name of the node to test; `None`: this machine's, or one that the manifests name.
    pub node: Option<String>,
}

/// How a live cluster is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The namespace for pods and Services; `None`: a new one.
    pub namespace: Option<String>,
    /// The kubeconfig with which they are created, `-` for standard input; `None`: the one
    /// that kubectl would use.
    pub kubeconfig: Option<PathBuf>,
    /// The image of the pods; `None`: that of the DaemonSet `kube-system/kube-proxy`.
    pub image: Option<String>,
    /// Whether pods and Services are kept after the test.
    pub keep: bool,
    /// Networks that external IPs and load-balancer IPs are taken from.
    pub external: Vec<IpNet>,
    /// Namespaces and names of existing Services to call; if there are any, none is created.
    pub services: Vec<(String, String)>,
    /// How long pods, Services and the running Tripod may take to be ready.
    pub timeout: Duration,
    /// The unix socket on which the running Tripod answers.
    pub socket: PathBuf,
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

const HELP: &str = "\
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

pub(super) fn command() -> Command {
    let about = "Test whether calls to Services reach the endpoints that the mode promises";
    let command = help::with_text(Command::new("test").about(about), HELP)
        .override_usage("tripod test --manifests <PATH> [OPTIONS]\n       tripod test [OPTIONS]")
        .arg(
            Arg::new("manifests")
                .long("manifests")
                .value_name("PATH")
                .value_parser(value_parser!(PathBuf))
                .help("Test a folder or file of manifests, without a cluster"),
        )
        .arg(help::explained(
            Arg::new("proxy-mode")
                .long("proxy-mode")
                .value_name("MODE")
                .value_parser(value_parser!(ModeName))
                .hide_possible_values(true)
                .requires("manifests"),
            "The mode to test; without it, the best that can run here",
            "The mode to test: ipvs, nftables, iptables or userspace; without it, the best that \
             this kernel can run",
        ))
        .arg(help::explained(
            Arg::new("hostname-override")
                .long("hostname-override")
                .value_name("NAME")
                .requires("manifests"),
            "Node to act as; without it, this machine or the first node",
            "Name of the node to act as, which determines the endpoints on this node and on \
             others; without it, this machine's name if the manifests have such a node, otherwise \
             their first node",
        ));
    let command = cluster_arguments().into_iter().fold(command, Command::arg);
    command.arg(ask::output()).arg(ask::socket())
}

/// Returns the flags for a live cluster.
fn cluster_arguments() -> [Arg; 7] {
    let flag = |name| Arg::new(name).long(name).conflicts_with("manifests");
    // Flags about created objects mean nothing where none are created.
    let making = |name| flag(name).conflicts_with("service");
    [
        making("namespace")
            .value_name("NAME")
            .value_parser(named)
            .help("Namespace for the pods and Services; without it, a new one"),
        making("kubeconfig")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Kubeconfig; - is standard input; without it, as kubectl")
            .long_help(
                "Kubeconfig file for creating them; - is standard input; without it, $KUBECONFIG, \
                 or .kube/config in the home directory",
            ),
        making("image")
            .value_name("IMAGE")
            .help("Image of the pods; without it, that of DaemonSet kube-proxy"),
        making("keep")
            .action(ArgAction::SetTrue)
            .help("Keep the pods and Services"),
        making("external-networks")
            .value_name("CIDR,...")
            .value_delimiter(',')
            .default_value(EXTERNAL)
            .value_parser(external)
            .help("Networks to use")
            .long_help("Networks from which external IPs and load-balancer IPs are taken"),
        flag("service")
            .value_name("NAMESPACE/NAME")
            .action(ArgAction::Append)
            .value_parser(service)
            .help("Create nothing, and call this Service; may be repeated"),
        flag("timeout")
            .value_name("DURATION")
            .default_value("2m")
            .value_parser(duration::parse)
            .help("How long they may take to become ready")
            .long_help("How long the pods and the running Tripod may take to become ready"),
    ]
}

/// Networks that no host is in (RFC 5737, RFC 3849).
const EXTERNAL: &str = "203.0.113.0/24,2001:db8:113::/48";

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

pub(super) fn read(matches: &ArgMatches) -> Test {
    let folder = matches.get_one::<PathBuf>("manifests").cloned();
    let place = match folder {
        Some(folder) => Place::Manifests(FolderTest {
            folder,
            mode: matches.get_one("proxy-mode").copied(),
            node: matches.get_one::<String>("hostname-override").cloned(),
        }),
        None => Place::Cluster(cluster(matches)),
    };
    Test {
        place,
        output: ask::chosen(matches),
    }
}

fn cluster(matches: &ArgMatches) -> Cluster {
    let services = matches.get_many::<(String, String)>("service");
    let timeout = matches.get_one::<Duration>("timeout").copied();
    Cluster {
        namespace: matches.get_one::<String>("namespace").cloned(),
        kubeconfig: matches.get_one::<PathBuf>("kubeconfig").cloned(),
        image: matches.get_one::<String>("image").cloned(),
        keep: matches.get_flag("keep"),
        external: (matches
            .get_many::<IpNet>("external-networks")
            .into_iter()
            .flatten())
        .copied()
        .collect(),
        services: services.into_iter().flatten().cloned().collect(),
        timeout: timeout.unwrap_or(Duration::from_secs(120)),
        socket: ask::chosen_socket(matches),
    }
}

pub(super) fn server_command() -> Command {
    TestServer::augment_args(Command::new("test-server"))
        .about("Answer calls of tripod test, in a pod that it made")
        .hide(true)
}

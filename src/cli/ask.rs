//! The subcommands that ask the running proxy: `tripod status`, `tripod services`,
//! `tripod explain`, `tripod diff`.

use std::{net::IpAddr, path::PathBuf};

use clap::{ArgMatches, Args, Subcommand, ValueEnum};

use super::Stop;
use crate::status_api::{Destination, SOCKET};

/// A question to the running proxy.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Ask {
    /// Show health and everything that is not applied
    #[command(after_long_help = STATUS_HELP)]
    Status(Status),
    /// List the Services that the running Tripod serves, and their endpoints
    #[command(visible_aliases = ["ls", "svc", "list"], after_long_help = SERVICES_HELP)]
    Services(Services),
    /// Explain where a packet to a Service goes, and why
    #[command(
        after_long_help = EXPLAIN_HELP,
        override_usage = "tripod explain [OPTIONS] <DESTINATION>"
    )]
    Explain(Explain),
    /// Show differences between the kernel and the desired state
    #[command(after_long_help = DIFF_HELP)]
    Diff(Common),
}

/// The probes of the kubelet for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// Whether the pod has to be restarted.
    Liveness,
    /// Whether the pod can replace the one before it.
    Readiness,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The most useful columns.
    Table,
    /// Everything, for people.
    Wide,
    /// The answer of the API, unchanged.
    Json,
    /// The same answer as YAML.
    Yaml,
}

/// The format of what a command prints: the same flag for all of them, even if `wide` adds nothing
/// to `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct Format {
    /// Output format: table, wide, json or yaml
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: Output,
}

/// The flags of all commands that ask the running proxy.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Common {
    /// How the answer is printed.
    #[command(flatten)]
    pub format: Format,
    /// Unix socket of the proxy
    #[arg(long = "status-socket", value_name = "PATH", default_value = SOCKET)]
    #[arg(long_help = "The unix socket of the running Tripod")]
    pub socket: PathBuf,
}

pub(super) const STATUS_HELP: &str = "\
Exits with 0 if the proxy is healthy, with 1 if it is not, and with 2 if it does not
answer or the command line is wrong. The proxy is healthy if the objects are known and
followed and all of them are valid, the last sync of each IP family succeeded, no change
has waited too long, every ServicePort is applied, and the addresses of probes, metrics
and health-check node ports can be served. If node ports or detectLocalMode depend on
this node's Node object, it must be known as well.

With --probe, it exits with 0 or 1 for a probe of the kubelet in the pod (exec):
liveness fails if a change has waited too long; readiness also fails until the first sync
of each IP family has succeeded. A family that was never applied is ignored once it has
waited too long while the other one is applied.";

pub(super) const SERVICES_HELP: &str = "\
ls, svc and list are aliases of this command. Exits with 0; with 1 if there is no such
Service or the namespace has none; and with 2 if the proxy does not answer or the command
line is wrong. Unknown values are shown as -.";

/// The settings of `tripod status`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Status {
    /// How the state is printed, and the running proxy.
    #[command(flatten)]
    pub common: Common,
    /// Answer a probe of the kubelet: liveness or readiness
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(
        long_help = "Answer a probe of the kubelet in this pod, liveness or readiness, and print \
                       only why it fails"
    )]
    pub probe: Option<Probe>,
}

pub(super) const EXPLAIN_HELP: &str = "\
Shows what happens to the first packet of a connection, or to the datagrams of a UDP
client: which Service it belongs to, the endpoints to which it may be sent, with their
shares, or why it is refused. The answer follows from the current Services; differences
between them and the state of the kernel are marked. Changes nothing and sends nothing.
Exits with 0; with 1 if the question makes no sense; and with 2 if the proxy does not
answer or cannot answer now, or the command line is wrong.

For a Service, it explains the cluster IPs. The default namespace is default.

Examples:
      tripod explain shop/web
      tripod explain kube-system/kube-dns:53/udp
      tripod explain 10.96.0.10:53/udp
      tripod explain 192.0.2.10:30080 --from 198.51.100.7";

/// A question about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Explain {
    /// Where it is sent.
    #[command(flatten)]
    pub to: Destination,
    /// How the answer is printed, and the running proxy.
    #[command(flatten)]
    pub common: Common,
    /// Who sends the packet: ADDRESS, pod, node or outside
    #[arg(long, value_name = "SENDER", value_parser = caller)]
    #[arg(
        long_help = "Who sends the packet: an address, any pod of this node (pod), this node \
                       (node), or any other host (outside). Without it: pod, or node if no cluster \
                       CIDR is known by which pods are distinguished"
    )]
    pub from: Option<String>,
    /// Answer from the Services only, without reading the kernel
    #[arg(long)]
    pub desired_only: bool,
}

fn caller(text: &str) -> Result<String, String> {
    let is_address = text.parse::<IpAddr>().is_ok();
    if is_address || matches!(text, "pod" | "node" | "outside") {
        Ok(text.to_owned())
    } else {
        Err("it must be an IP address, pod, node or outside".to_owned())
    }
}

pub(super) const DIFF_HELP: &str = "\
Reads the kernel and compares it with the desired state for the current Services;
changes nothing. Exits with 0 if nothing differs, with 1 if something does, and with 2 if
the proxy does not answer or cannot answer now, the kernel cannot be read, another Tripod
process serves, or the command line is wrong.";

/// Which ServicePorts are listed.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Services {
    /// How they are printed, and the running proxy.
    #[command(flatten)]
    pub common: Common,
    /// Continue, and print changes; on a terminal, update the table
    #[arg(long, short)]
    pub watch: bool,
    /// Show only this namespace, or only this Service
    #[arg(value_name = "NAMESPACE[/NAME]", value_parser = selected)]
    pub services: Option<(String, Option<String>)>,
}

impl Services {
    /// Returns these settings, unless parts of them contradict each other.
    pub(super) fn checked(self) -> Result<Services, Stop> {
        let is_table = matches!(self.common.format.output, Output::Table | Output::Wide);
        if self.watch && !is_table {
            return Err(Stop::refused(
                "--watch prints only tables: use --output=table or wide, or run the command again \
                 and again without --watch",
            ));
        }
        Ok(self)
    }
}

/// Returns the format that the flag `--output` of a subcommand chose.
pub fn chosen(matches: &ArgMatches) -> Output {
    let output = matches.try_get_one("output").ok().flatten();
    output.copied().unwrap_or(Output::Table)
}

/// Returns the namespace, and the name if `text` has one.
fn selected(text: &str) -> Result<(String, Option<String>), String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (namespace, Some(name)),
        None => (text, None),
    };
    // The characters of RFC 1035 and RFC 1123, which make up Kubernetes' names.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(plain);
    if !is_name(namespace) || !name.is_none_or(is_name) {
        return Err("it must be a namespace, or a namespace, a slash and a name".to_owned());
    }
    Ok((namespace.to_owned(), name.map(str::to_owned)))
}

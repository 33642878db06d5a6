//! The subcommands that ask the running proxy: `tripod status`, `tripod services`,
//! `tripod explain`, `tripod diff`.

use std::{net::IpAddr, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueEnum, value_parser};

use super::{destination, help};
use crate::status_api::{Destination, SOCKET};

/// A question to the running proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The question itself.
    pub question: Question,
    /// How the answer is printed.
    pub output: Output,
    /// The unix socket on which the proxy answers.
    pub socket: PathBuf,
}

/// The questions to the running proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The state of the proxy.
    Status,
    /// The same as a probe of its pod checks.
    Probe(Probe),
    /// The path of a packet.
    Explain(Explain),
    /// Differences between the kernel and the desired state.
    Diff,
    /// The ServicePorts that it serves, and their endpoints.
    Services {
        /// Only those of this namespace; `None`: of all.
        namespace: Option<String>,
        /// Only those of the Service of this name; `None`: of all.
        name: Option<String>,
        /// Whether they are shown once, or again on each change.
        repeat: Repeat,
    },
}

/// A question about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// Destination of the packet: an address with a port, or a Service.
    pub to: Destination,
    /// Sender: an address, `pod`, `node` or `outside`; `None`: `pod`, or `node` where pods are not
    /// known.
    pub from: Option<String>,
    /// Whether the state of the kernel is read.
    pub kernel: bool,
}

/// The probes of the kubelet for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// Whether the pod has to be restarted.
    Liveness,
    /// Whether the pod can replace the one before it.
    Readiness,
}

/// Whether something is shown again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is shown once.
    Never,
    /// The present state is shown, until the program is ended.
    OnChange,
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

const STATUS_HELP: &str = "\
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

const SERVICES_HELP: &str = "\
ls, svc and list are aliases of this command. Exits with 0; with 1 if there is no such
Service or the namespace has none; and with 2 if the proxy does not answer or the command
line is wrong. Unknown values are shown as -.";

pub(super) fn status() -> Command {
    let about = "Show health and everything that is not applied";
    let command = help::with_text(Command::new("status").about(about), STATUS_HELP);
    let probe = Arg::new("probe")
        .long("probe")
        .value_name("KIND")
        .value_parser(value_parser!(Probe))
        .hide_possible_values(true);
    common(command).arg(help::explained(
        probe,
        "Answer a probe of the kubelet: liveness or readiness",
        "Answer a probe of the kubelet in this pod, liveness or readiness, and print only why it \
         fails",
    ))
}

const EXPLAIN_HELP: &str = "\
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

pub(super) fn explain() -> Command {
    let about = "Explain where a packet to a Service goes, and why";
    let command = help::with_text(Command::new("explain").about(about), EXPLAIN_HELP);
    let from = Arg::new("from")
        .long("from")
        .value_name("SENDER")
        .value_parser(caller);
    let from = help::explained(
        from,
        "Who sends the packet: ADDRESS, pod, node or outside",
        "Who sends the packet: an address, any pod of this node (pod), this node (node), or any \
         other host (outside). Without it: pod, or node if no cluster CIDR is known by which pods \
         are distinguished",
    );
    let desired_only = Arg::new("desired-only")
        .long("desired-only")
        .action(ArgAction::SetTrue)
        .help("Answer from the Services only, without reading the kernel");
    common(destination::added(command))
        .arg(from)
        .arg(desired_only)
}

fn caller(text: &str) -> Result<String, String> {
    let is_address = text.parse::<IpAddr>().is_ok();
    if is_address || matches!(text, "pod" | "node" | "outside") {
        Ok(text.to_owned())
    } else {
        Err("it must be an IP address, pod, node or outside".to_owned())
    }
}

const DIFF_HELP: &str = "\
Reads the kernel and compares it with the desired state for the current Services;
changes nothing. Exits with 0 if nothing differs, with 1 if something does, and with 2 if
the proxy does not answer or cannot answer now, the kernel cannot be read, another Tripod
process serves, or the command line is wrong.";

pub(super) fn diff() -> Command {
    let about = "Show differences between the kernel and the desired state";
    common(help::with_text(
        Command::new("diff").about(about),
        DIFF_HELP,
    ))
}

pub(super) fn services() -> Command {
    let about = "List the Services that the running Tripod serves, and their endpoints";
    let command = Command::new("services").visible_aliases(["ls", "svc", "list"]);
    let command = help::with_text(command.about(about), SERVICES_HELP);
    let watch = Arg::new("watch")
        .long("watch")
        .short('w')
        .action(ArgAction::SetTrue)
        .help("Continue, and print changes; on a terminal, update the table");
    common(command).arg(watch).arg(
        Arg::new("services")
            .value_name("NAMESPACE[/NAME]")
            .value_parser(selected)
            .help("Show only this namespace, or only this Service"),
    )
}

fn common(command: Command) -> Command {
    command.arg(output()).arg(socket())
}

/// Returns the flag that names the socket of the running proxy.
pub(super) fn socket() -> Arg {
    Arg::new("socket")
        .long("status-socket")
        .value_name("PATH")
        .default_value(SOCKET)
        .help("Unix socket of the proxy")
        .long_help("The unix socket of the running Tripod")
}

/// Returns the socket that the flag of [`socket`] names.
pub(super) fn chosen_socket(matches: &ArgMatches) -> PathBuf {
    let socket = matches.get_one::<String>("socket");
    socket.map_or(SOCKET, String::as_str).into()
}

/// Returns the flag that chooses among the formats: the same for every subcommand that
/// prints an answer, even if `wide` adds nothing to `table`.
pub(super) fn output() -> Arg {
    Arg::new("output")
        .long("output")
        .short('o')
        .value_name("FORMAT")
        .value_parser(value_parser!(Output))
        .hide_possible_values(true)
        .default_value("table")
        .help("Output format: table, wide, json or yaml")
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

/// Reads the `matches` of the subcommand of that name; `None` if it is another subcommand.
///
/// # Errors
/// When parts of it contradict each other.
pub(super) fn read(subcommand: &str, matches: &ArgMatches) -> Result<Option<Ask>, String> {
    let output = chosen(matches);
    let question = match subcommand {
        "status" => {
            let probe = matches.get_one::<Probe>("probe");
            probe.map_or(Question::Status, |probe| Question::Probe(*probe))
        }
        "diff" => Question::Diff,
        "explain" => Question::Explain(Explain {
            to: destination::chosen(matches)?,
            from: matches.get_one::<String>("from").cloned(),
            kernel: !matches.get_flag("desired-only"),
        }),
        "services" => {
            let selected = matches.get_one::<(String, Option<String>)>("services");
            let (namespace, name) = selected.cloned().unzip();
            let repeat = if matches.get_flag("watch") {
                Repeat::OnChange
            } else {
                Repeat::Never
            };
            if repeat == Repeat::OnChange && matches!(output, Output::Json | Output::Yaml) {
                let why = "--watch prints only tables: use --output=table or wide, or run the \
                           command again and again without --watch";
                return Err(why.to_owned());
            }
            Question::Services {
                namespace,
                name: name.flatten(),
                repeat,
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Ask {
        question,
        output,
        socket: chosen_socket(matches),
    }))
}

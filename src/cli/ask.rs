//! The subcommands that ask the running proxy: `tripod status`, `tripod services`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::Format;
use crate::status_api::SOCKET;

/// A question to the running proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked for.
    pub question: Question,
    /// How the answer is printed.
    pub output: Output,
    /// The unix socket on which the proxy answers.
    pub socket: PathBuf,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// How the proxy is.
    Status,
    /// Which ServicePorts it serves, and how.
    Services {
        /// Those of this namespace alone.
        namespace: Option<String>,
        /// Those of the Service of this name alone.
        name: Option<String>,
        /// Whether that is shown once.
        repeat: Repeat,
    },
}

/// Whether something is shown again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is shown once.
    Never,
    /// It is shown as it is, until the program is ended.
    OnChange,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// What people mostly look for.
    Table,
    /// All that there is, for people.
    Wide,
    /// The API's answer.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Output {
    const ALL: [(&str, Output); 4] = [
        ("table", Output::Table),
        ("wide", Output::Wide),
        ("json", Output::Json),
        ("yaml", Output::Yaml),
    ];
}

const STATUS_HELP: &str = "\
Exits with 0 if the proxy is healthy, with 1 if it is not, and with 2 if it does
not answer or the command line is wrong. It is healthy when the objects are known
and followed, the last sync of each IP family came in force, no change waits for
too long, and every ServicePort is in force as asked.";

const SERVICES_HELP: &str = "\
Exits with 0, with 1 if there is no such Service, and with 2 if the proxy does not
answer or the command line is wrong. What is not known is shown as -.";

pub(super) fn status() -> Command {
    let about = "Print how the running Tripod is and what is not in force, and exit";
    common(Command::new("status").about(about).after_help(STATUS_HELP))
}

pub(super) fn services() -> Command {
    let about = "Print which Services and endpoints the running Tripod serves, and exit";
    let command = Command::new("services")
        .about(about)
        .after_help(SERVICES_HELP);
    let watch = Arg::new("watch")
        .long("watch")
        .short('w')
        .action(ArgAction::SetTrue)
        .help("Go on, and write what changes; on a terminal into the table");
    common(command).arg(watch).arg(
        Arg::new("services")
            .value_name("NAMESPACE[/NAME]")
            .value_parser(selected)
            .help("The namespace, or the Service, to print alone"),
    )
}

fn common(command: Command) -> Command {
    let names = Output::ALL.map(|(name, _)| name);
    command.arg(output(names)).arg(
        Arg::new("socket")
            .long("status-socket")
            .value_name("PATH")
            .default_value(SOCKET)
            .help("The unix socket of the running Tripod"),
    )
}

/// The flag that chooses among `formats`, of which the usual one is `table`.
pub(super) fn output<const FORMATS: usize>(formats: [&'static str; FORMATS]) -> Arg {
    Arg::new("output")
        .long("output")
        .short('o')
        .value_name("FORMAT")
        .value_parser(formats)
        .default_value("table")
        .help("How it is printed")
}

/// Returns the one that was chosen of table, JSON and YAML.
pub(super) fn format(matches: &ArgMatches) -> Format {
    match matches.get_one::<String>("output").map(String::as_str) {
        Some("json") => Format::Json,
        Some("yaml") => Format::Yaml,
        _ => Format::Table,
    }
}

/// Returns namespace and name.
fn selected(text: &str) -> Result<(String, Option<String>), String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (namespace, Some(name)),
        None => (text, None),
    };
    // The characters of RFC 1035 and RFC 1123, which Kubernetes' names have.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(plain);
    if !is_name(namespace) || !name.is_none_or(is_name) {
        return Err("it must be a namespace, or a namespace, a slash and a name".to_owned());
    }
    Ok((namespace.to_owned(), name.map(str::to_owned)))
}

/// Returns what `matches`, of the subcommand of that name, ask; `None`: it is another
/// subcommand.
///
/// # Errors
/// When parts of it do not go together.
pub(super) fn read(subcommand: &str, matches: &ArgMatches) -> Result<Option<Ask>, String> {
    let output = matches.try_get_one::<String>("output").ok().flatten();
    let output = output.and_then(|given| Output::ALL.into_iter().find(|(name, _)| name == given));
    let output = output.map_or(Output::Table, |(_, output)| output);
    let question = match subcommand {
        "status" => Question::Status,
        "services" => {
            let selected = matches.get_one::<(String, Option<String>)>("services");
            let (namespace, name) = selected.cloned().unzip();
            let repeat = if matches.get_flag("watch") {
                Repeat::OnChange
            } else {
                Repeat::Never
            };
            if repeat == Repeat::OnChange && matches!(output, Output::Json | Output::Yaml) {
                let why = "--watch writes a table: --output=table or wide; without it the API \
                           can be asked again and again";
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
    let socket = matches.get_one::<String>("socket");
    Ok(Some(Ask {
        question,
        output,
        socket: socket.map_or(SOCKET, String::as_str).into(),
    }))
}

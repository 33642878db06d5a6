//! The command line: kube-proxy's flags with kube-proxy's names and meanings,
//! Tripod's own flags, and the subcommands.

mod ask;
mod check;
mod cleanup;
mod commands;
mod destination;
mod documents;
mod ends;
mod flag;
mod flags;
mod help;
mod hold;
mod migrate;
mod options;
mod put;
mod settings;
mod test;
#[cfg(test)]
mod tests;
mod trace;
mod unknown;
mod used_flags;

use std::{
    ffi::OsString,
    fmt::Display,
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::{Command, FromArgMatches, Subcommand, parser::ValueSource};
use options::CommandLine;

pub use self::{
    ask::{Ask, Common, Explain, Format, Output, Probe, Services, Status, chosen as output},
    check::Check,
    cleanup::Cleanup,
    commands::Job,
    ends::Ends,
    hold::Hold,
    migrate::Migrate,
    options::{Options, Own, Periods, Version},
    put::{Unwritable, exit_status, fail, put},
    settings::Settings,
    test::{Cluster, Test, TestServer},
    trace::Trace,
};

const ABOUT: &str = "Service proxy for Kubernetes nodes, a drop-in replacement for kube-proxy";

const AFTER_HELP: &str = "\
With --config, the file determines all settings that it can express. Only these flags
still apply: --hostname-override, --master, --manifests, --node-weights,
--strict-proxy-mode, --without, --iptables-dispatch, --ipvs-drain-timeout,
--status-socket, --service-metrics, --metrics-secure-bind-address,
--tls-cert-file, --tls-private-key-file, those for logging and userspace mode, and
those under Running except --oom-score-adj and --feature-gates.

Examples:
  See what this kernel can run:
      tripod probe
  Serve the Services and EndpointSlices in a folder, no cluster needed:
      tripod --proxy-mode=userspace --manifests /etc/tripod/manifests
  Replace kube-proxy on a node that kubeadm set up:
      tripod --config /var/lib/kube-proxy/config.conf --hostname-override node-1
  Show what changes when Tripod replaces kube-proxy on this node:
      tripod migrate
  Show the health of the running Tripod, and one Service:
      tripod status
      tripod services default/web
  Check this node, and that calls from it to Services arrive:
      tripod check
  Explain where a packet goes, by which rule, and why not to an endpoint:
      tripod explain 10.96.0.10:53/udp
  Follow the next packets there through the rules of this node:
      tripod trace 10.96.0.10:53/udp
  Print the rules for a folder, without root and without changing the kernel:
      tripod render --proxy-mode=iptables --manifests /etc/tripod/manifests
  Remove what Tripod and kube-proxy installed in the kernel of this node:
      tripod cleanup";

const USAGE: &str = "tripod [OPTIONS]\n       tripod <COMMAND>";

/// Why the program ends before it does its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Requested text, for standard output.
    Answer(String),
    /// The command line or the configuration is wrong.
    Refusal(String),
}

impl Stop {
    fn refused(why: impl Display) -> Stop {
        Stop::Refusal(format!("error: {why}"))
    }

    /// Prints the text. Returns the exit status: 0; 1 if it cannot be written; 2 for a refusal.
    pub fn print(&self) -> ExitCode {
        match self {
            Stop::Answer(text) => match put(&format!("{text}\n")) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error, 1),
            },
            Stop::Refusal(text) => {
                let _ = writeln!(io::stderr(), "{text}");
                ExitCode::from(2)
            }
        }
    }
}

impl From<&clap::Error> for Stop {
    /// The text with which clap stops: requested help, or the error.
    fn from(error: &clap::Error) -> Stop {
        let text = error.render().to_string().trim_end().to_owned();
        if error.use_stderr() {
            Stop::Refusal(text)
        } else {
            Stop::Answer(text)
        }
    }
}

/// Reads the command line of this process and the configuration file that it
/// names.
///
/// # Errors
/// The same as of [`read`].
pub fn from_process() -> Result<Settings, Stop> {
    read(std::env::args_os(), |path| fs::read_to_string(path))
}

/// Reads a command line, program name first; `read_file` returns the text of a file that
/// it names.
///
/// # Errors
/// The program ends at once: because of `--help`, `--help-all` or `--version`, or because
/// something is wrong.
pub fn read(
    arguments: impl IntoIterator<Item = OsString>,
    read_file: impl Fn(&Path) -> io::Result<String>,
) -> Result<Settings, Stop> {
    settings::settle(parse(arguments)?, read_file)
}

/// The definition of the command line for clap.
pub fn command() -> Command {
    let command = Command::new("tripod")
        .about(ABOUT)
        .args_conflicts_with_subcommands(true)
        .override_usage(USAGE);
    let command = Job::augment_subcommands(command).mut_subcommands(used_flags::added);
    let all = format!("{}\n\n{AFTER_HELP}", help::VALUES);
    help::with_flags(with_flags(command).after_long_help(all))
}

/// Gives `command` the flags of the proxy, the most used of them in the short help.
fn with_flags(command: Command) -> Command {
    let command = command.after_help(help::MORE_FLAGS);
    let command = command.after_long_help(help::VALUES);
    command.args(flags::with_headings().map(|(heading, flag)| flag.arg(heading)))
}

/// Returns the definition by which arguments are read: it accepts more than it shows, and
/// shows subcommands in groups.
fn accepted() -> Command {
    used_flags::accepting_all(help::grouped(command()))
}

/// Returns the text with which clap stops; if something is wrong, with what is likely meant.
fn stopped(error: clap::Error, words: &[OsString]) -> Stop {
    if error.use_stderr() {
        Stop::Refusal(unknown::text(error, &command(), words))
    } else {
        Stop::from(&error)
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, Stop> {
    let arguments = arguments
        .into_iter()
        .map(|argument| match argument.to_str() {
            Some(text) => normalized(text).into(),
            None => argument,
        });
    let arguments = without_empty(arguments);
    let matches = accepted().try_get_matches_from(&arguments);
    let matches = matches.map_err(|error| stopped(error, &arguments))?;
    let mut job = None;
    if matches.subcommand().is_some() {
        let given = Job::from_arg_matches(&matches);
        job = Some(given.map_err(|error| Stop::from(&error))?.checked()?);
    }
    let matches = match (&job, matches.subcommand()) {
        (Some(Job::Cleanup(_) | Job::Probe(_) | Job::Render), Some((_, matches))) => matches,
        (Some(_), _) => {
            return Ok(CommandLine {
                options: Options::default(),
                given: Vec::new(),
                job,
            });
        }
        (None, _) => &matches,
    };
    let mut options = Options::default();
    let mut given = Vec::new();
    for flag in flags::all() {
        if matches.value_source(flag.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values = matches.get_many::<String>(flag.name);
        for value in values.clone().into_iter().flatten() {
            flag.set(&mut options, value).map_err(|why| {
                let name = flag.name;
                Stop::refused(format!("invalid value '{value}' for '--{name}': {why}"))
            })?;
        }
        given.push((flag.name, flag.joined(values.into_iter().flatten())));
    }
    Ok(CommandLine {
        options,
        given,
        job,
    })
}

/// Returns the arguments without empty ones that are no flag's value: templates of
/// manifests leave them behind, and kube-proxy ignores them.
fn without_empty(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut remaining: Vec<OsString> = Vec::new();
    let mut is_value = true; // The first is the program's name.
    for argument in arguments {
        if argument.is_empty() && !is_value {
            continue;
        }
        let text = argument.to_str().filter(|_| !is_value);
        is_value = text.is_some_and(|text| flags::all().any(|flag| flag.is_before_value(text)));
        remaining.push(argument);
    }
    remaining
}

/// Replaces underscores in a flag's name by dashes, as kube-proxy does
/// (`WordSepNormalizeFunc` of k8s.io/component-base).
fn normalized(argument: &str) -> String {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    if !name.starts_with("--") || !name.contains('_') {
        return argument.to_owned();
    }
    let name = name.replace('_', "-");
    match value {
        Some(value) => format!("{name}={value}"),
        None => name,
    }
}

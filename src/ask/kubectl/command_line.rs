//! The command line of `kubectl tripod`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::Kubectl;
use crate::cli::{self, Check, Output, Stop};

/// The commands that can be run in the pod.
const COMMANDS: [&str; 6] = ["status", "services", "explain", "trace", "diff", "check"];

const ABOUT: &str = "\
Ask the Tripod of a node of the cluster. kubectl finds its pod and runs the command in it.";

const EXAMPLES: &str = "\
Examples:
      kubectl tripod check
      kubectl tripod status --all-nodes
      kubectl tripod services default/web --node node-1
      kubectl tripod explain 10.96.0.10:53/udp --pod shop/cart-0
      kubectl tripod trace --to shop/web:http --node node-1";

/// A command line of `kubectl tripod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) kubectl: Kubectl,
    pub(super) target: Target,
    /// The command for the pod, without the program's name.
    pub(super) command: Vec<OsString>,
    /// The settings of `check`, if that is the command: it is run on all nodes unless one is named.
    pub(super) check: Option<Check>,
    /// How the answers of all nodes are printed.
    pub(super) output: Output,
}

/// The Tripod that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// That of the node of this name.
    Node(String),
    /// That of the node on which this pod runs.
    NodeOf(String),
    /// The only one.
    Only,
    /// Each.
    AllNodes,
}

/// The flags that are not for the pod. All but `all-nodes` have a value.
const FLAGS: [(&str, &str, &str); 6] = [
    ("node", "NAME", "Ask the Tripod of this node"),
    (
        "pod",
        "[NAMESPACE/]NAME",
        "Ask the Tripod of the node on which this pod runs",
    ),
    ("context", "NAME", "Context of the kubeconfig"),
    ("kubeconfig", "FILE", "How to reach the API server"),
    (
        "tripod-namespace",
        "NAMESPACE",
        "Namespace of Tripod's pods [default: kube-system]",
    ),
    (
        "tripod-selector",
        "LABELS",
        "Labels of Tripod's pods [default: k8s-app=kube-proxy]",
    ),
];
const ALL_NODES: &str = "all-nodes";

fn flags() -> impl Iterator<Item = Arg> {
    FLAGS.into_iter().map(|(name, value, help)| {
        let arg = Arg::new(name).long(name).value_name(value).help(help);
        arg.help_heading("Which Tripod")
    })
}

/// Returns the definition for clap: the commands of `tripod`, each with the flags that choose
/// whom to ask.
pub fn command() -> Command {
    let command = Command::new("kubectl tripod")
        .bin_name("kubectl tripod")
        .about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true);
    let all = cli::command();
    let commands = COMMANDS.into_iter().filter_map(|name| {
        let command = all.find_subcommand(name)?.clone().args(flags());
        Some(match name {
            "status" => command.arg(
                Arg::new(ALL_NODES)
                    .long(ALL_NODES)
                    .action(ArgAction::SetTrue)
                    .conflicts_with_all(["node", "pod", "probe"])
                    .help("Print one line for each node")
                    .help_heading("Which Tripod"),
            ),
            _ => command,
        })
    });
    command.subcommands(commands)
}

/// Reads a command line, program name first.
///
/// # Errors
/// The program ends at once, because of `--help` or because something is wrong.
pub(super) fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Asked, Stop> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = command().try_get_matches_from(&arguments);
    let matches = matches.map_err(|error| Stop::from(&error))?;
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Stop::Refusal("error: name a command".to_owned()));
    };
    let check = (name == "check").then(|| Check::from_arg_matches(matches));
    Ok(Asked {
        kubectl: kubectl(matches),
        target: target(matches),
        check: check.transpose().map_err(|error| Stop::from(&error))?,
        command: for_the_pod(arguments.into_iter().skip(1)),
        output: cli::output(matches),
    })
}

fn given(matches: &ArgMatches, flag: &str) -> Option<String> {
    matches.get_one::<String>(flag).cloned()
}

fn kubectl(matches: &ArgMatches) -> Kubectl {
    let of = |flag: &str| Some(format!("--{flag}={}", given(matches, flag)?));
    let flags = ["context", "kubeconfig"].into_iter().filter_map(of);
    let or = |flag, default: &str| given(matches, flag).unwrap_or_else(|| default.to_owned());
    Kubectl {
        flags: flags.collect(),
        namespace: or("tripod-namespace", "kube-system"),
        selector: or("tripod-selector", "k8s-app=kube-proxy"),
    }
}

fn target(matches: &ArgMatches) -> Target {
    let all = matches.try_get_one::<bool>(ALL_NODES).ok().flatten();
    if all == Some(&true) {
        return Target::AllNodes;
    }
    match (given(matches, "node"), given(matches, "pod")) {
        (Some(node), _) => Target::Node(node),
        (None, Some(pod)) => Target::NodeOf(pod),
        (None, None) => Target::Only,
    }
}

/// Returns the arguments without the flags that choose whom to ask.
fn for_the_pod(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut left = Vec::new();
    let mut is_value = false;
    for argument in arguments {
        if std::mem::take(&mut is_value) {
            continue;
        }
        let flag = argument.to_str().and_then(|text| text.strip_prefix("--"));
        let (name, has_value) = match flag.map(|flag| flag.split_once('=')) {
            Some(Some((name, _))) => (name, true),
            _ => (flag.unwrap_or_default(), false),
        };
        if FLAGS.iter().any(|(known, ..)| *known == name) {
            is_value = !has_value;
        } else if name != ALL_NODES {
            left.push(argument);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, Stop> {
        read(line.split(' ').map(OsString::from))
    }

    #[test]
    fn what_chooses_whom_to_ask_stays_here_and_the_rest_is_for_the_pod() {
        let cases = [
            ("status", Target::Only, "status"),
            (
                "status --all-nodes -o wide",
                Target::AllNodes,
                "status -o wide",
            ),
            (
                "services default/web --node=n1 --watch",
                Target::Node("n1".to_owned()),
                "services default/web --watch",
            ),
            (
                "check --node n1 --timeout=5s",
                Target::Node("n1".to_owned()),
                "check --timeout=5s",
            ),
            (
                "explain --pod shop/cart --to 10.96.0.10:53/udp --context c",
                Target::NodeOf("shop/cart".to_owned()),
                "explain --to 10.96.0.10:53/udp",
            ),
        ];
        for (line, target, command) in cases {
            let asked = asked(&format!("kubectl-tripod {line}")).expect(line);
            assert_eq!(asked.target, target, "{line}");
            let words: Vec<_> = asked
                .command
                .iter()
                .map(|word| word.to_str().unwrap())
                .collect();
            assert_eq!(words.join(" "), command, "{line}");
        }
        let kubectl = asked("kubectl-tripod diff --context c --tripod-namespace=x")
            .unwrap()
            .kubectl;
        assert_eq!(kubectl.flags, ["--context=c"]);
        assert_eq!(kubectl.namespace, "x");
    }

    #[test]
    fn what_cannot_be_asked_is_refused_before_the_cluster_is_asked() {
        for line in [
            "status --node n --all-nodes",
            "status --node",
            "services --all-nodes",
            "check --image=i",
            "services a/b/c",
            "cleanup --node n",
            "--proxy-mode=ipvs",
        ] {
            let refused = asked(&format!("kubectl-tripod {line}"));
            assert!(
                matches!(refused, Err(Stop::Refusal(_))),
                "{line}: {refused:?}"
            );
        }
    }
}

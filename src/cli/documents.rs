//! What is generated from the definition of the command line: completion for shells, and
//! pages for man(1).

use clap::{Arg, ArgMatches, Command};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

const PROGRAM: &str = "tripod";

/// Each subcommand, and the name of its page.
const PAGES: [(&str, &str); 13] = [
    ("cleanup", "tripod-cleanup"),
    ("completion", "tripod-completion"),
    ("diff", "tripod-diff"),
    ("explain", "tripod-explain"),
    ("hold", "tripod-hold"),
    ("man", "tripod-man"),
    ("migrate", "tripod-migrate"),
    ("probe", "tripod-probe"),
    ("render", "tripod-render"),
    ("services", "tripod-services"),
    ("status", "tripod-status"),
    ("test", "tripod-test"),
    ("trace", "tripod-trace"),
];

pub(super) fn completion() -> Command {
    let about = "Print a script that completes commands and flags in a shell, and exit";
    Command::new("completion").about(about).arg(
        Arg::new("shell")
            .value_name("SHELL")
            .value_parser(["bash", "fish", "zsh"])
            .required(true)
            .help("The shell that is to read the script"),
    )
}

pub(super) fn man() -> Command {
    let about = "Print the manual page of Tripod or of a subcommand, as man(1) reads it, and exit";
    let arg = Arg::new("command")
        .value_name("COMMAND")
        .value_parser(PAGES.map(|(name, _)| name))
        .hide_possible_values(true)
        .help("The subcommand whose page is printed");
    Command::new("man").about(about).arg(arg)
}

/// Returns the text that `matches`, of the subcommand of that name, request; `None`: it
/// is another subcommand. `command` returns the definition of the command line.
pub(super) fn asked(name: &str, matches: &ArgMatches, command: fn() -> Command) -> Option<String> {
    let word = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    match name {
        "completion" => Some(script(word("shell")?, command())),
        "man" => Some(page(word("command"), command())),
        _ => None,
    }
}

fn script(shell: &str, mut command: Command) -> String {
    let mut script = Vec::new();
    match shell {
        "fish" => generate(Fish, &mut command, PROGRAM, &mut script),
        "zsh" => generate(Zsh, &mut command, PROGRAM, &mut script),
        _ => generate(Bash, &mut command, PROGRAM, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

fn page(of: Option<&str>, mut command: Command) -> String {
    let of = PAGES.iter().find(|(name, _)| Some(*name) == of);
    if let Some((name, title)) = of
        && let Some(subcommand) = command.find_subcommand(name)
    {
        command = subcommand.clone().name(*title);
    }
    let version = concat!("Tripod ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).section("8").source(version);
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

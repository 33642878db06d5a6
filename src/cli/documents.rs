//! Documents that the program prints about itself: its version, completion for shells, and pages
//! for man(1).

use clap::{Arg, ArgMatches, Command};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

use super::{
    help::{COMMANDS, HELP},
    options::Version,
    settings,
};

const PROGRAM: &str = "tripod";

pub(super) fn completion() -> Command {
    let about = "Print a script for shell completion of commands and flags";
    Command::new("completion").about(about).arg(
        Arg::new("shell")
            .value_name("SHELL")
            .value_parser(["bash", "fish", "zsh"])
            .required(true)
            .help("The shell that will read the script"),
    )
}

pub(super) fn man() -> Command {
    let about = "Print the manual page of Tripod or of a command, for man(1)";
    let mut pages = COMMANDS.map(|(_, names)| names).concat();
    pages.retain(|name| *name != HELP);
    pages.sort_unstable();
    let arg = Arg::new("command")
        .value_name("COMMAND")
        .value_parser(pages)
        .hide_possible_values(true)
        .help("The command whose manual page is printed");
    Command::new("man").about(about).arg(arg)
}

pub(super) fn version() -> Command {
    Command::new("version").about("Print the version")
}

/// Returns the text that the subcommand of that name prints with these `matches`; `None` if it is
/// another subcommand. `command` returns the definition of the command line.
pub(super) fn asked(name: &str, matches: &ArgMatches, command: fn() -> Command) -> Option<String> {
    let word = |id: &str| matches.get_one::<String>(id).map(String::as_str);
    match name {
        "completion" => Some(script(word("shell")?, command())),
        "man" => Some(page(word("command"), command())),
        "version" => settings::version(&Version::Line),
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
    // This gives subcommands the names by which they are called.
    command.build();
    if let Some(subcommand) = of.and_then(|name| command.find_subcommand(name)) {
        command = subcommand.clone();
    }
    // Without it, the synopsis would have every flag.
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let command = command.override_usage(usage);
    let version = concat!("Tripod ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).section("8").source(version);
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = man.render(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

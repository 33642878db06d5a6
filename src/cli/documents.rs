//! Documents that the program prints about itself: completion for shells, and pages
//! for man(1).

use clap::Command;
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

use super::help::{COMMANDS, HELP};

const PROGRAM: &str = "tripod";

/// Returns the names of all commands that have a manual page.
pub(super) fn pages() -> Vec<&'static str> {
    let mut pages = COMMANDS.map(|(_, names)| names).concat();
    pages.retain(|name| *name != HELP);
    pages.sort_unstable();
    pages
}

pub(super) fn script(shell: &str, mut command: Command) -> String {
    let mut script = Vec::new();
    match shell {
        "fish" => generate(Fish, &mut command, PROGRAM, &mut script),
        "zsh" => generate(Zsh, &mut command, PROGRAM, &mut script),
        _ => generate(Bash, &mut command, PROGRAM, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

pub(super) fn page(of: Option<&str>, mut command: Command) -> String {
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

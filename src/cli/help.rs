//! The two forms of the help: `--help` has a line for each of the most used flags,
//! `--help-all` has the complete text. Manual pages have the latter.

use clap::{Arg, ArgAction, Command};

/// How a flag's value is written.
pub(super) const VALUES: &str =
    "A flag is written --flag=value or --flag value; a BOOL alone means true.";

/// Text where the short help leaves out flags.
pub(super) const MORE_FLAGS: &str = "These are the most used flags; --help-all shows all.";

/// Text where the short help leaves out the explanations after the flags.
pub(super) const MORE_TEXT: &str =
    "--help-all shows more: what exactly the command does, its exit status, examples.";

/// The subcommands by the headings that they have in the help.
pub(super) const COMMANDS: [(&str, &[&str]); 4] = [
    (
        "Try out and compare",
        &["probe", "migrate", "render", "test"],
    ),
    (
        "Query the running Tripod",
        &["status", "services", "explain", "trace", "diff", "check"],
    ),
    ("Keep sockets and clean up", &["hold", "cleanup"]),
    ("This program", &["version", "completion", "man", HELP]),
];

/// The subcommand that clap adds.
pub(super) const HELP: &str = "help";

/// Columns for the text of the long help, without its indentation.
const COLUMNS: usize = 80;

/// Gives `command` and its subcommands flags for both forms, in place of clap's, whose
/// `--help` is the long form, and breaks the lines of the long form. The short one says where there
/// is more.
pub(super) fn with_flags(mut command: Command) -> Command {
    if command.get_after_help().is_none() && command.get_after_long_help().is_some() {
        command = command.after_help(MORE_TEXT);
    }
    let command = command.mut_args(|arg| match arg.get_long_help().map(ToString::to_string) {
        Some(text) => arg.long_help(wrapped(&text)),
        None => arg,
    });
    let short = Arg::new("help")
        .long("help")
        .short('h')
        .action(ArgAction::HelpShort)
        .help("Print a summary of the help");
    let long = Arg::new("help-all")
        .long("help-all")
        .action(ArgAction::HelpLong)
        .help("Print the complete help");
    let command = command.disable_help_flag(true).arg(short).arg(long);
    command.mut_subcommands(with_flags)
}

/// Lists the subcommands of `command`, the program, by [`COMMANDS`] in its help.
pub(super) fn grouped(command: Command) -> Command {
    // clap has one heading for all subcommands, so it must show none, and the list is
    // added as text.
    let list = list(&command);
    command
        .mut_subcommands(|subcommand| subcommand.hide(true))
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{{all-args}}{{after-help}}"
        ))
}

/// Lists the subcommands of `command`, the program, by [`COMMANDS`].
pub(super) fn list(command: &Command) -> String {
    let about = |name: &&str| match command.find_subcommand(name) {
        Some(subcommand) => subcommand.get_about().map(ToString::to_string),
        None => (*name == HELP).then(|| "Print the complete help, or that of a command".to_owned()),
    };
    let mut list = String::new();
    for (heading, names) in COMMANDS {
        let lines = names.iter().map(|name| {
            let about = about(name).unwrap_or_default();
            format!("  {name:<10}  {about}\n")
        });
        list.push_str(&format!("{heading}:\n{}\n", lines.collect::<String>()));
    }
    list
}

/// Returns `text` in lines that fit next to the indentation of the long help.
pub(super) fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > COLUMNS {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += word.len();
    }
    lines
}

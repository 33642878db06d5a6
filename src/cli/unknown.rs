//! The text about a command line that clap refuses: it suggests a flag that is likely meant, and
//! lists the commands if a word is not one of them.

use std::ffi::OsString;

use clap::{
    Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::help;

/// Returns the text about `error` in the command line `words` of `program`.
pub(super) fn text(mut error: Error, program: &Command, words: &[OsString]) -> String {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && program.find_subcommand(word).is_none()
    {
        return of_word(&error, word, program);
    }
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
    {
        let mut subcommands = words.iter().skip(1);
        let subcommand = subcommands.find_map(|word| program.find_subcommand(word));
        if let Some(meant) = flag_with_words(subcommand.unwrap_or(program), flag) {
            let meant = ContextValue::String(format!("--{meant}"));
            error.insert(ContextKind::SuggestedArg, meant);
        }
    }
    error.render().to_string().trim_end().to_owned()
}

/// Returns the text about `word`, which is no command.
fn of_word(error: &Error, word: &str, program: &Command) -> String {
    let text = error.render().to_string();
    let what = match error.kind() {
        ErrorKind::InvalidSubcommand => text.split("\n\nUsage:").next().unwrap_or(&text).to_owned(),
        // After a flag, clap knows no commands.
        _ => format!("error: unrecognized subcommand '{word}'"),
    };
    let list = help::list(program);
    format!("{what}\n\n{list}For more information, try '--help'.")
}

/// Finds the flag of `command` whose name has all words of `unknown`: for `--mode`, `proxy-mode`.
/// If there are several, a common flag is preferred, then a short name.
fn flag_with_words<'a>(command: &'a Command, unknown: &str) -> Option<&'a str> {
    let words = unknown.strip_prefix("--")?;
    let has_all = |name: &str| {
        let mut words = words.split('-');
        words.all(|word| name.split('-').any(|part| part == word))
    };
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let named = shown.filter_map(|arg| Some((arg.is_hide_short_help_set(), arg.get_long()?)));
    let meant = named.filter(|(_, name)| has_all(name));
    let meant = meant.min_by_key(|(is_rare, name)| (*is_rare, name.len()));
    meant.map(|(_, name)| name)
}

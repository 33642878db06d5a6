//! docs/flags.md: the flags that kube-proxy does not have, as the program describes them.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::PathBuf};

use clap::Arg;
use tripod::cli;

use super::root;

const KUBE_PROXY: &str = include_str!("../config/kube-proxy-1.36-flags.tsv");

const HEAD: &str = "\
# Flags

These are the flags of the proxy that kube-proxy 1.36 does not have. They also apply next to a configuration file,
which has no fields for them. [Settings](settings.md) describes where to write them. `tripod --help-all` lists those
of kube-proxy as well. Each command has flags of its own: `tripod trace --help-all` shows those of [that
command](commands.md#tripod-trace), for example.

This page is generated from the program.
";

/// A flag that alone means true, or another value, is shown without a value.
fn name(arg: &Arg, long: &str) -> String {
    let takes_value = arg
        .get_num_args()
        .is_none_or(|range| range.min_values() > 0);
    match arg.get_value_names() {
        Some([value, ..]) if takes_value => format!("`--{long} {value}`"),
        _ => format!("`--{long}`"),
    }
}

/// Returns the help as text of a cell, and the default that it ends with.
fn meaning(arg: &Arg) -> (String, String) {
    let help = arg.get_long_help().or(arg.get_help()).expect("a help");
    let help = help.to_string();
    let words: Vec<&str> = help.split_whitespace().collect();
    let text = words.join(" ");
    let (text, default) = match text.rsplit_once(" [default: ") {
        Some((text, default)) => (text, format!("`{}`", default.trim_end_matches(']'))),
        None => (text.as_str(), String::new()),
    };
    let text = text.replace('|', "\\|").replace('<', "\\<");
    (text.replace('*', "\\*"), default)
}

fn document() -> String {
    let theirs: BTreeSet<&str> = KUBE_PROXY
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    let command = cli::command();
    let mut text = HEAD.to_owned();
    let mut heading = None;
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let (Some(long), Some(of)) = (arg.get_long(), arg.get_help_heading()) else {
            continue;
        };
        if theirs.contains(long) {
            continue;
        }
        if heading != Some(of) {
            let _ = write!(
                text,
                "\n## {of}\n\n| flag | default | meaning |\n|---|---|---|\n"
            );
            heading = Some(of);
        }
        let (meaning, default) = meaning(arg);
        let _ = writeln!(text, "| {} | {default} | {meaning} |", name(arg, long));
    }
    text
}

fn path() -> PathBuf {
    root().join("docs/flags.md")
}

#[test]
fn the_page_of_flags_is_current() {
    let text = fs::read_to_string(path()).unwrap_or_default();
    let current = document();
    assert!(
        text == current,
        "write it by the ignored test docs::flags::write:\n{current}"
    );
}

#[test]
#[ignore = "writes docs/flags.md"]
fn write() {
    fs::write(path(), document()).expect("docs/flags.md");
}

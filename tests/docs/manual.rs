//! The pages for man(1), as groff reads them.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use tripod::cli::{self, Stop};

use crate::lab::skip;

/// Renders the page of a subcommand, or that of the program.
fn page(of: Option<&str>) -> String {
    let words = ["tripod", "man"].into_iter().chain(of);
    match cli::read(words.map(Into::into), |_| Ok(String::new())) {
        Err(Stop::Answer(page)) => page + "\n",
        other => panic!("{of:?}: {other:?}"),
    }
}

/// Makes groff format `page`, with all its warnings.
fn formatted(page: &str) -> Output {
    let mut groff = Command::new("groff")
        .args(["-ww", "-man", "-Kutf8", "-Tutf8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("running groff");
    let mut input = groff.stdin.take().expect("it is piped");
    let written = std::thread::scope(|scope| {
        let written = scope.spawn(move || input.write_all(page.as_bytes()));
        let output = groff.wait_with_output().expect("its output");
        (written.join().expect("no panic"), output)
    });
    written.0.expect("groff reads it");
    written.1
}

#[test]
fn every_page_is_formatted_without_a_warning() {
    if Command::new("groff").arg("--version").output().is_err() {
        return skip("groff is not installed");
    }
    let command = cli::command();
    let man = command.find_subcommand("man").expect("a subcommand");
    let argument = man.get_positionals().next().expect("an argument");
    let named = argument.get_possible_values();
    let named = named.iter().map(|value| Some(value.get_name()));
    let pages: Vec<_> = std::iter::once(None).chain(named).collect();
    assert!(pages.len() > 10, "{pages:?}");
    for of in pages {
        let page = page(of);
        let last = page.lines().last().unwrap_or_default();
        assert!(
            !last.starts_with(".SH"),
            "{of:?} ends with an empty section"
        );
        let done = formatted(&page);
        let warnings = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && warnings.is_empty(),
            "{of:?}: {warnings}"
        );
        let text = String::from_utf8_lossy(&done.stdout);
        let name = of.map_or("tripod".to_owned(), |name| format!("tripod-{name}"));
        assert!(text.contains(&name), "{of:?}: {text}");
    }
}

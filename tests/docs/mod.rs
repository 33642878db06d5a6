//! The statements of the documents hold: links have a target, commands and flags are those of the
//! program, commands of others name existing objects, and the contents list every page.

mod book;
mod commands;
mod dependencies;
mod figures;
mod flags;
mod inline;
mod kubectl;
mod manual;
mod recording;
mod shell;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use tripod::{ask::kubectl as plugin, cli};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The documents for users, and those of `docs/development`, by their paths.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut paths: Vec<PathBuf> = ["", "deploy", "deploy/helm/tripod"]
        .map(|folder| root().join(folder).join("README.md"))
        .into();
    for folder in ["docs", "docs/development"] {
        let pages = fs::read_dir(root().join(folder)).expect("a folder");
        let pages = pages.map(|entry| entry.expect("an entry").path());
        paths.extend(pages.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    }
    let read = |path: PathBuf| (path.clone(), fs::read_to_string(&path).expect("a document"));
    paths.into_iter().map(read).collect()
}

/// A document's code and its other text.
#[derive(Default)]
pub struct Parts {
    /// Commands of fenced blocks marked `sh`, one per line, continued lines joined.
    commands: Vec<String>,
    /// The texts between backticks in running text.
    code: Vec<String>,
    /// The first lines of other fenced blocks, which have no mark.
    unmarked: Vec<String>,
    /// Running text, without code.
    pub text: String,
    /// Anchors of headings, as GitHub and mdBook make them.
    anchors: BTreeSet<String>,
}

pub fn parts(document: &str) -> Parts {
    let mut parts = Parts::default();
    let mut fence: Option<bool> = None;
    let mut is_first = false;
    let mut running = String::new();
    let mut open = String::new();
    for line in document.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = match fence {
                None => {
                    is_first = language.is_empty();
                    Some(language == "sh")
                }
                Some(_) => None,
            };
            continue;
        }
        match fence {
            Some(true) => {
                open.push_str(line.trim());
                let goes_on = open.ends_with('|');
                if let Some(begun) = open.strip_suffix('\\') {
                    open = begun.to_owned();
                } else if goes_on {
                    open.push(' ');
                } else {
                    parts.commands.push(std::mem::take(&mut open));
                }
            }
            Some(false) => {
                if std::mem::take(&mut is_first) {
                    parts.unmarked.push(line.trim().to_owned());
                }
            }
            None => {
                if let Some(heading) = line.strip_prefix('#') {
                    parts
                        .anchors
                        .insert(anchor(heading.trim_start_matches('#')));
                }
                running.push_str(line);
                running.push('\n');
            }
        }
    }
    for (number, piece) in running.split('`').enumerate() {
        if number % 2 == 1 {
            let words: Vec<&str> = piece.split_whitespace().collect();
            parts.code.push(words.join(" "));
        } else {
            parts.text.push_str(piece);
        }
    }
    parts
}

fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.trim().to_lowercase().chars().filter(kept).collect();
    text.replace(' ', "-")
}

/// Finds the targets of links and pictures.
pub fn links(text: &str) -> Vec<String> {
    let after = text.split("](").skip(1);
    let targets = after.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let mut broken = Vec::new();
    for (path, document) in &documents {
        for link in links(&parts(document).text) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            let Ok(target) = target.canonicalize() else {
                broken.push(format!("{}: {link}", path.display()));
                continue;
            };
            let known = documents.get(&target).map(|text| parts(text).anchors);
            if !heading.is_empty() && !known.is_some_and(|known| known.contains(heading)) {
                broken.push(format!("{}: no heading {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_contents_list_every_page_once() {
    let summary = root().join("docs/SUMMARY.md");
    let listed = links(&fs::read_to_string(&summary).expect("SUMMARY.md"));
    let folder = summary.parent().expect("docs");
    let there: BTreeSet<String> = (documents().keys())
        .filter(|path| **path != summary)
        .filter_map(|path| path.strip_prefix(folder).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    assert_eq!(listed.len(), there.len(), "{listed:?}");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), there);
}

/// Finds the calls of Tripod in a line of shell, as words, program name first.
fn calls(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut calls = Vec::new();
    for part in line.split(['|', ';', '&']) {
        let part = part.split('>').next().unwrap_or_default();
        let words = part
            .split_whitespace()
            .map(|word| word.trim_matches('"').to_owned());
        let words: Vec<String> = words.collect();
        let program = |word: &String| Path::new(word).file_name().is_some_and(|n| n == "tripod");
        // In a command line of another program, such as kubectl exec, it follows `--`.
        let begin = match words.first() {
            Some(first) if program(first) => Some(0),
            _ => words.iter().position(|word| word == "--").map(|at| at + 1),
        };
        let called = begin.and_then(|at| words.get(at..));
        if let Some(called) = called.filter(|called| called.first().is_some_and(program)) {
            calls.push(called.to_vec());
        }
    }
    calls
}

/// Checks a command line; `...` stands for more flags, and brackets enclose optional parts.
fn check(words: &[String]) -> Result<(), String> {
    let words = words
        .iter()
        .filter(|word| *word != "..." && !word.starts_with('['));
    let parsed = cli::command().try_get_matches_from(words);
    match parsed {
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn commands_are_understood() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, document) in documents() {
        let parts = parts(&document);
        let inline = parts.code.iter().filter(|code| code.starts_with("tripod "));
        for line in parts.commands.iter().chain(inline) {
            for call in calls(line) {
                checked += 1;
                if let Err(error) = check(&call) {
                    wrong.push(format!("{}: {line}\n{error}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "{checked} commands found");
}

#[test]
fn flags_are_those_of_the_program() {
    let programs = [cli::command(), plugin::command()];
    let commands = programs
        .iter()
        .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
    let known: BTreeSet<String> = commands
        .flat_map(|command| command.get_arguments())
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    let mut wrong = BTreeSet::new();
    let mut found = BTreeSet::new();
    for (path, document) in documents() {
        let code = parts(&document).code;
        // Code that is a command of another program is checked as such.
        for code in code.iter().filter(|code| !inline::is_command(code)) {
            for flag in inline::flags(code) {
                if known.contains(flag) {
                    found.insert(flag.to_owned());
                } else if !inline::is_known(flag) {
                    wrong.insert(format!("{}: {flag}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(found.len() > 20, "{found:?}");
}

/// Annotations are read by their names in `src/services`.
#[test]
fn annotations_are_those_that_are_read() {
    let sources = fs::read_to_string(root().join("src/services/extensions.rs")).expect("a source");
    for (path, document) in documents() {
        for code in parts(&document).code {
            let name = code.split(':').next().unwrap_or_default();
            if name
                .strip_prefix("tripod.proxy/")
                .is_some_and(|rest| !rest.is_empty())
            {
                assert!(sources.contains(name), "{}: {name}", path.display());
            }
        }
    }
}

#[test]
fn parts_of_a_document_are_told_apart() {
    let document = "# A: `b`\n\nSee [x](y.md#z) and `tripod probe\n--output=json`.\n\n\
                    ```sh\nkubectl exec \\\n  p -- tripod status | grep x\nfoo |\n  tripod probe\n```\n\
                    ```yaml\nkind: X\n```\n```\nnft list ruleset\nand so on\n```\n";
    let parts = parts(document);
    assert!(parts.anchors.contains("a-b"), "{:?}", parts.anchors);
    assert_eq!(links(&parts.text), ["y.md#z"]);
    assert_eq!(parts.code, ["b", "tripod probe --output=json"]);
    assert_eq!(parts.unmarked, ["nft list ruleset"]);
    let found: Vec<_> = parts.commands.iter().flat_map(|line| calls(line)).collect();
    assert_eq!(found, [vec!["tripod", "status"], vec!["tripod", "probe"]]);
    for (words, right) in [
        ("tripod --proxy-mode=ipvs", true),
        ("tripod status --watch", false),
        ("tripod migrate --config=-", true),
        ("tripod --no-such-flag", false),
    ] {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        assert_eq!(check(&words).is_ok(), right, "{words:?}");
    }
}

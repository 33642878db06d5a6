//! Limits for the length of files and functions. A file has one concept and a function one task;
//! one that grows beyond these limits has two.

use std::fs;
use std::path::{Path, PathBuf};

use super::root;

/// Maximum number of lines of a file.
const FILE: usize = 1000;
/// Maximum number of lines of a function, from `fn` to its closing brace.
const FUNCTION: usize = 80;

/// Returns all files with Rust code, except generated ones.
fn rust_files() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(folder).expect("a folder");
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for folder in ["src", "crates", "tests", "benches", "examples", "fuzz"] {
        walk(&root().join(folder), &mut found);
    }
    found
}

#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    lines: usize,
}

/// Finds the functions of `text`, which rustfmt has formatted: the closing brace is indented like
/// the function's first line.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = name_of_function(line) else {
            continue;
        };
        if line.ends_with(['}', ';']) {
            continue;
        }
        let indentation = &line[..line.len() - line.trim_start().len()];
        let last = lines[first + 1..].iter().position(|line| {
            let rest = line.strip_prefix(indentation).unwrap_or_default();
            // A declaration in a trait ends with its list of parameters.
            rest.starts_with('}') || rest.starts_with(')') && rest.ends_with(';')
        });
        let last = last.unwrap_or_else(|| panic!("no end of {line}"));
        found.push(Function {
            name,
            lines: last + 2,
        });
    }
    found
}

/// Finds the name of the function that begins in `line`.
fn name_of_function(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let words = before.split_whitespace().all(|word| {
        let word = word.split('(').next().unwrap_or_default();
        ["pub", "const", "async", "unsafe", "extern", "\"C\"", "in"].contains(&word)
    });
    let name = after.split(['(', '<']).next()?;
    words.then_some(name)
}

#[test]
fn no_file_and_no_function_is_too_long() {
    let mut over = Vec::new();
    for path in rust_files() {
        let text = fs::read_to_string(&path).expect("a source file");
        let place = path.strip_prefix(root()).expect("below the root").display();
        let mut check = |name: &str, lines, most| {
            if lines > most {
                over.push(format!(
                    "{place}: {name} has {lines} lines, more than {most}"
                ));
            }
        };
        check(&place.to_string(), text.lines().count(), FILE);
        for Function { name, lines } in functions(&text) {
            check(name, lines, FUNCTION);
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}

#[test]
fn functions_are_counted_from_first_line_to_brace() {
    let text = "\
impl X {
    pub(crate) async fn long<T>(
        &self,
    ) -> T {
        if x {
        }
    }

    fn short() {}
    fn declared(
        &self,
    ) -> u8;
}
const fn pair() -> u8 {
    2
}
/// A fn in a comment {
let text = \"fn \";
";
    let found = functions(text);
    let expected = [("long", 6), ("declared", 3), ("pair", 3)];
    let expected = expected.map(|(name, lines)| Function { name, lines });
    assert_eq!(found, expected);
}

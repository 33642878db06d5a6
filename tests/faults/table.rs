//! docs/reliability.md: the functions that stopped and those that continued.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::{
    expected::{Answer, Why, answer},
    fault::{Fault, Mode},
    measured, node,
    questions::Question,
    soak,
};

const HEAD: &str = "\
# Reliability

A failure affects only what depends on it. In each mode, what it depends on fails in turn while
Services and endpoints change, and the tests observe what keeps working: the programs that write
rules, requests to the kernel by netlink, the API server. `make reliability` generates this page by
running every case with the real program in network namespaces, ipvs mode in a guest kernel. The
same runs are part of `make test-all`, which fails if a cell does not hold. The cases are in
`tests/faults/`. Faults of single requests are part of the [simulation](#faults-by-the-thousand).

- **✓** keeps working.
- **waits 1** waits until the failure has passed, for reason 1, and is then applied.
- **–** does not apply.

";

fn document() -> String {
    let mut text = String::from(HEAD);
    text.push_str("## What is observed\n\n");
    text.push_str("In the IP family that the fault affects, or in IPv4 if it affects both:\n\n");
    for question in Question::ALL {
        let _ = writeln!(text, "- *{}*: {}.", question.title(), question.text());
    }
    text.push_str("\n## Why something waits\n\n");
    for why in shown() {
        let _ = writeln!(text, "{}. {}.", number(why), why.text());
    }
    for mode in Mode::ALL {
        let titles = Question::ALL.map(Question::title);
        let _ = writeln!(text, "\n## {}\n", mode.title());
        let _ = writeln!(text, "| what fails | {} |", titles.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(titles.len()));
        for fault in Fault::of(mode) {
            let cells = Question::ALL.map(|question| match answer(mode, fault, question) {
                Answer::GoesOn => "✓".to_owned(),
                Answer::Waits(why) => format!("waits {}", number(why)),
                Answer::NotApplicable => "–".to_owned(),
            });
            let _ = writeln!(text, "| {} | {} |", fault.title(), cells.join(" | "));
        }
    }
    node::table::write(&mut text);
    measured::write_userspace(&mut text);
    soak::report::write(&mut text);
    measured::write_simulation(&mut text);
    text
}

/// Returns the reasons that the table shows.
fn shown() -> impl Iterator<Item = Why> {
    let used = |why: &Why| {
        let mut modes = Mode::ALL.into_iter();
        modes.any(|mode| {
            Fault::of(mode).any(|fault| {
                let mut questions = Question::ALL.into_iter();
                questions.any(|question| answer(mode, fault, question) == Answer::Waits(*why))
            })
        })
    };
    Why::ALL.into_iter().filter(used)
}

fn number(why: Why) -> usize {
    let before = shown().take_while(|other| *other != why).count();
    before + 1
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md")
}

#[test]
fn the_document_is_current() {
    let committed = fs::read_to_string(path()).unwrap_or_default();
    for (at, (old, new)) in committed.lines().zip(document().lines()).enumerate() {
        assert_eq!(old, new, "line {}: run `make reliability`", at + 1);
    }
    assert_eq!(committed, document(), "run `make reliability`");
}

/// Writes the document, but only after every case has passed.
#[test]
#[ignore = "part of `make reliability`"]
fn write() {
    fs::write(path(), document()).expect("writing the document");
}

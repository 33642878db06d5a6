//! docs/development/mutants.md: docs/development/mutants.csv as a table.

use std::{fmt::Write as _, fs, path::PathBuf};

use super::root;

const HEAD: &str = "\
# Mutants

`make mutants` checks that the [simulation](../reliability.md#faults-by-the-thousand) detects errors:
it breaks one thing at a time and runs the simulation's tests, random runs and named cases. It takes an
hour. A row with a reason instead of *yes* cannot be noticed, or is noticed by another test.

| file | what is broken | noticed |
|---|---|---|
";

fn docs(file: &str) -> PathBuf {
    root().join("docs/development").join(file)
}

/// Builds the document from the rows of the CSV file.
fn document() -> String {
    let csv = fs::read_to_string(docs("mutants.csv")).expect("docs/development/mutants.csv");
    let mut text = String::from(HEAD);
    for line in csv.lines().skip(1) {
        let (file, rest) = line.split_once(',').expect("a file");
        let (breaks, noticed) = rest.split_once("\",\"").expect("two texts");
        let (breaks, noticed) = (breaks.trim_matches('"'), noticed.trim_matches('"'));
        let _ = writeln!(text, "| `{file}` | {breaks} | {noticed} |");
    }
    text
}

#[test]
fn the_document_is_current() {
    let text = fs::read_to_string(docs("mutants.md")).unwrap_or_default();
    assert_eq!(
        text,
        document(),
        "write it by the test mutants::report::write"
    );
}

#[test]
#[ignore = "writes docs/development/mutants.md"]
fn write() {
    fs::write(docs("mutants.md"), document()).expect("docs/development/mutants.md");
}

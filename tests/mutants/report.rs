//! docs/mutants.csv as a part of docs/reliability.md.

use std::{fmt::Write as _, fs};

use super::root;

const HEAD: &str = "
To check that the simulation detects errors, `make mutants` breaks one thing at a time and runs the
simulation's tests, random runs and named cases:

";

/// Adds its part to docs/reliability.md.
pub fn write(text: &mut String) {
    text.push_str(HEAD);
    text.push_str("| file | what is broken | noticed |\n|---|---|---|\n");
    let csv = fs::read_to_string(root().join("docs/mutants.csv")).expect("docs/mutants.csv");
    for line in csv.lines().skip(1) {
        let (file, rest) = line.split_once(',').expect("a file");
        let (breaks, noticed) = rest.split_once("\",\"").expect("two texts");
        let (breaks, noticed) = (breaks.trim_matches('"'), noticed.trim_matches('"'));
        let _ = writeln!(text, "| `{file}` | {breaks} | {noticed} |");
    }
}

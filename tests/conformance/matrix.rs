//! docs/conformance.md: which case holds in which column.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::case::Case;
use super::cases::{self, Numbered};
use super::columns::{Column, columns};
use super::differences::Why;
use super::without;

/// The cell of a case in a column, as text; derived from the data alone.
pub fn cell(case: &Case, column: &Column) -> String {
    match case.obstacle(column) {
        Some(why) => format!("– {}", number(why)),
        None => {
            let whys = case.differences(column);
            let numbers: Vec<_> = whys
                .into_iter()
                .map(|why| number(why).to_string())
                .collect();
            if numbers.is_empty() {
                HOLDS.into()
            } else {
                format!("{HOLDS} {}", numbers.join(", "))
            }
        }
    }
}

const HOLDS: &str = "✓";

/// Reasons that the table shows.
fn shown() -> Vec<Why> {
    let used = |why: &Why| {
        columns().any(|column| {
            cases::numbered().any(|Numbered { case, .. }| match case.obstacle(column) {
                Some(obstacle) => obstacle == *why,
                None => case.differences(column).contains(why),
            })
        })
    };
    let without = |why: &Why| without::variants().any(|v| v.losses().contains(why));
    let shown = Why::ALL.into_iter();
    shown.filter(|why| used(why) || without(why)).collect()
}

pub fn number(why: Why) -> usize {
    static SHOWN: std::sync::OnceLock<Vec<Why>> = std::sync::OnceLock::new();
    let shown = SHOWN.get_or_init(shown);
    shown
        .iter()
        .position(|other| *other == why)
        .map_or(0, |at| at + 1)
}

const HEAD: &str = "\
# Conformance

This page lists what Tripod promises, case by case, and in which modes and on which
kernels each promise holds. `make conformance` generates it by running every case in
every column with the real program, in network namespaces; the same runs are part of
`make test-all`, and most of them of `make test`. The cases are in `tests/conformance/cases/`.

- **✓** Tripod behaves like kube-proxy in iptables mode. If two Services name the same
  address, kube-proxy promises nothing; the promise is then Tripod's own.
- **✓ 1** the same, except for the difference that is explained below under 1. The
  difference is tested as well: without it the case fails.
- **– 1** the case cannot be run there, for reason 1.

";

/// Writes the document, with `cell` for its cells.
pub fn document(cell: impl Fn(&Case, &Column) -> String) -> String {
    let mut text = String::from(HEAD);
    text.push_str("## Columns\n\n| column | kernel | flags |\n|---|---|---|\n");
    for column in columns() {
        let flags = column
            .flags
            .iter()
            .filter(|flag| !flag.contains("sync-period"));
        let flags: Vec<_> = flags.map(|flag| format!(" `{flag}`")).collect();
        let (name, kernel) = (column.name, column.kernel.describe());
        let mode = column.mode;
        let _ = writeln!(
            text,
            "| {name} | {kernel} | `--proxy-mode={mode}`{} |",
            flags.concat()
        );
    }
    text.push_str("\n## Differences and obstacles\n\n");
    for (at, why) in shown().into_iter().enumerate() {
        let _ = writeln!(text, "{}. {}", at + 1, why.text());
    }
    let heads: Vec<_> = columns().map(|column| column.name).collect();
    for topic in cases::topics() {
        let _ = writeln!(text, "\n## {}\n", topic.name);
        let _ = writeln!(text, "| case | {} |", heads.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(heads.len()));
        for case in &topic.cases {
            let cells: Vec<_> = columns().map(|column| cell(case, column)).collect();
            let _ = writeln!(text, "| {} | {} |", case.name, cells.join(" | "));
        }
    }
    text
}

/// Path of the document.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md")
}

/// Path of the results of the latest run of that name.
pub fn results(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    std::fs::create_dir_all(&folder).expect("a folder for results");
    folder.join(format!("{}.tsv", name.replace(' ', "-")))
}

/// Stores the results of a column: case and cell.
pub fn keep_results(column: &Column, cells: &[(String, String)]) {
    let lines = cells.iter().map(|(case, cell)| format!("{case}\t{cell}\n"));
    std::fs::write(results(column.name), lines.collect::<String>()).expect("writing results");
}

/// Removes earlier results.
pub fn forget_results() {
    for column in columns() {
        let _ = std::fs::remove_file(results(column.name));
        let _ = std::fs::remove_file(results(&without::file(column)));
    }
}

/// Reads the cell of a case in a column from the results.
pub fn seen(case: &Case, column: &Column) -> Option<String> {
    let text = std::fs::read_to_string(results(column.name)).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
    let found = lines.find(|(name, _)| *name == case.name);
    found.map(|(_, cell)| cell.to_owned())
}

//! Figures of docs/reliability.md that tests measure.
//!
//! Results of `make acceptance` and `make simulate` are stored in docs/reliability.csv, from which
//! the document takes them. Tests print them with [`measured`].
//!
//! - [`upgrades`]: calls in userspace mode while one process replaces another.
//! - [`overload`]: costs of floods of one Service in userspace mode, and the latency of another
//!   one.
//! - [`simulation`]: results of long runs of the simulation of each mode.

mod overload;
mod simulation;
// Shared with the benches, which use more of it.
#[allow(dead_code)]
#[path = "../../../benches/document/table.rs"]
mod table;
mod upgrades;

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    fs,
    path::{Path, PathBuf},
};

use crate::lab::{Capture, figure};

/// The beginning of lines that are stored.
const KEPT: &str = "FIGURE measured ";

const HEADER: &str = "test,mode,figure,value";

/// Identifies a figure of a test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    test: String,
    /// The mode, or how userspace mode captures traffic.
    mode: String,
    figure: String,
}

/// Figures by their names.
#[derive(Debug, Default, PartialEq)]
struct Figures(BTreeMap<Name, f64>);

/// Reports that `test` measured `value` with `capture`. Only results with the sizes of `make
/// acceptance` should be stored.
pub fn measured(test: &str, capture: Capture, name: &str, value: f64) {
    measured_in(test, capture.name(), name, value);
}

/// Like [`measured`], in any mode.
pub fn measured_in(test: &str, mode: &str, name: &str, value: f64) {
    figure(&format!("measured {test},{mode},{name}"), value);
}

/// Adds the parts of the document about userspace mode.
pub fn write_userspace(text: &mut String) {
    let figures = Figures::kept();
    upgrades::write(text, &figures);
    overload::write(text, &figures);
}

/// Adds the part of the document about the simulation.
pub fn write_simulation(text: &mut String) {
    simulation::write(text, &Figures::kept());
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.csv")
}

impl Figures {
    fn kept() -> Figures {
        let text = fs::read_to_string(path()).expect("docs/reliability.csv");
        let rows = text.lines().skip(1);
        Figures(rows.map(|row| parse(row).expect(row)).collect())
    }

    /// Returns the figures that a run printed.
    fn printed(log: &str) -> Figures {
        let lines = log.lines().filter_map(|line| line.split_once(KEPT));
        let figures = lines.filter_map(|(_, figure)| parse(&figure.replacen(": ", ",", 1)));
        Figures(figures.collect())
    }

    /// # Panics
    /// When it was not measured.
    fn get(&self, test: &str, mode: &str, figure: &str) -> f64 {
        let name = Name {
            test: test.to_owned(),
            mode: mode.to_owned(),
            figure: figure.to_owned(),
        };
        match self.0.get(&name) {
            Some(value) => *value,
            None => panic!("docs/reliability.csv lacks {name:?}: see the Makefile"),
        }
    }

    /// Returns whether something was measured by `test` in `mode`.
    fn has(&self, test: &str, mode: &str) -> bool {
        let mut names = self.0.keys();
        names.any(|name| name.test == test && name.mode == mode)
    }

    /// Returns the higher figure of both ways to capture traffic.
    fn higher(&self, test: &str, figure: &str) -> f64 {
        let of = |capture: Capture| self.get(test, capture.name(), figure);
        of(Capture::Local).max(of(Capture::Redirect))
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (name, value) in &self.0 {
            let Name { test, mode, figure } = name;
            writeln!(f, "{test},{mode},{figure},{value}")?;
        }
        Ok(())
    }
}

/// Returns the figure in a row.
fn parse(row: &str) -> Option<(Name, f64)> {
    let mut fields = row.split(',');
    let mut text = || fields.next().map(str::to_owned);
    let (test, mode, figure) = (text()?, text()?, text()?);
    let value = fields.next()?.trim().parse().ok()?;
    Some((Name { test, mode, figure }, value))
}

/// Returns a number with its thousands separated.
fn thousands(number: f64) -> String {
    table::thousands(number as u64)
}

/// Returns milliseconds as text.
fn milliseconds(value: f64) -> String {
    match value < 9.5 {
        true => format!("{value:.1} ms"),
        false => format!("{value:.0} ms"),
    }
}

/// Stores the results of a run; for tests that were not run the older figures stay.
#[test]
#[ignore = "writes docs/reliability.csv from the log that TRIPOD_FIGURES_LOG names"]
fn keep() {
    let log = std::env::var("TRIPOD_FIGURES_LOG").expect("TRIPOD_FIGURES_LOG");
    let new = Figures::printed(&fs::read_to_string(log).expect("the log of a run"));
    assert!(!new.0.is_empty(), "no figures");
    let mut all = Figures::kept();
    all.0.extend(new.0);
    fs::write(path(), all.to_string()).expect("docs/reliability.csv");
}

#[test]
fn what_is_printed_is_what_is_kept() {
    let log = "test a::b ... ok\nFIGURE measured flood,local,p99_ms: 8.5\n\
               FIGURE other: 3\nFIGURE measured flood,redirect,p99_ms: 9\n";
    let printed = Figures::printed(log);
    assert_eq!(printed.higher("flood", "p99_ms"), 9.0);
    let text = printed.to_string();
    let rows = text.lines().skip(1).map(|row| parse(row).expect(row));
    assert_eq!(Figures(rows.collect()), printed);
    assert_eq!(thousands(1_234_567.0), "1,234,567");
    assert_eq!(thousands(84.0), "84");
}

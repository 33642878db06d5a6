//! Conformance: one table of cases for every mode on every kernel.
//!
//! - [`cases`]: the table. Begin there.
//! - [`case`], [`objects`], [`endpoints`], [`observation`]: the words that it is
//!   written in.
//! - [`columns`]: modes and kernels. A line turns one on.
//! - [`differences`]: where modes differ from kube-proxy's iptables mode, and why.
//! - [`network`], [`call`], [`stray`], [`probe`], [`run`]: how it is run.
//! - [`unprivileged`]: Tripod is started as another user than root, with few capabilities.
//! - [`without`]: the same with something of the kernel left out of the probe's view.
//! - [`kernels`]: the same on kernels of distributions, shown in docs/kernels.md.
//! - [`matrix`]: how it is shown, in docs/conformance.md.
//!
//! `TRIPOD_CONFORMANCE_CASE=words` runs the cases whose names contain them.

mod addresses;
mod call;
mod case;
mod cases;
mod columns;
mod confined;
mod differences;
mod endpoints;
mod explained;
mod kernels;
mod matrix;
mod network;
mod objects;
mod observation;
mod probe;
mod run;
mod stray;
mod table;
mod unprivileged;
mod without;

use std::time::{Duration, Instant};

use self::columns::{Column, Kernel};
use crate::lab::{self, figure, guest, skip};

/// A test for each column.
macro_rules! columns {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                on_column($name);
            }
        )+
        /// The columns that have a test.
        const TESTED: &[&str] = &[$($name),+];
    };
}

columns! {
    host_iptables_nft: "host iptables-nft",
    host_iptables_legacy: "host iptables-legacy",
    host_userspace_redirect: "host userspace-redirect",
    host_userspace_local: "host userspace-local",
    host_nftables: "host nftables",
    guest_full_ipvs: "full ipvs",
    guest_full_iptables_legacy: "full iptables-legacy",
    guest_full_userspace_redirect: "full userspace-redirect",
    guest_full_userspace_local: "full userspace-local",
    guest_bare_userspace_local: "bare userspace-local",
}

fn on_column(name: &str) {
    let column = columns::column(name);
    if !column.on {
        return;
    }
    let profile = match column.kernel {
        Kernel::Host => {
            return lab::run(|| {
                let start = Instant::now();
                conclude(column, run_here(column));
                figure(
                    &format!("conformance, {name}"),
                    format!("{:?}", start.elapsed()),
                );
            });
        }
        Kernel::Full => guest::Profile::Full,
        Kernel::Bare => guest::Profile::Bare,
        Kernel::Debian => unreachable!("`kernels` has these"),
    };
    if let Some(reason) = guest::unavailable(profile) {
        return skip(&reason);
    }
    lab::run(|| {
        let arguments = ["--exact", INSIDE, "--include-ignored", "--nocapture"];
        let only = std::env::var("TRIPOD_CONFORMANCE_CASE").unwrap_or_default();
        let environment = [(COLUMN, name), ("TRIPOD_CONFORMANCE_CASE", &*only)];
        let outcome = guest::run(profile, &arguments, &environment, GUEST);
        let cells = outcome.console.lines().filter_map(|line| {
            let (case, cell) = line.strip_prefix(CELL)?.split_once('\t')?;
            Some((case.to_owned(), cell.to_owned()))
        });
        conclude(column, cells.collect());
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        figure(
            &format!("conformance, {name}, with boot"),
            format!("{:?}", outcome.took),
        );
    });
}

/// Longest life of a guest: it only ends one that hangs. A sandbox lives longer (`lifetime` in
/// `lab::sandbox`).
const GUEST: Duration = Duration::from_secs(1000);

/// Tells [`inside`] its column.
const COLUMN: &str = "TRIPOD_CONFORMANCE_COLUMN";
const INSIDE: &str = "conformance::inside";
/// Begins a line of the guest's console that is a result.
const CELL: &str = "CELL ";

#[test]
#[ignore = "run inside a guest"]
fn inside() {
    let Ok(name) = std::env::var(COLUMN) else {
        return;
    };
    println!();
    for (case, cell) in run_here(columns::column(&name)) {
        println!("{CELL}{case}\t{cell}");
    }
}

/// Runs a column on this kernel; returns cases and cells.
fn run_here(column: &Column) -> Vec<(String, String)> {
    cells(column, &run::run(column))
}

/// Returns cases and cells. A failed cell has the reason.
fn cells(column: &Column, seen: &[(&'static str, run::Verdict)]) -> Vec<(String, String)> {
    let mut cells = Vec::new();
    for cases::Numbered { case, .. } in cases::numbered() {
        let Some((_, verdict)) = seen.iter().find(|(name, _)| *name == case.name) else {
            if case.obstacle(column).is_some() {
                cells.push((case.name.to_owned(), matrix::cell(&case, column)));
            }
            continue;
        };
        for line in verdict {
            println!("FAILED {}: {line}", case.name);
        }
        let cell = if verdict.is_empty() {
            matrix::cell(&case, column)
        } else {
            FAILED.to_owned()
        };
        cells.push((case.name.to_owned(), cell));
    }
    cells
}

const FAILED: &str = "✗";

fn conclude(column: &Column, cells: Vec<(String, String)>) {
    matrix::keep_results(column, &cells);
    let failed = cells.iter().filter(|(_, cell)| cell == FAILED);
    let failed: Vec<_> = failed.map(|(case, _)| case).collect();
    assert!(
        failed.is_empty(),
        "{} of {} cases: {failed:#?}",
        failed.len(),
        cells.len()
    );
    assert!(!cells.is_empty(), "nothing was run");
}

#[test]
#[ignore = "before `make conformance`"]
fn forget() {
    matrix::forget_results();
}

/// A test for each column with variants, that is with `--without`.
macro_rules! without {
    ($($test:ident: $name:literal),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                without_on($name);
            }
        )+
        /// The columns that have such a test.
        const TESTED_WITHOUT: &[&str] = &[$($name),+];
    };
}

without! {
    host_without_iptables: "host iptables-nft",
    host_without_userspace: "host userspace-redirect",
    host_without_nftables: "host nftables",
    guest_without_ipvs: "full ipvs",
}

/// Runs one Tripod after another on a column's kernel, each without something.
fn without_on(name: &str) {
    let column = columns::column(name);
    let conclude = |seen: Vec<(String, String)>| {
        without::keep_results(column, &seen);
        let failed = seen.iter().filter(|(_, cell)| cell == FAILED);
        let failed: Vec<_> = failed.map(|(word, _)| word).collect();
        assert!(failed.is_empty(), "{name} without {failed:?}");
        assert!(!seen.is_empty(), "nothing was run");
    };
    if column.kernel == Kernel::Host {
        return lab::run(|| {
            let start = Instant::now();
            conclude(without::run_here(column));
            let took = format!("{:?}", start.elapsed());
            figure(&format!("conformance without, {name}"), took);
        });
    }
    if let Some(reason) = guest::unavailable(guest::Profile::Full) {
        return skip(&reason);
    }
    lab::run(|| {
        let arguments = [
            "--exact",
            INSIDE_WITHOUT,
            "--include-ignored",
            "--nocapture",
        ];
        let start = Instant::now();
        let (mut seen, mut status) = (Vec::new(), Vec::new());
        // With all cases, each takes the lifetime of a guest; with some, less.
        let words = without::words(column).collect::<Vec<_>>();
        let guests = if lab::acceptance() {
            words.chunks(1)
        } else {
            words.chunks(8)
        };
        for words in guests {
            let mut environment = vec![(COLUMN, name.to_owned()), (without::ONLY, words.join(","))];
            if lab::acceptance() {
                environment.push(("TRIPOD_ACCEPTANCE", "1".to_owned()));
            }
            let environment: Vec<_> = environment.iter().map(|(k, v)| (*k, &**v)).collect();
            let outcome = guest::run(guest::Profile::Full, &arguments, &environment, GUEST);
            let lines = outcome.console.lines();
            seen.extend(lines.filter_map(|line| {
                let (word, cell) = line.strip_prefix(CELL)?.split_once('\t')?;
                Some((word.to_owned(), cell.to_owned()))
            }));
            status.push(outcome.status);
        }
        conclude(seen);
        assert!(status.iter().all(|status| *status == Some(0)), "{status:?}");
        let took = format!("{:?}", start.elapsed());
        figure(&format!("conformance without, {name}, with boot"), took);
    });
}

const INSIDE_WITHOUT: &str = "conformance::inside_without";

#[test]
#[ignore = "run inside a guest"]
fn inside_without() {
    let Ok(name) = std::env::var(COLUMN) else {
        return;
    };
    println!();
    for (word, cell) in without::run_here(columns::column(&name)) {
        println!("{CELL}{word}\t{cell}");
    }
}

/// Writes the document from the results of the latest run of each column.
#[test]
#[ignore = "part of `make conformance`"]
fn write() {
    let document = matrix::document(|case, column| {
        let cell = matrix::seen(case, column);
        let cell = cell.unwrap_or_else(|| panic!("{:?} was not run: {}", column.name, case.name));
        assert_ne!(cell, FAILED, "{}: {}", column.name, case.name);
        cell
    });
    let document = document
        + &without::section(|variant| {
            let (word, name) = (variant.thing.word, variant.column.name);
            let cell = without::seen(variant).unwrap_or_else(|| panic!("{name} without {word}"));
            assert_ne!(cell, FAILED, "{name} without {word}");
            cell
        });
    let path = matrix::path();
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("making docs/");
    std::fs::write(&path, document).expect("writing the document");
}

//! The tests that `make unit` runs need no privileges.

use std::{collections::BTreeSet, fs, process::Command};

use super::root;

/// Modules of tests that never make namespaces or boot guests.
const WITHOUT_PRIVILEGES: [&str; 3] = ["architecture", "docs", "mutants"];

/// Returns the value of `UNIT` in the Makefile.
fn unit() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let text = text.replace("\\\n", " ");
    let line = text.lines().find_map(|line| line.strip_prefix("UNIT := "));
    let names = line.expect("UNIT").split_whitespace();
    names.map(str::to_owned).collect()
}

/// Returns the tests of this program that are not ignored.
fn tests() -> Vec<String> {
    let program = std::env::current_exe().expect("the path of the test binary");
    let list = |flags: &[&str]| {
        let output = Command::new(&program).args(flags).output().expect("a list");
        let text = String::from_utf8(output.stdout).expect("text");
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let ignored = list(&["--list", "--ignored"]);
    let all = list(&["--list"]);
    all.difference(&ignored).cloned().collect()
}

#[test]
fn make_unit_names_tests_that_there_are() {
    let tests = tests();
    for name in unit() {
        let is_there = tests.iter().any(|test| test.contains(&name));
        assert!(is_there, "UNIT of the Makefile names no test: {name}");
    }
}

#[test]
fn make_unit_leaves_out_no_test_of_the_modules_without_privileges() {
    let unit = unit();
    let left_out: Vec<String> = tests()
        .into_iter()
        .filter(|test| {
            let module = test.split("::").next().unwrap_or_default();
            let is_named = unit.iter().any(|name| test.contains(&**name));
            WITHOUT_PRIVILEGES.contains(&module) && !is_named
        })
        .collect();
    assert!(
        left_out.is_empty(),
        "UNIT of the Makefile lacks {left_out:?}"
    );
}

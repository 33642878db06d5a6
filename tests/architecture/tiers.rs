//! The lists of tests in `.config/nextest.toml` are true.

use std::{collections::BTreeSet, fs, process::Command};

use super::root;

/// Reads the prefixes of names that the file lists.
fn listed() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(".config/nextest.toml")).expect("the configuration");
    let lists = text.split("test(/^").skip(1);
    let names = lists.filter_map(|rest| rest.split_once("/)").map(|(name, _)| name.to_owned()));
    names.collect()
}

/// Lists the tests of this program.
fn tests() -> Vec<String> {
    let program = std::env::current_exe().expect("the path of the test binary");
    let output = Command::new(&program)
        .arg("--list")
        .output()
        .expect("a list");
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

#[test]
fn the_lists_of_tests_name_tests_that_exist() {
    let (listed, tests) = (listed(), tests());
    assert!(listed.len() > 10, "{listed:?}");
    for name in listed {
        // A name of the library's tests is a path.
        let path = name.trim_end_matches("::").replace("::", "/");
        let is_of_library = root().join("src").join(path).with_extension("rs").exists();
        let exists = is_of_library || tests.iter().any(|test| test.starts_with(&name));
        assert!(
            exists,
            ".config/nextest.toml lists {name}, which begins no test"
        );
    }
}

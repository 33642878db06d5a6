//! docs/development/dependencies.md names the crates with unsafe code from which Tripod is built, and
//! no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::Value;

use super::root;

/// The keyword with its possible continuations, outside comments and attributes.
const UNSAFE: [&str; 5] = [
    "unsafe {",
    "unsafe fn ",
    "unsafe impl",
    "unsafe extern ",
    "unsafe trait ",
];

#[test]
fn crates_with_unsafe_code_are_those_that_are_reviewed() {
    let found: BTreeSet<String> = dependencies()
        .into_iter()
        .filter(|(_, source)| has_unsafe(Path::new(source)))
        .map(|(name, _)| name)
        .collect();
    assert!(found.len() > 50, "{found:?}");
    let page =
        fs::read_to_string(root().join("docs/development/dependencies.md")).expect("the page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let firsts = rows.filter_map(|row| row.split(" | ").next());
    let named: BTreeSet<String> = firsts
        .flat_map(|first| first.split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect();
    let differ: Vec<_> = found.symmetric_difference(&named).collect();
    assert!(
        differ.is_empty(),
        "look at {differ:?}, and add or remove them in docs/development/dependencies.md"
    );
}

/// Returns the crates that are built into the program or run by the compiler for it, each
/// with the folder of its source.
fn dependencies() -> BTreeMap<String, String> {
    // The crates that are built with the features in use, one line each: name and version.
    let tree = cargo(&["tree", "--edges=normal", "--prefix=none"]);
    let built: BTreeSet<String> = tree
        .lines()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    // Crates for other platforms are missing if nothing was built for those.
    let version = cargo(&["-vV"]);
    let mut lines = version.lines();
    let host = lines.find_map(|line| line.strip_prefix("host: "));
    let host = format!("--filter-platform={}", host.expect("the host"));
    let metadata = cargo(&["metadata", "--format-version=1", &host]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let packages = packages.iter().filter_map(|package| {
        let name = text(&package["name"]);
        let is_built = built.contains(&format!("{name} v{}", text(&package["version"])));
        let source = text(&package["manifest_path"]).replace("Cargo.toml", "src");
        let is_own = package["source"].is_null();
        (is_built && !is_own).then_some((name, source))
    });
    packages.collect()
}

/// Fuzz targets must be built from the same crates.
#[test]
fn fuzz_targets_are_built_with_the_same_versions() {
    let locked = |file: &str| -> BTreeSet<(String, String)> {
        let text = fs::read_to_string(root().join(file)).expect(file);
        let packages = text.split("\n[[package]]\n").skip(1).map(|package| {
            let field = |name: &str| {
                let mut lines = package.lines();
                let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
                line.expect(name).to_owned()
            };
            (field("name"), field("version"))
        });
        packages.collect()
    };
    let (of_tripod, of_fuzz) = (locked("Cargo.lock"), locked("fuzz/Cargo.lock"));
    let known: BTreeSet<_> = of_fuzz
        .iter()
        .map(|(name, _)| name.trim_matches('"'))
        .collect();
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let (_, needed) = manifest
        .split_once("\n[dependencies]\n")
        .expect("dependencies");
    let needed = needed.lines().take_while(|line| !line.starts_with('['));
    let names = needed.filter_map(|line| line.split_once(" = ")?.0.split('.').next());
    // Crates of the workspace appear under the names of their packages.
    let is_own = |name: &str| root().join("crates").join(name).is_dir();
    for needed in names.filter(|name| !is_own(name)) {
        assert!(
            known.contains(needed),
            "fuzz/Cargo.lock lacks {needed}: fuzz/README.md says what to do"
        );
    }
    let own = ["tripod-fuzz", "libfuzzer-sys", "arbitrary", "jobserver"];
    let others = of_fuzz.difference(&of_tripod);
    let others: Vec<_> = others
        .filter(|(name, _)| !own.contains(&name.trim_matches('"')))
        .collect();
    assert!(
        others.is_empty(),
        "fuzz/README.md says what to do: {others:?}"
    );
}

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).args(["--offline", "--locked"]);
    let output = command.current_dir(root()).output().expect("running cargo");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn has_unsafe(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return has_unsafe(&path);
        }
        let is_rust = path.extension().is_some_and(|kind| kind == "rs");
        is_rust && fs::read_to_string(&path).is_ok_and(|text| is_unsafe(&text))
    })
}

fn is_unsafe(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start);
    let mut code = lines.filter(|line| !line.starts_with("//"));
    code.any(|line| UNSAFE.iter().any(|what| line.contains(what)))
}

//! Other kernels: guests on this machine's own files, with the test binary inside.

mod boot;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use boot::{AARCH64, Debian, Outcome, Profile, unavailable};

use super::{SOAK_ENDS, acceptance, figure, is_soak, skip, soak_length, tripod_binary};

/// From within a sandbox: boots a guest, runs this test binary there with `arguments` and these
/// environment variables, and waits at most `limit` for its end.
pub fn run(
    profile: Profile,
    arguments: &[&str],
    environment: &[(&str, &str)],
    limit: Duration,
) -> Outcome {
    let tests = match boot::of_aarch64(profile) {
        Some((tests, _)) => tests,
        None => std::env::current_exe().expect("the path of the test binary"),
    };
    run_program(profile, &tests, arguments, environment, limit)
}

fn run_program(
    profile: Profile,
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    limit: Duration,
) -> Outcome {
    let tripod = boot::of_aarch64(profile).map_or_else(tripod_binary, |(_, tripod)| tripod);
    let tripod = [("TRIPOD", &*tripod.to_string_lossy())];
    let environment = [environment, &tripod].concat();
    boot::run_with(
        profile,
        boot::MEMORY,
        program,
        arguments,
        &environment,
        limit,
    )
}

/// As a test: runs the tests whose names begin with `names` in a guest, one after the
/// other, and fails if one fails or is missing.
pub fn in_guest(profile: Profile, names: &[&str], environment: &[(&str, &str)]) {
    let tests = std::env::current_exe().expect("the path of the test binary");
    tests_in_guest(profile, &tests, names, environment);
}

/// Like [`in_guest`], for tests of the library.
pub fn unit_tests_in_guest(profile: Profile, names: &[&str], environment: &[(&str, &str)]) {
    match unit_tests() {
        Ok(tests) => tests_in_guest(profile, &tests, names, environment),
        Err(why) => skip(&why),
    }
}

/// The test binary of the library, built first if it is out of date.
fn unit_tests() -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--lib", "--no-run", "--message-format=json"]);
    // Variables that cargo sets for tests of this package would cause others to be rebuilt.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let built = built.map_err(|error| format!("cannot run {}: {error}", env!("CARGO")))?;
    let text = String::from_utf8_lossy(&built.stdout);
    let mut messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let found = messages.find_map(|message| {
        let is_library = message["target"]["kind"][0] == "lib";
        let path = message["executable"].as_str().filter(|_| is_library);
        path.map(PathBuf::from)
    });
    found.ok_or_else(|| String::from_utf8_lossy(&built.stderr).into_owned())
}

fn tests_in_guest(profile: Profile, program: &Path, names: &[&str], environment: &[(&str, &str)]) {
    if let Some(reason) = unavailable(profile) {
        return skip(&reason);
    }
    super::run(|| {
        let flags = ["--include-ignored", "--test-threads=1", "--color=never"];
        let arguments = [names, &flags].concat();
        let mut environment = [environment, &[("CI", "true")]].concat();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            environment.push(("UPDATE_GOLDEN", "1"));
        }
        let soak = soak_length();
        let seconds = soak.as_secs().to_string();
        if is_soak() {
            environment.push(("TRIPOD_SOAK", &seconds));
        }
        let limit = if acceptance() { ACCEPTANCE } else { GUEST };
        let limit = limit.max(soak + SOAK_ENDS);
        let outcome = run_program(profile, program, &arguments, &environment, limit);
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        for name in names {
            let start = format!("test {name}");
            let mut lines = outcome.console.lines();
            // All tests that ran passed; lines sometimes end with a figure, so only the
            // beginning is compared.
            let met = lines.any(|line| line.starts_with(&start));
            assert!(met, "no test {name} in the guest");
        }
        for line in outcome.console.lines() {
            let measured = line
                .split_once("FIGURE ")
                .and_then(|(_, m)| m.split_once(": "));
            if let Some((name, value)) = measured {
                figure(&format!("guest, {name}"), value);
            }
        }
        figure(
            &format!("{profile:?} guest, boot and {names:?}"),
            format!("{:?}", outcome.took),
        );
    });
}

/// The longest that a guest may run; only one that hangs reaches it. A sandbox has a longer limit
/// (`lifetime` in `lab::sandbox`).
const GUEST: Duration = Duration::from_secs(1000);
/// The same with the sizes of the acceptance list.
const ACCEPTANCE: Duration = Duration::from_secs(3400);

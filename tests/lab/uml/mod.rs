//! Another kernel, as an ordinary process: User-Mode Linux on this machine's
//! own files, with the test binary inside.

mod boot;

use std::time::Duration;

pub use boot::{Outcome, PROCESSOR, Profile, unavailable};

use super::{SOAK_ENDS, Share, figure, skip, soak_length, tripod_binary};

/// From within a sandbox: boots a guest, runs this test binary there with `arguments` and these
/// environment variables, and waits for its end, at most `limit`.
pub fn run(
    profile: Profile,
    arguments: &[&str],
    environment: &[(&str, &str)],
    limit: Duration,
) -> Outcome {
    let tripod = tripod_binary();
    let tripod = [("TRIPOD", &*tripod.to_string_lossy())];
    boot::run(profile, arguments, &[environment, &tripod].concat(), limit)
}

/// As a test: runs the tests whose names begin with `names` in a guest, one
/// after the other, and fails if one fails or is missing.
pub fn in_guest(profile: Profile, names: &[&str], environment: &[(&str, &str)]) {
    if let Some(reason) = unavailable() {
        return skip(&reason);
    }
    super::run(Share::Guest, || {
        let flags = ["--include-ignored", "--test-threads=1", "--color=never"];
        let arguments = [names, &flags].concat();
        let mut environment = [environment, &[("CI", "true")]].concat();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            environment.push(("UPDATE_GOLDEN", "1"));
        }
        let soak = soak_length();
        let seconds = soak.as_secs().to_string();
        environment.push(("TRIPOD_SOAK", &seconds));
        let limit = GUEST.max(soak + SOAK_ENDS);
        let outcome = run(profile, &arguments, &environment, limit);
        assert_eq!(outcome.status, Some(0), "see the guest's console");
        for name in names {
            let start = format!("test {name}");
            let mut lines = outcome.console.lines();
            // All that ran passed; what a line ends with is at times a figure.
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

/// Longest life of a guest; a sandbox lives a little longer.
const GUEST: Duration = Duration::from_secs(500);

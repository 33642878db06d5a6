//! ipvs mode: this program again, in a guest kernel that has IPVS. It prints its measurements
//! there, and this side writes them into the files.

use std::time::Duration;

use crate::{
    figures::{CHURN, CONNECTING, File, SCALE, csv},
    lab::guest::boot::{Profile, run_with, unavailable},
    shapes::SHAPES_FILE,
};

/// Room for the objects of 20,000 Services and their changes, which the API server in the guest
/// keeps.
const MEMORY: &str = "4G";
/// Maximum lifetime of a guest.
const LIMIT: Duration = Duration::from_secs(1800);
/// Set in the guest.
pub const GUEST: &str = "TRIPOD_BENCH_GUEST";

const FILES: [(&str, &File); 4] = [
    ("scale", &SCALE),
    ("churn", &CHURN),
    ("connecting", &CONNECTING),
    ("shapes", &SHAPES_FILE),
];

/// Prints a row if this is the guest. Returns whether it is.
pub fn prints(file: &File, row: &[String]) -> bool {
    let is_guest = std::env::var_os(GUEST).is_some();
    if is_guest {
        println!("ROW {} {}", file.name(), row.join(","));
    }
    is_guest
}

/// Runs `arguments` in a guest.
pub fn measure(arguments: &[String]) {
    if let Some(reason) = unavailable(Profile::Full) {
        println!("SKIP ipvs: {reason}");
        return;
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let program = std::env::var("TRIPOD").unwrap_or(env!("CARGO_BIN_EXE_tripod").into());
    let mut environment = vec![(GUEST, "1"), ("TRIPOD", &*program)];
    let settings = ["TRIPOD_BENCH_CHURN", "TRIPOD_BENCH_LIMIT"];
    let settings = settings.map(|name| (name, std::env::var(name).unwrap_or_default()));
    for (name, value) in settings.iter().filter(|(_, value)| !value.is_empty()) {
        environment.push((name, value));
    }
    let this = std::env::current_exe().expect("the path of this program");
    let outcome = run_with(Profile::Full, MEMORY, &this, &words, &environment, LIMIT);
    for line in outcome.console.lines() {
        let row = line
            .strip_prefix("ROW ")
            .and_then(|row| row.split_once(' '));
        let Some((name, row)) = row else { continue };
        if let Some((_, file)) = FILES.iter().find(|(known, _)| *known == name) {
            csv(file).put(row.split(',').map(str::to_owned).collect());
        }
    }
    if outcome.status != Some(0) {
        println!("ipvs was not measured to the end: {:?}", outcome.status);
    }
}

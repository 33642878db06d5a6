//! Counts the instructions of the pure parts with callgrind (valgrind), and compares them with
//! `benches/instructions.csv`.
//!
//! The counted code is in tests of other modules, whose names end with their action: the part of
//! each that runs inside [`counted`]. They are built like all tests, without optimization: an
//! additional pass, allocation or copy shows there as well; effects of the optimizer do not.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use testing::skip;

use crate::services::{
    ServicePort,
    service_ports::{endpoint, endpoints, service_port},
};

/// The counted tests.
const COUNTED: [&str; 9] = [
    "services::tracker::tests::instructions::fold_first",
    "services::tracker::tests::instructions::fold_changes",
    "modes::nftables::tests::instructions::table",
    "modes::nftables::tests::instructions::changes",
    "modes::iptables::tests::instructions::rules",
    "modes::iptables::tests::instructions::changes",
    "modes::ipvs::diff::tests::instructions::changes",
    "modes::userspace::tests::instructions::first",
    "modes::userspace::tests::instructions::changes",
];

/// Maximum relative difference between a count and the recorded one.
const TOLERANCE: f64 = 0.05;

/// Number of Services with which a counted test begins, and of changes that it makes one by one.
pub const SERVICES: u32 = 100;
pub const CHANGES: u32 = 50;

/// How often operations on hash tables are repeated, each time with new tables: every table has a
/// seed, derived from addresses; so colliding entries, and the moment when a table grows, differ
/// from build to build, by up to 8 % of the instructions. The sum evens that out.
pub const REPEATED: usize = 8;

/// Maximum number of counts of a test before its instructions are too many: one seed is the same
/// for all tables of a process (foldhash's `GlobalSeed`), and with about one in ten, consecutive
/// keys collide so often that it also shows in the sum.
const ATTEMPTS: usize = 5;

/// Runs `body`, whose instructions count. Not inlined, so that callgrind finds it.
#[inline(never)]
pub fn counted<T>(body: impl FnOnce() -> T) -> T {
    black_box(body())
}

/// Returns the ServicePort of that number with five endpoints; `version` changes the address of one
/// of them.
pub fn service(number: u32, version: u32) -> Arc<ServicePort> {
    let address = |network: u8, number: u32| {
        let [.., high, low] = number.to_be_bytes();
        [10, network, high, low]
    };
    let all = (0..5).map(|at| {
        let ip = match at {
            0 if version > 0 => address(247, version),
            _ => address(244, 1 + number * 5 + at),
        };
        endpoint((ip, 8080))
    });
    Arc::new(ServicePort {
        endpoints: endpoints(all),
        ..service_port(&format!("service-{number}"), address(96, 1 + number))
    })
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.csv")
}

/// Returns the recorded compiler and counts.
fn read() -> (String, BTreeMap<String, u64>) {
    let text = fs::read_to_string(recorded()).unwrap_or_default();
    let mut lines = text.lines();
    let head = lines.next().and_then(|head| head.split_once(','));
    let compiler = head.map_or(String::new(), |(_, compiler)| compiler.to_owned());
    let counts = lines.filter_map(|line| {
        let (name, count) = line.split_once(',')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    (compiler, counts.collect())
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let output = output.expect("rustc, which built this");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Counts a test, each time with other seeds, until it takes no more than `most` instructions.
/// Returns the least count.
fn least(test: &str, most: f64) -> u64 {
    let mut least = u64::MAX;
    for attempt in 0..ATTEMPTS {
        least = least.min(count(test, attempt));
        if least as f64 <= most {
            break;
        }
    }
    least
}

/// Runs a test in callgrind. Returns its instructions. The size of its thread's stack, which
/// differs by `attempt`, moves the addresses from which seeds are derived.
fn count(test: &str, attempt: usize) -> u64 {
    let stack = (2 << 20) + attempt * (256 << 10);
    let file = std::env::temp_dir().join(format!("tripod-{}-{test}", std::process::id()));
    let own = std::env::current_exe().expect("own path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg("--toggle-collect=*instructions::counted*")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(own)
        // With only one thread the test would run on the first thread of the process.
        .args(["--exact", test, "--test-threads=2"])
        .env("RUST_MIN_STACK", stack.to_string())
        .output()
        .expect("running valgrind");
    let written = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(&file);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(passed, "{test} in valgrind: {errors}");
    let mut lines = written.lines();
    let totals = lines.find_map(|line| line.strip_prefix("totals: "));
    let totals = totals.and_then(|totals| totals.trim().parse().ok());
    totals
        .filter(|count| *count > 0)
        .unwrap_or_else(|| panic!("{test}: nothing was counted"))
}

/// `TRIPOD_INSTRUCTIONS=write` records the counts instead (`make instructions`).
#[test]
fn instructions_are_as_many_as_recorded() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("no valgrind (Debian package valgrind)");
    }
    let writes = std::env::var("TRIPOD_INSTRUCTIONS").is_ok_and(|value| value == "write");
    let (recorded_by, before) = read();
    let compiler = compiler();
    if !writes && compiler != recorded_by {
        return skip(format!(
            "benches/instructions.csv was recorded with {recorded_by}, not {compiler}: \
             TRIPOD_INSTRUCTIONS=write records it again"
        ));
    }
    let mut text = format!("instructions,{compiler}\n");
    let (mut table, mut worse) = (String::new(), Vec::new());
    for test in COUNTED {
        let before = before.get(test).map(|before| *before as f64);
        let most = before.map_or(0.0, |before| before * (1.0 + TOLERANCE));
        let now = least(test, if writes { 0.0 } else { most });
        let ratio = before.map(|before| now as f64 / before);
        let shown = ratio.map_or("new".to_owned(), |ratio| format!("{ratio:.4}"));
        let _ = writeln!(text, "{test},{now}");
        let _ = writeln!(table, "{test:60} {now:>12} {shown:>8}");
        if now as f64 > most {
            worse.push(test);
        }
    }
    println!("{table}");
    if writes {
        return fs::write(recorded(), text).expect("writing benches/instructions.csv");
    }
    assert!(
        worse.is_empty(),
        "more instructions than recorded in benches/instructions.csv: {worse:?}; where that is \
         meant to be, record them by make instructions\n{table}"
    );
}

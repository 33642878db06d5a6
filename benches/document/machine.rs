//! The machine and the versions.

use std::{fs, process::Command};

/// Describes the machine, its kernel, Tripod with its commit, and those of `programs` that exist,
/// each given with the flag that prints its version.
pub fn machine(programs: &[(&str, &str)]) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let built = option_env!("CARGO_PROFILE_RELEASE_LTO").map_or("", |lto| match lto {
        "off" | "false" => ", without link-time optimization",
        _ => "",
    });
    let processor = processor().map_or(String::new(), |name| format!(" of {name}"));
    let commit = commit().map_or(String::new(), |commit| format!(" ({commit})"));
    let mut parts = vec![
        format!("{cores} cores{processor}"),
        format!("Linux {}", kernel()),
        format!("Tripod {}{commit}{built}", env!("CARGO_PKG_VERSION")),
    ];
    parts.extend(
        programs
            .iter()
            .filter_map(|(program, flag)| version(program, flag)),
    );
    parts.join(", ")
}

/// The version of the running kernel.
pub fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let number = release.split('-').next().unwrap_or_default();
    number.trim().to_owned()
}

/// Returns the processor's name, or on Arm, where the kernel does not have it, its part number.
fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let value = |key: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
        Some(value.trim().to_owned())
    };
    value("model name").or_else(|| Some(format!("CPU part {}", value("CPU part")?)))
}

/// Returns the commit that was built, with a plus sign if files differ from it; none without git,
/// or if another program is measured. Files in `docs`, which benches write, do not count.
fn commit() -> Option<String> {
    if std::env::var_os("TRIPOD").is_some() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git
            .arg("-C")
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(arguments);
        let output = output.output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", ".", ":!docs"])?;
    let plus = if changed.is_empty() { "" } else { "+" };
    Some(format!("{commit}{plus}"))
}

fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.lines().next()?.trim().to_owned())
}

//! The machine and the versions.

use std::{fs, process::Command};

/// Returns the machine, its kernel, Tripod and what answers of `programs`, each with the
/// flag that has it print its version.
pub fn machine(programs: &[(&str, &str)]) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let built = option_env!("CARGO_PROFILE_RELEASE_LTO").map_or("", |lto| match lto {
        "off" | "false" => ", without link-time optimization",
        _ => "",
    });
    let mut parts = vec![
        format!("{cores} cores"),
        format!("Linux {}", kernel()),
        format!("Tripod {}{built}", env!("CARGO_PKG_VERSION")),
    ];
    parts.extend(
        programs
            .iter()
            .filter_map(|(program, flag)| version(program, flag)),
    );
    parts.join(", ")
}

/// Returns the version of the kernel that runs.
pub fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let number = release.split('-').next().unwrap_or_default();
    number.trim().to_owned()
}

fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.lines().next()?.trim().to_owned())
}

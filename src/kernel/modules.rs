//! Kernel modules. Mostly the kernel loads what it needs by itself; this is for
//! what it does not know it needs.

use std::process::{Command, Stdio};

/// Loads the module `name` with modprobe(8), if there is one and the module is
/// not there yet.
///
/// # Errors
/// Why not, for people: with the name of the module.
pub fn load(name: &str) -> Result<(), String> {
    let outcome = Command::new("modprobe")
        .args(["--", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    match outcome {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default().trim().to_owned();
            Err(format!("module {name} could not be loaded: {said}"))
        }
        Err(error) => Err(format!(
            "module {name} could not be loaded: modprobe: {error}"
        )),
    }
}

//! Kernel modules. The kernel loads most modules on demand; this loads the others.

use std::{
    io,
    process::{Command, Stdio},
};

/// Why a module is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// modprobe(8) could not be run.
    #[error("module {name} could not be loaded: modprobe: {source}")]
    Run {
        /// Name of the module.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// modprobe(8) ended with an error.
    #[error("module {name} could not be loaded: {message}")]
    Failed {
        /// Name of the module.
        name: String,
        /// Its output on stderr.
        message: String,
    },
}

/// Loads the module `name` with modprobe(8), if there is one and the module is
/// not there yet.
///
/// # Errors
/// When it cannot be loaded; the error has the name of the module.
pub fn load(name: &str) -> Result<(), Error> {
    let outcome = Command::new("modprobe")
        .args(["--", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let name = name.to_owned();
    match outcome {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let message = stderr.lines().next().unwrap_or_default().trim().to_owned();
            Err(Error::Failed { name, message })
        }
        Err(source) => Err(Error::Run { name, source }),
    }
}

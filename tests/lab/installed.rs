//! Programs that tests need in addition to the one under test.

use std::path::Path;

/// Returns `PATH` with the tools that `make test-all` installs.
pub fn path_with_tools() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}/target/tools/bin:{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns whether a program of that name is in [`path_with_tools`].
pub fn is_installed(program: &str) -> bool {
    let folders = path_with_tools();
    let mut folders = folders.split(':');
    folders.any(|folder| Path::new(folder).join(program).is_file())
}

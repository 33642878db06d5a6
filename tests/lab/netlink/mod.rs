//! Netlink requests that fail when a test requests it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The same as in preload.rs.
const FOLDER: &str = "/run/netlink";

/// A library that intercepts the netlink requests of a program.
pub struct Netlink {
    library: PathBuf,
}

impl Netlink {
    /// Builds the library.
    pub fn new() -> Netlink {
        let folder = Path::new(FOLDER);
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("preload.rs"), include_str!("preload.rs")).expect("a file");
        // In a guest the toolchain's programs are in no folder of PATH.
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        let built = Command::new(rustc)
            .args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort"])
            .args(["-o", "libnetlink.so", "preload.rs"])
            .current_dir(folder)
            .status();
        assert!(built.expect("running rustc").success(), "preload.rs");
        Netlink {
            library: folder.join("libnetlink.so"),
        }
    }

    /// Makes the library intercept the requests of `command`.
    pub fn come_between(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
    }

    /// Makes each request fail from now on.
    pub fn fail(&self) {
        fs::write(Path::new(FOLDER).join("fails"), "").expect("a file");
    }

    /// Ends the failures.
    pub fn repair(&self) {
        let _ = fs::remove_file(Path::new(FOLDER).join("fails"));
    }
}

//! The table is run by a Tripod that has confined itself: it reaches only the files that it needs,
//! and starts programs only if its mode does.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};

use super::columns::{Column, Kernel};
use crate::lab::{Tripod, eventually, skip};

const SOON: Duration = Duration::from_secs(20);

/// The target of a link in the folder of manifests.
const OUTSIDE: &str = "/run/outside.json";
const LINK: &str = "link.json";

/// Checks the confinement of a Tripod with `--confine=files` that has begun to serve the objects in
/// `manifests`.
pub fn check(tripod: &Tripod, column: &Column, manifests: &Path) {
    let programs = if column.writes_with_iptables() {
        "programs may be started: the rules of this mode"
    } else {
        "programs: none can be started from now on"
    };
    tripod.logs_once(&[programs]);
    if !has_landlock() {
        tripod.logs_once(&["files: ", "no Landlock"]);
        return match column.kernel {
            Kernel::Host => skip("this kernel has no Landlock: all cases are run without"),
            Kernel::Full | Kernel::Bare | Kernel::Debian => println!("this guest has no Landlock"),
        };
    }
    assert_eq!(tripod.logged(&["files: "]), 0, "{}", tripod.log());
    fs::write(OUTSIDE, "{}").expect("a file outside");
    let link = manifests.join(LINK);
    symlink(OUTSIDE, &link).expect("a link");
    eventually("the link is not followed", SOON, || {
        match tripod.logged(&[LINK, "Permission denied"]) {
            0 => Err(tripod.log()),
            _ => Ok(()),
        }
    });
    fs::remove_file(&link).expect("no link");
}

/// Returns whether the kernel has Landlock, and has it enabled; nothing is restricted.
fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset.handle_access(AccessFs::from_all(ABI::V1));
    ruleset.is_ok_and(|ruleset| ruleset.create().is_ok())
}

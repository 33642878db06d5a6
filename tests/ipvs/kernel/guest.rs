//! The guest in which the other tests of this folder run.

use crate::lab::{guest, skip};

#[test]
fn guest_full_ipvs_kernel() {
    for tool in ["ipvsadm", "ipset"] {
        if !installed(tool) {
            return skip(format!("no {tool}: apt-get install ipvsadm ipset"));
        }
    }
    let tests = [
        "ipvs::kernel::links::",
        "ipvs::kernel::load::",
        "ipvs::kernel::model::",
        "ipvs::kernel::reload::",
        "ipvs::kernel::servers::",
    ];
    guest::in_guest(guest::Profile::Full, &tests, &[]);
}

fn installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).exists())
}

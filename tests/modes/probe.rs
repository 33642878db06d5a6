//! `tripod probe` on each kernel.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::lab::{Host, Share, run, tripod_binary};

/// Names the kernel that a test runs on: `full` or `bare`, or the host's.
pub const KERNEL: &str = "TRIPOD_LAB_KERNEL";

pub fn kernel() -> String {
    std::env::var(KERNEL).unwrap_or_else(|_| "host".to_owned())
}

pub fn node() -> Host {
    Host::new("node", Ipv4Addr::new(192, 0, 2, 10), Ipv6Addr::LOCALHOST)
}

/// Everything that the kernel holds and a mode could change.
pub fn state(node: &Host) -> String {
    let mut state = node.show("ip -d link") + &node.show("ip addr") + &node.show("ip rule");
    state += &node.show("ip route show table all");
    if kernel() != "bare" {
        for program in ["iptables-save", "ip6tables-save"] {
            let saved = node.show(program);
            let lines = saved.lines().filter(|line| line.starts_with("-A"));
            state.extend(lines.map(|line| format!("{line}\n")));
        }
        state += &node.show("ipset save");
    }
    state
}

/// `UPDATE_GOLDEN=1` writes what is seen.
#[test]
fn the_table_is_right_for_this_kernel() {
    let name = concat!(module_path!(), "::the_table_is_right_for_this_kernel");
    run(name, Share::Beside, || {
        let node = node();
        let program = tripod_binary();
        let before = state(&node);
        let table = node.show(&format!("{} probe", program.display()));
        assert_eq!(before, state(&node), "probing changed something");
        let golden = format!(
            "{}/tests/modes/golden/{}.txt",
            env!("CARGO_MANIFEST_DIR"),
            kernel()
        );
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &table).expect("writing it");
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(table, wanted, "{golden}");

        let json = node.show(&format!("{} probe --output json", program.display()));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["default"], default_mode(), "{json:#}");
        let modes = json["modes"].as_array().expect("a list");
        let names: Vec<_> = modes.iter().map(|mode| &mode["mode"]).collect();
        assert_eq!(names, ["ipvs", "iptables", "userspace"]);
        for mode in modes {
            let missing = mode["missing"].as_array().expect("a list");
            assert_eq!(mode["canRun"] == true, missing.is_empty(), "{mode:#}");
            for lack in missing {
                for field in ["what", "why", "for", "remedy"] {
                    let text = lack[field].as_str().unwrap_or_default();
                    assert!(!text.is_empty(), "no {field} in {lack:#}");
                }
            }
        }
    });
}

/// The mode that the default flag ends in.
pub fn default_mode() -> &'static str {
    match kernel().as_str() {
        "full" => "ipvs",
        "bare" => "userspace",
        _ => "iptables",
    }
}

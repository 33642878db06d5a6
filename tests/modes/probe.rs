//! `tripod probe` on each kernel.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::lab::{Host, run, tripod_binary};

/// Environment variable with the kernel on which a test runs: `full` or `bare`; otherwise
/// the host's.
pub const KERNEL: &str = "TRIPOD_LAB_KERNEL";

pub fn kernel() -> String {
    std::env::var(KERNEL).unwrap_or_else(|_| "host".to_owned())
}

pub fn node() -> Host {
    Host::new("node", Ipv4Addr::new(192, 0, 2, 10), Ipv6Addr::LOCALHOST)
}

/// Everything in the kernel that a mode could change.
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

/// `UPDATE_GOLDEN=1` writes the observed table.
#[test]
fn the_table_is_right_for_this_kernel() {
    run(|| {
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
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(table, expected, "{golden}");

        let json = node.show(&format!("{} probe --output json", program.display()));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["default"], default_mode(), "{json:#}");
        let modes = json["modes"].as_array().expect("a list");
        let names: Vec<_> = modes.iter().map(|mode| &mode["mode"]).collect();
        assert_eq!(names, ["ipvs", "nftables", "iptables", "userspace"]);
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

/// The mode that runs if none is requested.
pub fn default_mode() -> &'static str {
    match kernel().as_str() {
        "full" => "ipvs",
        "bare" => "userspace",
        _ => "nftables",
    }
}

/// Runs Tripod. Returns standard output, standard error and exit status.
fn output_of(node: &Host, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut command = node.command(tripod_binary());
    let output = command.args(arguments).output().expect("running tripod");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

#[test]
fn what_is_left_out_is_missing_in_every_view() {
    run(|| {
        let node = node();
        let (probed, ..) = output_of(&node, &["probe", "--without=local-routes", "-o", "json"]);
        let probed: serde_json::Value = serde_json::from_str(&probed).expect("JSON");
        let userspace = &probed["modes"][3];
        let mut lacks = userspace["missing"].as_array().expect("a list").iter();
        // With nat, userspace mode needs no routes.
        let routes = lacks.find(|lack| lack["name"] == "local-routes");
        assert_eq!(routes.is_some(), kernel() == "bare", "{probed:#}");
        if let Some(lack) = routes {
            assert_eq!(lack["why"], "excluded by --without");
        }

        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/vectors/01-clusterip/objects.yaml"
        );
        std::fs::create_dir_all("/run/objects").expect("a folder");
        std::fs::copy(folder, "/run/objects/objects.yaml").expect("objects");
        let render = |mode: &str, without: &str| {
            let (mode, without) = (
                format!("--proxy-mode={mode}"),
                format!("--without={without}"),
            );
            output_of(
                &node,
                &["render", &mode, "--manifests=/run/objects", &without],
            )
        };
        for mode in ["iptables", "ipvs"] {
            let (with, ..) = render(mode, "");
            let (without, ..) = render(mode, "comment");
            assert!(with.contains("-m comment"), "{with}");
            assert!(without.contains("KUBE-SERVICES") && !without.contains("-m comment"));
            let (nothing, why, status) = render(mode, "mark");
            assert_eq!((&*nothing, status), ("", Some(1)), "{why}");
            let words =
                format!("{mode} mode cannot run here: it needs IPv4 -m mark, -j MARK (excluded");
            assert!(why.contains(&words), "{why}");
        }
        for job in [&["probe"][..], &["render", "--manifests=/run/objects"], &[]] {
            let (_, why, status) = output_of(&node, &[job, &["--without=recnt"]].concat());
            assert_eq!(status, Some(2), "{why}");
            assert!(
                why.contains("recnt") && why.contains("recent, redirect"),
                "{why}"
            );
        }
    });
}

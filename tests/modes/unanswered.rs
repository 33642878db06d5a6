//! A question that the kernel cannot answer for a temporary reason decides nothing.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use super::probe::{node, state};
use crate::lab::{Host, Tripod, eventually, get, run, tripod_binary};

const FOLDER: &str = "/run/programs";
/// While it exists, iptables fails as if memory were short.
const SHORTAGE: &str = "/run/shortage";

/// The script that replaces iptables.
const SCRIPT: &str = r#"#!/bin/sh
name=$(basename "$0")
if [ -e /run/shortage ]; then
    echo "$name: Cannot allocate memory" >&2
    exit 4
fi
exec /usr/sbin/xtables-nft-multi "$name" "$@"
"#;

/// Makes every iptables that Tripod may find a link to the script.
fn programs() {
    fs::create_dir_all(FOLDER).expect("a folder");
    let script = format!("{FOLDER}/script");
    fs::write(&script, SCRIPT).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut names = vec!["xtables-nft-multi".into(), "xtables-legacy-multi".into()];
    for family in ["iptables", "ip6tables"] {
        for variant in ["", "-nft", "-legacy"] {
            names.extend(["restore", "save"].map(|what| format!("{family}{variant}-{what}")));
        }
    }
    for name in names {
        symlink(&script, format!("{FOLDER}/{name}")).expect("a link");
    }
}

fn command(node: &Host, arguments: &[&str]) -> std::process::Command {
    let mut command = node.command(tripod_binary());
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{FOLDER}:{path}"))
        .args(arguments);
    command
}

#[test]
fn no_worse_mode_is_chosen_and_nothing_is_removed_for_a_shortage() {
    run(|| {
        let node = node();
        programs();
        fs::write(SHORTAGE, "").expect("a file");
        // An earlier process left this.
        node.show("iptables-nft -t nat -N KUBE-SVC-OLD");
        node.show("iptables-nft -t nat -A OUTPUT -d 10.96.0.1 -j KUBE-SVC-OLD");
        let before = state(&node);

        let probed = command(&node, &["probe"]).output().expect("running tripod");
        let table = String::from_utf8_lossy(&probed.stdout).into_owned();
        for words in [
            "iptables   not known whether it can run: try again",
            "    unknown: IPv4 nat (iptables-restore: iptables-restore: Cannot allocate memory)",
        ] {
            assert!(table.contains(words), "no {words:?} in:\n{table}");
        }

        fs::create_dir_all("/run/objects").expect("a folder");
        let arguments = [
            "--proxy-mode=iptables",
            "--manifests=/run/objects",
            "--hostname-override=node",
        ];
        let tripod = Tripod::spawn(command(&node, &arguments));
        let words = "not known whether iptables mode can run here";
        tripod.logs_once(&["WARN", words, "Cannot allocate memory"]);
        let livez = || get(&node, SocketAddr::from(([127, 0, 0, 1], 10256)), "/livez");
        eventually("/livez is answered", Duration::from_secs(10), || {
            let answer = livez().map_err(|error| error.to_string())?;
            if answer.starts_with("HTTP/1.1 200") {
                Ok(())
            } else {
                Err(answer)
            }
        });
        // The kubelet's probes by the command as well: nothing is applied yet, and the process
        // lives.
        for (arguments, status, words) in [
            (&["--probe=liveness"][..], 0, ""),
            (&["--probe=readiness"], 1, "nothing of IPv4 is applied yet"),
            (&[], 2, "this process is starting"),
        ] {
            let asked = command(&node, &[&["status"], arguments].concat()).output();
            let asked = asked.expect("running tripod");
            assert_eq!(asked.status.code(), Some(status), "{asked:?}");
            let said = [asked.stdout, asked.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(tripod.logged(&["starting"]), 0, "{}", tripod.log());
        assert_eq!(before, state(&node), "nothing is decided yet");

        fs::remove_file(SHORTAGE).expect("it is there");
        tripod.logs_once(&["starting", "mode=iptables"]);
        assert_eq!(tripod.logged(&["running in"]), 0, "{}", tripod.log());
        assert_eq!(tripod.logged(&["not known whether"]), 1, "{}", tripod.log());
        eventually("what was left is gone", Duration::from_secs(20), || {
            let saved = node.show("iptables-nft-save -t nat");
            let served = saved.contains("KUBE-SERVICES") && !saved.contains("KUBE-SVC-OLD");
            if served { Ok(()) } else { Err(saved) }
        });
    });
}

//! A start with manifests and without a cluster: the log, and the answers of the commands that it
//! names.

use std::fs;

use super::{SOON, tripod};
use crate::lab::{Lab, Service, Tripod, eventually, tripod_binary};

/// Rows of a terminal that shows it completely.
const ROWS: usize = 24;

#[test]
fn a_start_with_a_file_fits_on_a_screen_and_says_what_to_ask() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish_all(&web);
        lab.publish_all(&Service::new("other", 2));
        let mut command = lab.node.command(tripod_binary());
        command
            .args(["--proxy-mode=nftables", "--hostname-override=node"])
            // The limits of the machine's table of connections do not matter.
            .arg("--conntrack-max-per-core=0")
            .arg("--manifests")
            .arg(lab.manifests().join("web.json"));
        let running = Tripod::start_on(&lab.node, command);
        running.logs_once(&["serving"]);
        let log = running.log();
        let last = log.lines().last().expect("a line");
        let says = "INFO serving 1 Service in nftables mode; for details: tripod status or \
                    http://127.0.0.1:10249/";
        assert!(last.ends_with(says), "{log}");
        assert!(log.lines().count() <= ROWS, "{log}");
        assert_eq!(running.logged(&["WARN"]), 0, "{log}");
        assert_eq!(running.logged(&["INFO", "cluster CIDR"]), 1, "{log}");

        let explained = tripod(&lab.node, &["explain", "default/web:tcp"]).text;
        let to = web.cluster()[0];
        let first = format!("{to}/TCP from node, in nftables mode:");
        assert_eq!(explained.lines().next(), Some(&*first), "{explained}");
        let of_pod = tripod(&lab.node, &["explain", &to.to_string(), "--from=pod"]).text;
        assert!(of_pod.contains(&format!("{to}/TCP from pod")), "{of_pod}");

        let names = || {
            let all = tripod(&lab.node, &["ls", "-o", "json"]).json();
            let all = all["items"].as_array().expect("a list").clone();
            let mut names: Vec<_> = all.iter().map(|port| port["name"].clone()).collect();
            names.dedup();
            names
        };
        assert_eq!(names(), ["web"]);
        let text = fs::read_to_string(lab.manifests().join("web.json")).expect("a manifest");
        lab.write("web.json", &text.replace("\"web\"", "\"shop\""));
        eventually("the file is followed", SOON, || match names() {
            names if names == ["shop"] => Ok(()),
            names => Err(format!("{names:?}")),
        });
    });
}

/// Otherwise it would serve nothing, and wait for a folder whose name has a typing error.
#[test]
fn a_start_without_manifests_ends_at_once() {
    Lab::run(|lab| {
        for command in [&[][..], &["render"], &["test"]] {
            let path = lab.manifests().join("none");
            let flag = format!("--manifests={}", path.display());
            let printed = tripod(&lab.node, &[command, &[&*flag]].concat());
            assert!(matches!(printed.status, Some(1 | 2)), "{printed:?}");
            let why = format!("cannot read --manifests {}: No such file", path.display());
            let [line] = &printed.error.lines().collect::<Vec<_>>()[..] else {
                panic!("{command:?}: {}", printed.error);
            };
            assert!(line.contains(&why), "{line}");
        }
    });
}

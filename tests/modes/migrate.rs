//! `tripod migrate --check` on a node where kube-proxy runs.

use std::{ffi::OsStr, fs, path::PathBuf, process::Stdio, time::Duration};

use serde_json::Value;

use super::probe::{kernel, node};
use super::stale_state::{engines, left, state::State};
use crate::lab::{Host, Tripod, eventually, run, tripod_binary};

/// Runs the command with these flags. Returns the report and the exit status.
pub fn check(node: &Host, flags: &[impl AsRef<OsStr>]) -> (Value, Option<i32>) {
    let mut command = node.command(tripod_binary());
    command
        .args(["migrate", "--check", "--output=json"])
        .args(flags);
    let done = command.stdin(Stdio::null()).output().expect("running it");
    let report = serde_json::from_slice(&done.stdout);
    let report = report.unwrap_or_else(|e| panic!("{e}: {done:?}"));
    (report, done.status.code())
}

/// The fate of the thing of that name, according to the report.
fn becomes<'a>(report: &'a Value, name: &str) -> &'a str {
    let groups = report["kernel"].as_array().expect("a list").iter();
    let mut found = groups.filter(|group| {
        let names = group["names"].as_array().expect("names");
        names.iter().any(|known| known == name)
    });
    let group = found
        .next()
        .unwrap_or_else(|| panic!("no {name} in {report:#}"));
    group["becomes"].as_str().expect("a word")
}

fn configuration(name: &str, mode: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tripod-{name}-{}", std::process::id()));
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         mode: {mode}\nconntrack: {{maxPerCore: 0}}\n"
    );
    fs::write(&path, text).expect("a temporary file");
    path
}

/// The mode of kube-proxy, a mode that Tripod could be given instead, and a chain that both modes
/// have, if there is one.
fn modes() -> (&'static str, &'static str, Option<&'static str>) {
    match kernel().as_str() {
        "full" => ("ipvs", "iptables", Some("KUBE-SERVICES")),
        _ => ("iptables", "nftables", None),
    }
}

#[test]
fn what_kube_proxy_left_is_taken_over_or_removed_and_nothing_changes_meanwhile() {
    run(|| {
        let node = node();
        let kubelet = engines()[0];
        let (mode, other, shared) = modes();
        let case = left::case("05-nodeport");
        left::kube_proxys(&node, &case, mode, kubelet, kubelet);
        left::nftables(&node);
        let before = State::of(&node);
        let of_same = configuration("same", mode);
        let of_other = configuration("other", other);
        let file = |path: &PathBuf| format!("--config={}", path.display());

        let (same, _) = check(&node, &[&file(&of_same)]);
        assert_eq!(same["node"]["mode"], mode, "{same:#}");
        for name in ["KUBE-SERVICES", "KUBE-POSTROUTING"] {
            assert_eq!(becomes(&same, name), "takenOver", "{same:#}");
        }
        let (changed, status) = check(&node, &[&file(&of_other)]);
        assert_eq!(changed["node"]["mode"], other, "{changed:#}");
        // For nftables mode some things differ whatever is configured.
        let differs = i32::from(other == "nftables");
        assert_eq!(status, Some(differs), "{changed:#}");
        match shared {
            Some(shared) => {
                assert_eq!(becomes(&changed, shared), "takenOver");
                for name in ["kube-ipvs0", "KUBE-CLUSTER-IP", "KUBE-NODE-PORT"] {
                    assert_eq!(becomes(&same, name), "takenOver", "{same:#}");
                    assert_eq!(becomes(&changed, name), "removed", "{changed:#}");
                }
            }
            None => {
                assert_eq!(becomes(&changed, "KUBE-SERVICES"), "removed");
                assert_eq!(becomes(&changed, "kube-proxy"), "removed");
            }
        }
        before.assert_same(&State::of(&node), "afterwards");
        for path in [of_same, of_other] {
            fs::remove_file(path).expect("it was written");
        }
    });
}

#[test]
fn the_configuration_of_the_process_that_runs_here_is_found() {
    run(|| {
        let node = node();
        // A file other than Tripod's own, under kube-proxy's name.
        let folder = std::env::temp_dir().join(format!("tripod-proxy-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let program = folder.join("kube-proxy");
        fs::copy(tripod_binary(), &program).expect("copying it");
        let path = configuration("running", "iptables");
        let mut command = node.command(&program);
        command
            .arg(format!("--config={}", path.display()))
            .arg(format!("--manifests={}", folder.display()))
            .args(["--hostname-override=node-7", "--status-socket="]);
        let tripod = Tripod::spawn(command);
        let mut found = None;
        eventually("it has begun", Duration::from_secs(30), || {
            let name = fs::read_to_string(format!("/proc/{}/comm", tripod.pid()));
            match name.as_deref().map(str::trim) {
                Ok("kube-proxy") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        for flags in [&[][..], &[&*format!("--pid={}", tripod.pid())]] {
            let (report, status) = check(&node, flags);
            assert_eq!(status, Some(0), "{report:#}");
            let configuration = format!("process {}, --config {}", tripod.pid(), path.display());
            assert_eq!(report["configuration"], configuration);
            assert_eq!(report["kubeProxyMode"], "iptables");
            found = report["node"]["mode"].as_str().map(str::to_owned);
        }
        assert_eq!(found.as_deref(), Some("iptables"));
        drop(tripod);
        fs::remove_dir_all(folder).expect("it was made");
        fs::remove_file(path).expect("it was written");
    });
}

/// Like the settings of ufw and of hardening guides.
#[test]
fn a_policy_that_drops_what_comes_to_pass_input_is_named() {
    run(|| {
        let node = node();
        let path = configuration("input", "iptables");
        let row = |to: &str| {
            let (report, _) = check(&node, &[format!("--config={}", path.display())]);
            let rows = report["differences"].as_array().expect("rows").iter();
            let mut rows = rows.filter(|row| {
                let modes = row["modes"].as_array().expect("modes");
                row["setting"]
                    .as_str()
                    .is_some_and(|of| of.starts_with("hook INPUT"))
                    && modes.contains(&to.into())
            });
            rows.next().unwrap_or_else(|| panic!("{report:#}")).clone()
        };
        for mode in ["ipvs", "userspace"] {
            let tripod = row(mode)["tripod"].as_str().map(str::to_owned);
            let says = tripod.is_some_and(|text| text.contains("no chain of this node"));
            assert!(says, "{mode}: {:#}", row(mode));
        }
        for program in ["iptables", "ip6tables"] {
            let done = node.command(program).args(["-P", "INPUT", "DROP"]).status();
            assert!(done.expect("running it").success());
        }
        for mode in ["ipvs", "userspace"] {
            let tripod = row(mode)["tripod"].as_str().map(str::to_owned);
            let names = tripod.is_some_and(|text| text.contains("chain INPUT of table"));
            assert!(names, "{mode}: {:#}", row(mode));
        }
        fs::remove_file(path).expect("it was written");
    });
}

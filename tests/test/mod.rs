//! `tripod test --manifests`: the command makes namespaces and tests a folder in them.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::lab::{
    die_with_parent, eventually,
    guest::{Profile, in_guest},
    run, skip, tripod_binary,
};

/// Services of each kind; `checks.txt` has their promises.
const SERVICES: &str = include_str!("services.yaml");

const CHECKS: &str = include_str!("checks.txt");

/// How soon something must show.
const SOON: Duration = Duration::from_secs(60);

/// A folder with one file.
fn folder(file: &str, text: &str) -> PathBuf {
    let folder = PathBuf::from("/run/manifests");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(file), text).expect("a file");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = die_with_parent(tripod_binary());
    command
        .args(["test", "--manifests"])
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Runs the command. Returns standard output, standard error and exit status.
fn printed(mut command: Command) -> (String, String, Option<i32>) {
    let output = command.output().expect("running tripod");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (out, error, output.status.code())
}

fn report(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn checks(report: &Value) -> &[Value] {
    report["checks"].as_array().expect("a list")
}

/// A check without its observed result.
fn line(check: &Value) -> String {
    let fields = [
        "outcome",
        "name",
        "servicePort",
        "to",
        "protocol",
        "from",
        "promised",
    ];
    let fields = fields.map(|field| check[field].as_str().unwrap_or_default());
    fields.join(" | ")
}

/// The lines expected in the report on a mode.
fn expected(mode: &str) -> Vec<String> {
    let lines = CHECKS.lines().map(|line| {
        let is_of_all = line.contains("load-balancer IP | shop/local") && !line.contains("outside");
        match mode {
            "userspace" => line.replace(", sees the caller", ""),
            // It has one virtual server for all callers.
            "ipvs" if is_of_all => line.replace(", 10.1.0.2:8080", ""),
            _ => line.to_owned(),
        }
    });
    lines.collect()
}

fn all_is_as_promised(mode: &str) {
    let folder = folder("services.yaml", SERVICES);
    let flag = format!("--proxy-mode={mode}");
    let (text, error, status) = printed(command(&folder, &[&flag, "--output=json"]));
    assert_eq!(status, Some(0), "{error}{text}");
    let report = report(&text);
    assert_eq!(report["mode"], mode);
    assert_eq!(report["notes"][0], "node node-1");
    let found: Vec<String> = checks(&report).iter().map(line).collect();
    assert_eq!(found, expected(mode), "{report:#}");
    for check in checks(&report) {
        let (promised, seen) = (&check["promised"], &check["seen"]);
        let text = promised.as_str().expect("a text");
        let as_is = text.trim_end_matches(", sees the caller");
        if check["outcome"] == "passed" && !as_is.starts_with("always") {
            assert_eq!(*seen, as_is, "{check:#}");
        }
    }
}

#[test]
fn in_nftables_mode_all_is_as_promised() {
    run(|| all_is_as_promised("nftables"));
}

#[test]
fn in_iptables_mode_all_is_as_promised() {
    run(|| all_is_as_promised("iptables"));
}

#[test]
fn in_userspace_mode_all_is_as_promised() {
    run(|| all_is_as_promised("userspace"));
}

mod in_guest {
    use super::{all_is_as_promised, run};

    #[test]
    #[ignore = "for a guest kernel with IPVS"]
    fn in_ipvs_mode_all_is_as_promised() {
        run(|| all_is_as_promised("ipvs"));
    }
}

#[test]
fn guest_full_test() {
    in_guest(Profile::Full, &["test::in_guest::"], &[]);
}

#[test]
fn the_table_has_a_line_for_each_check() {
    run(|| {
        let folder = folder("services.yaml", SERVICES);
        let arguments = ["--proxy-mode=userspace", "--hostname-override=node-2"];
        let (text, error, status) = printed(command(&folder, &arguments));
        assert_eq!(status, Some(0), "{error}{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for expected in [
            "userspace mode",
            "node node-2",
            "CHECK SERVICEPORT TO FROM PROMISED SEEN",
            "ok cluster IP shop/local 10.96.0.13:80 TCP a pod 10.1.0.2:8080 10.1.0.2:8080",
            "skipped cluster IP shop/sctp 10.96.0.15:80 SCTP a pod - SCTP is not tested",
            "36 passed, 0 failed, 2 skipped",
        ] {
            let found = lines.iter().any(|line| line == expected);
            assert!(found, "no {expected:?} in {text}");
        }
    });
}

/// A Service with a typing error is not tested, which must not look as if all were well.
#[test]
fn a_folder_with_faults_fails() {
    run(|| {
        let folder = folder("services.yaml", SERVICES);
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {prots: []}\n";
        fs::write(folder.join("wrong.yaml"), text).expect("a file");
        let arguments = ["--proxy-mode=userspace", "--output=json"];
        let (text, error, status) = printed(command(&folder, &arguments));
        assert_eq!(status, Some(1), "{error}{text}");
        let report = report(&text);
        assert_eq!(report["failed"], 0);
        let fault = report["faults"][0].as_str().expect("a fault");
        assert!(
            fault.contains("unknown field spec.prots, did you mean ports?"),
            "{fault}"
        );

        let mut render = die_with_parent(tripod_binary());
        render.args([
            "render",
            "--proxy-mode=nftables",
            "--hostname-override=node-1",
        ]);
        render.arg("--manifests").arg(&folder);
        let (text, error, status) = printed(render);
        assert_eq!(status, Some(1), "{error}");
        assert!(text.contains("10.96.0.13"), "the rest is printed: {text}");
        assert!(error.contains("spec.prots"), "{error}");
    });
}

/// An ordinary user makes the namespaces as well, where that is allowed.
#[test]
fn no_root_is_needed() {
    run(|| {
        let nobody = |program: &Path| {
            let mut command = die_with_parent("setpriv");
            let ids = ["--reuid=65534", "--regid=65534", "--clear-groups"];
            command.args(ids).arg(program);
            command
        };
        let mut possible = nobody(Path::new("unshare"));
        possible.args(["-Urnm", "true"]);
        if !possible.output().is_ok_and(|tried| tried.status.success()) {
            return skip("no ordinary user can make namespaces here");
        }
        // Its own folder may not be open to others.
        let program = PathBuf::from("/run/tripod-of-nobody");
        fs::copy(tripod_binary(), &program).expect("a copy");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
        let folder = folder("services.yaml", SERVICES);
        let mut command = nobody(&program);
        command
            .args(["test", "--proxy-mode=nftables", "--output=json"])
            .arg("--manifests")
            .arg(folder);
        let (text, error, status) = printed(command);
        assert_eq!(status, Some(0), "{error}{text}");
        let found: Vec<String> = checks(&report(&text)).iter().map(line).collect();
        assert_eq!(found, expected("nftables"));
    });
}

/// A pod that ended on one node, and the pod on another node that has its address now, in one slice
/// and in two.
fn shared_address(policy: &str) -> String {
    let entry = |node: &str, is_live: bool| {
        json!({
            "addresses": ["10.1.0.6"], "nodeName": node,
            "conditions": {"ready": is_live, "serving": is_live, "terminating": !is_live},
        })
    };
    let (ended, live) = (entry("node-2", false), entry("node-1", true));
    let service = |name: &str, last: u8| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "type": "NodePort", "clusterIP": format!("10.96.0.{last}"),
                "internalTrafficPolicy": policy, "externalTrafficPolicy": policy,
                "ports": [{"port": 80, "nodePort": 30080 + u16::from(last)}],
            },
        })
    };
    let slice = |service: &str, name: &str, endpoints: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": "shop",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": endpoints,
        })
    };
    let items = [
        service("one", 1),
        slice("one", "one-1", json!([ended, live])),
        service("two", 2),
        slice("two", "two-1", json!([live])),
        slice("two", "two-2", json!([ended])),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn of_two_pods_with_one_address_the_live_one_counts() {
    run(|| {
        for (policy, mode) in [("Local", "nftables"), ("Cluster", "userspace")] {
            let folder = folder("shared.json", &shared_address(policy));
            let mode = format!("--proxy-mode={mode}");
            let arguments = [&*mode, "--hostname-override=node-1", "--output=json"];
            let (text, error, status) = printed(command(&folder, &arguments));
            assert_eq!(status, Some(0), "{error}{text}");
            assert_eq!(report(&text)["passed"], 10, "{text}");
        }
    });
}

/// A Service that takes seconds to test: outside hosts get no answer at its addresses.
fn slow() -> String {
    let addresses: Vec<String> = (1..=6).map(|last| format!("203.0.113.{last}")).collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "slow", "namespace": "shop"},
        "spec": {
            "clusterIP": "10.96.0.10", "type": "NodePort", "externalIPs": addresses,
            "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30080}],
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "slow", "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "slow"},
        },
        "addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["10.1.0.2"], "nodeName": "node-2"}],
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [service, slice]}).to_string()
}

/// A test of [`slow`] under way.
struct UnderWay {
    test: Child,
    /// The process ID of the Tripod under test.
    proxy: String,
}

fn begin() -> UnderWay {
    let folder = folder("slow.json", &slow());
    let mut command = command(
        &folder,
        &[
            "--proxy-mode=nftables",
            "--output=json",
            "--hostname-override=node-1",
        ],
    );
    let test = command.stdout(Stdio::piped()).spawn();
    let test = test.expect("starting tripod");
    let children = format!("/proc/{0}/task/{0}/children", test.id());
    let proxy = eventually("Tripod is started", SOON, || {
        let numbers = fs::read_to_string(&children).unwrap_or_default();
        let mut numbers = numbers.split_whitespace().map(str::to_owned);
        let proxy = numbers.find(|number| {
            let line = fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
            line.starts_with("tripod\0--manifests")
        });
        proxy.ok_or_else(|| "no such process".to_owned())
    });
    UnderWay { test, proxy }
}

/// The network really breaks while calls are made.
#[test]
fn what_is_not_as_promised_fails() {
    run(|| {
        let mut under_way = begin();
        let mut breakage = Command::new("nsenter");
        let route = ["ip", "route", "replace", "blackhole", "10.1.0.2/32"];
        breakage
            .args(["-n", "-t", &under_way.proxy, "--"])
            .args(route);
        assert!(breakage.status().expect("nsenter").success());
        let mut text = String::new();
        let mut stdout = under_way.test.stdout.take().expect("it is piped");
        stdout.read_to_string(&mut text).expect("what it prints");
        let status = under_way.test.wait().expect("its end");
        assert_eq!(status.code(), Some(1), "{text}");
        let report = report(&text);
        let failed = checks(&report).iter().filter(|check| {
            check["from"] == "a pod" && check["outcome"] == "failed" && {
                let seen = check["seen"].as_str().unwrap_or_default();
                seen.contains("no answer") && check["promised"] == "10.1.0.2:8080"
            }
        });
        assert!(failed.count() > 0, "{report:#}");
        let silent = checks(&report)
            .iter()
            .filter(|check| check["promised"] == "no answer");
        assert!(
            silent.clone().all(|check| check["outcome"] == "passed"),
            "{report:#}"
        );
        assert_eq!(silent.count(), 7, "{report:#}");
    });
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    run(|| {
        let mut under_way = begin();
        under_way.test.kill().expect("it runs");
        under_way.test.wait().expect("its end");
        eventually("Tripod has ended", SOON, || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", under_way.proxy));
            // Nobody may have waited for it: then it is a zombie.
            let state = stat.unwrap_or_default();
            let state = state.rsplit_once(") ").map_or("", |(_, rest)| rest);
            if state.is_empty() || state.starts_with('Z') || state.starts_with('X') {
                Ok(())
            } else {
                Err(state.to_owned())
            }
        });
        let mut ip = Command::new("ip");
        let links = ip.args(["-o", "link"]).output().expect("ip");
        let links = String::from_utf8_lossy(&links.stdout).into_owned();
        let others = links.lines().filter(|line| !line.contains(" lo:"));
        // Such as those that come with modules for tunnels.
        assert!(others.clone().all(|line| line.contains("NOARP")), "{links}");
    });
}

#[test]
fn what_cannot_be_tried_is_said() {
    run(|| {
        let some = folder("services.yaml", SERVICES);
        let empty = PathBuf::from("/run/empty");
        fs::create_dir_all(&empty).expect("a folder");
        for (command, words) in [
            (
                command(Path::new("/run/none"), &[]),
                "cannot read --manifests /run/none",
            ),
            (command(&empty, &[]), "/run/empty has no Service to test"),
            (
                command(&some, &["--proxy-mode=none"]),
                "invalid value 'none'",
            ),
        ] {
            let (text, error, status) = printed(command);
            assert_eq!(status, Some(2), "{error}{text}");
            assert!(error.contains(words), "no {words:?} in {error}");
            assert_eq!(text, "");
        }
        // In a kernel that has IPVS the mode is tested.
        let (text, error, status) = printed(command(&some, &["--proxy-mode=ipvs"]));
        if status == Some(2) {
            for words in ["ipvs mode cannot run here", "it needs", "tripod probe"] {
                assert!(error.contains(words), "no {words:?} in {error}");
            }
        } else {
            assert!(text.starts_with("ipvs mode\n"), "{error}{text}");
        }
    });
}

/// Each ServicePort once more for each of many Services, within a bounded time.
#[test]
fn many_services_are_tried() {
    run(|| {
        let items = (0..300).flat_map(|number| {
            let name = format!("s{number}");
            let (third, last) = (number / 200, number % 200 + 1);
            let endpoint = |node: u8| {
                let address = format!("10.{node}.{third}.{last}");
                json!({"addresses": [address], "nodeName": format!("node-{node}")})
            };
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {
                    "clusterIP": format!("10.96.{third}.{last}"), "type": "NodePort",
                    "ports": [{"port": 80, "nodePort": 30000 + number}],
                },
            });
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4", "ports": [{"port": 8080}],
                "endpoints": [endpoint(1), endpoint(2)],
            });
            [service, slice]
        });
        let items: Vec<Value> = items.collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let folder = folder("many.json", &list.to_string());
        let arguments = ["--proxy-mode=nftables", "--output=json"];
        let (text, error, status) = printed(command(&folder, &arguments));
        assert_eq!(status, Some(0), "{error}");
        let report = report(&text);
        assert_eq!(report["passed"], 1500);
        let notes = report["notes"].to_string();
        assert!(notes.contains("more than 1000 checks"), "{notes}");
    });
}

//! A new pod next to the old one on the same node, on the same ports, as with a DaemonSet with
//! `maxSurge: 1`.

mod counted;
mod load;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use self::counted::promises_hold_in_many_hand_overs;
use self::load::{Open, under_load};
use super::probe::kernel;
use crate::lab::{
    Capture, EndpointChoice, Lab, Service, Tripod, ask, eventually, get, run, tripod_binary,
};

/// Time limit of anything that is not slow, also in a slow guest.
const SOON: Duration = Duration::from_secs(60);
/// The Service's health-check node port.
const CHECK_PORT: u16 = 31_000;

/// A mode with its capture, as flags name it.
#[derive(Clone, Copy, Debug)]
struct Way {
    mode: &'static str,
    capture: Capture,
    /// Whether the Service chooses userspace mode.
    chosen: bool,
}

impl Way {
    fn new(mode: &'static str, capture: Capture) -> Way {
        Way {
            mode,
            capture,
            chosen: false,
        }
    }

    /// Whether the process relays connections.
    fn relays(self) -> bool {
        self.chosen || self.mode == "userspace"
    }
}

macro_rules! in_each_mode {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            use super::*;
            #[test]
            fn nftables() { on_host("nftables", Capture::Redirect, super::$name); }
            #[test]
            fn iptables() { on_host("iptables", Capture::Redirect, super::$name); }
            #[test]
            fn userspace_redirect() { on_host("userspace", Capture::Redirect, super::$name); }
            #[test]
            fn userspace_local() { on_host("userspace", Capture::Local, super::$name); }
            /// Only in a guest kernel.
            #[test]
            fn ipvs() {
                if kernel() == "full" {
                    in_lab(Way::new("ipvs", Capture::Redirect), super::$name);
                }
            }
        }
    )+ };
}

in_each_mode!(
    nobody_notices_an_upgrade,
    a_rollout_that_fails_leaves_the_old_pod_in_charge,
    one_of_two_that_start_together_gives_way,
    promises_hold_in_many_hand_overs,
);

/// Like [`in_lab`], unless this runs in a guest kernel, where only ipvs mode matters.
fn on_host(mode: &'static str, capture: Capture, body: fn(&Lab, Way)) {
    if kernel() != "full" {
        in_lab(Way::new(mode, capture), body);
    }
}

fn in_lab(way: Way, body: fn(&Lab, Way)) {
    run(|| {
        let mut lab = Lab::new(way.capture);
        lab.three_backends();
        body(&lab, way);
    });
}

/// The Service is relayed next to a mode of the kernel.
fn in_each_mode_with_a_choice(body: fn(&Lab, Way)) {
    if kernel() == "full" {
        return;
    }
    for (mode, capture) in super::chosen::ways() {
        let way = Way {
            chosen: true,
            ..Way::new(mode, *capture)
        };
        in_lab(way, body);
    }
}

#[test]
fn nobody_notices_an_upgrade_of_what_is_chosen() {
    in_each_mode_with_a_choice(nobody_notices_an_upgrade);
}

/// Until the mode of the new pod serves all other Services, the old pod's userspace mode does.
#[test]
fn others_are_served_while_userspace_mode_leaves() {
    in_each_mode_with_a_choice(others_are_served);
}

fn others_are_served(lab: &Lab, way: Way) {
    // So many that a sync takes longer than the clients wait.
    const OTHERS: u8 = 200;
    publish(lab, way, &["a"]);
    let others: Vec<_> = (0..OTHERS)
        .map(|number| Service::new(&format!("other-{number}"), 20 + number))
        .collect();
    others.iter().for_each(|other| lab.publish(other, &["a"]));
    let retries = "/proc/sys/net/ipv4/tcp_syn_retries";
    let written = lab.client.enter(|| std::fs::write(retries, "1"));
    written.expect("a short patience");
    let old = Pod::ready(lab, Way::new("userspace", way.capture), 0);
    old.answers(lab);
    crate::userspace::succession::under_load(lab, &others[0].cluster(), |calls| {
        calls.more();
        let new = Pod::ready(lab, way, 1);
        new.answers(lab);
        calls.more();
        new.compares_everything();
        calls.more();
    });
}

/// A pod of the DaemonSet: it has its own unix socket, since it has its own `/run/tripod`.
struct Pod {
    process: Tripod,
    socket: String,
}

impl Pod {
    /// Starts the pod of that number without waiting for anything.
    fn start(lab: &Lab, way: Way, number: u32, flags: &[&str]) -> Pod {
        let socket = format!("--status-socket=/run/pod-{number}/tripod.sock");
        let mut command = lab.node.command(tripod_binary());
        command
            .arg(format!("--proxy-mode={}", way.mode))
            .arg(format!("--userspace-capture={}", way.capture.name()))
            .args(["--strict-proxy-mode", "--hostname-override=node"])
            .args([
                "--cluster-cidr=10.244.0.0/24,fd00:244::/64",
                "--nodeport-addresses=all",
            ])
            .args([
                "--conntrack-max-per-core=0",
                "--userspace-drain-timeout=15s",
                "--v=4",
            ])
            .args([
                "--iptables-sync-period=2s",
                "--ipvs-sync-period=2s",
                "--udp-timeout=60s",
            ])
            // Its rules differ, as those of another version may.
            .arg(format!("--masquerade-all={}", number % 2 == 1))
            .arg(&socket)
            .args(flags);
        let process = Tripod::spawn(command);
        Pod { process, socket }
    }

    /// Starts the pod of that number with the manifests of `lab`, without waiting for anything.
    fn started(lab: &Lab, way: Way, number: u32) -> Pod {
        let manifests = format!("--manifests={}", lab.manifests().display());
        Pod::start(lab, way, number, &[&manifests])
    }

    /// Like [`Pod::started`], and waits until it is ready.
    fn ready(lab: &Lab, way: Way, number: u32) -> Pod {
        let pod = Pod::started(lab, way, number);
        eventually("the pod is ready", SOON, || {
            if pod.is_ready(lab) {
                Ok(())
            } else {
                Err(pod.process.log())
            }
        });
        pod
    }

    /// Asks like the pod's readiness probe.
    fn is_ready(&self, lab: &Lab) -> bool {
        let mut command = lab.node.command(tripod_binary());
        command.args(["status", "--probe=readiness", &self.socket]);
        let asked = command.output().expect("tripod runs");
        asked.status.success()
    }

    /// The text that `tripod status` prints in the pod, and whether the pod gave way.
    fn status(&self, lab: &Lab) -> (String, bool) {
        let asked = |format: &str| {
            let mut command = lab.node.command(tripod_binary());
            command.args(["status", "-o", format, &self.socket]);
            let asked = command.output().expect("tripod runs");
            assert!(asked.status.success(), "it is not healthy: {asked:?}");
            String::from_utf8_lossy(&asked.stdout).into_owned()
        };
        let json: Value = serde_json::from_str(&asked("json")).expect("JSON");
        (asked("table"), json["gaveWay"] == true)
    }

    /// Waits until this pod answers on the ports of the node.
    fn answers(&self, lab: &Lab) {
        let at: SocketAddr = ([127, 0, 0, 1], 10249).into();
        let pid = format!("\"pid\":{},", self.process.pid());
        eventually("the pod answers on the node's ports", SOON, || {
            match get(&lab.node, at, "/v1/status") {
                Ok(answer) if answer.contains(&pid) => Ok(()),
                Ok(answer) => Err(answer),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// Waits until it has compared everything once more, and would have repaired anything that it
    /// takes for damage.
    fn compares_everything(&self) {
        let full = || self.process.logged(&["synced", "full=true"]);
        // One line for each family: at least one sync began after this.
        let enough = full() + 3;
        eventually("full syncs", SOON, || match full() {
            now if now >= enough => Ok(()),
            now => Err(format!("{now} lines of {enough}")),
        });
    }

    /// The lines of its log that would alarm an operator, or that report a repair.
    fn troubles(&self) -> Vec<String> {
        let log = self.process.log();
        let words = [
            " WARN ",
            " ERROR ",
            "written again",
            "another process changed",
        ];
        // In a slow guest programs sometimes exceed the time limit, no matter who else runs.
        let slow = ["the program that writes them does not end", "not applied"];
        let is_slow = |line: &str| kernel() == "full" && slow.iter().any(|w| line.contains(w));
        let lines = log.lines().filter(|line| !is_slow(line));
        let lines = lines.filter(|line| words.iter().any(|word| line.contains(word)));
        lines.map(str::to_owned).collect()
    }
}

/// Publishes a Service that uses everything a node serves, with `names` as endpoints on this node.
fn publish(lab: &Lab, way: Way, names: &[&str]) -> Service {
    let mut web = Service::new("web", 10)
        .with_node_port()
        .with_load_balancer()
        .spec("externalTrafficPolicy", "Local")
        .spec("healthCheckNodePort", CHECK_PORT);
    if way.chosen {
        web = web.annotated("tripod.proxy/mode", "userspace");
    }
    let endpoints = names
        .iter()
        .map(|name| EndpointChoice::ready(name).on("node"));
    lab.publish_endpoints(&web, &endpoints.collect::<Vec<_>>());
    web
}

/// Publishes a new Service, and waits until it is served.
fn follows_the_cluster(lab: &Lab, name: &str, number: u8) {
    let late = Service::new(name, number);
    lab.publish(&late, &["b"]);
    for to in late.cluster() {
        eventually("a Service that came since is served", SOON, || {
            match ask(&lab.node, to) {
                Ok(name) if name == "b" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

fn nobody_notices_an_upgrade(lab: &Lab, way: Way) {
    let web = publish(lab, way, &["a", "b", "c"]);
    let mut old = Pod::ready(lab, way, 0);
    old.answers(lab);
    let before = old.troubles();
    under_load(lab, &web, |load| {
        load.more();
        let mut open = Open::to(lab, &web);
        for number in [1, 2] {
            let new = Pod::ready(lab, way, number);
            new.answers(lab);
            load.more();
            open.are_served("a new pod is ready");
            follows_the_cluster(lab, &format!("beside-{number}"), 20 + number as u8);
            old.compares_everything();
            new.compares_everything();
            for (pod, gave_way) in [(&old, true), (&new, false)] {
                let (text, found) = pod.status(lab);
                assert_eq!(found, gave_way, "{text}");
                let words = "another Tripod process has taken over";
                assert_eq!(text.contains(words), gave_way, "{text}");
            }
            old.process.ask_to_end();
            load.more();
            if way.relays() {
                open.are_served("the old pod was asked to end");
                open = Open::to(lab, &web);
            }
            let ended = old.process.ended_within(SOON);
            assert!(ended.success(), "the old pod ended badly");
            open.are_served("the old pod is gone");
            follows_the_cluster(lab, &format!("after-{number}"), 30 + number as u8);
            load.more();
            let old = std::mem::replace(&mut old, new);
            assert_eq!(old.troubles(), before, "of the old pod");
        }
    });
    assert_eq!(old.troubles(), before, "of the new pod");
}

fn a_rollout_that_fails_leaves_the_old_pod_in_charge(lab: &Lab, way: Way) {
    let web = publish(lab, way, &["a", "b", "c"]);
    let mut old = Pod::ready(lab, way, 0);
    old.answers(lab);
    under_load(lab, &web, |load| {
        load.more();
        // It never gets its objects.
        let mut new = Pod::start(lab, way, 1, &["--master=http://127.0.0.1:1"]);
        new.process.logs_once(&["starting", way.mode]);
        load.more();
        follows_the_cluster(lab, "beside-one-that-waits", 20);
        assert!(!new.is_ready(lab));
        old.answers(lab);
        new.process.kill();
        load.more();
    });
    for round in [1, 2] {
        let mut new = Pod::ready(lab, way, 1 + u32::from(round));
        new.answers(lab);
        if round == 2 {
            // It hangs until the kubelet kills it.
            new.process.freeze();
        }
        new.process.kill();
        follows_the_cluster(lab, &format!("after-{round}"), 20 + round);
        old.answers(lab);
        under_load(lab, &web, |load| load.more());
    }
    assert!(old.process.terminate().success());
    let again = Pod::ready(lab, way, 9);
    again.answers(lab);
    follows_the_cluster(lab, "at-last", 29);
    under_load(lab, &web, |load| load.more());
}

/// As after a restart of the node during a rollout: neither serves when the other one looks for it.
fn one_of_two_that_start_together_gives_way(lab: &Lab, way: Way) {
    let web = publish(lab, way, &["a", "b", "c"]);
    let [first, second] = [0, 1].map(|number| Pod::started(lab, way, number));
    let took_over = |pod: &Pod| pod.process.logged(&["taking over from a running process"]) > 0;
    let is_first = eventually("one of them takes over", SOON, || {
        match [&first, &second].map(took_over) {
            [is_first, is_second] if is_first != is_second => Ok(is_first),
            both => Err(format!("{both:?}: {}", first.process.log())),
        }
    });
    let (mut old, new) = if is_first {
        (second, first)
    } else {
        (first, second)
    };
    new.answers(lab);
    // What the old pod wrote last may be repaired once more.
    new.compares_everything();
    let before = [&old, &new].map(|pod| pod.troubles().len());
    old.compares_everything();
    new.compares_everything();
    let after = [&old, &new].map(|pod| pod.troubles().len());
    assert_eq!(before, after, "{}", new.process.log());
    under_load(lab, &web, |load| {
        follows_the_cluster(lab, "beside", 20);
        load.more();
        old.process.ask_to_end();
        assert!(old.process.ended_within(SOON).success());
        load.more();
        follows_the_cluster(lab, "after", 21);
    });
}

/// Whether a mode has something in the kernel.
fn is_there(lab: &Lab, mode: &str) -> bool {
    match mode {
        "nftables" => lab.node.show("nft list tables").contains("ip tripod"),
        _ => lab.node.show("iptables-save -t nat").contains(":KUBE-SVC-"),
    }
}

/// The new pod runs another mode, and is killed after it has removed the old one's objects.
fn the_old_mode_comes_back(modes: [&'static str; 2]) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let lab = &*lab.three_backends();
        let [old, new] = modes.map(|mode| Way::new(mode, Capture::Redirect));
        let becomes = |there: [bool; 2]| {
            eventually("one mode is left in the kernel", SOON, || {
                match modes.map(|mode| is_there(lab, mode)) {
                    now if now == there => Ok(()),
                    now => Err(format!("{modes:?}: {now:?}")),
                }
            });
        };
        publish(lab, old, &["a", "b", "c"]);
        let before = Pod::ready(lab, old, 0);
        let mut after = Pod::ready(lab, new, 1);
        after.answers(lab);
        becomes([false, true]);
        follows_the_cluster(lab, "by-the-new", 20);
        before.compares_everything();
        becomes([false, true]);
        after.process.kill();
        becomes([true, false]);
        before.answers(lab);
        follows_the_cluster(lab, "by-the-old", 21);
    });
}

#[test]
fn nftables_comes_back_after_iptables() {
    if kernel() != "full" {
        the_old_mode_comes_back(["nftables", "iptables"]);
    }
}

#[test]
fn iptables_comes_back_after_nftables() {
    if kernel() != "full" {
        the_old_mode_comes_back(["iptables", "nftables"]);
    }
}

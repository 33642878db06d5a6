//! A Service with tens of thousands of endpoints next to one with a single endpoint: the cost is
//! bounded, and the small one is served meanwhile.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::hostile::{called, cluster_ips, modes, slice, start, write};
use crate::lab::{Capture, Lab, Service, Tripod, ask, eventually, figure, run, tripod_binary};

/// Endpoints of the large Service: as many as a node has ports, more than any cluster has for one
/// Service.
const MANY: usize = 65_000;
/// The same for iptables mode with iptables-nft, which adds 700 in a second or so on a busy
/// machine.
const MANY_FOR_NFT: usize = 16_000;
/// The same for ipvs mode, in a slow guest kernel: for each new real server the kernel searches
/// the list of all (`ip_vs_lookup_dest` in `net/netfilter/ipvs/ip_vs_ctl.c`).
const MANY_FOR_IPVS: usize = 10_000;
/// Endpoints of each EndpointSlice: the most that the API accepts (`maxEndpoints` of
/// `pkg/apis/discovery/validation`).
const OF_SLICE: usize = 1_000;
const FILE: &str = "crowd.json";
/// The number from which the cluster IPs follow.
const NUMBER: usize = 220;
/// How long it may take until all endpoints are applied, on a busy machine.
const ALL: Duration = Duration::from_secs(180);
/// How long a change of the other Service may take, which may wait for all endpoints.
const OTHER: Duration = Duration::from_secs(120);
/// The same when all endpoints are applied.
const SOON: Duration = Duration::from_secs(20);
/// The limit of peak resident memory, in KiB.
const MEMORY: u64 = 400 << 10;

struct Case {
    mode: &'static str,
    capture: Capture,
    /// Whether rules of iptables mode go to the legacy engine.
    legacy: bool,
    endpoints: usize,
}

/// The cases that this kernel can run.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(mode, capture) in modes() {
        let case = |legacy, endpoints| Case {
            mode,
            capture,
            legacy,
            endpoints,
        };
        match mode {
            "iptables" => cases.extend([case(false, MANY_FOR_NFT), case(true, MANY)]),
            "ipvs" => cases.push(case(false, MANY_FOR_IPVS)),
            _ => cases.push(case(false, MANY)),
        }
    }
    cases
}

fn objects(endpoints: usize) -> Vec<Value> {
    let mut spec = cluster_ips(NUMBER);
    spec["ports"] = json!([{"port": called(NUMBER)[0].port()}]);
    let mut all = vec![json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "crowd", "namespace": "default"}, "spec": spec,
    })];
    let addresses = (0..endpoints).map(|n| format!("10.250.{}.{}", n / 256, n % 256));
    let addresses: Vec<String> = addresses.collect();
    for (number, addresses) in addresses.chunks(OF_SLICE).enumerate() {
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut slice = slice("crowd", "IPv4", &addresses, 8080);
        slice["metadata"]["name"] = json!(format!("crowd-{number}"));
        all.push(slice);
    }
    all
}

/// Asks the running Tripod. Returns its answer.
fn asked(lab: &Lab, words: &[&str]) -> Result<String, String> {
    let done = lab.node.command(tripod_binary()).args(words).output();
    let done = done.expect("running tripod");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        Ok(text)
    } else {
        Err(text + &String::from_utf8_lossy(&done.stderr))
    }
}

/// Waits until `endpoints` endpoints are known, and the kernel holds them.
fn in_force(lab: &Lab, what: &str, endpoints: usize) {
    eventually(what, ALL, || {
        let status = asked(lab, &["status", "--output=json"])?;
        let status: Value = serde_json::from_str(&status).map_err(|error| error.to_string())?;
        // The other Service has one for each family and protocol.
        let known = &status["counts"]["endpoints"];
        if *known != json!(endpoints + 4) {
            return Err(format!("{known} endpoints are known"));
        }
        asked(lab, &["diff"]).map(drop)
    });
}

/// Waits until `good` is answered by `name`; each call until then must be answered as well.
fn reaches(lab: &Lab, good: &Service, name: &str, what: &str, within: Duration) {
    for to in good.cluster() {
        eventually(what, within, || {
            match ask(&lab.client, to).expect(what).as_str() {
                answer if answer == name => Ok(()),
                other => Err(other.to_owned()),
            }
        });
    }
}

fn serves_both(case: &Case) {
    let Case {
        mode,
        capture,
        legacy,
        endpoints,
    } = *case;
    let title = format!(
        "{endpoints} endpoints, {mode}, {}, {legacy}",
        capture.name()
    );
    let took = |what: &str, begun: Instant| {
        figure(
            &format!("{title}: {what}"),
            format!("{:.1?}", begun.elapsed()),
        );
    };
    let mut lab = Lab::new(capture);
    if legacy {
        // This chain of the kubelet shows which engine the node uses.
        for program in ["iptables", "ip6tables"] {
            let chain = "-w 5 -t mangle -N KUBE-IPTABLES-HINT";
            lab.node.show(&format!("{program}-legacy {chain}"));
        }
    }
    lab.add_backends(&["a", "b"]);
    let good = Service::new("good", 1);
    lab.publish(&good, &["a"]);
    let mut tripod = start(&lab, mode);
    reaches(&lab, &good, "a", "at first", SOON);

    let begun = Instant::now();
    write(&lab, FILE, &objects(endpoints));
    lab.publish(&good, &["b"]);
    reaches(&lab, &good, "b", "it changes while they come", OTHER);
    took("another Service is changed meanwhile", begun);
    if mode == "iptables" && !legacy {
        for name in ["a", "b"] {
            lab.publish(&good, &[name]);
            reaches(&lab, &good, name, "it changes between the steps", OTHER);
        }
        took("another Service is changed three times", begun);
        let differs = asked(&lab, &["diff"]);
        differs.expect_err("it does not wait for the last of the endpoints");
    }
    in_force(&lab, "all are applied", endpoints);
    took("all are applied", begun);
    changes_beside(&lab, &good, "a", took);

    let begun = Instant::now();
    write(&lab, FILE, &objects(endpoints - 1));
    in_force(&lab, "one of them goes", endpoints - 1);
    took("one of them goes", begun);

    bounded(&tripod, &title);
    tripod.kill();
    let begun = Instant::now();
    let mut tripod = start(&lab, mode);
    reaches(&lab, &good, "a", "after a restart", SOON);
    took("after a restart", begun);
    in_force(&lab, "all are applied again", endpoints - 1);

    let begun = Instant::now();
    lab.remove(FILE);
    in_force(&lab, "all are gone", 0);
    took("all are gone", begun);
    reaches(&lab, &good, "a", "when they are gone", SOON);
    bounded(&tripod, &title);
    tripod.kill();
}

/// Changes the other Service when the many endpoints are applied.
fn changes_beside(lab: &Lab, good: &Service, name: &str, took: impl Fn(&str, Instant)) {
    let begun = Instant::now();
    lab.publish(good, &[name]);
    reaches(lab, good, name, "it changes next to them", SOON);
    took("another Service is changed next to them", begun);
}

fn bounded(tripod: &Tripod, title: &str) {
    let most = tripod.resident_peak_kib();
    figure(
        &format!("{title}: most memory"),
        format!("{} MiB", most >> 10),
    );
    assert!(most < MEMORY, "{title}: {most} KiB were resident");
}

#[test]
fn tens_of_thousands_of_endpoints_leave_another_service_served() {
    run(|| cases().iter().for_each(serves_both));
}

//! Compares `tripod explain` with real packets, for packets that the conformance tests do not send.

use std::{io::ErrorKind, net::IpAddr, time::Duration};

use serde_json::{Value, json};

use super::{SOON, started, started_in_with, tripod};
use crate::lab::{
    Capture, Host, Lab, Service, Tripod, ask_from_within, eventually,
    guest::{Profile, in_guest},
    run,
};

/// Long enough for a second SYN: the kernel may omit an ICMP message.
const PATIENCE: Duration = Duration::from_millis(2500);

const NODE: &str = "192.0.2.10";
const SECOND: &str = "192.0.2.11";
const POD: &str = "10.244.0.9";
const OTHER_POD: &str = "10.244.0.12";
const OUTSIDE: &str = "192.0.2.20";

/// The addresses that serve node ports.
const NODE_PORTS: &str = "--nodeport-addresses=127.0.0.0/8,192.0.2.0/24,::1/128";

/// A load balancer that admits these ranges, which may be of both families.
fn balancer(name: &str, number: u8, ranges: &[&str]) -> Service {
    let ranges: Vec<_> = ranges.iter().map(|ip| format!("{ip}/32")).collect();
    Service::new(name, number)
        .with_load_balancer()
        .spec("loadBalancerSourceRanges", ranges)
}

fn publish(lab: &Lab) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
    });
    lab.write("node.json", &node.to_string());
    lab.publish(&balancer("second", 1, &[SECOND, POD]), &["a"]);
    lab.publish(&balancer("first", 2, &[NODE]), &["a"]);
    let both = balancer("both", 3, &[POD]).spec("externalIPs", ["203.0.113.3"].as_slice());
    lab.publish(&both, &["a"]);
    lab.publish(&balancer("empty", 4, &[POD]), &[]);
    let port = Service::new("port", 5).with_node_port();
    lab.publish(&port, &["a"]);
    // Only manifests can give it the node port of another Service.
    let checked = Service::new("checked", 6)
        .with_load_balancer()
        .spec("externalTrafficPolicy", "Local")
        .spec("healthCheckNodePort", port.node_port());
    lab.publish(&checked, &["a"]);
}

/// A destination, the caller and its name for explain, and its source address, if it has a certain
/// one.
type Call<'a> = (&'a str, &'a Host, &'a str, Option<&'a str>);

fn calls(lab: &Lab) -> Vec<Call<'_>> {
    let (node, client, outside) = (&lab.node, &lab.client, &lab.outside);
    let other = lab.backends[1].host();
    let balancers = [
        "203.0.113.1:80",
        "203.0.113.2:80",
        "203.0.113.3:80",
        "203.0.113.4:80",
    ];
    let of_balancer = balancers.into_iter().flat_map(|to| {
        [
            (to, client, POD, None),
            (to, other, OTHER_POD, None),
            (to, outside, OUTSIDE, None),
            (to, node, NODE, Some(NODE)),
            (to, node, SECOND, Some(SECOND)),
        ]
    });
    let to_node = [
        ("127.0.0.1:30005", client, "pod", None),
        ("127.0.0.1:30005", outside, "outside", None),
        ("0.0.0.0:30005", client, POD, None),
        ("127.0.0.1:30005", node, "node", None),
        ("127.0.0.5:30005", node, "node", None),
        ("0.0.0.0:30005", node, "node", None),
        ("0.0.0.0:30005", node, NODE, Some(NODE)),
        ("[::1]:30005", node, "node", None),
        ("[::]:30005", node, "node", None),
        ("192.0.2.10:30005", outside, "outside", None),
        (
            "[::ffff:192.0.2.10]:30005",
            outside,
            "::ffff:192.0.2.20",
            None,
        ),
    ];
    of_balancer.chain(to_node).collect()
}

/// Returns the verdicts that would be true for the result of such a call.
fn outcome(&(to, host, _, source): &Call<'_>) -> &'static [&'static str] {
    let source: Option<IpAddr> = source.map(|ip| ip.parse().expect("an address"));
    let to = to.parse().expect("an address and port");
    match ask_from_within(host, source, to, PATIENCE) {
        Ok(_) => &["forwarded"],
        Err(error) => match error.kind() {
            // It is unknown who refuses.
            ErrorKind::ConnectionRefused => &["refused", "notServed"],
            // The outside host, to which everything is routed, does not answer packets for others.
            ErrorKind::TimedOut | ErrorKind::WouldBlock => &["dropped", "notServed"],
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => &["notServed"],
            _ => panic!("{to} from {}: {error}", host.name()),
        },
    }
}

fn explained(lab: &Lab, to: &str, from: &str) -> Value {
    let arguments = [
        "explain",
        "--desired-only",
        "-o",
        "json",
        "--to",
        to,
        "--from",
        from,
    ];
    tripod(&lab.node, &arguments).json()
}

/// Compares each answer with the call; `depends` are the calls of the node without a source that
/// may have either result, each with the addresses that are admitted.
fn come_out_as_explained(
    capture: Capture,
    start: impl FnOnce(&Lab) -> Tripod,
    depends: &[(&str, &str)],
) {
    run(|| {
        let mut lab = Lab::new(capture);
        lab.add_backends(&["a", "b"]);
        lab.node.ip(&[&format!("addr add {SECOND}/24 dev eth0")]);
        publish(&lab);
        let _running = start(&lab);
        let web = ("203.0.113.1:80", &lab.client, POD, None);
        eventually("it serves", SOON, || match outcome(&web) {
            ["forwarded"] => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let wrong = calls(&lab).into_iter().filter_map(|call| {
            let (to, _, from, _) = call;
            let answer = explained(&lab, to, from);
            let verdict = answer["verdict"].as_str().unwrap_or_default();
            let found = outcome(&call);
            let is_right = found.contains(&verdict);
            (!is_right).then(|| format!("{to} from {from}: {found:?}, but {answer:#}"))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let taken = "health-check node port 30005 (TCP, IPv4) is not served for this Service: Service \
                     default/port:tcp has it as its node port, and node ports take precedence";
        let status = tripod(&lab.node, &["status"]).text;
        assert!(status.contains(taken), "{status}");
        let answer = explained(&lab, "192.0.2.10:30005", "outside").to_string();
        let words = "default/checked has it as its health-check node port, which is not answered";
        assert!(answer.contains(words), "{answer}");
        for (to, sources) in depends {
            let answer = explained(&lab, to, "node");
            assert_eq!(answer["verdict"], "depends", "{answer:#}");
            let words = format!("that calls from {sources}: ");
            assert!(answer.to_string().contains(&words), "{answer:#}");
        }
    });
}

/// In modes that do not assign service addresses to the node.
const DEPENDS: [(&str, &str); 2] = [("203.0.113.1:80", SECOND), ("203.0.113.2:80", NODE)];

#[test]
fn packets_come_out_as_explained_in_nftables_mode() {
    let start = |lab: &Lab| started_in_with(lab, "nftables", &[NODE_PORTS]);
    come_out_as_explained(Capture::Redirect, start, &DEPENDS);
}

#[test]
fn packets_come_out_as_explained_in_iptables_mode() {
    let start = |lab: &Lab| started_in_with(lab, "iptables", &[NODE_PORTS]);
    come_out_as_explained(Capture::Redirect, start, &DEPENDS);
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn packets_come_out_as_explained_in_ipvs_mode() {
    let start = |lab: &Lab| started_in_with(lab, "ipvs", &[NODE_PORTS]);
    come_out_as_explained(Capture::Redirect, start, &DEPENDS[..1]);
}

#[test]
fn packets_come_out_as_explained_with_redirect_capture() {
    let start = |lab: &Lab| started(lab, &[NODE_PORTS]);
    come_out_as_explained(Capture::Redirect, start, &DEPENDS);
}

/// The node calls a service address from that same address.
#[test]
fn packets_come_out_as_explained_with_local_capture() {
    let start = |lab: &Lab| started(lab, &[NODE_PORTS]);
    let depends = [
        ("203.0.113.1:80", "192.0.2.11, 203.0.113.1"),
        ("203.0.113.2:80", "192.0.2.10, 203.0.113.2"),
    ];
    come_out_as_explained(Capture::Local, start, &depends);
}

#[test]
fn guest_full_ask_packets() {
    let tests = ["ask::packets::packets_come_out_as_explained_in_ipvs_mode"];
    in_guest(Profile::Full, &tests, &[]);
}

//! Endpoints that do not answer get no new connections, if the Service requests that.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::{probe::default_mode, started};
use crate::lab::{
    Capture, Host, Lab, Service, Tripod, ask, ask_within, eventually, figure, run, say, tcp,
    tripod_binary,
};

/// Time from the failure of an endpoint until it is avoided: three seconds, and some for whatever
/// else the machine does meanwhile. The figures say how long it took.
const AVOIDED: Duration = Duration::from_secs(10);
/// How long a client waits: it repeats its SYN after 1, 3, 7 and 15 seconds (RFC 6298).
const WAITED: Duration = Duration::from_secs(16);
/// Calls in a row that all have to succeed.
const CALLS: usize = 40;
const EJECTED: &str = "ejected, it did not answer lately";

/// The kernel's modes that can run here.
fn modes() -> &'static [&'static str] {
    match default_mode() {
        "ipvs" => &["ipvs"],
        "nftables" => &["nftables", "iptables"],
        _ => &[],
    }
}

fn with_each_mode(test: impl Fn(&str, &mut Lab, &Tripod, &Service)) {
    with_each_mode_after(|_| {}, test);
}

/// Runs `test` in each mode; `prepare` prepares the node before Tripod starts there.
fn with_each_mode_after(prepare: impl Fn(&Host), test: impl Fn(&str, &mut Lab, &Tripod, &Service)) {
    run(|| {
        for mode in modes() {
            let mut lab = Lab::new(Capture::Local);
            lab.three_backends();
            prepare(&lab.node);
            let web = Service::new("web", 1).annotated("tripod.proxy/eject", "true");
            lab.publish_all(&web);
            let tripod = started(&lab, mode);
            for to in web.cluster() {
                eventually("the Service", Duration::from_secs(10), || {
                    ask(&lab.client, to).map_err(|error| error.to_string())
                });
            }
            test(mode, &mut lab, &tripod, &web);
        }
    });
}

/// Calls without a pause until `CALLS` calls in a row succeed; each waits for half a second, within
/// which no SYN is repeated. Returns when the first of these began.
fn all_succeed(lab: &Lab, to: SocketAddr, what: &str) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut since, mut row) = (Instant::now(), 0);
    while row < CALLS {
        assert!(Instant::now() < deadline, "{what}: calls fail still");
        let began = Instant::now();
        // The client sends no more SYNs for a call that it gave up.
        match ask_within(&lab.client, to, Duration::from_millis(500)) {
            Ok(_) if row == 0 => (since, row) = (began, 1),
            Ok(_) => row += 1,
            Err(_) => row = 0,
        }
    }
    since
}

fn why(lab: &Lab, backend: &str) -> Vec<Option<String>> {
    let program = tripod_binary();
    let line = format!("{} services --output json", program.display());
    let shown: serde_json::Value = serde_json::from_str(&lab.node.show(&line)).expect("JSON");
    let address = lab.backends.iter().find(|one| one.name() == backend);
    let address = address.expect("the backend").direct().to_string();
    let ports = shown["items"].as_array().expect("a list").iter();
    let endpoints = ports.filter(|port| port["protocol"] == "TCP");
    let endpoints = endpoints.flat_map(|port| port["endpoints"].as_array().expect("a list"));
    let found = endpoints.filter(|endpoint| endpoint["address"] == address);
    found
        .map(|endpoint| endpoint["why"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn an_endpoint_that_falls_silent_or_refuses_is_avoided_within_three_seconds() {
    with_each_mode(|mode, lab, tripod, web| {
        for (name, silent) in [("a", true), ("b", false)] {
            let [v4, v6] = web.cluster();
            let began = Instant::now();
            if silent {
                lab.backend(name).blackhole();
            } else {
                lab.backend(name).kill();
            }
            let took = all_succeed(lab, v4, mode) - began;
            figure(
                &format!("{mode}: {name} is avoided after"),
                format!("{took:?}"),
            );
            assert!(took < AVOIDED, "{mode} {name}: {took:?}\n{}", tripod.log());
            // A first ejection ends after ten seconds.
            assert_eq!(why(lab, name), [Some(EJECTED.to_owned())], "{mode} {name}");
            all_succeed(lab, v6, mode);
        }
        // On a slow machine the first ejection may end, and begin again, before the last one
        // begins.
        let ejections = tripod.metric(&lab.node, "tripod_endpoint_ejections_total");
        assert!(ejections >= Some(4.0), "{mode}: {ejections:?}");
    });
}

/// Makes a pod answer SYNs with ICMP errors.
fn is_unreachable(pod: &Host) {
    // The guest's kernel has another packet filter.
    if default_mode() == "nftables" {
        pod.show("nft add table inet gone");
        pod.show("nft add chain inet gone in { type filter hook input priority 0 ; }");
        pod.show("nft add rule inet gone in meta l4proto tcp reject with icmpx host-unreachable");
    } else {
        for (program, error) in [
            ("iptables", "icmp-host-unreachable"),
            ("ip6tables", "icmp6-addr-unreachable"),
        ] {
            let reject = format!("-p tcp -j REJECT --reject-with {error}");
            pod.show(&format!("{program} -A INPUT {reject}"));
        }
    }
}

#[test]
fn an_endpoint_of_which_icmp_says_that_it_is_unreachable_is_avoided_within_three_seconds() {
    with_each_mode(|mode, lab, tripod, web| {
        is_unreachable(lab.backend("a").host());
        for to in web.cluster() {
            let began = Instant::now();
            let took = all_succeed(lab, to, mode) - began;
            figure(
                &format!("{mode}: what is unreachable by {to} is avoided after"),
                format!("{took:?}"),
            );
            assert!(took < AVOIDED, "{mode} {to}: {took:?}\n{}", tripod.log());
        }
    });
}

#[test]
fn the_last_endpoint_stays_and_one_that_answers_again_comes_back() {
    with_each_mode(|mode, lab, tripod, web| {
        let [v4, _] = web.cluster();
        for name in ["a", "b", "c"] {
            lab.backend(name).kill();
        }
        // All of them refuse, so all are tried.
        eventually("all are ejected", Duration::from_secs(30), || {
            let _ = ask_within(&lab.client, v4, Duration::from_millis(100));
            match tripod.metric(&lab.node, "tripod_endpoints_ejected") {
                Some(3.0) => Ok(()),
                count => Err(format!("{count:?} ejected")),
            }
        });
        assert_eq!(why(lab, "a"), [None], "{mode}: none is left otherwise");
        for name in ["a", "b", "c"] {
            lab.backend(name).restart();
        }
        all_succeed(lab, v4, mode);
        eventually("each gets connections", Duration::from_secs(20), || {
            let mut names: Vec<String> = Vec::new();
            for _ in 0..CALLS {
                names.push(ask(&lab.client, v4).map_err(|error| error.to_string())?);
            }
            names.sort();
            names.dedup();
            if names == ["a", "b", "c"] {
                Ok(())
            } else {
                Err(format!("{names:?}"))
            }
        });
    });
}

#[test]
fn open_connections_of_an_ejected_endpoint_go_on() {
    with_each_mode(|mode, lab, tripod, web| {
        let [v4, _] = web.cluster();
        let mut open: Vec<_> = (0..12)
            .map(|_| tcp(&lab.client, v4).expect("a connection"))
            .collect();
        for stream in &mut open {
            say(stream, "name").expect("an answer");
        }
        lab.backend("a").blackhole();
        all_succeed(lab, v4, mode);
        tripod.logs(&["are not answered"]);
        lab.backend("a").heal();
        for stream in &mut open {
            say(stream, "name").expect("an open connection continues");
        }
    });
}

/// Waits until a socket of the node gets notifications of new connections: connections that begin
/// earlier are not looked up.
fn follows_connections(node: &Host) {
    // NETLINK_NETFILTER, and the bit of NFNLGRP_CONNTRACK_NEW (`linux/netfilter/nfnetlink.h`).
    let is_subscribed = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let groups = fields.get(3).map(|groups| u32::from_str_radix(groups, 16));
        fields.get(1) == Some(&"12")
            && groups.is_some_and(|groups| groups.is_ok_and(|g| g & 1 != 0))
    };
    eventually("a subscription", Duration::from_secs(10), || {
        let sockets = node.show("cat /proc/net/netlink");
        let found = sockets.lines().any(is_subscribed);
        found.then_some(()).ok_or(sockets)
    });
}

#[test]
fn a_client_that_waits_for_an_ejected_endpoint_gets_another_one() {
    // IPVS keeps a connection on its real server.
    if default_mode() != "nftables" {
        return;
    }
    with_each_mode(|mode, lab, tripod, web| {
        follows_connections(&lab.node);
        lab.backend("a").blackhole();
        for to in web.cluster() {
            let call = || ask_within(&lab.client, to, WAITED);
            let answers: Vec<_> = thread::scope(|scope| {
                let calls: Vec<_> = (0..12).map(|_| scope.spawn(call)).collect();
                // If one of them goes to the endpoint, it takes another call to eject it.
                all_succeed(lab, to, mode);
                let calls = calls.into_iter();
                calls.map(|call| call.join().expect("a call")).collect()
            });
            for answer in answers {
                let why = |error| panic!("{mode} {to}: {error}\n{}", tripod.log());
                assert_ne!(answer.unwrap_or_else(why), "a");
            }
        }
    });
}

/// Drops the first SYN that reaches a pod: 60 bytes of IPv4.
const LOSE_ONE: [&str; 3] = [
    "nft add table ip lose",
    "nft add chain ip lose in { type filter hook input priority 0 ; }",
    "nft add rule ip lose in tcp flags & (syn|ack) == syn quota until 60 bytes counter drop",
];

#[test]
fn one_lost_packet_ejects_nothing() {
    // The guest's kernel has another packet filter; the decision is the same.
    if default_mode() != "nftables" {
        return;
    }
    with_each_mode(|mode, lab, tripod, web| {
        let [v4, _] = web.cluster();
        for backend in &lab.backends {
            for step in LOSE_ONE {
                backend.host().show(step);
            }
        }
        let lost = |lab: &Lab| {
            let counters = lab.backends.iter().map(|backend| {
                let rules = backend.host().show("nft list table ip lose");
                usize::from(rules.contains("counter packets 1 "))
            });
            counters.sum::<usize>()
        };
        // A connection whose SYN was lost is looked up until 1.6 s after it began.
        let mut until = Instant::now() + Duration::from_secs(30);
        let mut all_lost = false;
        while Instant::now() < until {
            ask(&lab.client, v4).expect("the SYN is sent again");
            if !all_lost && lost(lab) == lab.backends.len() {
                all_lost = true;
                until = Instant::now() + Duration::from_secs(2);
            }
        }
        assert!(all_lost, "{mode}: {}", lost(lab));
        let ejections = tripod.metric(&lab.node, "tripod_endpoint_ejections_total");
        assert_eq!(ejections, Some(0.0), "{mode}: {}", tripod.log());
    });
}

#[test]
fn a_kernel_that_says_nothing_of_connections_is_named_until_it_does() {
    let set = |node: &Host, value: &str| {
        let events = "/proc/sys/net/netfilter/nf_conntrack_events";
        node.enter(|| std::fs::write(events, value))
            .expect("a sysctl");
    };
    let silent = |node: &Host| set(node, "0");
    with_each_mode_after(silent, |_, lab, tripod, web| {
        tripod.logs_once(&[
            "WARN",
            "Service default/web: tripod.proxy/eject is not supported here",
            "nf_conntrack_events is 0; set it to 1",
        ]);
        // It retries when it has other endpoints to watch.
        set(&lab.node, "1");
        lab.publish(web, &["a"]);
        tripod.logs_once(&[
            "INFO",
            "resolved: Service default/web: tripod.proxy/eject is not supported here",
        ]);
    });
}

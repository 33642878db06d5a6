//! A Service that chooses userspace mode on a node in a mode of the kernel.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    hostile::{start_by, start_with},
    probe::default_mode,
};
use crate::{
    lab::{
        Capture, EndpointChoice, Lab, Service, Tripod, ask, eventually, get, run, say, tcp,
        tripod_binary, udp_ask,
    },
    userspace::{
        gap::{are_held, start_holder, wait_in_the_gap},
        succession::under_load,
    },
};

const SOON: Duration = Duration::from_secs(20);
const CALLS: usize = 20;

/// The modes of the kernel, each with the capture of the Services that choose userspace mode.
pub fn ways() -> &'static [(&'static str, Capture)] {
    match default_mode() {
        "ipvs" => &[("ipvs", Capture::Redirect)],
        "nftables" => &[
            ("nftables", Capture::Local),
            ("iptables", Capture::Redirect),
        ],
        _ => &[],
    }
}

fn in_each_way(test: impl Fn(&str, &mut Lab)) {
    run(|| {
        for (mode, capture) in ways() {
            let mut lab = Lab::new(*capture);
            lab.add_backends(&["a", "b"]);
            test(&format!("{mode} {}", capture.name()), &mut lab);
        }
    });
}

fn start(lab: &Lab, way: &str) -> Tripod {
    let mode = way.split(' ').next().expect("a mode");
    let flags = [
        "--nodeport-addresses=all",
        "--userspace-workers=2",
        "--userspace-drain-timeout=5s",
        "--confine=calls",
        "--v=4",
    ];
    start_with(lab, mode, &flags)
}

/// What the proxy says about the ports of a Service.
fn described(lab: &Lab, service: &str) -> Vec<Value> {
    let at = ([127, 0, 0, 1], 10249).into();
    let path = format!("/v1/services/default/{service}");
    let answer = get(&lab.node, at, &path).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let list: Value = serde_json::from_str(body).expect("JSON");
    list["items"].as_array().expect("ports").clone()
}

fn web() -> Service {
    Service::new("web", 10)
        .with_node_port()
        .with_load_balancer()
}

fn relayed() -> Service {
    web().annotated("tripod.proxy/mode", "userspace")
}

/// How many connections were relayed.
fn count(lab: &Lab, tripod: &Tripod) -> f64 {
    let name = "tripod_userspace_connections_total";
    tripod.metric(&lab.node, name).unwrap_or_default()
}

fn node_ports(lab: &Lab, service: &Service) -> [SocketAddr; 2] {
    let port = service.node_port();
    lab.node.addresses.map(|ip| SocketAddr::new(ip, port))
}

/// Calls each address from a pod, from the node and from outside.
fn calls(lab: &Lab, service: &Service, way: &str) -> usize {
    let mut made = 0;
    for _ in 0..CALLS {
        for to in service.cluster() {
            for from in [&lab.client, &lab.node] {
                ask(from, to)
                    .unwrap_or_else(|error| panic!("{way}: {} {to}: {error}", from.name()));
                made += 1;
            }
        }
        for to in service
            .ingress()
            .into_iter()
            .chain(node_ports(lab, service))
        {
            ask(&lab.outside, to).unwrap_or_else(|error| panic!("{way}: outside {to}: {error}"));
            made += 1;
        }
    }
    made
}

#[test]
fn a_service_that_chooses_userspace_mode_is_relayed() {
    in_each_way(|way, lab| {
        let other = Service::new("other", 11);
        lab.publish_all(&relayed());
        lab.publish_all(&other);
        let tripod = start(lab, way);
        let made = calls(lab, &relayed(), way);
        for to in relayed()
            .cluster()
            .into_iter()
            .chain(node_ports(lab, &relayed()))
        {
            let from = if to.port() == 80 {
                &lab.client
            } else {
                &lab.outside
            };
            udp_ask(from, to).unwrap_or_else(|error| panic!("{way}: udp {to}: {error}"));
        }
        assert_eq!(count(lab, &tripod), made as f64, "{way}");
        let of_web = described(lab, "web");
        assert!(
            of_web.iter().all(|port| port["mode"] == "userspace"),
            "{of_web:?}"
        );
        let over_tcp = of_web.iter().filter(|port| port["protocol"] == "TCP");
        let counted = over_tcp.map(|port| port["traffic"]["connections"].as_u64());
        let counted: u64 = counted.map(|some| some.expect("a count")).sum();
        assert_eq!(counted, made as u64, "{way}");
        assert!(described(lab, "other")[0]["mode"].is_null(), "{way}");
        for to in other.cluster() {
            ask(&lab.client, to).unwrap_or_else(|error| panic!("{way}: {to}: {error}"));
        }
        assert_eq!(
            count(lab, &tripod),
            made as f64,
            "{way}: the others are not"
        );
        // Another endpoint is tried.
        lab.backend("a").kill();
        calls(lab, &relayed(), way);
        for to in other.cluster().map(|to| SocketAddr::new(to.ip(), 81)) {
            assert!(tcp(&lab.client, to).is_err(), "{way}: {to} is not served");
        }
    });
}

/// An open connection, and who answers it.
fn open(lab: &Lab, to: SocketAddr) -> (TcpStream, String) {
    let mut stream = tcp(&lab.client, to).unwrap_or_else(|error| panic!("{to}: {error}"));
    let name = say(&mut stream, "name").expect("an answer");
    (stream, name)
}

#[test]
fn a_service_may_change_its_mode_under_open_connections() {
    in_each_way(|way, lab| {
        lab.publish_all(&web());
        let tripod = start(lab, way);
        let mut connections: Vec<_> = web().cluster().map(|to| open(lab, to)).into();
        calls(lab, &web(), way);
        let mut before = count(lab, &tripod);
        assert_eq!(before as usize, 0, "{way}");
        for (service, is_relayed) in [(relayed(), true), (web(), false), (relayed(), true)] {
            lab.publish_all(&service);
            eventually("the other mode", SOON, || {
                let made = calls(lab, &service, way) as f64;
                let after = count(lab, &tripod);
                let counted = after - std::mem::replace(&mut before, after);
                let expected = if is_relayed { made } else { 0.0 };
                (counted == expected)
                    .then_some(())
                    .ok_or(format!("{way}: {counted} of {made}"))
            });
            for to in service.cluster() {
                udp_ask(&lab.client, to).unwrap_or_else(|error| panic!("{way}: {to}: {error}"));
            }
            for (stream, name) in &mut connections {
                assert_eq!(say(stream, "name").expect("still open"), *name, "{way}");
            }
            connections.extend(service.cluster().map(|to| open(lab, to)));
            before = count(lab, &tripod);
        }
    });
}

/// What the kernel has for it: such rules, or routing rules.
fn captures(lab: &Lab, rule: &str) -> String {
    let show = |command: &str| lab.node.show(command);
    let rules = ["iptables-save -t nat", "ip6tables-save -t nat"].map(show);
    let routes = ["ip rule", "ip -6 rule"].map(show);
    let of_relay = rules.iter().flat_map(|rules| rules.lines());
    let of_relay = of_relay.filter(|line| line.contains(rule));
    let routes = routes.iter().flat_map(|routes| routes.lines());
    let routes = routes.filter(|line| line.contains("dport 80"));
    let lines: Vec<_> = of_relay.chain(routes).collect();
    lines.join("\n")
}

fn nothing_captures(lab: &Lab, rule: &str, way: &str) {
    eventually("nothing captures any more", SOON, || {
        let left = captures(lab, rule);
        left.is_empty()
            .then_some(())
            .ok_or(format!("{way}: {left}"))
    });
}

#[test]
fn a_holder_keeps_its_sockets_while_no_process_runs() {
    in_each_way(|way, lab| {
        let web = Service::new("web", 10).annotated("tripod.proxy/mode", "userspace");
        lab.publish_all(&web);
        let _holder = start_holder(lab);
        let old = start(lab, way);
        are_held(&old, 8);
        let old = &mut { old };
        let lab = &*lab;
        under_load(lab, &web.cluster(), |calls| {
            calls.more();
            for _ in 0..2 {
                assert!(old.terminate().success(), "{way}: it ended badly");
                *old = wait_in_the_gap(lab, &web.cluster(), || start(lab, way));
                calls.more();
            }
        });
    });
}

#[test]
fn the_next_process_relays_it_too() {
    in_each_way(|way, lab| {
        lab.publish_all(&relayed());
        let mut first = start(lab, way);
        calls(lab, &relayed(), way);
        first.kill();
        let mut next = start(lab, way);
        let made = calls(lab, &relayed(), way);
        assert_eq!(count(lab, &next), made as f64, "{way}");
        lab.publish_all(&web());
        eventually("the kernel serves it", SOON, || {
            let before = count(lab, &next);
            calls(lab, &relayed(), way);
            (count(lab, &next) == before)
                .then_some(())
                .ok_or(way.to_owned())
        });
        // Two jumps to an empty chain stay.
        nothing_captures(lab, "-A TRIPOD-", way);
        lab.publish_all(&relayed());
        eventually("it is relayed again", SOON, || {
            let is_captured = !captures(lab, "-A TRIPOD-").is_empty();
            is_captured.then_some(()).ok_or(way.to_owned())
        });
        next.kill();
        lab.publish_all(&web());
        let _last = start(lab, way);
        nothing_captures(lab, "TRIPOD-", way);
        calls(lab, &web(), way);
    });
}

/// Another Service's endpoint may have the external IP: rules translate calls to that Service before
/// routes are looked up.
#[test]
fn what_was_translated_is_not_relayed() {
    in_each_way(|way, lab| {
        let web = Service::new("web", 10);
        lab.publish_endpoints(&web, &[EndpointChoice::ready("a")]);
        let port = lab.backend("a").direct().port();
        let pods = lab.backend("a").host().addresses.map(|ip| ip.to_string());
        let stranger = Service::new("stranger", 11)
            .spec("externalIPs", json!(pods))
            .spec(
                "ports",
                json!([{ "name": "tcp", "protocol": "TCP", "port": port, "targetPort": 8080 }]),
            )
            .annotated("tripod.proxy/mode", "userspace");
        lab.publish_endpoints(&stranger, &[EndpointChoice::ready("b")]);
        let tripod = start(lab, way);
        for to in web.cluster() {
            for from in [&lab.client, &lab.node] {
                for _ in 0..3 {
                    assert_eq!(ask(from, to).expect("an answer"), "a", "{way} {to}");
                }
            }
        }
        if lab.capture == Capture::Local {
            tripod.logs(&["tripod.proxy/mode is not supported", "external IPs"]);
        }
    });
}

#[test]
fn clients_keep_their_endpoints_when_a_service_changes() {
    in_each_way(|way, lab| {
        // Without a node port: a relay of node ports on loopback addresses has nothing of it.
        let web = Service::new("web", 10)
            .annotated("tripod.proxy/mode", "userspace")
            .spec("sessionAffinity", "ClientIP");
        lab.publish_all(&web);
        let mode = way.split(' ').next().expect("a mode");
        let flags = ["--nodeport-addresses=all,127.0.0.0/8", "--v=4"];
        let _tripod = start_with(lab, mode, &flags);
        let to = web.cluster()[0];
        let kept = ask(&lab.client, to).expect("an answer");
        for number in 0..6 {
            let changed = web
                .clone()
                .annotated("tripod.proxy/retry", ["off", "connect"][number % 2]);
            lab.publish_all(&changed);
            let name = format!("relayed-{number}");
            let seen = Service::new(&name, 20 + number as u8);
            lab.publish_all(&seen);
            eventually("a later Service", SOON, || {
                let answer = ask(&lab.client, seen.cluster()[0]);
                answer.map_err(|error| error.to_string())
            });
            assert_eq!(ask(&lab.client, to).expect("an answer"), kept, "{way}");
        }
    });
}

#[test]
fn a_service_whose_listener_cannot_be_opened_stays_with_the_kernel() {
    run(|| {
        if default_mode() != "nftables" {
            return;
        }
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a", "b"]);
        let taken = node_ports(&lab, &relayed())[0];
        let _taken = lab
            .node
            .enter(|| TcpListener::bind(taken))
            .expect("a listener");
        lab.publish_all(&relayed());
        let tripod = start(&lab, "nftables local");
        calls(&lab, &relayed(), "with a port that is taken");
        tripod.logs(&["tripod.proxy/mode is not supported", "cannot listen on"]);
        // IPv6 is relayed.
        assert!(count(&lab, &tripod) > 0.0);
        for port in described(&lab, "web") {
            let is_kept = port["protocol"] == "TCP" && port["family"] == "IPv4";
            assert_eq!(port["mode"].is_null(), is_kept, "{port}");
        }
    });
}

#[test]
fn a_service_without_descriptors_stays_with_the_kernel() {
    const LIMIT: usize = 300;
    run(|| {
        if default_mode() != "nftables" {
            return;
        }
        let mut lab = Lab::new(Capture::Local);
        lab.add_backends(&["a"]);
        let service = |number: u8| {
            let service = Service::new(&format!("web-{number}"), number);
            service.annotated("tripod.proxy/mode", "userspace")
        };
        let services: Vec<_> = (10..90).map(service).collect();
        services.iter().for_each(|one| lab.publish(one, &["a"]));
        let mut command = lab.node.command("sh");
        let limited = format!("ulimit -n {LIMIT}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited]).arg(tripod_binary());
        let tripod = start_by(command, &lab, "nftables", &["--userspace-workers=1"]);
        let mut relayed = 0;
        for service in &services {
            for to in service.cluster() {
                assert_eq!(ask(&lab.client, to).expect("a call"), "a", "{to}");
            }
            let ports = described(&lab, &service.name);
            relayed += ports
                .iter()
                .filter(|port| port["mode"] == "userspace")
                .count();
        }
        assert!(relayed > 0 && relayed < 4 * services.len(), "{relayed}");
        assert!(count(&lab, &tripod) > 0.0);
        tripod.logs(&["tripod.proxy/mode is not supported", "ulimit"]);
    });
}

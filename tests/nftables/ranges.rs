//! Ranges of ports, which are forwarded port for port.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::json;

use super::start_with;
use crate::lab::{
    EndpointChoice, Host, Lab, Service, Tripod, answer_in, eventually, figure, say, tcp,
    tripod_binary, udp,
};

const PORTS: &str = "tripod.proxy/ports";

/// Ports at which backends answer, within the range.
const BOTH: [u16; 2] = [8080, 8081];
const RANGES: &str = "8000-8999/UDP,8000-8999/TCP";

/// Time within which a change takes effect.
const SOON: Duration = Duration::from_secs(20);

/// The answer does not repeat the question.
fn asked_over_udp(socket: &UdpSocket) -> io::Result<String> {
    socket.send(b"who")?;
    let mut answer = [0; 100];
    let length = socket.recv(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(answer.trim_end().to_owned())
}

/// Returns who answers at `ip` and `port`, and at which port it was called, over TCP and UDP.
fn asked(host: &Host, ip: IpAddr, port: u16) -> [io::Result<(String, String)>; 2] {
    let to = SocketAddr::new(ip, port);
    let over_tcp = tcp(host, to).and_then(|mut stream| say(&mut stream, "who"));
    let over_udp = udp(host, to).and_then(|socket| asked_over_udp(&socket));
    [over_tcp, over_udp].map(|line| {
        let line = line?;
        let mut words = line.split(' ').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        Ok((name, words.next_back().unwrap_or_default()))
    })
}

/// Checks that all of `names` answer at `ip` and `port`, over TCP and UDP, where they are called at
/// `target`.
fn all_answer(host: &Host, ip: IpAddr, port: u16, target: u16, names: &[&str]) {
    let mut missing: Vec<[&str; 2]> = ["tcp", "udp"]
        .into_iter()
        .flat_map(|over| names.iter().map(move |name| [over, *name]))
        .collect();
    for _ in 0..60 {
        for (over, answer) in ["tcp", "udp"].into_iter().zip(asked(host, ip, port)) {
            let (name, called) = answer
                .unwrap_or_else(|error| panic!("{} {over} {ip} {port}: {error}", host.name()));
            assert_eq!(called, target.to_string(), "{over} {ip}");
            assert!(names.contains(&&*name), "{over} {ip} {port}: {name}");
            missing.retain(|one| *one != [over, &*name]);
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("{ip} {port}: {missing:?} did not answer");
}

fn none_answers(host: &Host, ip: IpAddr, port: u16) {
    for answer in asked(host, ip, port) {
        answer.expect_err("nothing serves it");
    }
}

fn media() -> Service {
    Service::new("media", 10)
        .annotated(PORTS, RANGES)
        .with_external_ip()
        .with_load_balancer()
}

fn addresses(of: &Service, family: usize) -> [IpAddr; 3] {
    [of.cluster(), of.external(), of.ingress()].map(|at| at[family].ip())
}

/// What a subcommand of Tripod prints.
fn printed(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.node.command(tripod_binary());
    let output = command.args(arguments).output().expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

/// Waits until something happens at a port over TCP and UDP.
fn both(
    what: &str,
    host: &Host,
    at: (IpAddr, u16),
    is: impl Fn(&io::Result<(String, String)>) -> bool,
) {
    eventually(what, SOON, || {
        let answers = asked(host, at.0, at.1);
        let all = answers.iter().all(&is);
        all.then_some(()).ok_or_else(|| format!("{answers:?}"))
    });
}

fn is_refused(answer: &io::Result<(String, String)>) -> bool {
    let error = answer.as_ref().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[test]
fn packets_to_a_range_keep_their_port() {
    Lab::run(|lab| {
        let media = media();
        lab.publish_all(&media);
        let tripod = start_with(lab, &[]);
        let all = ["a", "b", "c"];
        for family in [0, 1] {
            for ip in addresses(&media, family) {
                for port in BOTH {
                    all_answer(&lab.client, ip, port, port, &all);
                }
                // The port of the spec is forwarded to its target port.
                all_answer(&lab.client, ip, 80, 8080, &all);
                none_answers(&lab.client, ip, 8500);
                none_answers(&lab.client, ip, 7999);
            }
            for ip in addresses(&media, family) {
                all_answer(&lab.node, ip, 8081, 8081, &all);
            }
        }
        // One element for each address and range.
        let map = lab.node.show("nft list map ip tripod ranges");
        assert_eq!(map.matches(" . 8000-8999 comment").count(), 6, "{map}");
        let text = printed(lab, &["services", "default/media"]);
        let first = format!("{}:8000-8999", media.cluster()[0].ip());
        assert!(text.contains(&first), "{text}");
        explained(lab, &media);
        let diff = printed(lab, &["diff"]);
        assert!(diff.contains("no difference"), "{diff}");
        assert_eq!(tripod.logged(&["WARN", PORTS]), 0);
        what_cannot_be_read_counts_as_not_given(lab, &tripod);
    });
}

fn explained(lab: &Lab, media: &Service) {
    for at in media.cluster() {
        let to = format!("{}/udp", SocketAddr::new(at.ip(), 8765));
        let text = printed(lab, &["explain", &to]);
        assert!(text.contains("default/media:8000-8999"), "{text}");
        assert!(text.contains("port for port"), "{text}");
        let backend = lab.backends[0].host().addresses[usize::from(at.is_ipv6())];
        let candidate = SocketAddr::new(backend, 8765).to_string();
        assert!(text.contains(&candidate), "{text}");
    }
}

fn what_cannot_be_read_counts_as_not_given(lab: &Lab, tripod: &Tripod) {
    let ip = media().cluster()[0].ip();
    lab.publish_all(&media().annotated(PORTS, "8999-8000/UDP"));
    both("the range is gone", &lab.client, (ip, 8081), Result::is_err);
    all_answer(&lab.client, ip, 80, 8080, &["a", "b", "c"]);
    tripod.logs_once(&["WARN", "default/media", PORTS, "10000-20000/UDP"]);
}

/// A younger Service has a port within the range, at the same external IP, and keeps it, even while it
/// has no endpoints.
#[test]
fn ports_of_other_services_are_exceptions() {
    Lab::run(|lab| {
        let media = media();
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({
                "name": protocol.to_lowercase(), "protocol": protocol,
                "port": 8081, "targetPort": 8080,
            })
        });
        let external = media.external().map(|at| at.ip());
        // Of two Services without a time of creation, that with the greater name is younger.
        let exact = Service::new("other", 11)
            .spec("ports", json!(ports))
            .spec("externalIPs", json!(external));
        lab.publish(&media, &["a"]);
        lab.publish(&exact, &["b"]);
        let _tripod = start_with(lab, &[]);
        for ip in external {
            all_answer(&lab.client, ip, 8081, 8080, &["b"]);
            all_answer(&lab.client, ip, 8080, 8080, &["a"]);
        }
        lab.publish(&exact, &[]);
        for ip in external {
            both("it is refused", &lab.client, (ip, 8081), is_refused);
            all_answer(&lab.client, ip, 8080, 8080, &["a"]);
        }
        lab.withdraw(&exact);
        for ip in external {
            both("the range has it", &lab.client, (ip, 8081), Result::is_ok);
            all_answer(&lab.client, ip, 8081, 8081, &["a"]);
        }
    });
}

#[test]
fn ranges_are_not_served_at_addresses_of_others() {
    Lab::run(|lab| {
        let web = Service::new("web", 10);
        let shared = web.cluster().map(|at| at.ip());
        let greedy = Service::new("greedy", 12)
            .annotated(PORTS, "1-79/TCP,1-79/UDP,81-65535/TCP,81-65535/UDP")
            .spec("externalIPs", json!(shared));
        lab.publish(&web, &["a"]);
        lab.publish(&greedy, &["b"]);
        let tripod = start_with(lab, &[]);
        for family in [0, 1] {
            all_answer(&lab.client, shared[family], 80, 8080, &["a"]);
            none_answers(&lab.client, shared[family], 8081);
            let own = greedy.cluster()[family].ip();
            all_answer(&lab.client, own, 8081, 8081, &["b"]);
        }
        let lost = format!("external IP {}:1-79 (UDP)", shared[0]);
        tripod.logs(&["WARN", "default/greedy", &lost, "default/web", "cluster IP"]);
        assert!(printed(lab, &["services", "default/greedy"]).contains(&lost));
        lab.withdraw(&web);
        for ip in shared {
            both("the range has it", &lab.client, (ip, 8081), Result::is_ok);
        }
    });
}

/// Programs of the node answer at its addresses, even if a Service names these.
#[test]
fn ranges_are_not_served_at_addresses_of_the_node() {
    Lab::run(|lab| {
        let _server = answer_in(&lab.node);
        let own = lab.node.addresses;
        let media = media().spec("externalIPs", json!(own.map(|ip| ip.to_string())));
        let balancer = media.ingress().map(|at| at.ip());
        let links = ["add", "del"].map(|verb| {
            balancer.map(|ip| {
                let length = if ip.is_ipv4() { 32 } else { 128 };
                format!("addr {verb} {ip}/{length} dev lo")
            })
        });
        let [add, delete] = links
            .each_ref()
            .map(|both| both.each_ref().map(String::as_str));
        lab.node.ip(&add);
        lab.publish_all(&media);
        let _tripod = start_with(lab, &[]);
        for family in [0, 1] {
            all_answer(
                &lab.client,
                media.cluster()[family].ip(),
                8081,
                8081,
                &["a", "b", "c"],
            );
            for ip in [own[family], balancer[family]] {
                for port in BOTH {
                    the_node_answers(lab, ip, port);
                }
                let to = format!("{}/udp", SocketAddr::new(ip, 8081));
                let text = printed(lab, &["explain", &to]);
                assert!(text.contains("an address of the node"), "{text}");
            }
            // Ports of the spec are served there.
            all_answer(&lab.client, own[family], 80, 8080, &["a", "b", "c"]);
        }
        lab.node.ip(&delete);
        for ip in balancer {
            all_answer(&lab.client, ip, 8081, 8081, &["a", "b", "c"]);
        }
    });
}

/// Over UDP, a program that listens at all addresses may answer from another one.
fn the_node_answers(lab: &Lab, ip: IpAddr, port: u16) {
    let to = SocketAddr::new(ip, port);
    for host in [&lab.client, &lab.node] {
        let answers = (0..6).map(|_| tcp(host, to).and_then(|mut stream| say(&mut stream, "who")));
        for answer in answers {
            let line = answer.expect("an answer");
            assert!(line.starts_with(lab.node.name()), "{to}: {line}");
        }
    }
    let over_udp = udp(&lab.client, to).and_then(|socket| asked_over_udp(&socket));
    let is_node = |line: String| line.starts_with(lab.node.name());
    assert!(over_udp.map_or(true, is_node), "{to}");
}

/// Sends from a new port each time until `done`. Returns how many datagrams were sent, and the names
/// of those who answered or the failures.
fn keep_asking(host: &Host, ip: IpAddr, done: &AtomicBool) -> Vec<Result<String, String>> {
    host.enter(|| {
        let mut answers = Vec::new();
        while !done.load(Ordering::Relaxed) {
            let [over_tcp, over_udp] = asked(host, ip, 8081);
            for (over, answer) in [("tcp", over_tcp), ("udp", over_udp)] {
                let failed = |error| format!("{over} {ip}: {error}");
                answers.push(answer.map(|(name, _)| name).map_err(failed));
            }
        }
        answers
    })
}

#[test]
fn no_packet_is_lost_while_endpoints_change() {
    Lab::run(|lab| {
        let media = media();
        lab.publish(&media, &["a"]);
        let _tripod = start_with(lab, &[]);
        let done = AtomicBool::new(false);
        let ips = [0, 1].map(|family| addresses(&media, family)).concat();
        for ip in &ips {
            both("it is served", &lab.client, (*ip, 8081), Result::is_ok);
        }
        let lab: &Lab = lab;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let ask = |ip: &IpAddr| {
                let (ip, done) = (*ip, &done);
                scope.spawn(move || keep_asking(&lab.client, ip, done))
            };
            let callers: Vec<_> = ips.iter().map(ask).collect();
            for turn in 0..30 {
                let all = [&["a"][..], &["a", "b", "c"], &["b", "c"], &["c", "a"]];
                lab.publish(&media, all[turn % all.len()]);
                std::thread::sleep(Duration::from_millis(150));
            }
            done.store(true, Ordering::Relaxed);
            let ended = callers
                .into_iter()
                .map(|caller| caller.join().expect("answers"));
            ended.flatten().collect()
        });
        let lost: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .collect();
        assert!(
            lost.is_empty(),
            "{} of {}: {lost:?}",
            lost.len(),
            answers.len()
        );
        assert!(answers.len() > 500, "{} calls", answers.len());
        figure("calls to a range while endpoints change", answers.len());
        for name in ["a", "b", "c"] {
            assert!(
                answers.contains(&Ok(name.to_owned())),
                "{name} never answered"
            );
        }
    });
}

/// The node port of another Service has the number of a port in the range.
#[test]
fn flows_to_ranges_are_not_those_of_node_ports() {
    Lab::run(|lab| {
        let media = media();
        let web = Service::new("web", 11).spec("type", "NodePort").spec(
            "ports",
            json!([{
                "name": "udp", "protocol": "UDP", "port": 80, "targetPort": 8080, "nodePort": 8081,
            }]),
        );
        lab.publish_all(&media);
        lab.publish(&web, &[]);
        let _tripod = start_with(lab, &["--nodeport-addresses=all"]);
        let ips = [0, 1].map(|family| addresses(&media, family)).concat();
        let name = |socket: &UdpSocket| {
            let line = asked_over_udp(socket).expect("an answer");
            line.split(' ').next().unwrap_or_default().to_owned()
        };
        let flows = ips.iter().flat_map(|ip| {
            both("it is served", &lab.client, (*ip, 8081), Result::is_ok);
            (0..6).map(|_| udp(&lab.client, SocketAddr::new(*ip, 8081)).expect("a socket"))
        });
        let flows: Vec<UdpSocket> = flows.collect();
        let before: Vec<String> = flows.iter().map(name).collect();
        for endpoints in [&["a"][..], &["b"]] {
            lab.publish(&web, endpoints);
            for ip in lab.node.addresses {
                let to = SocketAddr::new(ip, 8081);
                eventually("the node port is served", SOON, || {
                    let socket = udp(&lab.client, to).expect("a socket");
                    let line = asked_over_udp(&socket).map_err(|error| error.to_string())?;
                    line.starts_with(endpoints[0]).then_some(()).ok_or(line)
                });
            }
            let after: Vec<String> = flows.iter().map(name).collect();
            assert_eq!(after, before, "{endpoints:?}");
        }
    });
}

/// A client that keeps its socket reaches another endpoint when its own one is removed, and none
/// when there are none.
#[test]
fn flows_to_endpoints_that_are_gone_end() {
    Lab::run(|lab| {
        let media = media();
        lab.publish_all(&media);
        let _tripod = start_with(lab, &[]);
        for family in [0, 1] {
            for ip in addresses(&media, family) {
                both("it is served", &lab.client, (ip, 8081), Result::is_ok);
                let socket = udp(&lab.client, SocketAddr::new(ip, 8081)).expect("a socket");
                let name = |socket| {
                    let line = asked_over_udp(socket).map_err(|error| error.to_string())?;
                    Ok::<_, String>(line.split(' ').next().unwrap_or_default().to_owned())
                };
                let first = name(&socket).expect("an answer");
                let others: Vec<_> = ["a", "b", "c"]
                    .into_iter()
                    .filter(|one| *one != first)
                    .map(EndpointChoice::ready)
                    .collect();
                lab.publish_endpoints(&media, &others);
                eventually("another endpoint answers", SOON, || {
                    let now = name(&socket)?;
                    if now == first { Err(now) } else { Ok(()) }
                });
                lab.publish_endpoints(&media, &[]);
                for other in media.cluster().map(|at| at.ip()).into_iter().chain([ip]) {
                    both("it is refused", &lab.client, (other, 8081), is_refused);
                }
                eventually("the flow is gone", SOON, || match name(&socket) {
                    Ok(name) => Err(name),
                    Err(_) => Ok(()),
                });
                lab.publish_all(&media);
            }
        }
    });
}

#[test]
fn policies_and_affinity_apply() {
    Lab::run(|lab| {
        let local = media()
            .spec("externalTrafficPolicy", "Local")
            .spec("internalTrafficPolicy", "Local");
        let endpoints = [
            EndpointChoice::ready("a").on("node"),
            EndpointChoice::ready("b").on("other"),
            EndpointChoice::ready("c").on("other"),
        ];
        lab.publish_endpoints(&local, &endpoints);
        let tripod = start_with(lab, &[]);
        for family in [0, 1] {
            let [cluster, external, ingress] = addresses(&local, family);
            all_answer(&lab.client, cluster, 8081, 8081, &["a"]);
            for ip in [external, ingress] {
                all_answer(&lab.outside, ip, 8081, 8081, &["a"]);
                all_answer(&lab.node, ip, 8081, 8081, &["a", "b", "c"]);
                // Pods are known by their IPv4 addresses only (`--cluster-cidr`).
                if family == 0 {
                    all_answer(&lab.client, ip, 8081, 8081, &["a", "b", "c"]);
                }
            }
        }
        let guarded = media().spec("loadBalancerSourceRanges", json!(["192.0.2.99/32"]));
        lab.publish_all(&guarded);
        let [cluster, external, ingress] = addresses(&guarded, 0);
        both(
            "the load balancer is guarded",
            &lab.client,
            (ingress, 8081),
            Result::is_err,
        );
        for ip in [cluster, external] {
            all_answer(&lab.client, ip, 8081, 8081, &["a", "b", "c"]);
        }
        lab.publish_all(&media().sticky(600));
        tripod.logs_once(&["WARN", "default/media", "sessionAffinity"]);
        for ip in addresses(&media(), 0)
            .into_iter()
            .chain(addresses(&media(), 1))
        {
            let names = || {
                // All ports of the Service have the same endpoint, those of the spec included.
                let one = |port| asked(&lab.client, ip, port).map(|answer| answer.expect("one").0);
                let ports = (0..5).flat_map(|_| [8080, 8081, 80]);
                let mut names: Vec<_> = ports.flat_map(one).collect();
                names.sort();
                names.dedup();
                names
            };
            eventually("a client stays on its endpoint", SOON, || {
                let names = names();
                if names.len() == 1 {
                    Ok(())
                } else {
                    Err(names.join(" "))
                }
            });
        }
    });
}

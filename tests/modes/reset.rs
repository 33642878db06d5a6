//! Connections to endpoints that are gone end with a reset, if the Service requests that.

use std::{
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::hostile::{modes, start_with};
use crate::lab::{
    Capture, EndpointChoice, Lab, Service, Tripod, ask, ask_within, eventually, figure, get, run,
    say, tcp,
};

const SOON: Duration = Duration::from_secs(10);
/// How long a connection that must not be reset is watched.
const WATCHED: Duration = Duration::from_secs(2);
const UPDATES: usize = 100;
/// Clients that call each address again and again.
const CALLERS: usize = 2;

fn resetting(name: &str, number: u8) -> Service {
    Service::new(name, number).annotated("tripod.proxy/reset", "gone")
}

/// An open connection to `a`, which waits for an answer.
fn open(lab: &Lab, to: SocketAddr) -> TcpStream {
    let host = if to.port() == 80 {
        &lab.client
    } else {
        &lab.outside
    };
    let mut stream = tcp(host, to).unwrap_or_else(|error| panic!("{to}: {error}"));
    assert_eq!(say(&mut stream, "name").expect("an answer"), "a");
    stream
}

/// How the connection ends within this time; `None`: it stays open.
fn end(stream: &mut TcpStream, within: Duration) -> Option<ErrorKind> {
    stream.set_read_timeout(Some(within)).expect("a timeout");
    match stream.read(&mut [0; 16]) {
        Ok(0) => Some(ErrorKind::UnexpectedEof),
        Ok(_) => panic!("nothing was asked"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => Some(error.kind()),
    }
}

fn with_each_mode(test: impl Fn(&str, &mut Lab)) {
    run(|| {
        for (mode, capture) in modes() {
            let mut lab = Lab::new(*capture);
            lab.add_backends(&["a", "b"]);
            test(mode, &mut lab);
        }
    });
}

fn metrics(lab: &Lab) -> String {
    let at = "127.0.0.1:10249".parse().expect("an address");
    get(&lab.node, at, "/metrics").expect("metrics")
}

fn start(lab: &Lab, mode: &str) -> Tripod {
    start_with(lab, mode, &["--nodeport-addresses=all"])
}

#[test]
fn clients_of_an_endpoint_that_is_gone_hear_it_at_once() {
    with_each_mode(|mode, lab| {
        let web = resetting("web", 10).with_node_port();
        // Other Services with the same endpoint.
        let (other, stays) = (Service::new("other", 11), resetting("stays", 12));
        for service in [&web, &other, &stays] {
            lab.publish(service, &["a"]);
        }
        let _tripod = start(lab, mode);
        let node_ports = lab
            .node
            .addresses
            .map(|ip| SocketAddr::new(ip, web.node_port()));
        let called = web.cluster().into_iter().chain(node_ports);
        let mut gone: Vec<_> = called.map(|to| (to, open(lab, to))).collect();
        let others = [&other, &stays].into_iter().flat_map(Service::cluster);
        let mut kept: Vec<_> = others.map(|to| (to, open(lab, to))).collect();
        lab.backend("a").blackhole();
        let begun = Instant::now();
        lab.publish(&web, &["b"]);
        for (to, stream) in &mut gone {
            let how = end(stream, SOON);
            assert_eq!(how, Some(ErrorKind::ConnectionReset), "{mode} {to}");
        }
        figure(
            &format!("{mode} mode, reset after"),
            format_args!("{:?}", begun.elapsed()),
        );
        for (to, stream) in &mut kept {
            assert_eq!(end(stream, WATCHED / 4), None, "{mode} {to}");
        }
        if mode != "userspace" {
            let metrics = metrics(lab);
            let counted = format!("tripod_connections_reset_total {}", gone.len());
            assert!(metrics.contains(&counted), "{mode}: {metrics}");
        }
    });
}

/// A terminating endpoint serves its connections to the end, and an address that has only another
/// port is still there.
#[test]
fn endpoints_that_are_still_there_keep_their_connections() {
    with_each_mode(|mode, lab| {
        let web = resetting("web", 10);
        lab.publish(&web, &["a"]);
        let _tripod = start(lab, mode);
        let mut open = web.cluster().map(|to| (to, open(lab, to)));
        let (terminating, ready) = (
            EndpointChoice::terminating("a", true),
            EndpointChoice::ready("b"),
        );
        for endpoints in [
            vec![terminating, ready.clone()],
            vec![EndpointChoice::terminating("a", false), ready.clone()],
        ] {
            lab.publish_endpoints(&web, &endpoints);
            for (to, stream) in &mut open {
                assert_eq!(end(stream, WATCHED), None, "{mode} {to}");
            }
        }
        lab.publish_endpoints(&web, &[ready]);
        for (to, stream) in &mut open {
            let how = end(stream, SOON);
            assert_eq!(how, Some(ErrorKind::ConnectionReset), "{mode} {to}");
        }
    });
}

/// Waits until all connections have ended, and returns when each of them did, in order.
fn ended(waiting: &mut Vec<TcpStream>) -> Vec<Duration> {
    let (begun, mut after) = (Instant::now(), Vec::new());
    while !waiting.is_empty() && begun.elapsed() < Duration::from_secs(60) {
        waiting.retain_mut(|stream| {
            let ended = end(stream, Duration::from_millis(1));
            after.extend(ended.map(|_| begun.elapsed()));
            ended.is_none()
        });
    }
    assert!(waiting.is_empty(), "{} did not end", waiting.len());
    after
}

#[test]
fn clients_of_an_ejected_endpoint_hear_it() {
    run(|| {
        for mode in ["nftables", "iptables"] {
            let mut lab = Lab::new(Capture::Local);
            lab.add_backends(&["a", "b"]);
            // Packets between pods pass the hooks of netfilter twice, as with many network plugins.
            for table in ["iptables", "ip6tables"] {
                let setting = format!("/proc/sys/net/bridge/bridge-nf-call-{table}");
                lab.node
                    .enter(|| std::fs::write(setting, "1"))
                    .expect("netfilter of bridges");
            }
            let web = resetting("web", 10).annotated("tripod.proxy/eject", "true");
            lab.publish(&web, &["a"]);
            let _tripod = start(&lab, mode);
            let called = web.cluster().into_iter();
            let mut waiting: Vec<_> = called
                .flat_map(|to| (0..100).map(move |_| to))
                .map(|to| open(&lab, to))
                .collect();
            lab.publish(&web, &["a", "b"]);
            lab.backend("a").blackhole();
            let over = AtomicBool::new(false);
            let after = thread::scope(|scope| {
                // Its clients are the evidence by which an endpoint is ejected.
                for to in web.cluster().repeat(CALLERS) {
                    let (lab, over) = (&lab, &over);
                    scope.spawn(move || {
                        while !over.load(Relaxed) {
                            let _ = ask_within(&lab.client, to, Duration::from_millis(500));
                        }
                    });
                }
                let after = ended(&mut waiting);
                over.store(true, Relaxed);
                after
            });
            let (median, late) = (after[after.len() / 2], after[after.len() * 99 / 100]);
            figure(
                &format!("{mode} mode, from the failure to the reset, median and p99"),
                format_args!("{median:?} {late:?}"),
            );
        }
    });
}

/// Clients end their connections while the endpoint terminates, as in an orderly update.
#[test]
fn rolling_updates_reset_nothing() {
    with_each_mode(|mode, lab| {
        let web = resetting("web", 10);
        lab.publish(&web, &["a"]);
        let _tripod = start(lab, mode);
        for update in 0..UPDATES {
            let (old, new) = if update % 2 == 0 {
                ("a", "b")
            } else {
                ("b", "a")
            };
            let mut open: Vec<_> = web.cluster().map(|to| tcp(&lab.client, to)).into();
            lab.publish_endpoints(
                &web,
                &[
                    EndpointChoice::terminating(old, true),
                    EndpointChoice::ready(new),
                ],
            );
            for stream in &mut open {
                let stream = stream.as_mut().expect("a connection");
                let answer = say(stream, "name").expect("an answer");
                assert_eq!(answer, old, "{mode}");
            }
            drop(open);
            lab.publish(&web, &[new]);
            for to in web.cluster() {
                let answer = || match ask(&lab.client, to) {
                    Ok(answer) if answer == new => Ok(()),
                    other => Err(format!("{other:?}")),
                };
                eventually("the new endpoint", SOON, answer);
            }
        }
        if mode != "userspace" {
            let metrics = metrics(lab);
            let mut lines = metrics.lines();
            let counted = lines.find(|line| line.starts_with("tripod_connections_reset_total"));
            assert_eq!(counted, Some("tripod_connections_reset_total 0"), "{mode}");
        }
    });
}

//! A restart finds everything in place, and no client notices.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{node, recorded::State};
use crate::lab::{Capture, Host, Lab, Service, acceptance, eventually, figure, run, say};

/// Number of callers; their results are printed as a figure.
const CALLERS: usize = 4;
/// Time between two connections of a caller: the guest has one processor for callers and
/// Tripod.
const PAUSE: Duration = Duration::from_millis(2);
/// Requests on one connection before a caller opens the next.
const REQUESTS: usize = 25;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn restarts_and_rolling_replacements_fail_no_request() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let service = Service::new("web", 1).with_external_ip();
        lab.publish(&service, &["a", "b"]);
        let mut tripod = node::start(&lab, &[]);
        let load = Load::default();
        let lab = &lab;
        let at = service.external()[0];
        std::thread::scope(|scope| {
            // After a failed assertion the others must not call forever.
            let end = Stop(&load.stop);
            for caller in 0..CALLERS {
                let load = &load;
                // From outside, and from the node itself.
                let (from, to) = match caller {
                    0 => (&lab.node, service.cluster()[0]),
                    _ => (&lab.outside, at),
                };
                let requests = if caller % 2 == 0 { 1 } else { REQUESTS };
                scope.spawn(move || from.enter(|| load.call(to, requests)));
            }
            let began = Instant::now();
            let times = if acceptance() { 10 } else { 1 };
            load.more(50);
            let counted = connections(&lab.node, at);
            let before = State::of(&lab.node);

            tripod.kill();
            load.more(100 * times);
            tripod = node::start(lab, &[]);
            load.more(100 * times);
            let found = before.differences(&State::of(&lab.node));
            assert!(found.is_empty(), "{}", found.join("\n"));
            let then = connections(&lab.node, at);
            assert!(then > counted, "{counted} connections, then {then}");

            for _ in 0..times {
                for endpoints in [["b", "c"], ["c", "a"], ["a", "b"]] {
                    lab.publish(&service, &endpoints);
                    load.more(150);
                }
            }
            assert_eq!(tripod.terminate().code(), Some(0));
            load.more(100);
            tripod = node::start(lab, &[]);
            load.more(100);
            let last = connections(&lab.node, at);
            assert!(last > then, "{then} connections, then {last}");
            drop(end);
            load.report(began.elapsed());
        });
        assert_eq!(load.failures(), Vec::<String>::new());
        assert_eq!(tripod.logged(&["repaired"]), 0, "{}", tripod.log());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn addresses_of_kube_proxy_are_taken_over_without_a_failed_request() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.three_backends();
        let service = Service::new("web", 1).with_external_ip();
        lab.publish(&service, &["a", "b"]);
        drop(node::start(&lab, &[]));
        let addresses = || lab.node.show("ip -o addr show dev kube-ipvs0");
        let ours = State::of(&lab.node).addresses;
        let retired = |line: &&str| line.contains("scope host") || line.contains("deprecated");
        let is_retired = || addresses().lines().all(|line| retired(&line));
        assert!(is_retired(), "{}", addresses());
        let service_ips = [service.cluster(), service.external()].concat();
        for ip in service_ips.iter().map(SocketAddr::ip) {
            let (bits, more) = if ip.is_ipv4() {
                (32, "")
            } else {
                (128, "nodad")
            };
            lab.node
                .show(&format!("ip addr del {ip}/{bits} dev kube-ipvs0"));
            let add = format!("ip addr add {ip}/{bits} dev kube-ipvs0 {more}");
            lab.node.show(&add);
        }
        assert_eq!(
            addresses().lines().filter(retired).count(),
            0,
            "{}",
            addresses()
        );
        let load = Load::default();
        let lab = &lab;
        std::thread::scope(|scope| {
            let end = Stop(&load.stop);
            let load = &load;
            // The node's own calls have such an address as their source.
            for to in service.cluster() {
                scope.spawn(move || lab.node.enter(|| load.call(to, REQUESTS)));
            }
            for to in service.external() {
                scope.spawn(move || lab.outside.enter(|| load.call(to, 1)));
            }
            load.more(20);
            let tripod = node::start(lab, &[]);
            load.more(50);
            assert!(is_retired(), "{}", addresses());
            for family in ["IPv4", "IPv6"] {
                let logged = tripod.logged(&[family, "no longer eligible"]);
                assert_eq!(logged, 1, "{family}: {}", tripod.log());
            }
            drop(end);
        });
        assert_eq!(load.failures(), Vec::<String>::new());
        assert_eq!(State::of(&lab.node).addresses, ours);
        assert_eq!(lab.node.show("ip route show table local metric 1"), "");
    });
}

/// Callers that send requests continuously.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    connections: AtomicUsize,
    requests: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Load {
    /// Makes connections of `requests` requests each, in the caller's namespace.
    fn call(&self, to: SocketAddr, requests: usize) {
        while !self.stop.load(Relaxed) {
            if let Err(error) = self.converse(to, requests) {
                self.failed
                    .lock()
                    .expect("no panic")
                    .push(error.to_string());
            }
            self.connections.fetch_add(1, Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    fn converse(&self, to: SocketAddr, requests: usize) -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        let first = say(&mut stream, "name")?;
        self.requests.fetch_add(1, Relaxed);
        for _ in 1..requests {
            let name = say(&mut stream, "name")?;
            if name != first {
                return Err(io::Error::other(format!("{first} became {name}")));
            }
            self.requests.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Waits for `number` more connections.
    fn more(&self, number: usize) {
        let goal = self.connections.load(Relaxed) + number;
        eventually("more connections", Duration::from_secs(60), || {
            match self.connections.load(Relaxed) {
                now if now >= goal => Ok(()),
                now => Err(format!("{now} of {goal}; {:?}", self.failures())),
            }
        });
    }

    fn failures(&self) -> Vec<String> {
        self.failed.lock().expect("no panic").clone()
    }

    fn report(&self, took: Duration) {
        let (connections, requests) = (&self.connections, &self.requests);
        let connections = connections.load(Relaxed);
        figure(
            "load during restarts and replacements",
            format!(
                "{connections} connections, {} requests, {:.0} connections a second",
                requests.load(Relaxed),
                connections as f64 / took.as_secs_f64()
            ),
        );
    }
}

/// Reads the number of connections that `ipvsadm` counts for a virtual server.
fn connections(node: &Host, at: SocketAddr) -> u64 {
    let text = node.show("ipvsadm -Ln --stats --exact");
    let line = text
        .lines()
        .find(|line| line.contains(&format!("TCP  {at} ")));
    let count = line.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
    count.unwrap_or_else(|| panic!("no {at} in:\n{text}"))
}

/// Tells callers to stop when it is dropped.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

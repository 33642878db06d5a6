//! Causes faults, and observes which functions continue.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    cluster::Cluster,
    expected::{Answer, answer},
    fault::{Fault, Mode},
    questions::Question,
};
use crate::lab::{
    Capture, Host, Lab, Netlink, Programs, Service, Tripod, eventually, figure, get, say,
    tcp_from_new_port, tripod_binary,
};

/// Time limit for functions that wait for nothing.
const SOON: Duration = Duration::from_secs(10);
/// Minimum time for which waiting functions are observed, which includes a few retries.
const WHILE: Duration = Duration::from_secs(3);
/// Time limit for functions that are retried with pauses.
const LATER: Duration = Duration::from_secs(40);
/// Delay of the slow API server.
const SLOW: Duration = Duration::from_secs(2);
/// Time without an answer that counts as silence.
const SILENCE: Duration = Duration::from_secs(1);

const HEALTH: u16 = 31_000;
/// More ranges than the set has room for.
const RANGES: u8 = 100;

/// The result of each question, in their order: whether it continued.
#[derive(Debug)]
pub struct Seen {
    pub fault: Fault,
    pub went_on: Vec<(Question, bool)>,
}

impl Seen {
    /// Returns the deviations from the expected results.
    pub fn differences(&self, mode: Mode) -> Vec<String> {
        let mut wrong = Vec::new();
        for (question, went_on) in &self.went_on {
            let expected = answer(mode, self.fault, *question);
            if *went_on != (expected == Answer::GoesOn) {
                let fault = self.fault;
                wrong.push(format!("{fault:?}, {question:?}: expected {expected:?}"));
            }
        }
        wrong
    }
}

/// Tests all faults of a mode, one after the other: those of the kernel in one process, those of
/// the API server in another one.
pub fn all(mode: Mode) -> Vec<Seen> {
    let (of_api, of_kernel): (Vec<_>, Vec<_>) = Fault::of(mode).partition(|f| f.is_of_api());
    let mut lab = Lab::new(match mode {
        Mode::Local => Capture::Local,
        _ => Capture::Redirect,
    });
    lab.three_backends();
    let mut seen = Vec::new();
    let manifests = Cluster::of_manifests();
    let mut bench = Bench::new(mode, &lab, &manifests);
    seen.extend(of_kernel.into_iter().map(|fault| bench.try_fault(fault)));
    drop(bench);
    let api = Cluster::of_api(&lab);
    let mut bench = Bench::new(mode, &lab, &api);
    seen.extend(of_api.into_iter().map(|fault| bench.try_fault(fault)));
    seen
}

struct Bench<'a> {
    mode: Mode,
    lab: &'a Lab,
    cluster: &'a Cluster,
    programs: Programs,
    netlink: Netlink,
    tripod: Tripod,
    /// A Service that is applied before each fault.
    web: Service,
    /// Its present endpoints.
    endpoints: &'static [&'static str],
    /// The number of the next Service.
    number: u8,
}

impl<'a> Bench<'a> {
    fn new(mode: Mode, lab: &'a Lab, cluster: &'a Cluster) -> Bench<'a> {
        let web = Service::new("web", 1)
            .with_load_balancer()
            .spec("externalTrafficPolicy", "Local")
            .spec("healthCheckNodePort", HEALTH);
        let endpoints = &["a"];
        cluster.publish(lab, &web, endpoints);
        let programs = Programs::legacy();
        if mode == Mode::Ipvs {
            small_set(&lab.node);
        }
        let netlink = Netlink::new();
        let tripod = start(mode, lab, cluster, (&programs, &netlink));
        Bench {
            mode,
            lab,
            cluster,
            programs,
            netlink,
            tripod,
            web,
            endpoints,
            number: 10,
        }
    }

    fn service(&mut self, name: &str) -> Service {
        self.number += 1;
        Service::new(&format!("{name}-{}", self.number), self.number)
    }

    fn try_fault(&mut self, fault: Fault) -> Seen {
        let (lab, cluster) = (self.lab, self.cluster);
        let struck = fault.family().unwrap_or(0);
        let ranges = json!(["192.0.2.20/32", "2001:db8::20/128"]);
        let old = self.service("old");
        let new = self.service("new");
        let guarded = self.service("guarded");
        let guarded = guarded
            .with_load_balancer()
            .spec("loadBalancerSourceRanges", ranges);
        let greedy = greedy(self.service("greedy"));
        cluster.publish(lab, &old, &["a"]);
        for family in 0..2 {
            for service in [&self.web, &old] {
                self.answered(service, family);
            }
        }
        let caller = self.caller();
        let mut open = tcp_from_new_port(caller, self.web.cluster()[struck]).expect("a connection");
        say(&mut open, "name").expect("an answer");

        self.bring(fault, &greedy);
        let at_once = self.reach(&self.web, struck).is_some();
        let next: &[&str] = match self.endpoints {
            ["a"] => &["b", "c"],
            _ => &["a"],
        };
        self.endpoints = next;
        cluster.publish(lab, &self.web, next);
        cluster.publish(lab, &new, &["a"]);
        cluster.publish(lab, &guarded, &["a"]);
        cluster.withdraw(lab, &old);
        let web = self.web.clone();
        let led = |family: usize| {
            let name = reach(caller, web.cluster()[family]);
            name.is_some_and(|name| next.contains(&&*name))
        };
        let guarded_reached =
            |family: usize| reach(&lab.outside, guarded.ingress()[family]).is_some();
        let mut went_on = observe(self.mode, fault, |question| match question {
            Question::Open => say(&mut open, "name").is_ok(),
            Question::New => at_once && self.reach(&self.web, struck).is_some(),
            Question::Endpoints => led(struck),
            Question::Opens => self.reach(&new, struck).is_some(),
            Question::Guarded => guarded_reached(struck),
            Question::Closes => self.reach(&old, struck).is_none(),
            Question::Health => self.counts(next.len()),
            Question::Livez => self.lives(),
            Question::OtherFamily => {
                fault.family().is_some()
                    && led(1 - struck)
                    && self.reach(&new, 1 - struck).is_some()
            }
            Question::Repaired => false,
        });

        self.repair(fault, &greedy);
        let began = Instant::now();
        let repaired = comes_true(LATER, || {
            let right = (0..2).all(|family| {
                led(family)
                    && self.reach(&new, family).is_some()
                    && self.reach(&old, family).is_none()
                    && guarded_reached(family)
            });
            right && self.counts(next.len())
        });
        if let Some((Question::Repaired, seen)) = went_on.last_mut() {
            *seen = repaired;
        }
        let took = began.elapsed();
        figure(&format!("{fault:?}, repaired"), format!("{took:.1?}"));
        cluster.withdraw(lab, &new);
        cluster.withdraw(lab, &guarded);
        Seen { fault, went_on }
    }

    fn bring(&mut self, fault: Fault, greedy: &Service) {
        match fault {
            Fault::Programs(fault) => self.programs.break_with(fault),
            Fault::Netlink => self.netlink.fail(),
            Fault::FullSet => {
                self.cluster.publish(self.lab, greedy, &["a"]);
                eventually("the full set is named", LATER, || {
                    match self.tripod.logged(&["not applied", "SOURCE-CIDR"]) {
                        0 => Err("it is not".to_owned()),
                        _ => Ok(()),
                    }
                });
            }
            Fault::ApiSlow => self.cluster.slow(SLOW),
            Fault::ApiDown => self.cluster.down(),
        }
    }

    fn repair(&mut self, fault: Fault, greedy: &Service) {
        match fault {
            Fault::Programs(_) => self.programs.repair(),
            Fault::Netlink => self.netlink.repair(),
            Fault::FullSet => self.cluster.withdraw(self.lab, greedy),
            Fault::ApiSlow => self.cluster.slow(Duration::ZERO),
            Fault::ApiDown => self.cluster.up(),
        }
    }

    fn answered(&self, service: &Service, family: usize) {
        let at = service.cluster()[family];
        eventually(&format!("{} at {at}", service.name), LATER, || {
            self.reach(service, family)
                .ok_or("nothing answers".to_owned())
        });
    }

    /// Returns the host that calls cluster IPs. Between pods of one bridge IPVS works
    /// only if the bridge lets the node see the answers, which the guest kernel does not.
    fn caller(&self) -> &'a Host {
        match self.mode {
            Mode::Ipvs => &self.lab.node,
            _ => &self.lab.client,
        }
    }

    /// Finds who answers at the cluster IP.
    fn reach(&self, service: &Service, family: usize) -> Option<String> {
        reach(self.caller(), service.cluster()[family])
    }

    fn counts(&self, endpoints: usize) -> bool {
        let at = SocketAddr::new(self.lab.node.addresses[0], HEALTH);
        let answer = get(&self.lab.outside, at, "/").unwrap_or_default();
        let counted = answer.contains(&format!("\"localEndpoints\": {endpoints},"));
        counted && answer.starts_with("HTTP/1.1 200 ")
    }

    fn lives(&self) -> bool {
        let at = SocketAddr::new(self.lab.node.addresses[0], 10256);
        let answer = get(&self.lab.node, at, "/livez");
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    }
}

/// Puts each question to `seen` while the fault lasts: until all expected functions continue, and
/// for at least [`WHILE`].
fn observe(
    mode: Mode,
    fault: Fault,
    mut seen: impl FnMut(Question) -> bool,
) -> Vec<(Question, bool)> {
    let began = Instant::now();
    let mut went_on: Vec<(Question, bool)> = Question::ALL.map(|q| (q, false)).into();
    loop {
        let mut all = true;
        for (question, goes_on) in &mut went_on {
            let expected = answer(mode, fault, *question) == Answer::GoesOn;
            // Continuing functions must continue until the end; one-time effects need not be
            // checked again.
            let lasts = matches!(question, Question::Open | Question::New | Question::Livez);
            if lasts || !*goes_on {
                *goes_on = seen(*question);
            }
            all &= *goes_on || !expected || *question == Question::Repaired;
        }
        let passed = began.elapsed();
        if all && passed > WHILE || passed > SOON {
            return went_on;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns whether `holds` becomes true before `limit` has passed.
fn comes_true(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Finds who answers a new connection, if anyone does soon.
fn reach(from: &Host, to: SocketAddr) -> Option<String> {
    let call = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, SILENCE)?;
        stream.set_read_timeout(Some(SILENCE))?;
        say(&mut stream, "name")
    };
    from.enter(call).ok()
}

fn start(
    mode: Mode,
    lab: &Lab,
    cluster: &Cluster,
    (programs, netlink): (&Programs, &Netlink),
) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    programs.come_first(&mut command);
    netlink.come_between(&mut command);
    command
        .args(mode.flags())
        .arg("--strict-proxy-mode")
        .args(cluster.flag(lab))
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        .arg("--v=2")
        // Periodic repairs must not help.
        .args(["--iptables-sync-period=1h", "--ipvs-sync-period=1h"])
        .args([
            "--iptables-min-sync-period=10ms",
            "--ipvs-min-sync-period=10ms",
        ]);
    Tripod::start_on(&lab.node, command)
}

/// Creates the set of source ranges as another proxy left it, with room for some members,
/// and a rule that prevents a larger one from being created.
fn small_set(node: &Host) {
    if node.show("ipset list -n").contains("TRIPOD-TEMPORARY") {
        return;
    }
    node.show("ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net maxelem 64");
    node.show("ipset create TRIPOD-TEMPORARY hash:ip");
    node.show("iptables -A INPUT -m set --match-set TRIPOD-TEMPORARY src -j ACCEPT");
}

/// Returns a Service whose source ranges have no room in the small set.
fn greedy(service: Service) -> Service {
    let ranges = (1..RANGES).map(|range| format!("100.64.0.{range}/32"));
    service.with_load_balancer().spec(
        "loadBalancerSourceRanges",
        json!(ranges.collect::<Vec<_>>()),
    )
}

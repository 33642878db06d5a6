//! Many hand-overs under load: each failure is counted by its cause.
//!
//! `make acceptance` makes 1,000 hand-overs in each mode under 2,000 new connections per second, and 100
//! in ipvs mode in the slow guest; `TRIPOD_HAND_OVERS` is another number of them. One in ten kills a
//! process: before the next one starts, while the next one takes over, or after that.

mod clients;
mod tally;

use std::sync::Arc;
use std::time::Instant;

use self::clients::{Load, Pace, Target, call};
use self::tally::{Cause, End, Moment};
use super::{Pod, SOON, Way, kernel, publish};
use crate::faults::measured::measured_in;
use crate::lab::{EndpointChoice, Lab, Service, Tripod, acceptance, eventually, figure};
use crate::userspace::{gap::start_holder, succession::Stop};

const TEST: &str = "hand_overs";

/// The size of a run.
struct Size {
    hand_overs: usize,
    pace: Pace,
    /// Connections that begin and end during each hand-over.
    each: usize,
}

impl Size {
    fn get() -> Size {
        let (hand_overs, connections, flows, each) = match (acceptance(), &*kernel()) {
            // The guest is slow.
            (true, "full") => (100, 100, 20, 100),
            (true, _) => (1_000, 2_000, 200, 2_500),
            (false, "full") => (4, 50, 10, 20),
            (false, _) => (4, 500, 50, 100),
        };
        let asked = std::env::var("TRIPOD_HAND_OVERS").ok();
        Size {
            hand_overs: asked.map_or(hand_overs, |asked| asked.parse().expect("a number")),
            pace: Pace { connections, flows },
            each,
        }
    }
}

/// The name of the mode in figures.
fn name(way: Way) -> &'static str {
    match way.mode {
        "userspace" => way.capture.name(),
        mode => mode,
    }
}

/// Whether clients may see this failure, according to docs/reliability.md.
fn may_happen(way: Way, end: End, cause: Cause) -> bool {
    let begins_again = [
        Cause::Reset,
        Cause::AffinityLost,
        Cause::DatagramLost,
        Cause::FlowMoved,
    ];
    way.relays() && end != End::InOrder && begins_again.contains(&cause)
}

/// Publishes a Service with endpoints `a` and `b`, and one with affinity and all endpoints.
fn targets(lab: &Lab, way: Way) -> Vec<Target> {
    let web = publish(lab, way, &["a", "b"]);
    let sticky = Service::new("sticky", 11)
        .with_load_balancer()
        .spec("externalTrafficPolicy", "Local")
        .sticky(10_800);
    let all = ["a", "b", "c"].map(|name| EndpointChoice::ready(name).on("node"));
    lab.publish_endpoints(&sticky, &all);
    let target = |address, sticky| Target {
        address,
        endpoints: if sticky {
            &["a", "b", "c"]
        } else {
            &["a", "b"]
        },
        sticky,
    };
    let web = web.ingress().map(|address| target(address, false));
    let sticky = sticky.ingress().map(|address| target(address, true));
    [web, sticky].concat()
}

/// The process that serves, and the holder of its sockets.
struct Serving<'a> {
    lab: &'a Lab,
    way: Way,
    pod: Pod,
    _holder: Option<Tripod>,
}

impl<'a> Serving<'a> {
    fn start(lab: &'a Lab, way: Way) -> Serving<'a> {
        let holder = way.relays().then(|| start_holder(lab));
        let pod = Pod::started(lab, way, 0);
        serves(lab, &pod);
        Serving {
            lab,
            way,
            pod,
            _holder: holder,
        }
    }

    /// Replaces the process by the next one.
    fn hand_over(&mut self, number: usize) {
        let next = || Pod::started(self.lab, self.way, number as u32);
        let old = &mut self.pod.process;
        let new = match End::of(number) {
            End::InOrder => {
                let new = next();
                serves(self.lab, &new);
                old.ask_to_end();
                let ended = old.ended_within(SOON);
                assert!(ended.success(), "the old process ended badly: {ended}");
                new
            }
            End::Killed(Moment::Alone) => {
                old.kill();
                next()
            }
            End::Killed(Moment::Yielding) => {
                let new = next();
                old.logs(&["another process takes over the service addresses"]);
                old.kill();
                new
            }
            End::Killed(Moment::Replaced) => {
                let new = next();
                serves(self.lab, &new);
                old.kill();
                new
            }
        };
        serves(self.lab, &new);
        if self.way.relays() {
            new.process.logs(&["the holder has all sockets"]);
        }
        self.pod = new;
    }
}

/// Waits until the pod answers on the ports of the node, and everything is applied.
fn serves(lab: &Lab, pod: &Pod) {
    pod.answers(lab);
    pod.process.logs(&["serving 2 Services in"]);
}

pub fn promises_hold_in_many_hand_overs(lab: &Lab, way: Way) {
    let size = Size::get();
    let targets = targets(lab, way);
    // The entries of 2,000 ended connections per second would fill the table in a minute.
    let ended = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait";
    let shortened = lab.node.enter(|| std::fs::write(ended, "10"));
    shortened.expect("a shorter time");
    let mut serving = Serving::start(lab, way);
    let load = Arc::new(Load::default());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| call(&lab.outside, &load, &targets, size.pace));
        let over = Stop(&load.over);
        wait_for(&load, size.each);
        for number in 1..=size.hand_overs {
            load.tally.begin(number);
            let enough = load.done()[0] + size.each;
            serving.hand_over(number);
            wait_for(&load, enough);
        }
        drop(over);
        clients.join().expect("the clients do not panic");
    });
    report(&load, way, &size, begun.elapsed().as_secs_f64());
    let broken = load
        .tally
        .describe(|end, cause| !may_happen(way, end, cause));
    assert!(broken.is_empty(), "{way:?}: {}", broken.join("\n"));
}

/// Waits until that many connections have ended.
fn wait_for(load: &Load, enough: usize) {
    eventually("enough connections", SOON, || match load.done()[0] {
        done if done >= enough => Ok(()),
        done => Err(format!("{done} of {enough}")),
    });
}

/// Prints the figures of a run.
fn report(load: &Load, way: Way, size: &Size, seconds: f64) {
    let mode = name(way);
    let print = |figure: &str, value: f64| measured_in(TEST, mode, figure, value);
    let killed = (1..=size.hand_overs).filter(|number| End::of(*number) != End::InOrder);
    let [connections, datagrams] = load.done();
    for (figure, value) in [
        ("hand_overs", size.hand_overs),
        ("killed", killed.count()),
        ("connections", connections),
        ("datagrams", datagrams),
    ] {
        print(figure, value as f64);
    }
    print("seconds", seconds.round());
    for (in_order, prefix) in [(true, "in_order"), (false, "killed")] {
        for cause in Cause::ALL {
            let count = load.tally.count(in_order, cause);
            print(&format!("{prefix}_{}", cause.name()), count as f64);
        }
    }
    for text in load.tally.describe(|_, _| true) {
        figure(mode, text);
    }
}

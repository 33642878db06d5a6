//! Triggers events, and observes the losses.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{
    event::{Event, Place},
    expected::{New, Open, loss},
};
use crate::{
    faults::fault::Mode,
    lab::{
        Capture, Host, Lab, Service, Tripod, eventually, figure, say, tcp_from_new_port,
        tripod_binary, udp, udp_say,
    },
};

/// Events are noticed within a second, but the machine may be busy, and the guest kernel
/// is slow.
const SOON: Duration = Duration::from_secs(20);
/// How long new calls may fail after an event that is noticed within a second. A busy machine
/// may need longer, and another second for neighbours (RETRANS_TIMER, RFC 4861 section 10).
const AT_FIRST: Duration = Duration::from_secs(6);
/// The same in the guest kernel, where each system call is slow.
const AT_FIRST_IN_GUEST: Duration = Duration::from_secs(12);
/// Time without an answer that counts as silence: less than the second after which a lost SYN is
/// sent again (RFC 6298).
const SILENCE: Duration = Duration::from_millis(900);
/// Time limit for an answer that is on its way.
const PATIENCE: Duration = Duration::from_secs(5);
/// Duration of an event that does not end by itself.
const WHILE: Duration = Duration::from_secs(1);

/// The caller, and the address that it calls.
type Target<'a> = (&'a Host, SocketAddr);

/// Returns the deviations from the expected results for all events of a mode at `place`, which
/// happen to one process.
pub fn all(mode: Mode, place: Place) -> Vec<String> {
    let mut lab = Lab::new(Capture::Redirect);
    lab.add_backends(&["a"]);
    let web = Service::new("web", 1).with_load_balancer().with_node_port();
    lab.publish_all(&web);
    let tripod = start(mode, &lab);
    let bench = Bench {
        lab: &lab,
        tripod,
        inside: match place {
            // See `faults::run`.
            Place::Guest => &lab.node,
            Place::Host => &lab.client,
        },
        web,
    };
    let events = Event::ALL
        .into_iter()
        .filter(|event| event.is_tried_at(mode, place));
    events
        .flat_map(|event| {
            let (new, open) = loss(mode, event);
            let seen = bench.observe(event, new);
            figure(&format!("{mode:?}, {event:?}"), &seen.figure);
            seen.differences(new, open, mode)
                .into_iter()
                .map(move |difference| format!("{event:?}: {difference}"))
        })
        .collect()
}

fn start(mode: Mode, lab: &Lab) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(mode.flags())
        .args(["--strict-proxy-mode", "--v=2", "--hostname-override=node"])
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64"])
        .args(["--nodeport-addresses=192.0.2.0/24,2001:db8::/64"])
        .arg("--conntrack-max-per-core=0")
        // Only full syncs that are requested may help.
        .args(["--iptables-sync-period=1h", "--ipvs-sync-period=1h"]);
    Tripod::start_on(&lab.node, command)
}

struct Bench<'a> {
    lab: &'a Lab,
    tripod: Tripod,
    /// The host that calls cluster IPs.
    inside: &'a Host,
    web: Service,
}

/// The observed results.
#[derive(Default)]
struct Seen {
    /// New calls that were not answered.
    failed: Vec<String>,
    /// Number of new calls that were answered after the event was over.
    waited: usize,
    /// Numbers of open connections that were reset: those to node ports, and others.
    reset: [usize; 2],
    /// The time of the last new call that failed.
    outage: Duration,
    figure: String,
}

impl Seen {
    fn differences(&self, new: New, open: Open, mode: Mode) -> Option<String> {
        let at_first = match mode {
            Mode::Ipvs => AT_FIRST_IN_GUEST,
            _ => AT_FIRST,
        };
        let expected = match new {
            New::Answered => self.failed.is_empty() && self.waited == 0,
            // It may be noticed before anything fails.
            New::FailAtFirst => self.outage <= at_first,
            New::Wait => self.failed.is_empty() && self.waited > 0,
            New::Fail => !self.failed.is_empty(),
        };
        let kept = match open {
            Open::GoOn => self.reset == [0, 0],
            Open::NodePortsReset => self.reset[1] == 0,
            Open::Reset => true,
        };
        let (failed, waited, reset) = (&self.failed, self.waited, self.reset);
        (!expected || !kept).then(|| {
            format!(
                "not {new:?}, {open:?}: {failed:?}, the last after {:?}, {waited} waited, \
                 {reset:?} reset",
                self.outage
            )
        })
    }
}

impl<'a> Bench<'a> {
    fn targets(&self) -> Vec<Target<'a>> {
        let (lab, web) = (self.lab, &self.web);
        let of_node = lab.node.addresses;
        let node_ports = of_node.map(|ip| SocketAddr::new(ip, web.node_port()));
        let inside = web.cluster().map(|to| (self.inside, to));
        let outside = [node_ports, web.ingress()].concat();
        let outside = outside.into_iter().map(|to| (&lab.outside, to));
        outside.chain(inside).collect()
    }

    fn observe(&self, event: Event, new: New) -> Seen {
        let targets = self.targets();
        self.all_answer(&targets);
        let mut open: Vec<_> = targets.iter().map(connected).collect();
        let mut seen = Seen::default();
        event.happen(self.lab, &self.tripod);
        let mut since = Instant::now();
        // A client that keeps its socket, and whose first datagram may get lost.
        let flow = udp(self.inside, self.web.cluster()[0]).expect("a socket");
        flow.set_read_timeout(Some(SILENCE)).expect("a time limit");
        let _ = udp_say(&flow, "first");
        if event.lasts() {
            self.observe_while_it_lasts(event, new, since, &mut seen);
            since = Instant::now();
        }
        eventually(&format!("{event:?} is repaired"), SOON, || {
            let before = seen.failed.len();
            for target in &targets {
                let made = since.elapsed();
                if let Err(error) = call(target).and_then(|mut call| answered(&mut call, SILENCE)) {
                    seen.outage = made;
                    seen.failed.push(format!("{}: {error}", target.1));
                }
            }
            match seen.failed.get(before) {
                Some(failed) => Err(failed.clone()),
                None => self.is_whole(event),
            }
        });
        let took = since.elapsed();
        let outage = seen.outage;
        seen.figure = format!("calls fail for {outage:.1?}, repaired after {took:.1?}");
        eventually(
            "the client with its own socket is answered",
            PATIENCE,
            || udp_say(&flow, "again").map_err(|error| error.to_string()),
        );
        for (target, stream) in targets.iter().zip(&mut open) {
            if say(stream, "name").is_err() {
                let of_node = self.lab.node.addresses.contains(&target.1.ip());
                seen.reset[usize::from(!of_node)] += 1;
            }
        }
        seen
    }

    /// Makes calls until the event ends, which it does not while a call that is expected to
    /// be answered still waits.
    fn observe_while_it_lasts(&self, event: Event, new: New, since: Instant, seen: &mut Seen) {
        let mut pending = Vec::new();
        while since.elapsed() < WHILE {
            for target in self.targets() {
                let called = call(&target).map(|mut stream| {
                    let answer = answered(&mut stream, SILENCE / 3);
                    (answer.is_err(), stream)
                });
                match called {
                    Ok((false, _)) => {}
                    Ok((true, stream)) => pending.push((target.1, stream)),
                    Err(error) => seen.failed.push(format!("{}: {error}", target.1)),
                }
            }
        }
        if new == New::Answered {
            // A busy machine answers them slowly.
            pending.retain_mut(|(_, stream)| answered(stream, PATIENCE).is_err());
        }
        event.end(&self.tripod);
        seen.waited = pending.len();
        for (to, mut stream) in pending {
            if let Err(error) = answered(&mut stream, PATIENCE) {
                seen.failed.push(format!("{to}: {error}"));
            }
        }
    }

    /// Returns whether the kernel has the complete desired state.
    fn is_whole(&self, event: Event) -> Result<(), String> {
        if event == Event::NewAddress {
            let at = SocketAddr::from(([192, 0, 2, 11], self.web.node_port()));
            let called = call(&(&self.lab.outside, at));
            let answered = called.and_then(|mut stream| answered(&mut stream, SILENCE));
            answered.map_err(|error| format!("{at}: {error}"))?;
        }
        let diff = self.lab.node.command(tripod_binary()).arg("diff").output();
        let diff = diff.expect("running tripod diff");
        let text = String::from_utf8_lossy(&diff.stdout).into_owned();
        diff.status.success().then_some(()).ok_or(text)
    }

    fn all_answer(&self, targets: &[Target<'_>]) {
        eventually("all answer", SOON, || {
            targets.iter().try_for_each(|target| {
                let answered = call(target).and_then(|mut call| answered(&mut call, SILENCE));
                answered.map_err(|error| format!("{}: {error}", target.1))
            })
        });
    }
}

/// Returns an open connection that was answered.
fn connected((from, to): &Target<'_>) -> TcpStream {
    let mut stream = tcp_from_new_port(from, *to).expect("a connection");
    say(&mut stream, "name").expect("an answer");
    stream
}

/// Connects and asks, without waiting for the answer.
fn call((from, to): &Target<'_>) -> io::Result<TcpStream> {
    from.enter(|| {
        let mut stream = TcpStream::connect_timeout(to, SILENCE)?;
        stream.write_all(b"name\n")?;
        Ok(stream)
    })
}

fn answered(call: &mut TcpStream, within: Duration) -> io::Result<()> {
    call.set_read_timeout(Some(within))?;
    call.read_exact(&mut [0])
}

//! Clients and probes that keep calling while pods come and go.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::{CHECK_PORT, SOON};
use crate::lab::{
    Host, Lab, Service, bind_new, connect_from_new_port, eventually, get, say, tcp_from_new_port,
    udp, udp_say,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a client waits before it repeats a datagram.
const RESEND: Duration = Duration::from_secs(2);
/// Time between two calls of a client: the pace, not a wait.
const PACE: Duration = Duration::from_millis(20);
/// Calls of each kind that must succeed after each step.
const MORE: usize = 20;

/// A kind of call that the node gets again and again.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp,
    Udp,
    /// The ports of the proxy itself.
    Probe,
}

/// How many calls were made, and which failed.
#[derive(Default)]
pub struct Load {
    stop: AtomicBool,
    made: [AtomicUsize; 3],
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Waits until more calls of each kind have been made.
    pub fn more(&self) {
        let made = || self.made.each_ref().map(|made| made.load(Relaxed));
        let enough = made().map(|made| made + MORE);
        eventually("more calls of each kind", SOON, || {
            let made = made();
            match made
                .iter()
                .zip(enough)
                .all(|(made, enough)| *made >= enough)
            {
                true => Ok(()),
                false => Err(format!("{made:?} of {enough:?}")),
            }
        });
    }

    fn ask(&self, kind: Kind, what: &str, call: impl FnOnce() -> io::Result<()>) {
        if let Err(error) = call() {
            let text = format!("{what}: {error}");
            self.failures.lock().expect("no panic").push(text);
        }
        self.made[kind as usize].fetch_add(1, Relaxed);
        std::thread::sleep(PACE);
    }

    fn repeat(&self, host: &Host, round: impl Fn() + Send + Sync) {
        host.enter(|| {
            while !self.stop.load(Relaxed) {
                round();
            }
        });
    }
}

/// Makes the load stop when this is dropped, also after a failure.
struct Stop<'a>(&'a Load);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// Calls `web` and the ports of the proxy itself while `body` runs: no call may be
/// refused, reset or left unanswered, and each HTTP status must be 200.
pub fn under_load(lab: &Lab, web: &Service, body: impl FnOnce(&Load)) {
    let load = &Load::default();
    let (cluster, ingress) = (web.cluster(), web.ingress());
    let node_port = SocketAddr::new(lab.node.addresses[0], web.node_port());
    let each = |kind: Kind, to: &[SocketAddr]| {
        for to in to {
            load.ask(kind, &format!("{to}, {kind:?}"), || match kind {
                Kind::Udp => call_udp(*to),
                Kind::Tcp | Kind::Probe => call_tcp(*to),
            });
        }
    };
    std::thread::scope(|scope| {
        // Not from one pod to another on the bridge, whose answers some kernels do not send back
        // through the node.
        scope.spawn(|| load.repeat(&lab.node, || each(Kind::Tcp, &cluster)));
        scope.spawn(|| load.repeat(&lab.outside, || each(Kind::Tcp, &ingress)));
        scope.spawn(|| load.repeat(&lab.outside, || each(Kind::Tcp, &[node_port])));
        scope.spawn(|| load.repeat(&lab.outside, || each(Kind::Udp, &ingress)));
        scope.spawn(|| probe(lab, load));
        let stop = Stop(load);
        body(load);
        drop(stop);
    });
    let failures = load.failures.lock().expect("no panic");
    let made = load.made.each_ref().map(|made| made.load(Relaxed));
    assert!(
        failures.is_empty(),
        "of {made:?} (TCP, UDP, probes) {} failed: {:#?}",
        failures.len(),
        &failures[..failures.len().min(8)]
    );
}

/// Makes the requests of load balancers, Prometheus and the kubelet.
fn probe(lab: &Lab, load: &Load) {
    let node = lab.node.addresses[0];
    let asked = [
        (&lab.outside, SocketAddr::new(node, 10256), "/healthz"),
        (&lab.outside, SocketAddr::new(node, 10256), "/livez"),
        (&lab.node, ([127, 0, 0, 1], 10249).into(), "/metrics"),
        (&lab.outside, SocketAddr::new(node, CHECK_PORT), "/"),
    ];
    while !load.stop.load(Relaxed) {
        for (host, at, path) in asked {
            load.ask(Kind::Probe, &format!("{at}{path}"), || {
                let answer = get(host, at, path)?;
                if answer.starts_with("HTTP/1.1 200") {
                    Ok(())
                } else {
                    Err(io::Error::other(answer))
                }
            });
        }
    }
}

fn call_tcp(to: SocketAddr) -> io::Result<()> {
    let mut stream = connect_from_new_port(to, PATIENCE)?;
    say(&mut stream, "name").map(drop)
}

/// Calls over UDP. A datagram may be lost, as in any network; a refusal is an error.
fn call_udp(to: SocketAddr) -> io::Result<()> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = bind_new(any.parse().expect("an address"))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(RESEND))?;
    match udp_say(&socket, "name") {
        Err(error) if error.kind() == ErrorKind::WouldBlock => udp_say(&socket, "name"),
        answered => answered,
    }
    .map(drop)
}

/// Connections and UDP flows that stay open, and who answers on each.
pub struct Open {
    tcp: Vec<(TcpStream, String)>,
    udp: Vec<(UdpSocket, String)>,
}

impl Open {
    pub fn to(lab: &Lab, web: &Service) -> Open {
        let node_port = SocketAddr::new(lab.node.addresses[0], web.node_port());
        let [v4, v6] = web.ingress();
        let called = [
            (&lab.node, web.cluster()[0]),
            (&lab.node, web.cluster()[1]),
            (&lab.outside, v4),
            (&lab.outside, v6),
            (&lab.outside, node_port),
        ];
        let tcp = called.iter().cycle().take(15).map(|(host, to)| {
            let mut stream = tcp_from_new_port(host, *to).expect("a connection");
            let name = say(&mut stream, "name").expect("an answer");
            (stream, name)
        });
        let udp = [v4, v6].into_iter().cycle().take(6).map(|to| {
            let socket = udp(&lab.outside, to).expect("a socket");
            let name = udp_say(&socket, "name").expect("an answer");
            (socket, name)
        });
        let mut open = Open {
            tcp: tcp.collect(),
            udp: udp.collect(),
        };
        open.are_served("they were opened");
        open
    }

    pub fn are_served(&mut self, when: &str) {
        for (stream, name) in &mut self.tcp {
            assert_eq!(say(stream, "name").expect(when), *name, "{when}");
        }
        // Userspace mode does not keep a flow of one question and its answer for long.
        for (socket, name) in self.udp.iter().cycle().take(4 * self.udp.len()) {
            assert_eq!(udp_say(socket, "name").expect(when), *name, "{when}");
        }
    }
}

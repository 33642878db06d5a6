//! Clients that call at a fixed pace, whether or not earlier calls were answered, and UDP flows that
//! stay open. All of them are tasks of one thread, so that they take little of the machine's time.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::tally::{Cause, Tally};
use crate::lab::Host;

/// How long a client waits for an answer: longer than a process takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time from one group of calls to the next.
const TICK: Duration = Duration::from_millis(5);
/// A client that the machine did not run for longer does not make up for the calls.
const ARREARS: Duration = Duration::from_millis(100);
/// The most connections that are open at a time. On a machine that cannot make as many as asked, more
/// and more would wait, until the proxy resets them (`--userspace-max-connections-per-client`).
const OPEN: usize = 2_000;
/// Time between two datagrams of a flow.
const DATAGRAMS: Duration = Duration::from_millis(500);
/// One in this many connections stays open for [`STAY`], and is used again.
const STAYS: usize = 100;
const STAY: Duration = Duration::from_millis(200);
/// Ports of clients, in turn: a multiple of the number of addresses, so that each port always calls
/// the same one. Other connections with the same port would confuse IPVS (docs/ipvs.md).
const PORTS: (u16, usize) = (10_000, 50_000);

/// Where clients call, and which endpoints may answer.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub endpoints: &'static [&'static str],
    /// Whether a client stays with its endpoint.
    pub sticky: bool,
}

/// The load on the node.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// New connections per second.
    pub connections: u32,
    /// UDP flows.
    pub flows: usize,
}

/// How much the clients did.
#[derive(Default)]
pub struct Load {
    pub over: AtomicBool,
    begun: AtomicUsize,
    ended: AtomicUsize,
    datagrams: AtomicUsize,
    pub tally: Tally,
    /// The endpoint that answered last at each address with affinity.
    assigned: Mutex<HashMap<SocketAddr, String>>,
}

impl Load {
    /// The number of connections that ended, and of datagrams that were sent.
    pub fn done(&self) -> [usize; 2] {
        [&self.ended, &self.datagrams].map(|count| count.load(Relaxed))
    }

    /// Judges the answer to a call that began at hand-over `begun`.
    fn judge(&self, begun: usize, target: &Target, answer: io::Result<String>) {
        let at = target.address;
        match answer {
            Err(error) => {
                let text = || format!("{at}/tcp: {error}");
                self.tally.failed(begun, Cause::of(&error), text);
            }
            Ok(name) if !target.endpoints.contains(&&*name) => {
                let text = || format!("{at}/tcp: answered by {name:?}");
                self.tally.failed(begun, Cause::WrongEndpoint, text);
            }
            Ok(name) if target.sticky => {
                let mut assigned = self.assigned.lock().expect("no panic");
                if let Some(before) = assigned.insert(at, name.clone())
                    && before != name
                {
                    let text = || format!("{at}/tcp: answered by {name} after {before}");
                    self.tally.failed(begun, Cause::AffinityLost, text);
                }
            }
            Ok(_) => {}
        }
    }
}

/// Calls from `host` until the load is over and each client has its answer.
pub fn call(host: &Host, load: &Arc<Load>, targets: &[Target], pace: Pace) {
    let (load, targets) = (Arc::clone(load), targets.to_vec());
    host.enter(|| {
        // Ports of connections that this end closed are reused after a second instead of a minute
        // (ip-sysctl.rst).
        std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1").expect("a sysctl");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let plain: Vec<_> = targets.iter().filter(|target| !target.sticky).collect();
            let flows = (0..pace.flows).map(|number| {
                let target = plain[number % plain.len()].clone();
                tokio::spawn(flow(Arc::clone(&load), target, number, pace.flows))
            });
            let flows: Vec<_> = flows.collect();
            connections(&load, &targets, pace.connections).await;
            for flow in flows {
                flow.await.expect("a flow does not panic");
            }
        });
    });
}

/// Makes connections at `pace`.
async fn connections(load: &Arc<Load>, targets: &[Target], pace: u32) {
    assert!(PORTS.1.is_multiple_of(targets.len()));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last, mut due) = (Instant::now(), 0.0);
    while !load.over.load(Relaxed) {
        ticks.tick().await;
        let now = Instant::now();
        due += (now - last).min(ARREARS).as_secs_f64() * f64::from(pace);
        last = now;
        while due >= 1.0 {
            due -= 1.0;
            if load.begun.load(Relaxed) - load.ended.load(Relaxed) >= OPEN {
                continue;
            }
            let number = load.begun.fetch_add(1, Relaxed);
            let target = targets[number % targets.len()].clone();
            tokio::spawn(connection(Arc::clone(load), target, number));
        }
    }
    while load.ended.load(Relaxed) < load.begun.load(Relaxed) {
        ticks.tick().await;
    }
}

async fn connection(load: Arc<Load>, target: Target, number: usize) {
    let begun = load.tally.now();
    let stays = number % STAYS == STAYS - 1;
    let port = PORTS.0 + (number % PORTS.1) as u16;
    let answer = exchange(target.address, port, stays).await;
    load.judge(begun, &target, answer);
    load.ended.fetch_add(1, Relaxed);
}

/// The address from which a client calls `to`.
fn from(to: SocketAddr, port: u16) -> SocketAddr {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, port)
}

/// Returns who answers at `to`. If the connection `stays` for a while, it must be the same at its
/// end.
async fn exchange(to: SocketAddr, port: u16, stays: bool) -> io::Result<String> {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(from(to, port))?;
    let mut stream = timeout(PATIENCE, socket.connect(to)).await??;
    stream.set_nodelay(true)?;
    let name = ask(&mut stream).await?;
    if stays {
        // The connection stays open for that long; nothing is awaited.
        sleep(STAY).await;
        let again = ask(&mut stream).await?;
        if again != name {
            return Ok(format!("{name}, then {again}"));
        }
    }
    Ok(name)
}

async fn ask(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(b"name\n").await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        if timeout(PATIENCE, stream.read_buf(&mut answer)).await?? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    answer.pop();
    String::from_utf8(answer).map_err(io::Error::other)
}

/// A UDP flow that asks numbered questions, whether or not earlier ones were answered.
struct Flow {
    load: Arc<Load>,
    target: Target,
    socket: UdpSocket,
    /// Questions without an answer: the number, when it was sent, and at which hand-over.
    asked: VecDeque<(usize, Instant, usize)>,
    /// The endpoint that answered last, and at which hand-over.
    endpoint: Option<(String, usize)>,
}

/// Keeps flow `number` of `all` open until the load is over.
async fn flow(load: Arc<Load>, target: Target, number: usize, all: usize) {
    // The flows send one after the other.
    sleep(DATAGRAMS * number as u32 / all as u32).await;
    let socket = UdpSocket::bind(from(target.address, 0)).await;
    let socket = socket.expect("a socket");
    let connected = socket.connect(target.address).await;
    connected.expect("a route");
    let mut flow = Flow {
        load,
        target,
        socket,
        asked: VecDeque::new(),
        endpoint: None,
    };
    let mut ticks = interval(DATAGRAMS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = [0; 64];
    let mut next = 0;
    while !flow.is_over() {
        tokio::select! {
            _ = ticks.tick() => {
                flow.give_up();
                if !flow.load.over.load(Relaxed) {
                    flow.ask(next).await;
                    next += 1;
                }
            }
            // After an error, such as a refusal, the datagram stays without an answer.
            received = flow.socket.recv(&mut buffer) => if let Ok(length) = received {
                flow.answered(&String::from_utf8_lossy(&buffer[..length]));
            }
        }
    }
}

impl Flow {
    fn is_over(&self) -> bool {
        self.load.over.load(Relaxed) && self.asked.is_empty()
    }

    async fn ask(&mut self, number: usize) {
        let now = self.load.tally.now();
        self.asked.push_back((number, Instant::now(), now));
        self.load.datagrams.fetch_add(1, Relaxed);
        // What cannot be sent is not answered.
        let _ = self.socket.send(number.to_string().as_bytes()).await;
    }

    /// Counts the questions whose answers took too long.
    fn give_up(&mut self) {
        let at = self.target.address;
        while let Some((number, _, begun)) =
            (self.asked).pop_front_if(|(_, sent, _)| sent.elapsed() > PATIENCE)
        {
            let text = || format!("{at}/udp: no answer to datagram {number}");
            self.load.tally.failed(begun, Cause::DatagramLost, text);
        }
    }

    fn answered(&mut self, answer: &str) {
        let at = self.target.address;
        let (name, number) = answer.split_once(' ').unwrap_or((answer, ""));
        let number = number.parse().unwrap_or(usize::MAX);
        let place = self.asked.iter().position(|asked| asked.0 == number);
        let Some((_, _, begun)) = place.and_then(|place| self.asked.remove(place)) else {
            // Late, and counted as lost.
            return;
        };
        let tally = &self.load.tally;
        if !self.target.endpoints.contains(&name) {
            let text = || format!("{at}/udp: answered by {name:?}");
            tally.failed(begun, Cause::WrongEndpoint, text);
        }
        let before = self.endpoint.replace((name.to_owned(), tally.now()));
        if let Some((before, since)) = before.filter(|(before, _)| before != name) {
            let text = || format!("{at}/udp: answered by {name} after {before}");
            tally.failed(since, Cause::FlowMoved, text);
        }
    }
}

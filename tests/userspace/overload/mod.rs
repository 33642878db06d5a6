//! More load than can be served: one Service has thousands of clients while memory or descriptors
//! are limited. The process survives, another Service is served all the time, and the flooded one
//! is served again soon after the flood has ended.

mod fairness;
mod loads;

use std::net::SocketAddr;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;

use self::loads::{connect, half_open, udp_clients};
use crate::{
    faults::measured::measured,
    lab::{
        self, Capture, CgroupVersion, Lab, MemoryCgroup, Service, Tripod, ask, eventually, figure,
        skip, tripod_binary, udp, udp_say,
    },
};

const MIB: u64 = 1024 * 1024;

/// Memory that the process and its sockets may use in tests where memory runs out.
const LITTLE: u64 = 64 * MIB;

/// The same if it includes pages of the program and buffers of sockets: a program that is not
/// optimized has 25 MiB of such pages.
const LITTLE_WITH_ALL: u64 = 80 * MIB;

/// The least memory that remains in that case once Tripod serves: a program that grows, and so has
/// more pages, leaves no less to connections.
const LEFT_WITH_ALL: u64 = 37 * MIB;

/// Memory in tests where descriptors run out.
const MUCH: u64 = 1024 * MIB;

/// Descriptors that the process may have.
const DESCRIPTORS: usize = 20_000;

/// Clients of one Service whose connections can all be relayed with little memory.
const MANY: usize = 2_000;

/// Clients of each of several Services.
const EACH: usize = 2_200;

/// Time within which a Service is served again after its flood: a second, and some for whatever
/// else the machine does meanwhile. The figure `served again` says how long it took.
const RECOVERY: Duration = Duration::from_secs(10);

/// The same in a guest, whose one processor is slow: connections that the kernel had completed
/// by then are accepted first. A connection that finds the queue full meanwhile retries after 1,
/// 3, 7, 15 and 31 s.
const RECOVERY_IN_A_GUEST: Duration = Duration::from_secs(40);

/// Declares each named load as two tests: one for each way to capture traffic.
macro_rules! overloads {
    ($($name:ident: $memory:expr,)+) => { $(
        mod $name {
            use super::*;

            #[test]
            fn redirect() {
                in_lab(Capture::Redirect, |lab| overload(lab, stringify!($name), $memory, super::$name));
            }

            #[test]
            fn local() {
                in_lab(Capture::Local, |lab| overload(lab, stringify!($name), $memory, super::$name));
            }
        }
    )+ };
}

overloads! {
    a_flood_that_memory_ends: LITTLE,
    a_flood_that_descriptors_end: MUCH,
    floods_of_several_services_that_descriptors_end: MUCH,
    clients_that_never_read: LITTLE,
    clients_that_send_nothing_or_a_byte_now_and_then: LITTLE,
    backends_that_never_read: LITTLE,
    datagrams_of_many_clients: LITTLE,
    connections_that_are_never_completed: LITTLE,
}

/// The programs that write the rules need memory as well.
#[test]
fn a_first_sync_of_5000_services_needs_64_mib_with_redirect_capture() {
    in_lab(Capture::Redirect, |lab| {
        let service = |number: u16| {
            let [high, low] = number.to_be_bytes();
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "many", "name": format!("s{number}")},
                "spec": {
                    "clusterIP": format!("10.96.{}.{low}", 100 + high),
                    "ports": [{"name": "http", "port": 80}],
                },
            })
        };
        let items: Vec<_> = (0..5_000).map(service).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        lab.write("many.json", &list.to_string());
        let web = Service::new("web", 10);
        lab.three_backends().publish_all(&web);
        let cgroup = MemoryCgroup::new(match CgroupVersion::mounted() {
            Some(CgroupVersion::Two) => LITTLE_WITH_ALL,
            _ => LITTLE,
        });
        let command = cgroup.command(&lab.node, DESCRIPTORS, &tripod_binary());
        let _tripod = Tripod::start_as(lab, command);
        comes_to_be_served(lab, web.cluster()[0], Duration::from_secs(60));
        figure(
            "first sync of 5,000 Services",
            format!("{} MiB at most", cgroup.most() / MIB),
        );
        assert_eq!(cgroup.killed(), 0, "processes killed for want of memory");
    });
}

fn in_lab(capture: Capture, body: impl FnOnce(&mut Lab)) {
    match MemoryCgroup::missing() {
        Some(reason) => skip(reason),
        None => lab::run(|| body(&mut Lab::new(capture))),
    }
}

/// A Tripod under overload.
struct Overloaded<'a> {
    lab: &'a Lab,
    tripod: &'a Tripod,
    cgroup: &'a MemoryCgroup,
    /// The Service that has too many clients.
    flooded: SocketAddr,
    /// Addresses of that Service and of further ones.
    several: Vec<SocketAddr>,
}

impl Overloaded<'_> {
    /// Waits until new connections wait for resources that others hold.
    fn runs_out(&self) {
        eventually("new connections wait", Duration::from_secs(30), || {
            let name = "tripod_userspace_accept_paused_total";
            let paused = self.tripod.metric(&self.lab.node, name);
            paused
                .filter(|n| *n > 0.0)
                .map(drop)
                .ok_or(format!("{paused:?}"))
        });
    }

    /// How often connections waited, and how many stalled ones were ended.
    fn waited_or_ended(&self) -> [f64; 2] {
        let names = [
            "tripod_userspace_accept_paused_total",
            "tripod_userspace_stalled_ended_total",
        ];
        let counts = self.tripod.metrics(&self.lab.node, names);
        counts.map(|count| count.expect("a counter"))
    }

    /// Reports the figures that docs/reliability.md shows.
    fn keep(&self, test: &str) {
        let mib = |bytes: u64| (bytes as f64 / MIB as f64).round();
        let [_, most_tcp] = self.cgroup.tcp();
        for (name, value) in [
            ("memory_mib", mib(self.cgroup.most())),
            ("tcp_mib", mib(most_tcp)),
            ("descriptors", self.tripod.descriptors() as f64),
        ] {
            measured(test, self.lab.capture, name, value);
        }
    }

    fn show(&self, when: &str) {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
        let [tcp, most_tcp] = self.cgroup.tcp();
        figure(
            when,
            format!(
                "{} descriptors, {} of memory, {} MiB at most, {} of TCP, {} MiB at most, {} KiB resident",
                self.tripod.descriptors(),
                mib(self.cgroup.usage()),
                mib(self.cgroup.most()),
                mib(tcp),
                mib(most_tcp),
                self.tripod.resident_kib(),
            ),
        );
    }
}

/// Sets the flag at the end of a scope, also if it ends by a panic: otherwise a thread that waits
/// for the flag would make the test wait forever.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A time in milliseconds, to a hundredth.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 100_000.0).round() / 100.0
}

/// Publishes two more Services. Returns their addresses.
fn further_services(lab: &Lab) -> impl Iterator<Item = SocketAddr> {
    (12..14).flat_map(|number| {
        let service = Service::new(&format!("further-{number}"), number);
        lab.publish_all(&service);
        service.cluster()
    })
}

/// Runs `load`, keeps its result until the load should end, and measures its cost.
fn overload<L>(lab: &mut Lab, test: &str, memory: u64, load: impl FnOnce(&Overloaded) -> L) {
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.three_backends().publish_all(&web);
    lab.publish_all(&other);
    let mut several = web.cluster().to_vec();
    several.extend(further_services(lab));
    let memory = match CgroupVersion::mounted() {
        Some(CgroupVersion::Two) => memory.max(LITTLE_WITH_ALL),
        _ => memory,
    };
    let cgroup = MemoryCgroup::new(memory);
    let mut command = cgroup.command(&lab.node, DESCRIPTORS, &tripod_binary());
    // All clients have one address.
    command.arg("--userspace-max-connections-per-client=none");
    let tripod = Tripod::start_as(lab, command);
    let (flooded, beside) = (web.cluster()[0], other.cluster()[0]);
    for to in [flooded, beside] {
        ask(&lab.client, to).expect("an answer before the load");
    }
    if cgroup.version() == CgroupVersion::Two {
        cgroup.raise_limit(cgroup.usage() + LEFT_WITH_ALL);
    }
    let overloaded = Overloaded {
        lab,
        tripod: &tripod,
        cgroup: &cgroup,
        flooded,
        several,
    };
    let (idle, before) = (tripod.descriptors(), cgroup.usage());
    overloaded.show("before");
    let over = AtomicBool::new(false);
    let load = std::thread::scope(|scope| {
        let beside = scope.spawn(|| call_until(lab, test, beside, &over));
        let ends = SetWhenDropped(&over);
        let load = load(&overloaded);
        overloaded.show("under load");
        overloaded.keep(test);
        drop(ends);
        beside.join().expect("calls of the other Service");
        load
    });
    assert_eq!(cgroup.killed(), 0, "processes killed for want of memory");
    drop(load);
    let begun = Instant::now();
    let recovery = match cgroup.version() {
        CgroupVersion::One => RECOVERY,
        CgroupVersion::Two => RECOVERY_IN_A_GUEST,
    };
    comes_to_be_served(lab, flooded, recovery);
    figure("served again", format!("after {:?}", begun.elapsed()));
    // Connections that the kernel had completed are accepted first, and found closed. UDP clients
    // are kept for a while.
    eventually("descriptors are free", 5 * recovery, || {
        let open = tripod.descriptors();
        if open <= idle + 150 {
            return Ok(());
        }
        Err(format!("{open} are open, {idle} were"))
    });
    overloaded.show(&format!("{:?} afterwards", begun.elapsed()));
    // In version 2, pages of the program, which the kernel can take back, and socket buffers use
    // the rest of the memory.
    if cgroup.version() == CgroupVersion::One {
        assert_eq!(cgroup.reached(), 0, "times that all memory was in use");
    }
    // The allocator keeps some memory. The kernel frees some of its own a little later.
    let most = cgroup.most();
    eventually("memory is free", Duration::from_secs(20), || {
        let after = cgroup.usage();
        if after < 8 * MIB + (before + most) / 2 {
            return Ok(());
        }
        Err(format!("{before}, {most}, now {after}"))
    });
}

/// Waits until `to` is served over TCP and UDP. A datagram that was dropped at first is repeated,
/// and a late answer counts.
fn comes_to_be_served(lab: &Lab, to: SocketAddr, within: Duration) {
    let socket = udp(&lab.client, to).expect("a socket");
    let patience = Some(Duration::from_millis(50));
    socket.set_read_timeout(patience).expect("a socket");
    eventually("the flooded Service is served", within, || {
        ask(&lab.client, to).map_err(|error| error.to_string())?;
        udp_say(&socket, "name").map_err(|error| error.to_string())
    });
}

/// Calls `to` until it is `over`, at least once; all calls must succeed.
fn call_until(lab: &Lab, test: &str, to: SocketAddr, over: &AtomicBool) {
    let mut delays = Vec::new();
    loop {
        let calls = lab::FirstByte::measure(&lab.client, to, 20, 1, &RwLock::new(()));
        assert_eq!(calls.failures(), [""; 0], "calls of the other Service");
        delays.extend(calls.delays);
        if over.load(Relaxed) {
            break;
        }
    }
    delays.sort_unstable();
    let [half, most] = [50, 99].map(|percent| delays[(delays.len() - 1) * percent / 100]);
    let calls = delays.len();
    figure(
        "other Service",
        format!(
            "{calls} calls, p50 {half:?}, p99 {most:?}, slowest {:?}",
            delays[calls - 1]
        ),
    );
    measured(test, lab.capture, "p99_ms", milliseconds(most));
}

fn a_flood_that_memory_ends(of: &Overloaded) -> impl Sized + use<> {
    flood(of)
}

fn a_flood_that_descriptors_end(of: &Overloaded) -> impl Sized + use<> {
    flood(of)
}

/// More connections than there are descriptors; each client asks something.
fn flood(of: &Overloaded) -> loads::Clients {
    let mut clients = connect(of.lab, of.flooded, DESCRIPTORS * 6 / 10);
    of.runs_out();
    clients.send(b"name\n");
    // The flood stays at its height for this time, while others call.
    std::thread::sleep(Duration::from_secs(3));
    clients
}

/// Several Services are flooded at the same time: nearly all descriptors are in use.
fn floods_of_several_services_that_descriptors_end(of: &Overloaded) -> impl Sized + use<> {
    let floods = of.several.iter();
    let mut floods: Vec<_> = floods.map(|to| connect(of.lab, *to, EACH)).collect();
    // Each port may have three times as many as stay free.
    let parts = 1 + 3 * of.several.len();
    let expected = DESCRIPTORS - DESCRIPTORS / parts - DESCRIPTORS / 50;
    eventually(
        "descriptors run out",
        Duration::from_secs(30),
        || match of.tripod.descriptors() {
            open if open >= expected => Ok(()),
            open => Err(format!("{open} are open, {expected} expected")),
        },
    );
    of.runs_out();
    for clients in &mut floods {
        clients.send(b"name\n");
    }
    std::thread::sleep(Duration::from_secs(3));
    floods
}

fn clients_that_never_read(of: &Overloaded) -> impl Sized + use<> {
    let mut clients = connect(of.lab, of.flooded, MANY);
    clients.say(&format!("source {}", u32::MAX));
    std::thread::sleep(Duration::from_secs(5));
    clients
}

fn clients_that_send_nothing_or_a_byte_now_and_then(of: &Overloaded) -> impl Sized + use<> {
    let mut slow = connect(of.lab, of.flooded, 200);
    let silent = connect(of.lab, of.flooded, 2 * MANY);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        slow.send(b"n");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(
        silent.open(),
        2 * MANY,
        "silent clients that keep their connections"
    );
    (silent, slow)
}

fn backends_that_never_read(of: &Overloaded) -> impl Sized + use<> {
    let mut clients = connect(of.lab, of.flooded, MANY);
    clients.say("stall");
    clients.send_all_that_is_taken();
    if of.cgroup.version() == CgroupVersion::Two {
        // A guest is slow: some connections are established later.
        eventually("memory is short", Duration::from_secs(60), || {
            clients.send(b"x");
            match of.waited_or_ended() {
                [0.0, 0.0] => Err("no connection waited or was ended".to_owned()),
                _ => Ok(()),
            }
        });
    }
    clients
}

fn datagrams_of_many_clients(of: &Overloaded) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        udp_clients(of.lab, of.flooded, 10_000);
    }
}

/// The kernel answers SYNs with cookies when the listener's queue is full: new connections to the
/// flooded Service are established all the same.
fn connections_that_are_never_completed(of: &Overloaded) -> impl Sized + use<> {
    let clients = half_open(of.lab, of.flooded, DESCRIPTORS * 6 / 10);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        ask(&of.lab.client, of.flooded).expect("an answer of the flooded Service");
    }
    clients
}

//! iptables mode with 1,000 and 20,000 Services of 5 endpoints each, in separate network
//! namespaces: the first sync, and one changed endpoint compared with a bare `iptables-restore`
//! that adds one rule. Writes section `iptables` of docs/development/performance.md. With `connecting` it
//! instead connects to the first and the last of these Services. Needs root.
//!
//! `cargo bench --bench iptables [-- connecting] [SERVICES]`

#[allow(dead_code)]
#[path = "../document/mod.rs"]
mod document;
#[path = "../../tests/lab/service_ports.rs"]
mod service_ports;
mod services;

use std::{
    io::Write,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use net::PerFamily;
use nix::{
    sched::{CloneFlags, unshare},
    sys::{
        resource::{UsageWho, getrusage},
        time::TimeValLike,
    },
};
use prometheus::Registry;
use tokio::runtime::Runtime;
use tripod::{
    cli,
    kernel::probe::{Examination, Kernel},
    modes::{
        Mode,
        cleanup::{Cleanup, Running},
        iptables::{
            self, Iptables, Setup,
            plan::{DispatchChoice, UNDIVIDED},
        },
    },
    node::NodePorts,
    runner::metrics::Metrics,
    services::{Changes, ServiceMap},
};

use self::{
    document::{
        csv::Csv,
        machine::machine,
        table::{figure, table, thousands},
    },
    services::{service, single},
};

/// How often one change is measured.
const ROUNDS: u32 = 9;
/// How often a connection is made.
const CALLS: u32 = 2000;

fn main() {
    let number = std::env::args().filter_map(|word| word.parse().ok()).next();
    if std::env::args().any(|word| word == "connecting") {
        for engine in ENGINES {
            in_namespace(move || connecting(engine, number.unwrap_or(5000)));
        }
        return;
    }
    for engine in ENGINES {
        for services in SIZES
            .into_iter()
            .filter(|size| number.is_none_or(|n| n == *size))
        {
            in_namespace(move || rules(engine, services));
        }
    }
    report();
}

const ENGINES: [&str; 2] = ["nft", "legacy"];
/// Numbers of Services.
const SIZES: [u32; 2] = [1000, 20_000];

const COLUMNS: &[&str] = &[
    "engine",
    "services",
    "first_sync_ms",
    "change_ms",
    "change_own_cpu_ms",
    "change_program_cpu_ms",
    "restore_ms",
    "restore_user_ms",
    "restore_system_ms",
];

fn figures() -> Csv {
    Csv::open("iptables", COLUMNS, 2)
}

/// Writes the section of the document.
fn report() {
    let figures = figures();
    let mut rows = Vec::new();
    for engine in ENGINES {
        for size in SIZES {
            let get = |column| figures.number(&[engine, &size.to_string()], column);
            let mut row = vec![format!("iptables-{engine}, {}", thousands(size.into()))];
            row.extend(COLUMNS[3..].iter().map(|column| figure(get(column))));
            let ratio = get("change_ms").zip(get("restore_ms"));
            row.push(figure(ratio.map(|(ours, bare)| ours / bare)));
            rows.push(row);
        }
    }
    let head = [
        "program, Services",
        "one change, ms",
        "of it Tripod's CPU",
        "of it the program's CPU",
        "bare restore, ms",
        "its CPU in user space",
        "its CPU in the kernel",
        "change / bare",
    ];
    let text = format!(
        "## One change in iptables mode\n\n`cargo bench --bench iptables`: {}. A change of one \
         endpoint next to the bare `iptables-restore` that adds one rule to an empty chain of its \
         own, with the same rules in the kernel. Both take turns; medians of {ROUNDS}. The figures \
         are in [iptables.csv](../benchmarks/iptables.csv).\n\n{}",
        machine(&[
            ("iptables-nft", "--version"),
            ("iptables-legacy", "--version")
        ]),
        table(&head.map(str::to_owned), &rows)
    );
    document::write("iptables", &text);
}

fn in_namespace(body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace, which takes root");
        sh("ip link set lo up");
        body();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn sh(line: &str) {
    let status = Command::new("sh").args(["-ec", line]).status();
    assert!(status.is_ok_and(|status| status.success()), "{line}");
}

/// The mode in this namespace, with the engine that the kubelet would have chosen.
struct Bench {
    runtime: Runtime,
    mode: Iptables,
}

impl Bench {
    fn new(engine: &str, dispatch: DispatchChoice) -> Bench {
        for program in ["iptables", "ip6tables"] {
            sh(&format!(
                "{program}-{engine} -w -t mangle -N KUBE-IPTABLES-HINT"
            ));
        }
        let line = ["tripod", "--cluster-cidr=10.244.0.0/16"].map(Into::into);
        let read = cli::read(line, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
        let Ok(settings) = read else {
            panic!("the flags are right");
        };
        let registry = Registry::new();
        let setup = Setup {
            node_ports: Arc::new(NodePorts::new(&settings.effective.node_ports, None)),
            configuration: settings.configuration,
            configured: settings.effective,
            dispatch,
            undivided: UNDIVIDED,
            metrics: Arc::new(Metrics::register(&registry).expect("metrics")),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let mode = Iptables::new(setup, &Kernel::examine(&Examination::default()), &registry);
        Bench {
            runtime,
            mode: mode.expect("iptables works here"),
        }
    }

    fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Duration {
        let begun = Instant::now();
        let asked = PerFamily::each(|_| Some(changes));
        let outcomes = self.runtime.block_on(self.mode.sync(map, asked));
        for (_, outcome) in outcomes {
            let report = outcome.expect("an answer").expect("a sync");
            assert!(report.failed.is_empty());
        }
        begun.elapsed()
    }
}

fn full() -> Changes {
    Changes {
        full: true,
        ..Changes::default()
    }
}

fn rules(engine: &str, services: u32) {
    let mut bench = Bench::new(engine, DispatchChoice::Auto);
    let ports = (0..services).map(|number| service(number, 0));
    let mut map: ServiceMap = ports.collect();
    let first = bench.sync(&map, &full());
    println!("{engine}, {services} Services: first sync {first:.2?}");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let (mut own, mut programs) = (Duration::ZERO, [Duration::ZERO; 2]);
    let mut restores = [Duration::ZERO; 2];
    for round in 1..=ROUNDS {
        let changed = service(services / 2, round);
        let changes = Changes {
            ports: [changed.name.clone()].into_iter().collect(),
            ..Changes::default()
        };
        let others = map.iter().filter(|port| port.name != changed.name);
        let others: Vec<_> = others.map(|port| (**port).clone()).collect();
        map = others.into_iter().chain([changed]).collect();
        // The map above has new copies of everything; only names that are reported as changed are
        // examined.
        let before = (
            spent(UsageWho::RUSAGE_THREAD),
            spent(UsageWho::RUSAGE_CHILDREN),
        );
        ours.push(bench.sync(&map, &changes));
        let between = spent(UsageWho::RUSAGE_CHILDREN);
        let thread = spent(UsageWho::RUSAGE_THREAD);
        bare.push(restore(engine, round));
        let after = spent(UsageWho::RUSAGE_CHILDREN);
        for at in 0..2 {
            own += thread[at] - before.0[at];
            programs[at] += between[at] - before.1[at];
            restores[at] += after[at] - between[at];
        }
    }
    let millis = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1000.0);
    let row = vec![
        engine.to_owned(),
        services.to_string(),
        millis(first),
        millis(median(ours)),
        millis(own / ROUNDS),
        millis((programs[0] + programs[1]) / ROUNDS),
        millis(median(bare)),
        millis(restores[0] / ROUNDS),
        millis(restores[1] / ROUNDS),
    ];
    println!("{}", row.join(" "));
    figures().put(row);
}

/// Processor time so far in user space and in the kernel.
fn spent(whose: UsageWho) -> [Duration; 2] {
    let usage = getrusage(whose).expect("it is known");
    [usage.user_time(), usage.system_time()].map(|time| {
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())
    })
}

/// Adds one rule to a separate chain, in table nat.
fn restore(engine: &str, round: u32) -> Duration {
    let begun = Instant::now();
    let mut child = Command::new(format!("iptables-{engine}-restore"))
        .args(["--noflush", "-w", "5"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("iptables-restore");
    let mut input = child.stdin.take().expect("it is piped");
    let rule = format!("*nat\n:BENCH - [0:0]\n-A BENCH -s 192.0.2.{round} -j RETURN\nCOMMIT\n");
    input.write_all(rule.as_bytes()).expect("its input");
    drop(input);
    assert!(child.wait().is_ok_and(|status| status.success()));
    begun.elapsed()
}

fn connecting(engine: &str, services: u32) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let backend = listener.local_addr().expect("its address");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    sh("ip route add local default dev lo table 100; ip route add default dev lo");
    sh("sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.tcp_tw_reuse=1");
    for dispatch in [DispatchChoice::Linear, DispatchChoice::Indexed] {
        let mut bench = Bench::new(engine, dispatch);
        let last = services - 1;
        let map: ServiceMap = (0..services)
            .map(|number| single(number, backend))
            .collect();
        bench.sync(&map, &full());
        let address = |number| (IpAddr::from(services::address(number)), services::PORT).into();
        // Their order in the chain is unknown, so the fastest and the slowest of some are taken.
        // They are called again in turns, so that a slow moment does not affect only one of them.
        let mut some: Vec<u32> = (0..16).map(|part| part * last / 15).collect();
        some.sort_by_cached_key(|number| {
            median((0..CALLS / 16).map(|_| call(address(*number))).collect())
        });
        let (front, back) = (address(some[0]), address(some[15]));
        let (fastest, slowest): (Vec<_>, Vec<_>) =
            (0..CALLS).map(|_| (call(front), call(back))).unzip();
        let (fastest, slowest) = (median(fastest), median(slowest));
        let ratio = slowest.as_secs_f64() / fastest.as_secs_f64();
        println!(
            "{engine}, {dispatch:?}: connecting takes {fastest:?} at the front and {slowest:?} \
             at the back: {ratio:.2}"
        );
        bench
            .runtime
            .block_on(iptables::Installed.cleanup(&Running::default()))
            .expect("clean");
        for program in ["iptables", "ip6tables"] {
            sh(&format!(
                "{program}-{engine} -w -t mangle -X KUBE-IPTABLES-HINT"
            ));
        }
    }
}

fn call(to: SocketAddr) -> Duration {
    let begun = Instant::now();
    TcpStream::connect(to).expect("a connection");
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

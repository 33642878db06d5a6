//! What a large cluster costs: the program itself, as it runs on a node, beside
//! a server that speaks the API's protocol, in a network namespace of its own.
//! What counts is how the figures stand to their limits.
//!
//! Arguments, each optional: `nftables`, `iptables`, `ipvs`, `local` or `redirect`
//! (the latter two are ways of capture in userspace mode), and the number of
//! Services.
//! `intervals` instead measures what the shortest
//! time between two syncs costs.

// Shared with the tests, which use more of it.
#[allow(dead_code)]
#[path = "../../tests/api/cluster.rs"]
mod cluster;
#[path = "../../tests/api/feed.rs"]
mod feed;
mod large;
#[allow(dead_code)]
#[path = "../../tests/api/objects.rs"]
mod objects;
mod process;
mod programming;
#[allow(dead_code)]
#[path = "../../tests/api/reviews.rs"]
mod reviews;
#[allow(dead_code)]
#[path = "../../tests/api/server.rs"]
mod server;
#[path = "../../tests/api/single.rs"]
mod single;
#[allow(dead_code)]
#[path = "../../tests/api/tcp_server.rs"]
mod tcp_server;
#[allow(dead_code)]
#[path = "../../tests/api/tls.rs"]
mod tls;

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Instant,
};

use nix::sched::{CloneFlags, unshare};

use self::{large::Size, process::Tripod, server::Server, tcp_server::TcpServer, tls::Authority};

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "TRIPOD_BENCH_INSIDE";

const LOOPBACK_UP: &str = "ip link set lo up";

/// Changes of EndpointSlices that come as fast as the server can send them ...
const EVENTS: u32 = 20_000;
/// ... and how many of them one core has to be able to fold in a second.
const EVENTS_A_SECOND: f64 = 10_000.0;

/// Each mode that is measured, with its flags.
const MODES: [(&str, &[&str]); 4] = [
    (
        "nftables",
        &["--proxy-mode=nftables", "--strict-proxy-mode"],
    ),
    (
        "iptables",
        &["--proxy-mode=iptables", "--strict-proxy-mode"],
    ),
    (
        "local",
        &["--proxy-mode=userspace", "--userspace-capture=local"],
    ),
    (
        "redirect",
        &["--proxy-mode=userspace", "--userspace-capture=redirect"],
    ),
];

/// Measured when asked for by name, as root where the kernel has IPVS.
const IPVS: (&str, &[&str]) = ("ipvs", &["--proxy-mode=ipvs", "--strict-proxy-mode"]);

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("own path");
        // IPVS answers to root alone, not to who is root in a namespace.
        let namespaces = if nix::unistd::geteuid().is_root() {
            "-nm"
        } else {
            "-Urnm"
        };
        let failed = Command::new("unshare")
            .args([namespaces, "--"])
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        eprintln!("cannot run unshare (util-linux): {failed}");
        return ExitCode::FAILURE;
    }
    // A file for xtables' lock, which an ordinary user cannot write outside.
    run("mount -t tmpfs tmpfs /run");
    run(LOOPBACK_UP);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |name: &str| {
        let named: Vec<&String> = arguments.iter().filter(|w| !w.starts_with('-')).collect();
        let of_kind = |w: &&&String| w.parse::<u32>().is_ok() == name.parse::<u32>().is_ok();
        let mut alike = named.iter().filter(of_kind).peekable();
        alike.peek().is_none() || alike.any(|w| **w == name)
    };
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    if arguments.iter().any(|w| w == "intervals") {
        runtime().block_on(intervals());
        return ExitCode::SUCCESS;
    }
    let ipvs = arguments.iter().any(|w| w == IPVS.0).then_some(IPVS);
    let modes = MODES.into_iter().filter(|(mode, _)| asked(mode));
    for (mode, flags) in modes.chain(ipvs) {
        for size in Size::ALL
            .into_iter()
            .filter(|s| asked(&s.services.to_string()))
        {
            println!("\n{mode}: {size}");
            // What the last one left when it was killed would be taken over.
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            run(LOOPBACK_UP);
            runtime().block_on(measure(mode, flags, size));
        }
    }
    ExitCode::SUCCESS
}

/// Runs a program with its arguments.
fn run(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let done = Command::new(program).args(words).status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "cannot run {command}"
    );
}

async fn measure(mode: &str, flags: &[&str], size: Size) {
    let server = Server::new();
    let tcp = TcpServer::open(server.clone(), "cluster", &Authority::new(), false).await;
    server.change(|cluster| size.fill(cluster));

    let begun = Instant::now();
    let tripod = Tripod::start(flags, &tcp.file("kubeconfig"));
    tripod.reaches_missing(1.0).await;
    let took = begun.elapsed();
    let spent = tripod.cpu();
    let [resident, peak] = tripod.memory();
    println!(
        "  first sync       {took:.2?}, {spent:.2} s of one core; {} descriptors",
        tripod.descriptors()
    );
    if let Some(failed) = tripod
        .metric("tripod_service_ports_failed")
        .filter(|n| *n > 0.0)
    {
        println!("                   {failed} ServicePorts not in force as asked (see the log)");
    }
    let limit = size.limit(mode);
    println!(
        "  resident         {resident:6.1} MiB   {:4.2} of {limit} MiB   (peak {peak:.1} MiB)",
        resident / limit
    );

    if mode == "nftables" {
        programming::measure(&server, &tripod, size).await;
    }
    let Churned { rate, took } = churn(&server, &tripod, size).await;
    let [resident, peak] = tripod.memory();
    println!(
        "  {EVENTS} changes    {rate:6.0} a second of one core   {:4.2} of the least   ({took:.2} s in all)",
        rate / EVENTS_A_SECOND
    );
    println!(
        "  resident then    {resident:6.1} MiB   {:4.2} of {limit} MiB   (peak {peak:.1} MiB)",
        resident / limit
    );
}

/// How changes were taken.
struct Churned {
    /// Changes a second of one core.
    rate: f64,
    /// Seconds until the last one was in force.
    took: f64,
}

async fn churn(server: &Server, tripod: &Tripod, size: Size) -> Churned {
    let (begun, before) = (Instant::now(), tripod.cpu());
    server.change(|cluster| size.churn(cluster, EVENTS));
    tripod.reaches_missing(0.0).await;
    Churned {
        rate: f64::from(EVENTS) / (tripod.cpu() - before),
        took: begun.elapsed().as_secs_f64(),
    }
}

/// What `minSyncPeriod` costs and gains, in a storm of changes.
async fn intervals() {
    let [_, _, (mode, flags), _] = MODES;
    let [_, size, _] = Size::ALL;
    println!("\nShortest time between syncs, userspace mode, {mode} capture: {size}");
    for interval in ["1ms", "10ms", "100ms", "1s"] {
        let server = Server::new();
        let tcp = TcpServer::open(server.clone(), "intervals", &Authority::new(), false).await;
        server.change(|cluster| size.fill(cluster));
        let at_least = format!("--iptables-min-sync-period={interval}");
        let flags: Vec<&str> = flags.iter().copied().chain([&*at_least]).collect();
        let tripod = Tripod::start(&flags, &tcp.file("kubeconfig"));
        tripod.reaches_missing(1.0).await;
        let Churned { rate, took } = churn(&server, &tripod, size).await;
        println!("  {interval:>6}   {rate:6.0} changes a second of one core   {took:.2} s in all");
    }
}

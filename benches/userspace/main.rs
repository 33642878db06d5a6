//! The userspace data path compared with a direct connection and, if they are installed, HAProxy
//! and nginx: clients, a node for each and backends in separate network namespaces, joined by
//! veth(4), in interleaved rounds. The ratios are what counts. Each part is pinned to processors of
//! its own, as far as there are enough.
//!
//! Arguments, each optional: the number of rounds, the seconds of each measurement, `--only
//! LOAD,...` (bulk, requests, connections, latency, idle) to select loads, and `--write` to write
//! section `data-path` of docs/benchmarks.md and its raw figures. Words in `TRIPOD_ARGUMENTS` are
//! additional arguments for Tripod; `TRIPOD_BESIDE` names another build.

mod backend;
mod contender;
#[allow(dead_code)]
#[path = "../document/mod.rs"]
mod document;
mod figures;
mod helper;
// Shared with the tests, which use more of them.
#[allow(dead_code)]
#[path = "../../tests/lab/host.rs"]
mod host;
mod load;
mod network;
#[allow(dead_code)]
#[path = "../../tests/lab/process.rs"]
mod process;
mod processors;
mod targets;

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use self::{
    contender::Contender, figures::Figures, load::Load, network::Network, processors::Part,
};

/// Set in the process that runs inside the namespaces.
const INSIDE: &str = "TRIPOD_BENCH_INSIDE";

/// Number of rounds, each of which measures all contenders in turn, and duration of each
/// measurement, unless arguments set them.
const ROUNDS: usize = 7;
const LENGTH: Duration = Duration::from_secs(2);

struct Arguments {
    rounds: usize,
    length: Duration,
    only: Option<String>,
    write: bool,
}

impl Arguments {
    fn wants(&self, load: &str) -> bool {
        let only = self.only.as_deref();
        only.is_none_or(|only| only.split(',').any(|name| name == load))
    }
}

fn main() -> ExitCode {
    if let Some(code) = helper::run() {
        return code;
    }
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("own path");
        let failed = Command::new("unshare")
            .args(["-Urnm", "--"])
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        eprintln!("cannot run unshare (util-linux): {failed}");
        return ExitCode::FAILURE;
    }
    let arguments = arguments();
    match Part::Client.run(|| measure(&arguments)) {
        Ok(figures) => {
            let page = figures.page(arguments.rounds, arguments.length);
            let targets = targets::table_of(&figures);
            print!("{page}\n{targets}");
            if arguments.write {
                figures.save();
                document::write("data-path", &page);
                document::write("data-path-targets", &targets);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Arguments {
    let mut arguments = Arguments {
        rounds: ROUNDS,
        length: LENGTH,
        only: None,
        write: false,
    };
    let mut numbers = 0;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), word.parse()) {
            ("--write", _) => arguments.write = true,
            ("--only", _) => arguments.only = words.next(),
            (_, Ok(number)) if numbers == 0 => {
                arguments.rounds = number;
                numbers = 1;
            }
            (_, Ok(number)) => arguments.length = Duration::from_secs(number as u64),
            // cargo adds --bench.
            (_, Err(_)) => {}
        }
    }
    arguments
}

fn measure(arguments: &Arguments) -> io::Result<Figures> {
    // An empty /run, so that the names of namespaces are free.
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "none", "/run"])
        .status()?;
    if !mounted.success() {
        return Err(io::Error::other("cannot mount a tmpfs at /run"));
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;

    let mut network = Network::new();
    let contenders = Contender::start_all(&network);
    let mut figures = Figures::new(&contenders);
    for round in 0..arguments.rounds {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        for load in Load::ALL.into_iter().filter(|l| arguments.wants(l.name())) {
            for (number, contender) in contenders.iter().enumerate() {
                let before = contender.cpu();
                let client = || load.run(contender.address(), arguments.length);
                let measured = network.client.enter(client);
                let seconds = contender.cpu() - before;
                figures.add(round, load, number, &measured, seconds);
            }
        }
    }
    if arguments.wants("idle") {
        idle(&mut network, &contenders, &mut figures);
    }
    Ok(figures)
}

/// Measures the memory of idle connections in each proxy.
fn idle(network: &mut Network, contenders: &[Contender], figures: &mut Figures) {
    let connections = load::idle_connections();
    for (number, contender) in contenders.iter().enumerate() {
        let Some(before) = contender.memory() else {
            continue;
        };
        eprintln!("{connections} idle connections of {}", contender.name);
        network.new_backend();
        let (held, clients) = network.idle(contender.address(), connections);
        let after = contender.memory().unwrap_or(before);
        figures.add_idle(number, after.saturating_sub(before), held);
        drop(clients);
    }
}

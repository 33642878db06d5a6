//! The userspace data path beside a direct connection and, where they are
//! installed, HAProxy and nginx: all in one run, in a network namespace of its
//! own, with the same client and backend. What counts are the ratios.

mod contender;
mod load;

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Duration,
};

use contender::{Contender, Direct, HaProxy, Nginx, Tripod};
use load::Load;

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "TRIPOD_BENCH_INSIDE";

/// How long each measurement lasts, and how often each is made: the best
/// counts, because noise only ever takes away.
const LENGTH: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

/// What one measurement found.
#[derive(Clone, Copy, Default)]
struct Round {
    /// In units of its load, a second.
    rate: f64,
    /// Processors kept busy.
    cores: f64,
}

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("own path");
        let failed = Command::new("unshare")
            .args(["-Urnm", "--"])
            .arg(own)
            .env(INSIDE, "1")
            .exec();
        eprintln!("cannot run unshare (util-linux): {failed}");
        return ExitCode::FAILURE;
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    if !up.is_ok_and(|s| s.success()) {
        eprintln!("cannot bring up lo with ip (iproute2)");
        return ExitCode::FAILURE;
    }

    let backend = load::backend();
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Direct::new(backend))];
    contenders.extend(Tripod::start(backend).map(|c| Box::new(c) as Box<dyn Contender>));
    contenders.extend(HaProxy::start(backend).map(|c| Box::new(c) as Box<dyn Contender>));
    contenders.extend(Nginx::start(backend).map(|c| Box::new(c) as Box<dyn Contender>));

    for load in Load::ALL {
        println!("\n{load}");
        let mut best = vec![Round::default(); contenders.len()];
        for _ in 0..ROUNDS {
            for (contender, best) in contenders.iter().zip(&mut best) {
                let cpu = contender.cpu();
                let rate = load.run(contender.address(), LENGTH);
                let cores = (contender.cpu() - cpu) / LENGTH.as_secs_f64();
                if rate > best.rate {
                    *best = Round { rate, cores };
                }
            }
        }
        let direct = best[0].rate;
        for (contender, Round { rate, cores }) in contenders.iter().zip(best) {
            println!(
                "  {:10} {:>12.1} {}   {:5.2} of direct   {:4.2} cores",
                contender.name(),
                rate,
                load.unit(),
                rate / direct,
                cores
            );
        }
    }

    println!(
        "\nResident memory with {} idle connections, above start",
        load::IDLE
    );
    for contender in contenders.iter().filter(|c| c.memory().is_some()) {
        let before = contender.memory().unwrap_or(0);
        let held = load::idle(contender.address());
        let after = contender.memory().unwrap_or(0);
        println!(
            "  {:10} {:>8.1} MiB   {:.2} KiB a connection",
            contender.name(),
            (after.saturating_sub(before)) as f64 / 1024.0,
            (after.saturating_sub(before)) as f64 / held.len() as f64
        );
    }
    ExitCode::SUCCESS
}

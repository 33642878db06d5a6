//! Runs the cases of one column: one network, one Tripod for each set of flags.
//!
//! All cases go through their stages side by side, so that each stage takes one sync and not one
//! per case: the objects of all cases are published in one step, with a new Service, the *barrier*.
//! Once that can be called, the promises of each case must come true, soon.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::addresses::{self, NODE};
use super::call;
use super::case::{Caller, Case, Family, Flags, Protocol, Target};
use super::cases::{Numbered, numbered};
use super::columns::{Column, Kernel, Tools};
use super::confined;
use super::endpoints::ALL;
use super::explained::{self, Reading};
use super::network::Network;
use super::objects::{self, Service};
use super::observation::Outcome;
use super::probe::{Open, Probe};
use super::unprivileged;
use crate::lab::{Tripod, eventually, get, tripod_binary};

/// The result of a case: nothing, or everything that was not as promised.
pub type Verdict = Vec<String>;

/// Names the cases to run, by a part of their names.
pub const ONLY: &str = "TRIPOD_CONFORMANCE_CASE";

/// Numbers of barriers begin above those of cases.
const FIRST_BARRIER: u16 = 200;

/// A case that takes longer than this is named in the output.
const SLOW: Duration = Duration::from_secs(3);

/// Time limits for a kernel.
#[derive(Clone, Copy)]
pub struct Patience {
    /// How long to wait for an answer.
    pub answer: Duration,
    /// How long there must be no answer to count as silence.
    pub silence: Duration,
    /// How long a promise may take to come true after the barrier is served.
    promise: Duration,
    /// How long to wait for the barrier.
    barrier: Duration,
    /// Number of cases that are called at the same time; most wait: for silence, or for a second
    /// SYN (`tcp_v6_err` leaves a refusal that arrives during connect(2) to that).
    workers: usize,
}

impl Patience {
    fn on(kernel: Kernel) -> Patience {
        match kernel {
            Kernel::Host => Patience {
                answer: Duration::from_millis(2_500),
                silence: Duration::from_millis(400),
                promise: Duration::from_secs(12),
                barrier: Duration::from_secs(30),
                workers: 12,
            },
            // One processor and slow system calls, or emulated processors.
            Kernel::Full | Kernel::Bare | Kernel::Debian => Patience {
                answer: Duration::from_secs(5),
                silence: Duration::from_secs(1),
                promise: Duration::from_secs(30),
                barrier: Duration::from_secs(90),
                workers: 8,
            },
        }
    }
}

/// A running case.
struct Going {
    number: u16,
    case: Case,
    verdict: Verdict,
    open: Open,
}

/// Runs every case that `column` can run, in the order of the table.
pub fn run(column: &Column) -> Vec<(&'static str, Verdict)> {
    let only = std::env::var(ONLY).unwrap_or_default();
    run_in(&Network::new(), column, |case| case.name.contains(&only))
}

/// Runs those of the `chosen` cases that `column` can run, in a network without leftovers of an
/// earlier run.
pub fn run_in(
    network: &Network,
    column: &Column,
    chosen: impl Fn(&Case) -> bool,
) -> Vec<(&'static str, Verdict)> {
    if !column.kernel.has_sctp() {
        assert!(
            !call::sctp_here(),
            "this kernel has SCTP: {:?}",
            column.kernel
        );
    }
    unprivileged::prepare();
    let mut run = Run {
        column,
        patience: Patience::on(column.kernel),
        network,
        tools: tools(column.tools),
        barriers: FIRST_BARRIER,
    };
    let mut done: Vec<(u16, &'static str, Verdict)> = Vec::new();
    for flags in Flags::ALL {
        let mut going: Vec<Going> = numbered()
            .filter(|Numbered { case, .. }| {
                case.flags == flags && case.obstacle(column).is_none() && chosen(case)
            })
            .map(|Numbered { number, case, .. }| Going {
                number,
                case,
                verdict: Verdict::new(),
                open: Open::new(),
            })
            .collect();
        if !going.is_empty() {
            run.with_flags(flags, &mut going);
        }
        done.extend(
            going
                .into_iter()
                .map(|g| (g.number, g.case.name, g.verdict)),
        );
    }
    done.sort_by_key(|(number, ..)| *number);
    done.into_iter()
        .map(|(_, name, verdict)| (name, verdict))
        .collect()
}

pub struct Run<'a> {
    pub column: &'a Column,
    pub patience: Patience,
    pub network: &'a Network,
    /// A folder that comes first on Tripod's PATH.
    pub(super) tools: String,
    barriers: u16,
}

impl Run<'_> {
    fn with_flags(&mut self, flags: Flags, going: &mut [Going]) {
        let mut tripod = None;
        let stages = going.iter().map(|g| g.case.stages.len()).max();
        for stage in 0..stages.unwrap_or(0) {
            let start = Instant::now();
            let barrier = self.publish(going, stage);
            if tripod.is_none() {
                let started = self.start(flags);
                self.check_words(&started);
                tripod = Some(started);
            }
            for family in [Family::V4, Family::V6] {
                let to =
                    addresses::socket_address(Target::ClusterIp, family, barrier, addresses::PORT);
                eventually(
                    &format!("the barrier {to} stands"),
                    self.patience.barrier,
                    || match self.enter(Caller::Pod, || {
                        call::once(Protocol::Tcp, None, to, self.patience.answer, false)
                    }) {
                        Outcome::Answer(_) => Ok(()),
                        other => Err(format!("{other:?}")),
                    },
                );
            }
            let stood = start.elapsed();
            self.stage(going, stage);
            self.check_kernel();
            println!(
                "stage {stage} with {flags:?}: {stood:.1?} to the barrier, {:.1?} in all",
                start.elapsed()
            );
        }
        self.check_backend();
        self.check_rules(flags == Flags::Usual && going.len() > 60);
    }

    /// Publishes all cases in their state at `stage`, and a new barrier, whose number it returns.
    fn publish(&mut self, going: &[Going], stage: usize) -> u16 {
        let barrier = self.barriers;
        self.barriers += 1;
        let mut items: Vec<Value> = vec![node()];
        for Going { number, case, .. } in going {
            let now = case.stages.get(stage).or(case.stages.last());
            if let Some(service) = now.and_then(|stage| stage.service.as_ref()) {
                items.extend(service.manifests(*number));
            }
        }
        items.extend(objects::cluster_ip(ALL).manifests(barrier));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.network.publish(&list.to_string());
        barrier
    }

    fn start(&self, flags: Flags) -> Tripod {
        let mut command = self.network.node.command("setpriv");
        unprivileged::confine(&mut command, self.column);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.tools))
            .arg(tripod_binary())
            .arg(format!("--proxy-mode={}", self.column.asked))
            .args(self.column.flags_beside(flags.arguments()))
            .args(flags.arguments())
            .arg("--manifests")
            .arg(&self.network.manifests)
            .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
            .args(["--hostname-override", "node", "--v", "2"])
            .args([
                "--metrics-bind-address",
                "127.0.0.1:10249",
                "--confine=files",
            ]);
        if let Some(word) = self.column.without {
            command.arg(format!("--without={word}"));
        }
        let tripod = Tripod::start_on(&self.network.node, command);
        let mode = get(
            &self.network.node,
            ([127, 0, 0, 1], 10249).into(),
            "/proxyMode",
        );
        let mode = mode.expect("asking for the mode");
        assert!(
            mode.ends_with(&format!("\r\n\r\n{}", self.column.mode)),
            "it runs in another mode than {}: {mode}",
            self.column.mode
        );
        unprivileged::check(tripod.pid(), self.column);
        confined::check(&tripod, self.column, &self.network.manifests);
        tripod
    }

    pub(super) fn enter<T: Send>(&self, caller: Caller, body: impl FnOnce() -> T + Send) -> T {
        self.network.host(caller).enter(body)
    }

    /// Checks that the kernel has the desired state.
    fn check_kernel(&self) {
        let address = ([127, 0, 0, 1], 10249).into();
        let patience = self.patience.barrier;
        eventually("the kernel holds what it is to hold", patience, || {
            let answer = get(&self.network.node, address, "/v1/diff");
            let answer = answer.map_err(|error| error.to_string())?;
            let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
            let diff: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
            let families = diff["families"].as_array().map(Vec::as_slice);
            // In userspace mode ports of SCTP are not served, which is reported as a difference.
            let fine = |difference: &Value| difference["protocol"] == "SCTP";
            let same = |family: &Value| {
                let items = family["differences"]["items"].as_array();
                family["error"].is_null() && items.is_some_and(|items| items.iter().all(fine))
            };
            match families {
                Some(families) if !families.is_empty() && families.iter().all(same) => Ok(()),
                _ => Err(answer),
            }
        });
    }

    /// Checks that the iptables backend of this column was used, and no other.
    fn check_backend(&self) {
        let Some(chain) = self.column.chain else {
            return;
        };
        for tools in [Tools::Nft, Tools::Legacy] {
            let expected = tools == self.column.tools;
            // nf_tables cannot be queried in the guest.
            if self.column.kernel != Kernel::Host && !expected {
                continue;
            }
            let line = format!("{} iptables-save -t nat", tools.program());
            let found = self
                .network
                .node
                .show(&line)
                .contains(&format!(":{chain} "));
            assert_eq!(found, expected, "{chain} with {tools:?}");
        }
    }

    /// Checks the promises of each case for `stage`.
    fn stage(&self, going: &mut [Going], stage: usize) {
        let deadline = Instant::now() + self.patience.promise;
        let next = AtomicUsize::new(0);
        let going: Vec<_> = going.iter_mut().map(Mutex::new).collect();
        std::thread::scope(|scope| {
            for _ in 0..self.patience.workers {
                scope.spawn(|| {
                    while let Some(one) = going.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut one = one.lock().expect("each is taken once");
                        self.check(&mut one, stage, deadline);
                    }
                });
            }
        });
    }

    fn check(&self, going: &mut Going, stage: usize, deadline: Instant) {
        let Some(now) = going.case.stages.get(stage) else {
            return;
        };
        let start = Instant::now();
        // A case that is probed late still has a second chance.
        let deadline = deadline.max(start + self.patience.promise / 2);
        let probes: Vec<Probe> = now
            .expectations
            .iter()
            .flat_map(|expectation| self.probes(expectation, going.number))
            .collect();
        let after = match now.after {
            "" => String::new(),
            after => format!("after {after:?}, "),
        };
        let ranged = (now.service.as_ref()).is_some_and(Service::has_source_ranges);
        let count = probes.len();
        let read_for = explained::read_for(going.number, stage, count);
        for (at, probe) in probes.into_iter().enumerate() {
            let mut seen = self.attempt(&probe, &mut going.open);
            while seen.is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
                seen = self.attempt(&probe, &mut going.open);
            }
            // An open connection continues as it began.
            if seen.is_ok() && !probe.one_socket {
                let reading = match read_for {
                    Some(chosen) if chosen == at => Reading::Kernel,
                    _ => Reading::ServicesAlone,
                };
                seen = self.check_explanation(&probe, ranged, reading);
                // Rules of this Service or of others may still be written.
                while reading == Reading::Kernel && seen.is_err() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(50));
                    seen = self.check_explanation(&probe, ranged, reading);
                }
            }
            if let Err(seen) = seen {
                let Probe {
                    caller,
                    to,
                    target,
                    protocol,
                    observation,
                    ..
                } = probe;
                going.verdict.push(format!(
                    "{after}{caller:?} calls {target:?} {to} over {protocol:?}: {seen}; \
                     expected {observation:?}"
                ));
            }
        }
        let took = start.elapsed();
        if took > SLOW {
            println!("{took:.1?} for {count} calls and more: {}", going.case.name);
        }
    }
}

fn node() -> Value {
    let (v4, v6) = NODE[0];
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "node", "labels": {"topology.kubernetes.io/zone": "east"}},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:244::/64"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": v4}, {"type": "InternalIP", "address": v6},
        ]},
    })
}

/// Makes a folder with the iptables programs that `tools` names.
fn tools(tools: Tools) -> String {
    let folder = "/run/tools";
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).expect("a folder for tools");
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let link = format!("{folder}/{name}{suffix}");
            std::os::unix::fs::symlink(tools.program(), link).expect("a link");
        }
    }
    folder.to_owned()
}

//! Runs the cases of one column: one world, one Tripod for each set of flags.
//!
//! All cases go side by side through their stages, so that each stage takes one
//! sync and not one a case: what the objects of all cases then are is published
//! in one step, with a Service that nobody knew before, the *barrier*. Once that
//! can be called, what each case promises has to come true, soon.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ask::{self, Client};
use super::case::{Caller, Case, Expectation, Family, Flags, Protocol, Target};
use super::cases::{Numbered, numbered};
use super::columns::{Column, Kernel, Tools};
use super::objects::{self, ALL, NODE};
use super::sight::{self, Answered, How, Outcome, Sight};
use super::world::{CLIENTS, World, further_address, node_addresses};
use crate::lab::{Tripod, eventually, get, tripod_binary};

/// What came of a case: nothing, or everything that was not as promised.
pub type Verdict = Vec<String>;

/// Names cases to run alone, by a part of their names.
const ONLY: &str = "TRIPOD_CONFORMANCE_CASE";

/// Numbers of barriers begin above those of cases.
const FIRST_BARRIER: u16 = 200;

/// How long things may take on a kernel.
#[derive(Clone, Copy)]
struct Patience {
    /// For an answer.
    answer: Duration,
    /// Of nobody answering, to be called silent.
    silence: Duration,
    /// For a promise to come true once the barrier stands.
    promise: Duration,
    /// For the barrier.
    barrier: Duration,
    /// Cases that are called at the same time.
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
                workers: 6,
            },
            // One processor and slow system calls.
            Kernel::Full | Kernel::Bare => Patience {
                answer: Duration::from_secs(5),
                silence: Duration::from_secs(1),
                promise: Duration::from_secs(30),
                barrier: Duration::from_secs(90),
                workers: 3,
            },
        }
    }
}

/// One case on its way.
struct Going {
    number: u16,
    case: Case,
    verdict: Verdict,
    /// Sockets that are kept from stage to stage.
    open: HashMap<(Caller, SocketAddr, Protocol), Client>,
}

/// A caller, a socket address and what is seen there.
struct Look {
    caller: Caller,
    to: SocketAddr,
    target: Target,
    protocol: Protocol,
    one_socket: bool,
    sight: Sight,
}

/// Runs every case that `column` can run, in the order of the table.
pub fn run(column: &Column) -> Vec<(&'static str, Verdict)> {
    if !column.kernel.has_sctp() {
        assert!(
            !ask::sctp_here(),
            "this kernel has SCTP: {:?}",
            column.kernel
        );
    }
    let mut run = Run {
        column,
        patience: Patience::on(column.kernel),
        world: World::new(),
        tools: tools(column.tools),
        barriers: FIRST_BARRIER,
    };
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut done: Vec<(u16, &'static str, Verdict)> = Vec::new();
    for flags in Flags::ALL {
        let mut going: Vec<Going> = numbered()
            .filter(|Numbered { case, .. }| {
                case.flags == flags && case.obstacle(column).is_none() && case.name.contains(&only)
            })
            .map(|Numbered { number, case, .. }| Going {
                number,
                case,
                verdict: Verdict::new(),
                open: HashMap::new(),
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

struct Run<'a> {
    column: &'a Column,
    patience: Patience,
    world: World,
    /// A folder that comes first on Tripod's PATH.
    tools: String,
    barriers: u16,
}

impl Run<'_> {
    fn with_flags(&mut self, flags: Flags, going: &mut [Going]) {
        let mut tripod = None;
        let stages = going.iter().map(|g| g.case.stages.len()).max();
        for stage in 0..stages.unwrap_or(0) {
            let barrier = self.publish(going, stage);
            if tripod.is_none() {
                tripod = Some(self.start(flags));
            }
            for family in [Family::V4, Family::V6] {
                let to = objects::socket_address(Target::ClusterIp, family, barrier, objects::PORT);
                eventually(
                    &format!("the barrier {to} stands"),
                    self.patience.barrier,
                    || match self.enter(Caller::Pod, || {
                        ask::once(Protocol::Tcp, None, to, self.patience.answer)
                    }) {
                        Outcome::Answer(_) => Ok(()),
                        other => Err(format!("{other:?}")),
                    },
                );
            }
            self.stage(going, stage);
        }
        self.check_backend();
    }

    /// Publishes all cases as they are at `stage`, and a new barrier, whose
    /// number it hands back.
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
        self.world.publish(&list.to_string());
        barrier
    }

    fn start(&self, flags: Flags) -> Tripod {
        let mut command = self.world.node.command(tripod_binary());
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.tools))
            .arg(format!("--proxy-mode={}", self.column.mode))
            .args(self.column.flags)
            .args(flags.arguments())
            .arg("--manifests")
            .arg(&self.world.manifests)
            .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
            .args(["--hostname-override", "node", "--v", "2"])
            .args(["--metrics-bind-address", "127.0.0.1:10249"]);
        let tripod = Tripod::start_on(&self.world.node, command);
        let mode = get(
            &self.world.node,
            ([127, 0, 0, 1], 10249).into(),
            "/proxyMode",
        );
        let mode = mode.expect("asking for the mode");
        assert!(
            mode.ends_with(&format!("\r\n\r\n{}", self.column.mode)),
            "it runs in another mode than {}: {mode}",
            self.column.mode
        );
        tripod
    }

    /// The iptables backend of this column was used, and no other.
    fn check_backend(&self) {
        let Some(chain) = self.column.chain else {
            return;
        };
        for tools in [Tools::Nft, Tools::Legacy] {
            let wanted = tools == self.column.tools;
            // nf_tables cannot be asked in the guest.
            if self.column.kernel != Kernel::Host && !wanted {
                continue;
            }
            let line = format!("{} iptables-save -t nat", tools.program());
            let found = self.world.node.show(&line).contains(&format!(":{chain} "));
            assert_eq!(found, wanted, "{chain} with {tools:?}");
        }
    }

    /// Looks at what each case promises for `stage`.
    fn stage(&self, going: &mut [Going], stage: usize) {
        let deadline = Instant::now() + self.patience.promise;
        let next = AtomicUsize::new(0);
        let going: Vec<_> = going.iter_mut().map(Mutex::new).collect();
        std::thread::scope(|scope| {
            for _ in 0..self.patience.workers {
                scope.spawn(|| {
                    while let Some(one) = going.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut one = one.lock().expect("each is taken once");
                        self.look_at(&mut one, stage, deadline);
                    }
                });
            }
        });
    }

    fn look_at(&self, going: &mut Going, stage: usize, deadline: Instant) {
        let Some(now) = going.case.stages.get(stage) else {
            return;
        };
        let looks: Vec<Look> = now
            .expectations
            .iter()
            .flat_map(|expectation| self.looks(expectation, going.number))
            .collect();
        let after = match now.after {
            "" => String::new(),
            after => format!("after {after:?}, "),
        };
        for look in looks {
            let mut seen = self.attempt(&look, &mut going.open);
            while seen.is_err() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(50));
                seen = self.attempt(&look, &mut going.open);
            }
            if let Err(seen) = seen {
                let Look {
                    caller,
                    to,
                    target,
                    protocol,
                    sight,
                    ..
                } = look;
                going.verdict.push(format!(
                    "{after}{caller:?} calls {target:?} {to} over {protocol:?}: {seen}; \
                     expected {sight:?}"
                ));
            }
        }
    }

    fn looks(&self, expectation: &Expectation, number: u16) -> Vec<Look> {
        let mut looks = Vec::new();
        for caller in &expectation.callers {
            for target in &expectation.targets {
                for family in &expectation.families {
                    for protocol in &expectation.protocols {
                        let to =
                            objects::socket_address(*target, *family, number, expectation.port);
                        looks.push(Look {
                            caller: *caller,
                            to,
                            target: *target,
                            protocol: *protocol,
                            one_socket: expectation.one_socket,
                            sight: expectation.sight_in(self.column, *protocol).0,
                        });
                    }
                }
            }
        }
        looks
    }

    /// Calls as often as it takes to tell.
    fn attempt(
        &self,
        look: &Look,
        open: &mut HashMap<(Caller, SocketAddr, Protocol), Client>,
    ) -> Result<(), String> {
        let patience = match look.sight {
            Sight::Silent => self.patience.silence,
            _ => self.patience.answer,
        };
        let call = |from| match look.target {
            Target::HealthCheck => ask::health(look.to, patience),
            _ => ask::once(look.protocol, from, look.to, patience),
        };
        if let Sight::Answered(Answered { by, how, .. }) = &look.sight
            && matches!(how, How::Sticky | How::StickyForASecond)
        {
            return self.enter(look.caller, || self.stickiness(look, by.len(), *how, &call));
        }
        let outcomes = self.enter(look.caller, || {
            if look.one_socket {
                let key = (look.caller, look.to, look.protocol);
                if !open.contains_key(&key) {
                    match Client::open(look.protocol, None, look.to, patience) {
                        Ok(client) => drop(open.insert(key, client)),
                        Err(error) => return vec![Outcome::Odd(error.to_string())],
                    }
                }
                let client = open.get_mut(&key);
                return client.map(Client::ask).into_iter().collect();
            }
            let (least, most) = sight::calls(&look.sight);
            let mut outcomes: Vec<Outcome> = Vec::new();
            while outcomes.len() < least
                || outcomes.len() < most && !sight::all_met(&look.sight, &outcomes)
            {
                outcomes.push(call(None));
                if !matches!(outcomes.last(), Some(Outcome::Answer(_))) {
                    break;
                }
            }
            outcomes
        });
        self.judge(look, &outcomes)
    }

    /// Every client at an endpoint of its own.
    fn stickiness(
        &self,
        look: &Look,
        endpoints: usize,
        how: How,
        call: &dyn Fn(Option<IpAddr>) -> Outcome,
    ) -> Result<(), String> {
        let round = || -> Result<Vec<String>, String> {
            let (least, _) = sight::calls(&look.sight);
            let mut pins = Vec::new();
            for number in 1..=CLIENTS {
                let (v4, v6) = further_address(number);
                let from = match look.to {
                    SocketAddr::V4(_) => IpAddr::from(v4),
                    SocketAddr::V6(_) => v6.into(),
                };
                let calls = if how == How::Sticky { least } else { 1 };
                let outcomes: Vec<_> = (0..calls).map(|_| call(Some(from))).collect();
                self.judge(look, &outcomes)?;
                let names = outcomes.into_iter().map(|outcome| match outcome {
                    Outcome::Answer(answer) => answer.by,
                    other => format!("{other:?}"),
                });
                let mut names: Vec<String> = names.collect();
                names.dedup();
                match &names[..] {
                    [name] => pins.push(name.clone()),
                    _ => return Err(format!("{from} meets {names:?} in this order")),
                }
            }
            Ok(pins)
        };
        let pins = round()?;
        let alike = pins.iter().all(|pin| *pin == pins[0]);
        if how == How::Sticky {
            return match alike && endpoints > 1 {
                true => Err(format!("all clients meet {}", pins[0])),
                false => Ok(()),
            };
        }
        // The silence is what is tested; it is no wait for anything else.
        std::thread::sleep(Duration::from_millis(2_100));
        match round()? == pins {
            true => Err("every client is where it was".into()),
            false => Ok(()),
        }
    }

    fn judge(&self, look: &Look, outcomes: &[Outcome]) -> Result<(), String> {
        let caller = self.world.host(look.caller).name();
        sight::judge(&look.sight, outcomes, caller, &node_addresses())
    }

    fn enter<T: Send>(&self, caller: Caller, body: impl FnOnce() -> T + Send) -> T {
        self.world.host(caller).enter(body)
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

/// Makes a folder in which iptables is what `tools` says.
fn tools(tools: Tools) -> String {
    let folder = "/run/tools";
    std::fs::create_dir_all(folder).expect("a folder for tools");
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let link = format!("{folder}/{name}{suffix}");
            std::os::unix::fs::symlink(tools.program(), link).expect("a link");
        }
    }
    folder.to_owned()
}

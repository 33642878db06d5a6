use std::sync::{
    Mutex,
    mpsc::{Receiver, Sender, channel},
};

use nix::errno::Errno;
use simulated::{Call, Fault, Kernel, Observer, State};
use testing::{block_on, in_namespace, sh};
use xtables::Engine;

use super::{clearing::Passed, *};
use crate::{
    modes::{SyncError, SyncReport, both_failed, userspace::capture},
    services::{Changes, service_ports::port_name},
};

const DEADLINE: Duration = Duration::from_secs(20);

/// How a sync of the running mode ends.
#[derive(Clone, Copy)]
enum Outcome {
    Well,
    /// One ServicePort fails.
    Partly,
    Fails,
    FailsForIpv6,
    /// The mode removes the stale state itself.
    Removes,
}

impl Outcome {
    fn of(self, asked: Asked<'_>) -> Outcomes {
        let mut report = SyncReport::default();
        match self {
            Outcome::Well => {}
            Outcome::Removes => remove(),
            Outcome::Partly => report
                .failed
                .add(port_name("web"), "it is taken".to_owned()),
            Outcome::Fails => return both_failed(asked, broken()),
            Outcome::FailsForIpv6 => {
                return PerFamily {
                    v4: Some(Ok(report)),
                    v6: Some(Err(broken())),
                };
            }
        }
        asked.map(|_, changes| changes.map(|_| Ok(report.clone())))
    }
}

fn broken() -> SyncError {
    SyncError::Capture(capture::Error::Unsupported {
        method: capture::Method::Redirect,
        reason: "it is broken".to_owned(),
    })
}

/// Leaves chains of kube-proxy in each engine.
fn leave_chains() {
    sh("iptables-nft -t nat -N KUBE-SVC-OLD; iptables-legacy -w -t nat -N KUBE-SVC-OLD");
}

fn remove() {
    sh("iptables-nft -t nat -X KUBE-SVC-OLD; iptables-legacy -w -t nat -X KUBE-SVC-OLD");
}

fn remaining_chains() -> usize {
    let saved = sh("iptables-nft-save -t nat; iptables-legacy-save -t nat");
    saved.matches(":KUBE-SVC-OLD ").count()
}

fn bench(test: impl AsyncFnOnce(Bench) + Send + 'static) {
    in_namespace(|| {
        leave_chains();
        block_on(test(Bench::new(Programs::default())));
    });
}

struct Bench(TakeOver);

impl Bench {
    fn new(programs: Programs) -> Bench {
        let running = Running {
            mode: Some(ModeName::Userspace),
            ..Running::default()
        };
        Bench(TakeOver::new(running, Handover::default(), programs))
    }

    async fn sync(&mut self, full: bool, outcome: Outcome) {
        self.sync_beside(full, outcome).await;
        self.cleared().await;
    }

    /// Syncs, and does not wait for removals that are under way.
    async fn sync_beside(&mut self, full: bool, outcome: Outcome) {
        let changes = Changes {
            full,
            ..Changes::default()
        };
        let asked = PerFamily::each(|_| Some(&changes));
        self.0.begin_sync().await;
        self.0.end_sync(asked, &outcome.of(asked)).await;
    }

    /// Waits until no removal is running.
    async fn cleared(&mut self) {
        if let Some(clearing) = &mut self.0.clearing {
            let end = clearing.end(&mut self.0.stale);
            let ended = tokio::time::timeout(DEADLINE, end).await;
            ended.expect("it comes to an end");
            self.0.clearing = None;
        }
    }
}

#[test]
fn nothing_goes_before_a_sync_that_succeeds() {
    bench(async |mut bench| {
        bench.sync(true, Outcome::Fails).await;
        assert_eq!(remaining_chains(), 2, "the first sync failed");
        bench.sync(true, Outcome::FailsForIpv6).await;
        assert_eq!(remaining_chains(), 2, "it may carry what fails");
        bench.sync(true, Outcome::Partly).await;
        assert_eq!(remaining_chains(), 2, "what failed may need it");
        bench.sync(false, Outcome::Well).await;
        assert_eq!(
            remaining_chains(),
            2,
            "there is time until the next full sync"
        );
        bench.sync(true, Outcome::Partly).await;
        assert_eq!(remaining_chains(), 0, "all was carried once");
    });
}

async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[test]
fn what_an_old_process_puts_back_goes_again() {
    bench(async |mut bench| {
        bench.sync(true, Outcome::Removes).await;
        assert_eq!(remaining_chains(), 0);
        for (program, expected) in [("iptables-nft", 1), ("iptables-legacy", 1)] {
            sh(&format!("{program} -w -t nat -N KUBE-SVC-OLD"));
            assert_eq!(remaining_chains(), expected);
            pass(PAUSE).await;
            let seen = tokio::time::timeout(Duration::from_secs(20), bench.0.returned()).await;
            assert!(seen.is_ok(), "{program}: its chains were not listed");
            bench.sync(true, Outcome::Well).await;
            assert_eq!(remaining_chains(), 0, "{program}");
        }
        sh("nft add table ip kube-proxy");
        bench.sync(true, Outcome::Well).await;
        let tables = sh("nft list tables");
        assert!(tables.contains("kube-proxy"), "it was not there at first");
        pass(OVERLAP).await;
        leave_chains();
        bench.sync(true, Outcome::Well).await;
        assert_eq!(
            remaining_chains(),
            2,
            "a process that comes later is not the one that was replaced"
        );
    });
}

#[test]
fn nothing_is_listed_where_nothing_was() {
    bench(async |mut bench| {
        remove();
        bench.sync(true, Outcome::Well).await;
        leave_chains();
        pass(PAUSE).await;
        let waited = tokio::time::timeout(Duration::from_millis(50), bench.0.returned()).await;
        assert!(waited.is_err());
        bench.sync(true, Outcome::Well).await;
        assert_eq!(
            remaining_chains(),
            2,
            "a process that comes later is not the one that was replaced"
        );
    });
}

#[test]
fn what_always_fails_does_not_preserve_stale_state_for_ever() {
    bench(async |mut bench| {
        bench.sync(true, Outcome::Partly).await;
        tokio::time::pause();
        tokio::time::advance(GRACE - Duration::from_secs(10)).await;
        tokio::time::resume();
        bench.sync(true, Outcome::Partly).await;
        assert_eq!(remaining_chains(), 2);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        bench.sync(true, Outcome::Partly).await;
        assert_eq!(remaining_chains(), 0);
    });
}

#[test]
fn a_family_that_never_syncs_does_not_preserve_stale_state_for_ever() {
    bench(async |mut bench| {
        bench.sync(true, Outcome::FailsForIpv6).await;
        pass(GRACE - Duration::from_secs(10)).await;
        bench.sync(true, Outcome::FailsForIpv6).await;
        assert_eq!(remaining_chains(), 2, "it may carry what fails");
        pass(Duration::from_secs(10)).await;
        bench.sync(false, Outcome::FailsForIpv6).await;
        assert_eq!(remaining_chains(), 2, "there is time until a full sync");
        bench.sync(true, Outcome::FailsForIpv6).await;
        assert_eq!(remaining_chains(), 0, "the other family is applied");
    });
}

#[test]
fn what_cannot_be_removed_is_retried() {
    bench(async |mut bench| {
        let rule = "OUTPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
        sh(&format!(
            "ipset create KUBE-CLUSTER-IP hash:ip,port; iptables-nft -A {rule}"
        ));
        bench.sync(true, Outcome::Well).await;
        assert_eq!(remaining_chains(), 0, "all else is gone");
        assert!(sh("ipset list -n").contains("KUBE-CLUSTER-IP\n"));
        assert_eq!(bench.0.stale, [StaleState::Of(ModeName::Ipvs)]);
        sh(&format!("iptables-nft -D {rule}"));
        bench.sync(true, Outcome::Well).await;
        assert_eq!(sh("ipset list -n"), "");
        assert_eq!(bench.0.stale, []);
    });
}

/// Refuses all listings with this error.
struct Unlisting(Errno);

impl Observer for Unlisting {
    fn before(&mut self, call: Call, _: &mut State) -> Fault {
        match call {
            Call::Dump(_) | Call::Policy(..) => Fault::Refused(self.0, 0),
            _ => Fault::None,
        }
    }

    fn after(&mut self, _: Call, _: &mut State) {}
}

#[test]
fn what_cannot_be_listed_may_be_there() {
    in_namespace(|| {
        for (errno, expected) in [(Errno::ENOMEM, true), (Errno::EOPNOTSUPP, false)] {
            let kernel = Kernel::new(Unlisting(errno));
            let _entered = kernel.enter();
            kernel.change(|state| state.xtables.engine = Engine::NfTables);
            let running = Running {
                mode: Some(ModeName::Nftables),
                ..Running::default()
            };
            for state in [ModeName::Iptables, ModeName::Ipvs].map(StaleState::Of) {
                let found = block_on(state.may_be_there(&running));
                assert_eq!(found, expected, "{state}: {errno}");
            }
            let userspace = StaleState::Of(ModeName::Userspace);
            assert!(block_on(userspace.may_be_there(&running)), "{errno}");
        }
    });
}

/// One end for the running pass, one for the test.
static PASSES: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

/// Signals that it has begun, then blocks its thread until it is released.
fn slow(work: &Work, _: Duration) -> Option<Passed> {
    let ends = PASSES.lock().unwrap().take();
    let (begun, go) = ends.expect("one pass");
    begun.send(()).unwrap();
    go.recv_timeout(DEADLINE).expect("others run meanwhile");
    Some(Passed {
        failed: work.stale.clone(),
        ..Passed::default()
    })
}

/// Neither a sync nor anything else on the thread waits for counting and removing.
#[test]
fn clearing_delays_neither_syncs_nor_probes() {
    bench(async |mut bench| {
        let ((begun, begins), (go, goes)) = (channel(), channel());
        *PASSES.lock().unwrap() = Some((begun, goes));
        bench.0.pass = slow;
        for _ in 0..3 {
            let sync = bench.sync_beside(true, Outcome::Well);
            let synced = tokio::time::timeout(DEADLINE / 2, sync).await;
            synced.expect("a sync does not wait");
            tokio::task::yield_now().await;
        }
        begins
            .recv_timeout(DEADLINE)
            .expect("the pass is under way");
        let modified = tokio::time::timeout(Duration::ZERO, bench.0.returned());
        assert!(modified.await.is_err());
        go.send(()).unwrap();
        bench.cleared().await;
        assert_eq!(bench.0.stale, StaleState::ALL, "what failed is tried again");
    });
}

/// The situation after a successor in iptables mode has ended and left its rules.
#[test]
fn who_may_start_no_programs_ends_where_they_have_to_remove_rules() {
    for (script, expected) in [
        ("true", false),
        // Can be removed without programs.
        ("nft add table ip kube-proxy", false),
        // A chain of the kubelet.
        (
            "nft add table ip kube-proxy; iptables-nft -t mangle -N KUBE-IPTABLES-HINT",
            false,
        ),
        ("iptables-nft -t nat -N KUBE-SVC-OLD", true),
        (
            "ip6tables-nft -t mangle -N TRIPOD-TRANSPARENT; nft add table ip kube-proxy",
            true,
        ),
        ("iptables-legacy -w -t nat -N KUBE-SVC-OLD", true),
        // Only its program can tell who owns it.
        (
            "iptables-legacy -w -t raw -N MINE; nft add table ip kube-proxy",
            true,
        ),
    ] {
        in_namespace(move || {
            sh(script);
            assert_eq!(rules_of_programs_may_be_there(), expected, "{script}");
            block_on(async {
                let programs = Programs::forbidden();
                let mut bench = Bench::new(programs.clone());
                bench.sync(true, Outcome::Well).await;
                let missed = tokio::time::timeout(Duration::ZERO, programs.missed()).await;
                assert_eq!(missed.is_ok(), expected, "{script}");
            });
        });
    }
}

/// The situation in which a kube-proxy that ends while this process runs wrote its rules after the
/// check.
#[test]
fn who_may_start_no_programs_ends_where_rules_came_while_others_were_removed() {
    in_namespace(|| {
        block_on(async {
            let programs = Programs::forbidden();
            let mut bench = Bench::new(programs.clone());
            bench.0.pass = |work, _| {
                Some(Passed {
                    failed: work.stale.clone(),
                    ..Passed::default()
                })
            };
            for (script, expected) in [
                ("true", false),
                ("true", false),
                ("iptables-nft -t nat -N KUBE-SVC-OLD", true),
            ] {
                sh(script);
                bench.sync_beside(true, Outcome::Well).await;
                let missed = tokio::time::timeout(Duration::ZERO, programs.missed()).await;
                assert_eq!(missed.is_ok(), expected, "{script}");
                let is_finished = |bench: &Bench| {
                    let clearing = bench.0.clearing.as_ref();
                    clearing.is_none_or(Clearing::is_finished)
                };
                while !is_finished(&bench) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
    });
}

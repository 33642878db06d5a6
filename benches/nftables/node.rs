//! A mode in a network namespace.

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use net::PerFamily;
use nix::sched::{CloneFlags, unshare};
use prometheus::Registry;
use tokio::runtime::Runtime;
use tripod::{
    cli,
    config::{Effective, KubeProxyConfiguration},
    kernel::probe::{Examination, Kernel},
    modes::{
        Mode, Outcomes,
        cleanup::{self, Cleanup},
        iptables::{
            self, Iptables,
            plan::{DispatchChoice, UNDIVIDED},
        },
        nftables::{self, Nftables, TABLE},
    },
    node::NodePorts,
    runner::metrics::Metrics,
    services::{Changes, ServiceMap},
};

/// Runs `body` on a thread with a separate network namespace.
pub fn in_namespace<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace, which takes root");
        sh("ip link set lo up");
        body()
    })
}

pub fn sh(line: &str) {
    let status = Command::new("sh").args(["-ec", line]).status();
    assert!(status.is_ok_and(|status| status.success()), "{line}");
}

enum Running {
    Nftables(Box<Nftables>),
    Iptables(Box<Iptables>),
}

/// A mode in the namespace of this thread.
pub struct Node {
    runtime: Runtime,
    mode: Running,
}

impl Node {
    pub fn nftables() -> Node {
        let (configuration, configured) = settings();
        let setup = nftables::Setup {
            counted: tripod::services::Namespaces::default(),
            node_ports: Arc::new(NodePorts::new(&configured.node_ports, None)),
            configuration,
            configured,
            metrics: Arc::new(Metrics::register(&Registry::new()).expect("metrics")),
        };
        let mode = Nftables::new(setup, &Kernel::examine(&Examination::default()));
        Node::of(Running::Nftables(Box::new(
            mode.expect("nftables works here"),
        )))
    }

    /// Uses the engine that the kubelet would have chosen.
    pub fn iptables(engine: &str) -> Node {
        for program in ["iptables", "ip6tables"] {
            sh(&format!(
                "{program}-{engine} -w -t mangle -N KUBE-IPTABLES-HINT"
            ));
        }
        let (configuration, configured) = settings();
        let registry = Registry::new();
        let setup = iptables::Setup {
            node_ports: Arc::new(NodePorts::new(&configured.node_ports, None)),
            configuration,
            configured,
            dispatch: DispatchChoice::Linear,
            undivided: UNDIVIDED,
            metrics: Arc::new(Metrics::register(&registry).expect("metrics")),
        };
        let mode = Iptables::new(setup, &Kernel::examine(&Examination::default()), &registry);
        Node::of(Running::Iptables(Box::new(
            mode.expect("iptables works here"),
        )))
    }

    fn of(mode: Running) -> Node {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        Node { runtime, mode }
    }

    pub fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Duration {
        let asked = PerFamily::each(|_| Some(changes));
        let begun = Instant::now();
        let outcomes: Outcomes = match &mut self.mode {
            Running::Nftables(mode) => self.runtime.block_on(mode.sync(map, asked)),
            Running::Iptables(mode) => self.runtime.block_on(mode.sync(map, asked)),
        };
        let took = begun.elapsed();
        for (_, outcome) in outcomes {
            let report = outcome.expect("an answer").expect("a sync");
            assert!(report.failed.is_empty());
        }
        took
    }

    /// Removes the tables of nftables mode.
    pub fn clean(self) {
        let nothing_runs = cleanup::Running::default();
        let cleaned = nftables::Installed(TABLE).cleanup(&nothing_runs);
        self.runtime.block_on(cleaned).expect("clean");
    }
}

fn settings() -> (KubeProxyConfiguration, Effective) {
    let line = ["tripod", "--cluster-cidr=10.244.0.0/16"].map(Into::into);
    let read = cli::read(line, |_: &Path| Err(std::io::ErrorKind::NotFound.into()));
    let Ok(settings) = read else {
        panic!("the flags are right");
    };
    (settings.configuration, settings.effective)
}

/// Run time of this thread so far, in kernel and user space: the first field of
/// `/proc/thread-self/schedstat` (`Documentation/scheduler/sched-stats.rst`). It may be late by a
/// tick of the clock.
pub fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

//! The mode itself, driven by hand or by a runner, in a separate namespace.

use std::{
    collections::BTreeSet,
    fs::File,
    future::ready,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use net::PerFamily;
use netlink::addresses::AddressChanges;
use nix::sched::{CloneFlags, setns};
use prometheus::Registry;
use tokio::{
    runtime::Runtime,
    sync::{mpsc, oneshot},
};
use tripod::{
    cli,
    kernel::probe::{Examination, Kernel},
    modes::{
        Mode, SyncReport,
        iptables::{Iptables, Setup, plan::UNDIVIDED},
    },
    node::NodePorts,
    runner::{NodeAddresses, Runner, health::Health, metrics::Metrics, schedule},
    services::{Changes, Node, ServiceMap, ServicePort, Tracker},
    watch,
};

use crate::lab::{self, Host, endpoint, service_port};

/// The kernel's engines, as they appear in the names of their programs.
pub const ENGINES: [&str; 2] = ["nft", "legacy"];

/// Makes the mode choose `engine` in this namespace, by a chain of the kubelet.
pub fn hint(engine: &str) {
    for program in ["iptables", "ip6tables"] {
        sh(&format!(
            "{program}-{engine} -w 5 -t mangle -N KUBE-IPTABLES-HINT"
        ));
    }
}

/// Runs a line of shell in this namespace; it must succeed. Returns its output.
pub fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-ec", line]).output();
    let output = output.expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn setup(flags: &[&str], metrics: Metrics) -> Setup {
    let line = ["tripod", "--proxy-mode=iptables"].into_iter();
    let line = line.chain(flags.iter().copied()).map(Into::into);
    let settings = match cli::read(line, |_: &Path| Err(io::ErrorKind::NotFound.into())) {
        Ok(settings) => settings,
        Err(_) => panic!("flags {flags:?}"),
    };
    let effective = settings.effective;
    Setup {
        node_ports: Arc::new(NodePorts::new(&effective.node_ports, effective.node_ip)),
        configuration: settings.configuration,
        configured: effective,
        dispatch: settings.own.iptables_dispatch,
        undivided: UNDIVIDED,
        metrics: Arc::new(metrics),
    }
}

/// The mode, driven by hand.
pub struct Rig {
    pub runtime: Runtime,
    pub mode: Iptables,
    registry: Registry,
}

impl Rig {
    pub fn new(flags: &[&str]) -> Rig {
        let (runtime, registry) = (runtime(), Registry::new());
        let kernel = Kernel::examine(&Examination::default());
        let mode = Iptables::new(
            setup(flags, Metrics::register(&registry).expect("metrics")),
            &kernel,
            &registry,
        );
        Rig {
            runtime,
            mode: mode.expect("iptables works here"),
            registry,
        }
    }

    /// Runs a sync from `old` to `new`; a full one if `old` is `None`.
    pub fn sync(&mut self, old: Option<&ServiceMap>, new: &ServiceMap) -> SyncReport {
        let mut changes = Changes {
            full: old.is_none(),
            ..Changes::default()
        };
        for port in old.into_iter().flat_map(ServiceMap::iter).chain(new.iter()) {
            changes.ports.insert(port.name.clone());
        }
        let asked = PerFamily::each(|_| Some(&changes));
        let outcomes = self.runtime.block_on(self.mode.sync(new, asked));
        let mut all = SyncReport::default();
        for (_, outcome) in outcomes {
            let report = outcome.expect("an answer").expect("a sync");
            all.examined += report.examined;
            all.failed.add_all(&report.failed);
            all.unfinished.extend(report.unfinished);
            all.unsupported.extend(report.unsupported);
        }
        all
    }

    /// Counts the rules that the last sync wrote.
    pub fn written(&self) -> f64 {
        let all = self.registry.gather();
        let last = all
            .iter()
            .filter(|family| family.name() == "kubeproxy_sync_proxy_rules_iptables_last");
        let each = last.flat_map(|family| family.get_metric());
        each.map(|metric| metric.get_gauge().get_value()).sum()
    }
}

/// Reads the Services of a folder of manifests.
pub fn map_of(folder: &Path, node: &str) -> ServiceMap {
    runtime().block_on(async {
        let mut tracker = Tracker::new(node);
        let (objects, _) = watch::manifests::read(folder).await;
        tracker.apply(objects);
        tracker.map().clone()
    })
}

/// Returns a TCP Service with a cluster IP and these endpoints.
pub fn service(name: &str, at: [u8; 4], port: u16, endpoints: &[([u8; 4], u16)]) -> ServicePort {
    let all = endpoints.iter().map(|address| endpoint(*address));
    ServicePort {
        port,
        endpoints: lab::endpoints(all),
        ..service_port(name, at)
    }
}

/// The node's addresses; no Service names one of them.
struct Addresses(AddressChanges);

impl NodeAddresses for Addresses {
    fn serving_node_ports(&mut self, _: Option<&Node>) -> io::Result<BTreeSet<IpAddr>> {
        Ok(BTreeSet::new())
    }

    async fn changed(&mut self) -> io::Result<()> {
        self.0.changed().await.map(drop)
    }
}

/// The mode with its runner, in a host's namespace, serving a folder.
pub struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    pub fn start(host: &Host, manifests: &Path, flags: &[&'static str]) -> Proxy {
        let namespace = File::open(format!("/run/netns/{}", host.name())).expect("the namespace");
        let (stop, stopped) = oneshot::channel();
        let (manifests, flags): (PathBuf, Vec<_>) = (manifests.into(), flags.to_vec());
        let thread = std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace of ours");
            runtime().block_on(async {
                let registry = Registry::new();
                let metrics = Metrics::register(&registry).expect("metrics");
                let setup = setup(&flags, metrics.clone());
                let mode =
                    Iptables::new(setup, &Kernel::examine(&Examination::default()), &registry);
                let options = schedule::Options {
                    // An unnoticed change must not be repaired by chance.
                    sync_period: Duration::from_secs(3600),
                    ..schedule::Options::default()
                };
                let health = Arc::new(Health::new(options.sync_period));
                let tracker = Tracker::new("node");
                let mode = mode.expect("iptables works here");
                let mut runner = Runner::new(mode, tracker, options, health, metrics);
                let changes = Addresses(AddressChanges::open(None).expect("netlink"));
                let (sender, batches) = mpsc::channel(1);
                watch::manifests::spawn(manifests, Arc::default(), sender);
                tokio::select! {
                    () = runner.run(batches, Some(changes), ready(())) => {}
                    _ = stopped => {}
                }
            });
        });
        Proxy {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

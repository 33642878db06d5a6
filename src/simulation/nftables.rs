//! nftables mode.

use std::sync::Arc;

use super::world;
use crate::{
    config::{self, KubeProxyConfiguration},
    kernel::probe::Kernel,
    modes::nftables::{Nftables, Setup},
    node::NodePorts,
    runner::metrics::Metrics,
    services::Namespaces,
};

/// So many steps are run each time.
const STEPS: usize = 800;
/// With so many seeds.
const SEEDS: u64 = 5;

fn mode(metrics: &Metrics) -> Nftables {
    let mut configuration = KubeProxyConfiguration::default();
    configuration.detect_local.cluster_cidrs = world::pod_networks();
    let checked = config::check(configuration, Vec::new());
    let checked = checked.expect("the configuration is valid");
    let node_ports = NodePorts::new(&checked.effective.node_ports, None);
    let setup = Setup {
        configuration: checked.configuration,
        configured: checked.effective,
        node_ports: Arc::new(node_ports),
        counted: Namespaces::None,
        metrics: Arc::new(metrics.clone()),
    };
    Nftables::new(setup, &Kernel::with_everything(&[])).expect("a mode")
}

#[test]
fn a_seed_reproduces_a_run() {
    let of = |seed| super::run(seed, STEPS / 4, mode);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn random_runs_keep_what_is_promised() {
    super::all(SEEDS, STEPS, mode);
}

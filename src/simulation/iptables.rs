//! iptables mode, with either engine of the kernel.

mod calls;
mod refusals;
mod stale;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use net::Family;
use nix::errno::Errno;
use prometheus::Registry;
use simulated::{
    State,
    packet::{Outcomes, Packet, Update},
};
use testing::Random;
use xtables::Engine;

use super::{
    docker,
    subject::{PROGRAM_HANGS, Promises, Removals, Repairs, Rules, StaysOn, Subject},
    world,
};
use crate::{
    kernel::probe::Kernel,
    modes::iptables::{Iptables, Setup},
    node::NodePorts,
    runner::metrics::Metrics,
};

/// Steps of each run.
const STEPS: usize = 400;
/// Number of seeds.
const SEEDS: u32 = 2;
/// Services have up to seven endpoints, of which so few make parts.
const UNDIVIDED: usize = 2;

/// iptables mode as the subject of the simulation, with the given engine.
#[derive(Clone, Copy)]
pub(super) struct OfIptables(pub(super) Engine);

impl Subject for OfIptables {
    type Mode = Iptables;

    fn kernel(&self) -> Kernel {
        Kernel::with_everything(&[]).with_simulated_programs(self.0)
    }

    fn mode(&self, kernel: &Kernel, metrics: &Metrics) -> Iptables {
        let checked = world::configuration();
        let node_ports = NodePorts::new(&checked.effective.node_ports, None);
        let setup = Setup {
            configuration: checked.configuration,
            configured: checked.effective,
            node_ports: Arc::new(node_ports),
            dispatch: Default::default(),
            undivided: UNDIVIDED,
            metrics: Arc::new(metrics.clone()),
        };
        Iptables::new(setup, kernel, &Registry::new()).expect("a mode")
    }
}

/// Returns whether a chain is the mode's own. The kubelet's chain, which it shares, is
/// read only in full syncs.
fn is_ours(chain: &str) -> bool {
    chain.starts_with("KUBE-") && chain != "KUBE-FIREWALL"
}

impl Promises for OfIptables {
    fn remember(&self, state: &mut State, _: Family, update: &Update) {
        state.xtables.remember(update);
    }

    fn stays_on(&self) -> StaysOn {
        StaysOn::Any
    }

    /// The rules that jump to it are replaced in one transaction with all chains that they jump to.
    fn closes_what_is_left_out(&self) -> bool {
        false
    }

    fn patience(&self) -> Duration {
        PROGRAM_HANGS
    }
}

impl Rules for OfIptables {
    fn prepare(&self, state: &mut State) {
        state.xtables.engine = self.0;
    }

    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        state.outcomes_by_rules(family, packet, own)
    }

    fn repairs(&self) -> Repairs {
        Repairs::Read
    }

    /// A full sync removes rules that jump to unchanged chains in separate transactions,
    /// after all others.
    fn removals(&self, unfinished: &[String]) -> Removals {
        Removals::of(unfinished)
    }

    fn noticed_after_a_sync(&self) -> Duration {
        docker::noticed_after_a_sync(self.0, self.noticed())
    }

    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family> {
        docker::edit(state, random, &["nat", "nat", "filter", "mangle"], is_ours)
    }

    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)> {
        docker::chains(state)
    }

    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>) {
        let text = |(service, _)| format!("default/web-{service}:p");
        state.xtables.refuse(refused.map(text));
    }
}

#[test]
fn a_seed_reproduces_a_run() {
    super::assert_reproduced(STEPS / 4, OfIptables(Engine::NfTables));
}

#[test]
fn random_runs_keep_what_is_promised_with_legacy_tables() {
    super::all("iptables legacy", SEEDS, STEPS, OfIptables(Engine::Legacy));
}

#[test]
fn random_runs_keep_what_is_promised_with_nf_tables() {
    super::all(
        "iptables nf_tables",
        SEEDS,
        STEPS,
        OfIptables(Engine::NfTables),
    );
}

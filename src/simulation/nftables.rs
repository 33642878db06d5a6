//! nftables mode.

mod forgotten;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use net::Family;
use nix::errno::Errno;
use simulated::{
    State,
    packet::{Outcomes, Packet, Update},
};
use testing::Random;

use super::{
    subject::{Promises, Rules, Subject},
    world,
};
use crate::{
    kernel::probe::Kernel,
    modes::nftables::{Nftables, Setup},
    node::NodePorts,
    runner::metrics::Metrics,
    services::Namespaces,
};

/// Steps of each run.
const STEPS: usize = 800;
/// Number of seeds.
const SEEDS: u32 = 5;

/// The table of nftables mode.
const TABLE: &str = "tripod";
/// Tables of others.
const FOREIGN: [&str; 2] = ["firewalld", "docker"];

/// nftables mode as the subject of the simulation.
#[derive(Clone, Copy)]
pub(super) struct OfNftables;

impl Subject for OfNftables {
    type Mode = Nftables;

    fn kernel(&self) -> Kernel {
        Kernel::with_everything(&[])
    }

    fn mode(&self, kernel: &Kernel, metrics: &Metrics) -> Nftables {
        let checked = world::configuration();
        let node_ports = NodePorts::new(&checked.effective.node_ports, None);
        let setup = Setup {
            configuration: checked.configuration,
            configured: checked.effective,
            node_ports: Arc::new(node_ports),
            counted: Namespaces::default(),
            metrics: Arc::new(metrics.clone()),
        };
        Nftables::new(setup, kernel).expect("a mode")
    }
}

impl Promises for OfNftables {
    fn remember(&self, state: &mut State, family: Family, update: &Update) {
        state.nftables.remember(family, TABLE, update);
    }

    /// Clients that may be sent to all endpoints, and those that may be sent to endpoints of the
    /// node alone, are in different maps.
    fn stays_across_policies(&self) -> bool {
        false
    }
}

impl Rules for OfNftables {
    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        state.nftables.outcomes(family, packet, own)
    }

    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family> {
        let family = random.one(&Family::ALL);
        let rules = &mut state.nftables;
        let before = rules.generation();
        match random.below(7) {
            0 => drop(rules.delete_table(family, TABLE)),
            1 => rules.flush_chain(family, TABLE, random.below(64)),
            2 | 3 => rules.delete_element(family, TABLE, random.below(64), random.below(64)),
            4 => rules.add_chain(family, TABLE, "foreign"),
            _ => {
                rules.add_table(family, random.one(&FOREIGN));
                return None;
            }
        }
        (rules.generation() != before).then_some(family)
    }

    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)> {
        let of_family = |family| {
            let there: Vec<&str> = state.nftables.tables(family).collect();
            let foreign = FOREIGN.into_iter();
            foreign
                .filter(move |name| there.contains(name))
                .map(move |name| (family, name))
        };
        Family::ALL.into_iter().flat_map(of_family).collect()
    }

    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>) {
        let octets = |(service, errno)| (errno, world::at_cluster_ip(service));
        state.nftables.refuse(refused.map(octets));
    }
}

#[test]
fn a_seed_reproduces_a_run() {
    super::assert_reproduced(STEPS / 4, OfNftables);
}

#[test]
fn random_runs_keep_what_is_promised() {
    super::all("nftables", SEEDS, STEPS, OfNftables);
}

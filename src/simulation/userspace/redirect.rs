//! Redirect capture: its rules are in the simulated kernel, with either engine.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::{Family, Protocol};
use nix::errno::Errno;
use simulated::{
    State,
    packet::{Disposition, Outcome, Outcomes, Packet},
};
use testing::Random;
use xtables::Engine;

use super::{
    super::{
        docker,
        subject::{Repairs, Rules},
        world::{self, Spec},
    },
    Captures, LISTENING, in_node,
};
use crate::modes::userspace::capture::Requested;

/// Steps of each run.
const STEPS: usize = 400;
/// Number of seeds.
const SEEDS: u32 = 6;
/// Packets of an established connection pass no rules that match the port to which it was
/// redirected.
const ANY_PORT: u16 = 1;

/// Userspace mode with redirect capture.
#[derive(Clone, Copy)]
pub(super) struct OfRedirect(pub(super) Engine);

impl Captures for OfRedirect {
    fn requested(self) -> Requested {
        Requested::Redirect
    }

    fn engine(self) -> Engine {
        self.0
    }
}

/// Returns whether a chain is redirect capture's own.
fn is_ours(chain: &str) -> bool {
    chain.starts_with("TRIPOD-")
}

/// Returns the address that a listener with this local port is bound to.
fn listened_on(family: Family, port: u16) -> SocketAddr {
    (family.unspecified(), port).into()
}

impl Rules for OfRedirect {
    fn prepare(&self, state: &mut State) {
        state.xtables.engine = self.0;
        world::add_link(state);
    }

    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        let led = packet.established.map(|_| {
            let node = world::node_address(family);
            SocketAddr::new(node, ANY_PORT)
        });
        let by_rules = Packet {
            established: led,
            ..packet.clone()
        };
        let found = state.outcomes_by_rules(family, &by_rules, own);
        let of = |outcome: Outcome| match outcome.disposition {
            Disposition::Passes(to) if to != packet.destination => {
                super::served(packet, listened_on(family, to.port()))
            }
            _ => vec![outcome],
        };
        found.into_iter().flat_map(of).collect()
    }

    /// Returns the port to which rules redirect.
    fn tracked(
        &self,
        state: &State,
        family: Family,
        packet: &Packet,
        to: SocketAddr,
    ) -> SocketAddr {
        let own = Family::ALL.map(world::node_address);
        let found = state.outcomes_by_rules(family, packet, &own);
        let passes = |outcome: &Outcome| match outcome.disposition {
            Disposition::Passes(to) => Some(to),
            _ => None,
        };
        found.iter().find_map(passes).unwrap_or(to)
    }

    fn serves(&self, spec: &Spec, at: SocketAddr) -> bool {
        let family = Family::of(&at.ip());
        let at = listened_on(family, at.port());
        let listeners = LISTENING.with_borrow(|all| all.at(Protocol::Udp, at));
        let mut listeners = listeners.iter();
        listeners.any(|listener| listener.service_port() == spec.service_port())
    }

    /// A port to which rules redirect refuses direct calls.
    fn wrong(&self, state: &State, own: &[IpAddr]) -> Option<String> {
        let ports = |protocol| {
            let addresses = LISTENING.with_borrow(|all| all.addresses(protocol));
            addresses.into_iter().map(move |at| (protocol, at))
        };
        let mut all = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(ports);
        let found = all.find(|(protocol, at)| {
            let family = Family::of(&at.ip());
            let packet = Packet {
                source: (world::ip(family, 9, 1), 40_000).into(),
                destination: (world::node_address(family), at.port()).into(),
                protocol: protocol.number(),
                input: Some("eth0"),
                established: None,
            };
            let outcomes = state.outcomes_by_rules(family, &packet, own);
            let refused = |outcome: &Outcome| outcome.disposition == Disposition::Refused;
            !outcomes.iter().all(refused)
        });
        found.map(|(protocol, at)| format!("{at}/{protocol} is open"))
    }

    /// Whether legacy tables exist is read from the real kernel.
    fn remains(&self, state: &State) -> Option<String> {
        let is_seen = self.0 == Engine::NfTables;
        let chain = state.xtables.find_chain(is_ours).filter(|_| is_seen);
        chain.map(|name| format!("chain {name}"))
    }

    fn repairs(&self) -> Repairs {
        Repairs::Read
    }

    fn noticed_after_a_sync(&self) -> Duration {
        docker::noticed_after_a_sync(self.0, self.noticed())
    }

    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family> {
        docker::edit(state, random, &["nat", "filter"], is_ours)
    }

    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)> {
        docker::chains(state)
    }

    /// Each rule serves many Services at once: there are none of a single Service that could
    /// be refused.
    fn refuse(&self, _: &mut State, _: Option<(usize, Errno)>) {}
}

#[test]
fn a_seed_reproduces_a_run() {
    in_node(|| crate::simulation::assert_reproduced(STEPS / 2, OfRedirect(Engine::Legacy)));
}

#[test]
fn random_runs_keep_what_is_promised_with_legacy_tables() {
    in_node(|| crate::simulation::all("redirect legacy", SEEDS, STEPS, OfRedirect(Engine::Legacy)));
}

#[test]
fn random_runs_keep_what_is_promised_with_nf_tables() {
    in_node(|| {
        crate::simulation::all(
            "redirect nf_tables",
            SEEDS,
            STEPS,
            OfRedirect(Engine::NfTables),
        )
    });
}

//! Userspace mode with redirect capture: its rules are in the simulated kernel, with either
//! engine, and its sockets in the real one. Packets that rules lead to a port of the node get
//! where the service group leads them that listens there.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use nix::errno::Errno;
use prometheus::Registry;

use super::{
    docker,
    random::Random,
    subject::{PROGRAM_HANGS, Repairs, Rules, Subject},
    world::{self, Called, Flow, Spec},
};
use crate::{
    kernel::{
        probe::Kernel,
        simulated::{
            State,
            packet::{Disposition, Outcome, Outcomes, Packet, Update},
        },
        xtables::Engine,
    },
    modes::userspace::{
        Capture, ConnectionLimits, Counters, DialLimits, Listening, Options, Userspace,
        capture::{Requested, choose},
    },
    net::{Family, Protocol},
    node::NodePorts,
    runner::metrics::Metrics,
    sched::{self, SchedulerName},
};

/// So many steps are run each time.
const STEPS: usize = 400;
/// With so many seeds.
const SEEDS: u64 = 6;
/// Local ports for service groups: few, so that each process has those of the one before for
/// other Services.
const PORTS: std::ops::RangeInclusive<u16> = 21_000..=21_039;
/// An established connection passes no rules that ask for the port to which it was led.
const ANY_PORT: u16 = 1;

thread_local! {
    /// Who listens where, of the process that began last.
    static LISTENING: RefCell<Listening> = RefCell::default();
}

/// Userspace mode with redirect capture.
#[derive(Clone, Copy)]
struct OfUserspace(Engine);

impl Subject for OfUserspace {
    type Mode = Userspace;

    fn kernel(&self) -> Kernel {
        Kernel::with_everything(&[]).with_simulated_programs(self.0)
    }

    fn mode(&self, kernel: &Kernel, _: &Metrics) -> Userspace {
        let checked = world::configuration();
        let node_ports = NodePorts::new(&checked.effective.node_ports, None);
        let options = Options {
            node: world::NODE.into(),
            port_range: Some(PORTS),
            udp_timeout: Duration::from_secs(10),
            scheduler: SchedulerName::Rr,
            node_ports: Arc::new(node_ports),
            detect_local: checked.effective.detect_local.clone(),
            workers: 1,
            transparent: false,
            dial: DialLimits {
                attempts: 1,
                time: Duration::from_secs(1),
            },
            tcp_user_timeout: Duration::ZERO,
            limits: ConnectionLimits::default(),
            holding: Default::default(),
        };
        let choice = choose(Requested::Redirect, kernel).expect("nat");
        let capture = Capture::new(choice, kernel).expect("capture");
        let counters = Counters::register(&Registry::new()).expect("a registry of its own");
        let mode = Userspace::new(options, kernel, capture, counters).expect("threads");
        LISTENING.set(mode.listening());
        mode
    }
}

/// Returns whether a chain is one that redirect capture has for itself.
fn is_ours(chain: &str) -> bool {
    chain.starts_with("TRIPOD-")
}

/// Returns the protocol of a packet.
fn protocol(packet: &Packet) -> Protocol {
    if packet.protocol == Protocol::Tcp.number() {
        Protocol::Tcp
    } else {
        Protocol::Udp
    }
}

/// Returns what becomes of a packet that rules led to a port of the node.
fn served(family: Family, packet: &Packet, port: u16) -> Vec<Disposition> {
    if let Some(endpoint) = packet.established {
        return vec![Disposition::Passes(endpoint)];
    }
    let flow = sched::Flow {
        client: packet.source,
        destination: packet.destination.ip(),
    };
    let listener = LISTENING.with_borrow(|all| all.at(protocol(packet), family, port));
    let endpoints = listener.map(|listener| listener.endpoints(&flow));
    let endpoints = endpoints.unwrap_or_default();
    if endpoints.is_empty() {
        return vec![Disposition::Refused];
    }
    endpoints.into_iter().map(Disposition::Passes).collect()
}

impl Rules for OfUserspace {
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
        let of = |outcome: Outcome| {
            let dispositions = match outcome.disposition {
                Disposition::Passes(to) if to != packet.destination => {
                    served(family, packet, to.port())
                }
                other => vec![other],
            };
            dispositions.into_iter().map(move |disposition| Outcome {
                disposition,
                masqueraded: outcome.masqueraded,
                updates: outcome.updates.clone(),
            })
        };
        found.into_iter().flat_map(of).collect()
    }

    fn remember(&self, _: &mut State, _: Family, _: &Update) {}

    fn shares_affinity(&self) -> bool {
        false
    }

    /// To the port that rules lead to.
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
        let listener = LISTENING.with_borrow(|all| all.at(Protocol::Udp, family, at.port()));
        listener.is_some_and(|listener| listener.service_port() == spec.service_port())
    }

    /// A service group gets its endpoints before rules lead those addresses elsewhere that are
    /// not treated as the others of the group any more.
    fn changes_by_steps(&self, _: bool) -> bool {
        true
    }

    /// Its sockets close.
    fn outlives_process(&self) -> bool {
        false
    }

    /// A port to which rules lead refuses who calls it directly.
    fn open(&self, state: &State, own: &[IpAddr]) -> Option<String> {
        let ports = |family, protocol| {
            let ports = LISTENING.with_borrow(|all| all.ports(protocol, family));
            ports.into_iter().map(move |port| (family, protocol, port))
        };
        let both = Family::ALL.into_iter();
        let mut all = both.flat_map(|family| {
            let protocols = [Protocol::Tcp, Protocol::Udp].into_iter();
            protocols.flat_map(move |protocol| ports(family, protocol))
        });
        let found = all.find(|(family, protocol, port)| {
            let packet = Packet {
                source: (world::ip(*family, 9, 1), 40_000).into(),
                destination: (world::node_address(*family), *port).into(),
                protocol: protocol.number(),
                input: Some("eth0"),
                established: None,
            };
            let outcomes = state.outcomes_by_rules(*family, &packet, own);
            let refused = |outcome: &Outcome| outcome.disposition == Disposition::Refused;
            !outcomes.iter().all(refused)
        });
        found.map(|(family, protocol, port)| format!("{family} port {port}/{protocol}"))
    }

    /// Endpoints see the node, which is no rule's doing.
    fn has_source_rules(&self, _: Called, _: bool) -> bool {
        false
    }

    /// A flow of UDP gets another endpoint when its own leaves.
    fn goes_on(&self, flow: &Flow, _: Option<&Spec>) -> bool {
        world::protocol(flow.service) == Protocol::Tcp
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

    /// Rules lead to many Services at once: there are none of one alone that could be refused.
    fn refuse(&self, _: &mut State, _: Option<(usize, Errno)>) {}

    fn patience(&self) -> Duration {
        PROGRAM_HANGS
    }
}

#[test]
fn random_runs_keep_what_is_promised_with_legacy_tables() {
    super::all(SEEDS, STEPS, OfUserspace(Engine::Legacy));
}

#[test]
fn random_runs_keep_what_is_promised_with_nf_tables() {
    super::all(SEEDS, STEPS, OfUserspace(Engine::NfTables));
}

//! Userspace mode: its objects in the kernel are in the simulated one, and its sockets are in the
//! real one. The endpoint of a packet that reaches a socket of the node is chosen by the service
//! group that listens there.

mod local;
mod node_ports;
mod previous_ports;
mod redirect;
mod uncaptured;
mod unlisted;

use std::{
    cell::{Cell, RefCell},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use net::{Family, Protocol};
use prometheus::Registry;
use simulated::{
    Kernel as SimulatedKernel, State,
    packet::{Disposition, Outcome, Packet, Update},
};
use testing::{in_namespace, ip};
use xtables::Engine;

use super::{
    named_cases::from_outside,
    subject::{PROGRAM_HANGS, Promises, Rules, StaysOn, Subject},
    world::{self, Called, Flow, Spec},
};
use crate::{
    kernel::probe::Kernel,
    modes::{
        cleanup::{Cleanup, Running},
        handover::Handover,
        userspace::{
            Capture, ConnectionLimits, Counters, DialLimits, Installed, Listening, Options, Role,
            Userspace,
            capture::{Requested, choose},
        },
    },
    node::NodePorts,
    runner::metrics::Metrics,
    sched::{self, SchedulerName},
};

/// Local ports for service groups: few, so that each process uses those of the one before it
/// for other Services.
const PORTS: std::ops::RangeInclusive<u16> = 21_000..=21_039;

thread_local! {
    /// The listeners of the process that started last.
    static LISTENING: RefCell<Listening> = RefCell::default();
    /// The handover of that process.
    static HANDOVER: RefCell<Option<Handover>> = RefCell::default();
    /// The clients that a process left to the next one.
    static CLIENTS: Cell<Option<Vec<Vec<u8>>>> = Cell::default();
}

/// Userspace mode with a way to capture service addresses.
trait Captures: Copy + Send + 'static {
    /// Returns the requested capture.
    fn requested(self) -> Requested;

    /// The engine of the programs that exist.
    fn engine(self) -> Engine {
        Engine::NfTables
    }
}

/// Creates the mode with this capture, which serves `node_ports` and continues with the clients
/// that the previous process left to it.
fn mode_with(kernel: &Kernel, capture: Requested, node_ports: Arc<NodePorts>) -> Userspace {
    let options = Options {
        node: world::NODE.into(),
        port_range: Some(PORTS),
        udp_timeout: Duration::from_secs(10),
        scheduler: SchedulerName::Rr,
        node_ports,
        detect_local: world::configuration().effective.detect_local.clone(),
        workers: 1,
        transparent: false,
        dial: DialLimits {
            attempts: 1,
            time: Duration::from_secs(1),
        },
        tcp_user_timeout: Duration::ZERO,
        rings: Default::default(),
        limits: ConnectionLimits::default(),
        role: Role::Mode,
        handover: Default::default(),
    };
    let choice = choose(capture, kernel).expect("the capture");
    let capture = Capture::new(choice, kernel).expect("capture");
    let counters = Counters::register(&Registry::new()).expect("a registry of its own");
    let handover = options.handover.clone();
    let mode = Userspace::new(options, kernel, capture, counters).expect("threads");
    LISTENING.set(mode.listening());
    if let Some(clients) = CLIENTS.take() {
        handover.assignments().inherit(clients);
    }
    HANDOVER.set(Some(handover));
    mode
}

/// Returns whether a call from outside may reach an endpoint; both have port 80 at these
/// addresses.
fn is_led(subject: &impl Rules, kernel: &SimulatedKernel, called: [u8; 4], to: [u8; 4]) -> bool {
    let mut outcomes = Default::default();
    kernel.change(|state| {
        outcomes = subject.outcomes(state, Family::V4, &from_outside(called), &[]);
    });
    let there = Disposition::Passes((to, 80).into());
    outcomes.iter().any(|outcome| outcome.disposition == there)
}

impl<C: Captures + Rules> Subject for C {
    type Mode = Userspace;

    fn kernel(&self) -> Kernel {
        Kernel::with_everything(&[]).with_simulated_programs(self.engine())
    }

    fn mode(&self, kernel: &Kernel, _: &Metrics) -> Userspace {
        let checked = world::configuration();
        let node_ports = NodePorts::new(&checked.effective.node_ports, None);
        mode_with(kernel, self.requested(), Arc::new(node_ports))
    }

    async fn cleanup(&self) -> Result<(), String> {
        let cleaned = Installed.cleanup(&Running::default()).await;
        cleaned.map_err(|error| error.to_string())
    }
}

impl<C: Captures> Promises for C {
    /// A ServicePort remembers where a client stays.
    fn remember(&self, _: &mut State, _: Family, update: &Update) {
        fn parsed<T: std::str::FromStr>(bytes: Option<&[u8]>) -> Option<T> {
            std::str::from_utf8(bytes?).ok()?.parse().ok()
        }
        let client = parsed(Some(&*update.key)).expect("an address");
        let endpoint = parsed(update.data.as_deref()).expect("an endpoint");
        let all = LISTENING.with_borrow(|all| {
            let protocols = [Protocol::Tcp, Protocol::Udp].map(|protocol| all.all(protocol));
            protocols.into_iter().flatten().collect::<Vec<_>>()
        });
        // All groups of a ServicePort share one table, except those that are yet to be rerouted.
        let of_service_port = all.iter().filter(|one| one.service_port() == &*update.set);
        of_service_port.for_each(|one| one.pin(client, endpoint));
    }

    /// A ServicePort has one table of clients.
    fn stays_on(&self) -> StaysOn {
        StaysOn::Last
    }

    /// A service group gets its new endpoints before those of its addresses that need another
    /// treatment from now on are captured for another group.
    fn changes_by_steps(&self, _: bool) -> bool {
        true
    }

    /// It stays captured as it was.
    fn closes_what_is_left_out(&self) -> bool {
        false
    }

    /// Its sockets close.
    fn outlives_process(&self) -> bool {
        false
    }

    fn leave(&self) -> bool {
        let clients = HANDOVER.with_borrow(|handover| {
            let handover = handover.as_ref()?;
            Some(handover.assignments().records())
        });
        let leaves = clients.is_some();
        CLIENTS.set(clients);
        leaves
    }

    /// Endpoints see the node's address, which no rule brings about.
    fn has_source_rules(&self, _: Called, _: bool) -> bool {
        false
    }

    /// A UDP flow gets another endpoint when its own leaves.
    fn goes_on(&self, flow: &Flow, _: Option<&Spec>) -> bool {
        world::protocol(flow.service) == Protocol::Tcp
    }

    fn patience(&self) -> Duration {
        PROGRAM_HANGS
    }
}

/// Runs a test in a network namespace that has the node's addresses.
fn in_node(test: impl FnOnce() + Send + 'static) {
    in_namespace(|| {
        for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
            let node = world::node_address(family);
            // Without `nodad`, no socket can be bound to the address until duplicate address
            // detection ends.
            let more = if family == Family::V6 { "nodad" } else { "" };
            ip(&format!("address add {node}/{length} dev lo {more}"));
        }
        test();
    });
}

fn protocol(packet: &Packet) -> Protocol {
    if packet.protocol == Protocol::Tcp.number() {
        Protocol::Tcp
    } else {
        Protocol::Udp
    }
}

/// Returns the possible outcomes of a packet that reaches an address and port of the node.
fn served(packet: &Packet, at: SocketAddr) -> Vec<Outcome> {
    let outcome = |disposition, updates| Outcome {
        disposition,
        // Endpoints see the node's address.
        masqueraded: true,
        updates,
    };
    if let Some(endpoint) = packet.established {
        return vec![outcome(Disposition::Passes(endpoint), Vec::new())];
    }
    let flow = sched::Flow {
        client: packet.source,
        destination: packet.destination.ip(),
    };
    let mut all = Vec::new();
    for listener in LISTENING.with_borrow(|all| all.at(protocol(packet), at)) {
        let endpoints = listener.endpoints(&flow);
        if endpoints.is_empty() {
            all.push(outcome(Disposition::Refused, Vec::new()));
        }
        all.extend(endpoints.into_iter().map(|endpoint| {
            let stays = listener.has_affinity();
            let update = || pinned(listener.service_port(), packet.source.ip(), endpoint);
            outcome(
                Disposition::Passes(endpoint),
                stays.then(update).into_iter().collect(),
            )
        }));
    }
    if all.is_empty() {
        all.push(outcome(Disposition::Refused, Vec::new()));
    }
    all
}

/// The memory of a ServicePort of a client that stays on an endpoint.
fn pinned(service_port: &str, client: IpAddr, endpoint: SocketAddr) -> Update {
    Update {
        set: service_port.into(),
        key: client.to_string().into_bytes().into(),
        data: Some(endpoint.to_string().into_bytes().into()),
        timeout: Some(world::AFFINITY),
    }
}

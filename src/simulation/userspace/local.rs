//! Local capture: its routes, rules and addresses are in the simulated kernel.

mod refusals;

use std::{
    cell::Cell,
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::{Family, Protocol};
use nix::{errno::Errno, libc};
use simulated::{
    Call, State,
    packet::{Disposition, Outcome, Outcomes, Packet},
    route::{Edit, Led},
};
use testing::Random;
use xtables::Engine;

use super::{
    super::{
        probes::called_at,
        process::SYNC_PERIOD,
        subject::{Repairs, Rules},
        world::{self, Called, Open, SERVICES, Spec},
    },
    Captures, LISTENING, in_node,
};
use crate::modes::userspace::capture::Requested;

/// Steps of each run.
const STEPS: usize = 400;
/// Number of seeds.
const SEEDS: u32 = 6;
/// A port that no Service has.
const OTHER_PORT: u16 = 22;
/// Takes the place of the port of packets without ports, such as fragments.
const NO_PORT: u16 = 0;
/// The name of the objects of others.
const FOREIGN: &str = "rule and route";

thread_local! {
    /// Whether only full syncs notice the last change.
    static IS_UNNOTICED: Cell<bool> = Cell::default();
}

/// Userspace mode with local capture.
#[derive(Clone, Copy)]
pub(super) struct OfLocal;

impl Captures for OfLocal {
    fn requested(self) -> Requested {
        Requested::Local
    }
}

/// Returns a packet from outside to another port of an address.
fn to_other_port(at: IpAddr, protocol: u8, port: u16) -> Packet {
    Packet {
        source: (world::ip(Family::of(&at), 9, 1), 40_000).into(),
        destination: (at, port).into(),
        protocol,
        input: Some("eth0"),
        established: None,
    }
}

/// Returns each Service's addresses, except those of the node.
fn addresses(family: Family) -> impl Iterator<Item = (usize, Called, IpAddr)> {
    let called = [Called::ClusterIp, Called::ExternalIp, Called::LoadBalancer];
    let services = (0..SERVICES).filter(move |number| world::family(*number) == family);
    services.flat_map(move |number| {
        called.map(|called| (number, called, called_at(number, called).ip()))
    })
}

impl Rules for OfLocal {
    fn prepare(&self, state: &mut State) {
        state.xtables.engine = Engine::NfTables;
        world::add_link(state);
    }

    fn outcomes(&self, state: &State, family: Family, packet: &Packet, _: &[IpAddr]) -> Outcomes {
        let disposition = match state.links.led(family, packet) {
            Led::Elsewhere => Disposition::Passes(packet.destination),
            Led::Prohibited => Disposition::Refused,
            Led::Here => {
                let mut served = super::served(packet, packet.destination);
                if !state.links.may_answer_from(&packet.destination.ip()) {
                    // The kernel does not send its own answers from that address.
                    for outcome in &mut served {
                        if outcome.disposition == Disposition::Refused {
                            outcome.disposition = Disposition::Dropped;
                        }
                    }
                }
                return served.into_iter().collect();
            }
        };
        let outcome = Outcome {
            disposition,
            masqueraded: false,
            updates: Vec::new(),
        };
        [outcome].into()
    }

    /// Nothing is tracked.
    fn serves(&self, _: &Spec, _: SocketAddr) -> bool {
        true
    }

    fn accept(&self, packet: &Packet) -> Option<Open> {
        let at = packet.destination;
        let listeners = LISTENING.with_borrow(|all| all.at(super::protocol(packet), at));
        let mut connections = listeners.iter().filter_map(|one| one.connection());
        connections.next().map(Open::new)
    }

    /// A packet to another port of a Service's address must not reach a listener on the node.
    fn exposed(&self, state: &State, family: Family) -> Option<String> {
        let protocols = [Protocol::Tcp, Protocol::Udp];
        let mut all = addresses(family).flat_map(|(.., at)| {
            protocols.map(|protocol| to_other_port(at, protocol.number(), OTHER_PORT))
        });
        let open = all.find(|packet| state.links.led(family, packet) == Led::Here);
        open.map(|packet| format!("{packet:?}"))
    }

    /// Other ports of a cluster IP are refused, other ports of other addresses are left to
    /// others; ICMP and fragments arrive where their Service is served.
    fn wrong(&self, state: &State, _: &[IpAddr]) -> Option<String> {
        let mut all = Family::ALL.into_iter().flat_map(|family| {
            let of_family = addresses(family);
            of_family.map(move |(number, called, at)| (family, number, called, at))
        });
        all.find_map(|(family, number, called, at)| {
            let protocol = world::protocol(number);
            let led = |protocol, port| state.links.led(family, &to_other_port(at, protocol, port));
            let is_led = |protocol, port, to| {
                let is = led(protocol, port);
                (is != to).then(|| format!("{at} port {port}/{protocol} is led {is:?}, not {to:?}"))
            };
            if led(protocol.number(), world::PORT) != Led::Here {
                return is_led(protocol.number(), OTHER_PORT, Led::Elsewhere);
            }
            let others = if called == Called::ClusterIp {
                Led::Prohibited
            } else {
                Led::Elsewhere
            };
            let fragments = if protocol == Protocol::Udp {
                Led::Here
            } else {
                others
            };
            let icmp = match family {
                Family::V4 => libc::IPPROTO_ICMP,
                Family::V6 => libc::IPPROTO_ICMPV6,
            };
            let answers = !state.links.may_answer_from(&at);
            is_led(protocol.number(), OTHER_PORT, others)
                .or_else(|| is_led(Protocol::Udp.number(), NO_PORT, fragments))
                .or_else(|| is_led(icmp as u8, NO_PORT, Led::Here))
                .or_else(|| answers.then(|| format!("{at} cannot answer")))
        })
    }

    fn unneeded(&self, state: &State, is_used: &dyn Fn(&IpAddr) -> bool) -> Option<String> {
        let (addresses, rules) = state.links.of_tripod();
        if addresses.is_empty() && rules > 0 {
            return Some(format!("{rules} rules"));
        }
        let unused = addresses.into_iter().find(|one| !is_used(one));
        unused.map(|address| format!("what is for {address}"))
    }

    fn remains(&self, state: &State) -> Option<String> {
        self.unneeded(state, &|_| false)
    }

    fn repairs(&self) -> Repairs {
        Repairs::ReadOfAll
    }

    /// Rules are listed right before routes, and addresses are assigned again in any case.
    fn reads(&self, call: Call, family: Family) -> bool {
        call == Call::Policy(family, libc::RTM_GETROUTE)
    }

    fn may_edit_before(&self, call: Call) -> bool {
        !matches!(call, Call::Policy(_, libc::RTM_GETROUTE))
    }

    fn noticed(&self) -> Duration {
        if IS_UNNOTICED.get() {
            SYNC_PERIOD + Duration::from_secs(5)
        } else {
            Duration::from_secs(2)
        }
    }

    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family> {
        let family = random.one(&Family::ALL);
        let at = random.below(64);
        let links = &mut state.links;
        let choice = random.below(9);
        let changed = match choice {
            // As systemd-networkd does when it starts.
            0 => {
                let rules = links.edit(family, Edit::RemoveRules(None));
                links.edit(family, Edit::RemoveRoutes(None)) || rules
            }
            1 | 2 => links.edit(family, Edit::RemoveRules(Some(at))),
            3 | 4 => links.edit(family, Edit::RemoveRoutes(Some(at))),
            5 => links.edit(family, Edit::RemoveAddress(at)),
            6 => links.edit(family, Edit::Deliver),
            _ => {
                links.enter(family);
                return None;
            }
        };
        let is_unnoticed = choice == 5 || choice == 6;
        if changed {
            IS_UNNOTICED.set(is_unnoticed);
        }
        changed.then_some(family)
    }

    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)> {
        let families = Family::ALL.into_iter();
        let entered = families.filter(|family| state.links.has_entered(*family));
        entered.map(|family| (family, FOREIGN)).collect()
    }

    /// Refuses routes to the Service's cluster IP.
    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>) {
        let address = |(service, errno)| (world::cluster_ip(service), errno);
        state.links.refuse(refused.map(address));
    }
}

#[test]
fn a_seed_reproduces_a_run() {
    in_node(|| crate::simulation::assert_reproduced(STEPS / 2, OfLocal));
}

#[test]
fn random_runs_keep_what_is_promised() {
    in_node(|| crate::simulation::all("local", SEEDS, STEPS, OfLocal));
}

//! ipvs mode, with either engine of the kernel for the rules around its virtual servers.

mod refusals;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use net::{Family, Protocol};
use nix::errno::Errno;
use simulated::{
    State,
    ipvs::Connection,
    packet::{Outcomes, Packet, Update},
    xtables::Edit,
};
use testing::Random;
use xtables::Engine;

use super::{
    faults::Faults,
    subject::{PROGRAM_HANGS, Promises, Removals, Repairs, Rules, Subject},
    world::{self, Called, ExternalPolicy, Flow, Spec},
};
use crate::{
    kernel::probe::Kernel,
    modes::{
        self,
        ipvs::{Ipvs, Options, plan},
    },
    node::NodePorts,
    runner::metrics::Metrics,
};

/// Steps of each run.
const STEPS: usize = 250;
/// Number of seeds.
const SEEDS: u32 = 2;
/// A chain of others, to which a rule of `FORWARD` jumps.
const CHAIN: &str = "DOCKER-USER";
/// Virtual servers of others.
const SERVER: &str = "virtual server";

/// ipvs mode as the subject of the simulation, with the given engine of iptables.
#[derive(Clone, Copy)]
pub(super) struct OfIpvs(pub(super) Engine);

impl Subject for OfIpvs {
    type Mode = Ipvs;

    /// A full sync makes about a hundred calls.
    fn faults(&self) -> Faults {
        Faults {
            calls: 10,
            edits: 2,
            once: false,
            kills: 2,
            outage: None,
        }
    }

    fn kernel(&self) -> Kernel {
        Kernel::with_everything(&[]).with_simulated_programs(self.0)
    }

    fn mode(&self, kernel: &Kernel, metrics: &Metrics) -> Ipvs {
        start(kernel, Arc::new(metrics.clone()), |_| {})
    }
}

/// Creates the mode with the options that `change` makes of the usual ones.
fn start(
    kernel: &Kernel,
    metrics: Arc<dyn modes::Metrics>,
    change: impl FnOnce(&mut Options),
) -> Ipvs {
    let checked = world::configuration();
    let node_ports = NodePorts::new(&checked.effective.node_ports, None);
    let mut options = Options::new(&checked.configuration, &checked.effective);
    change(&mut options);
    Ipvs::new(options, kernel, Arc::new(node_ports), metrics).expect("a mode")
}

/// Returns whether a chain is the mode's own.
fn is_ours(chain: &str) -> bool {
    chain.starts_with("KUBE-") || chain.starts_with("TRIPOD-")
}

/// Returns the virtual server of others, with its real server.
fn foreign_server(family: Family) -> [SocketAddr; 2] {
    let ends = match family {
        Family::V4 => ["10.50.0.1:80", "10.50.0.2:80"],
        Family::V6 => ["[fd00:50::1]:80", "[fd00:50::2]:80"],
    };
    ends.map(|end| end.parse().expect("an address with a port"))
}

fn connection(packet: &Packet, real: SocketAddr) -> Connection {
    Connection {
        protocol: packet.protocol,
        client: packet.source,
        server: packet.destination,
        real,
    }
}

impl Promises for OfIpvs {
    fn remember(&self, state: &mut State, _: Family, update: &Update) {
        state.ipvs.remember(update);
    }

    /// While the rules of source ranges cannot be written, virtual servers that are open stay open,
    /// and follow their endpoints. So do those whose change was interrupted: only one process knows
    /// that they get source ranges at the same time, until a sync fails or compares everything. A
    /// virtual server that could not be deleted stays open as well, to the callers that it let in.
    fn changes_by_steps(&self, is_whole: bool) -> bool {
        !is_whole
    }

    /// Endpoints follow in spite of failures, and no virtual server of a cluster IP waits for
    /// rules.
    fn has_source_rules(&self, called: Called, program_failed: bool) -> bool {
        called != Called::ClusterIp && !program_failed
    }

    /// A connection ends with its virtual server, and source ranges end the connections of callers
    /// that they keep out. A TCP connection continues when its endpoint leaves the Service; for
    /// other protocols the end of a flow cannot be observed.
    fn goes_on(&self, flow: &Flow, spec: Option<&Spec>) -> bool {
        let Some(spec) = spec.filter(|spec| spec.admits(flow.called, flow.caller)) else {
            return false;
        };
        let is_led = || {
            let led = flow.packet.established;
            let callers = spec.reachable(flow.called, flow.caller, self.external_policy());
            led.is_some_and(|led| callers.contains(&led))
        };
        world::protocol(flow.service) == Protocol::Tcp || is_led()
    }

    fn external_policy(&self) -> ExternalPolicy {
        ExternalPolicy::OfAll
    }

    /// A program that may hang writes the rules separately from the syncs, and after a failure
    /// at least once in half a minute.
    fn recovers_within(&self) -> Duration {
        PROGRAM_HANGS + Duration::from_secs(45)
    }

    fn patience(&self) -> Duration {
        PROGRAM_HANGS
    }

    /// The members of sets say which virtual servers at addresses of the node are ours.
    fn loses_node_ports(&self) -> bool {
        true
    }
}

impl Rules for OfIpvs {
    fn prepare(&self, state: &mut State) {
        state.xtables.engine = self.0;
        world::add_link(state);
    }

    fn outcomes(&self, state: &State, family: Family, packet: &Packet, own: &[IpAddr]) -> Outcomes {
        state.outcomes_by_ipvs(family, packet, own)
    }

    fn connect(&self, state: &mut State, packet: &Packet, to: SocketAddr) {
        state.ipvs.connect(connection(packet, to));
    }

    fn disconnect(&self, state: &mut State, packet: &Packet, to: SocketAddr) {
        state.ipvs.disconnect(&connection(packet, to));
    }

    fn repairs(&self) -> Repairs {
        Repairs::FullWithoutFault
    }

    /// A change that only a complete reading shows is noticed by the next full sync.
    fn noticed(&self) -> Duration {
        super::process::SYNC_PERIOD + Duration::from_secs(5)
    }

    fn removals(&self, unfinished: &[String]) -> Removals {
        Removals::of(unfinished)
    }

    fn edit(&self, state: &mut State, random: &mut Random) -> Option<Family> {
        let family = random.one(&Family::ALL);
        let number = |random: &mut Random| random.below(64);
        let changed = match random.below(12) {
            0 => state.ipvs.delete_servers(family),
            1 => {
                let at = number(random);
                state.ipvs.delete_server(family, at)
            }
            2 | 3 => {
                let at = (number(random), number(random));
                let weight = random.one(&[None, Some(0), Some(3)]);
                state.ipvs.edit_real(family, at, weight)
            }
            4 | 5 => {
                let sets: Vec<plan::Set> = plan::Set::ALL.into_iter().collect();
                let set = random.one(&sets);
                let at = number(random);
                state.sets.remove(set.name(family), at)
            }
            6 => {
                let at = number(random);
                state.links.remove_address(plan::LINK, family, at)
            }
            7 => {
                let table = random.one(&["nat", "filter", "mangle"]);
                let edit = match random.below(3) {
                    0 => Edit::Flush,
                    1 => Edit::FlushChain(is_ours, number(random)),
                    _ => Edit::DeleteRule(is_ours, number(random)),
                };
                state.edit(family, table, edit)
            }
            8 | 9 => {
                let [at, real] = foreign_server(family);
                state.ipvs.add_server(Protocol::Tcp.number(), at, real);
                return None;
            }
            _ => {
                let edit = Edit::Enter {
                    chain: CHAIN,
                    from: "FORWARD",
                };
                state.edit(family, "filter", edit);
                return None;
            }
        };
        changed.then_some(family)
    }

    fn foreign(&self, state: &State) -> BTreeSet<(Family, &'static str)> {
        let mut found = BTreeSet::new();
        for family in Family::ALL {
            let rule = format!("-j {CHAIN}");
            if state.xtables.has_rule(family, "filter", "FORWARD", &rule) {
                found.insert((family, CHAIN));
            }
            let [at, real] = foreign_server(family);
            let served = state.ipvs.served_by(Protocol::Tcp.number(), at);
            if served.is_some_and(|served| served == [real]) {
                found.insert((family, SERVER));
            }
        }
        found
    }

    fn refuse(&self, state: &mut State, refused: Option<(usize, Errno)>) {
        let at = |(service, errno)| (errno, world::cluster_ip(service));
        state.ipvs.refuse(refused.map(at));
    }
}

#[test]
fn a_seed_reproduces_a_run() {
    super::assert_reproduced(STEPS / 4, OfIpvs(Engine::NfTables));
}

#[test]
fn random_runs_keep_what_is_promised_with_legacy_tables() {
    super::all("ipvs legacy", SEEDS, STEPS, OfIpvs(Engine::Legacy));
}

#[test]
fn random_runs_keep_what_is_promised_with_nf_tables() {
    super::all("ipvs nf_tables", SEEDS, STEPS, OfIpvs(Engine::NfTables));
}

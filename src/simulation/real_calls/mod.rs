//! Real calls, compared with the model: a mode applies the same Services in the kernel of a network
//! namespace and in the model. Each caller there must be answered by an endpoint, refused or left
//! without an answer, from an address of the node or its own, as the packet walker of the model
//! says.
//!
//! `TRIPOD_REAL_CALLS=50` tries that many maps of Services, one after the other,
//! `TRIPOD_REAL_CALLS_SEED=7` other ones than usual.

mod call;
mod expected;
mod flows;
mod network;
mod sides;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use net::Protocol;
use simulated::packet::{Outcome, Packet};
use testing::{Random, in_namespace};
use tokio::sync::mpsc;
use xtables::Engine;

use self::{
    call::Seen,
    expected::Expected,
    flows::Flow,
    network::{CALLERS, Caller, Network},
    sides::Sides,
};
use super::{
    iptables::OfIptables,
    ipvs::OfIpvs,
    nftables::OfNftables,
    probes,
    subject::Subject,
    world::{self, Called, SERVICES, Spec},
};

/// How many maps are tried, one after the other, unless the environment says otherwise.
const MAPS: u64 = 6;
/// How long an answer may take.
const ANSWERED: Duration = Duration::from_secs(8);
/// How long silence is observed, for all such calls at once.
const SILENT: Duration = Duration::from_millis(400);
/// Most calls until all possible outcomes must have been seen: one of five endpoints is
/// missed once in 10^14 times.
const CALLS: usize = 150;
/// Number of calls that show that a client stays on its endpoint.
const STICKY_CALLS: usize = 3;

/// A call of a Service.
#[derive(Clone, Copy, Debug)]
struct Probe {
    service: usize,
    called: Called,
    caller: &'static Caller,
}

impl Probe {
    fn all() -> Vec<Probe> {
        let mut all = Vec::new();
        for service in 0..SERVICES {
            for called in Called::ALL {
                let of_caller = |caller| Probe {
                    service,
                    called,
                    caller,
                };
                all.extend(CALLERS.iter().map(of_caller));
            }
        }
        all
    }

    fn protocol(&self) -> Protocol {
        world::protocol(self.service)
    }

    /// Returns the first packet of a call, from an address that made no call before.
    fn packet(&self, network: &Network) -> Packet {
        let source = network.source(self.caller, world::family(self.service));
        Packet {
            source,
            destination: probes::called_at(self.service, self.called),
            protocol: self.protocol().number(),
            input: self.caller.input(),
            established: None,
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls {:?}", self.caller.name, self.called)
    }
}

/// The node, its neighbours, and the present Services.
struct Run<S: Subject> {
    network: Network,
    sides: Sides<S>,
    random: Random,
    specs: Vec<Option<Arc<Spec>>>,
    flows: Vec<Flow>,
    /// How many calls were made.
    calls: usize,
}

impl<S: Subject> Run<S> {
    /// Changes some Services; if `first`, all of them.
    fn change(&mut self, first: bool) {
        let mut events = Vec::new();
        for number in 0..SERVICES {
            if !first && self.random.chance(300) {
                continue;
            }
            let next = match &self.specs[number] {
                Some(_) if self.random.chance(150) => None,
                Some(spec) if self.random.chance(600) => Some(spec.changed(&mut self.random)),
                _ => Some(Spec::random(number, &mut self.random)),
            };
            let next = next.map(Arc::new);
            match &next {
                Some(spec) => events.extend(spec.events()),
                None => events.extend(world::gone(number)),
            }
            self.specs[number] = next;
        }
        self.sides.bring_in_force(events);
    }

    /// Makes all calls.
    fn call(&mut self) {
        let mut silent = Vec::new();
        for probe in Probe::all() {
            let expected = self.expected(&probe);
            if expected.iter().all(|(one, _)| *one == Expected::Silence) {
                silent.push(probe);
            } else {
                self.call_until_all_was_seen(&probe, expected.len());
            }
        }
        let calls: Vec<_> = silent
            .into_iter()
            .map(|probe| (probe, probe.packet(&self.network)))
            .collect();
        self.calls += calls.len();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let seen = self.sides.run(async {
            for (probe, packet) in calls {
                let sender = sender.clone();
                let (protocol, source, to) = (probe.protocol(), packet.source, packet.destination);
                self.network.begin(probe.caller, async move {
                    let (_, seen) = call::call(protocol, source, to, SILENT).await;
                    let _ = sender.send((probe, seen));
                });
            }
            drop(sender);
            let mut all = Vec::new();
            while let Some(seen) = receiver.recv().await {
                all.push(seen);
            }
            all
        });
        for (probe, seen) in seen {
            if seen != Seen::Silence {
                self.fail(&probe, &format!("{seen:?}, and the model: nothing answers"));
            }
        }
    }

    /// Returns the possible results of a call now, according to the model.
    fn expected(&mut self, probe: &Probe) -> Vec<(Expected, Outcome)> {
        let packet = probe.packet(&self.network);
        self.sides.expected(&packet)
    }

    /// Calls until all `count` possible results were seen.
    fn call_until_all_was_seen(&mut self, probe: &Probe, count: usize) {
        let spec = self.specs[probe.service].clone();
        let is_sticky = spec.as_ref().is_some_and(|spec| spec.remembers());
        let may_hash = spec.as_ref().is_some_and(|spec| spec.may_hash());
        let sees_all = !is_sticky && !may_hash;
        let calls = match (sees_all, count) {
            (_, 1) => 1 + usize::from(is_sticky),
            (true, _) => CALLS,
            (false, _) => STICKY_CALLS,
        };
        let mut seen = BTreeSet::new();
        for _ in 0..calls {
            let packet = probe.packet(&self.network);
            let (client, outcome) = self.call_once(probe, &packet);
            drop(client);
            seen.extend(outcome);
            if sees_all && seen.len() == count {
                return;
            }
        }
        if sees_all {
            let expected = self.expected(probe);
            self.fail(probe, &format!("only {seen:?} of {expected:?} was seen"));
        }
    }

    /// Makes one call that must be answered; the model remembers it as the kernel does.
    fn call_once(
        &mut self,
        probe: &Probe,
        packet: &Packet,
    ) -> (Option<call::Client>, Option<Expected>) {
        self.calls += 1;
        let expected = self.sides.expected(packet);
        let (caller, protocol) = (probe.caller, probe.protocol());
        let (source, to) = (packet.source, packet.destination);
        let calls = async move { call::call(protocol, source, to, ANSWERED).await };
        let (client, seen) = self.sides.run(self.network.at(caller, calls));
        let own = self.network.own();
        let found = expected.iter().find(|(one, _)| one.is(&seen, source, &own));
        let Some((found, outcome)) = found else {
            self.fail(probe, &format!("{seen:?}, and the model: {expected:?}"));
        };
        self.sides.remember(world::family(probe.service), outcome);
        (client, Some(*found))
    }

    fn fail(&self, probe: &Probe, why: &str) -> ! {
        let spec = &self.specs[probe.service];
        let rules = self.sides.shown(world::family(probe.service));
        panic!("{probe} of {spec:?}: {why}\nrules:\n{rules}");
    }
}

/// Returns the number that the environment variable `name` has; without it, `usual`.
fn asked(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}

/// Tries maps of Services, each of which replaces the one before.
fn tried(subject: impl Subject, engine: Option<Engine>) {
    let maps = asked("TRIPOD_REAL_CALLS", MAPS);
    let seed = asked("TRIPOD_REAL_CALLS_SEED", 1);
    println!("again by TRIPOD_REAL_CALLS={maps} TRIPOD_REAL_CALLS_SEED={seed}");
    in_namespace(move || {
        let network = Network::new();
        let own = network.own();
        let mut run = Run {
            network,
            sides: Sides::new(subject, engine, own),
            random: Random::new(seed),
            specs: vec![None; SERVICES],
            flows: Vec::new(),
            calls: 0,
        };
        for map in 0..maps {
            println!("map {map}");
            run.change(map == 0);
            run.check_flows();
            run.call();
            run.open_flows();
        }
        println!("{} calls", run.calls);
    });
}

#[test]
fn nftables_mode_leads_real_calls_as_the_model_says() {
    tried(OfNftables, None);
}

#[test]
fn iptables_mode_leads_real_calls_as_the_model_says_with_nf_tables() {
    tried(OfIptables(Engine::NfTables), Some(Engine::NfTables));
}

#[test]
fn iptables_mode_leads_real_calls_as_the_model_says_with_legacy_tables() {
    tried(OfIptables(Engine::Legacy), Some(Engine::Legacy));
}

#[test]
#[ignore = "takes IPVS: make guest T=modes::guest::guest_full_real_calls"]
fn ipvs_mode_leads_real_calls_as_the_model_says() {
    tried(OfIpvs(Engine::Legacy), Some(Engine::Legacy));
}

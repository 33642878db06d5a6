//! Calls of clients.

use net::Protocol;
use simulated::{
    State,
    packet::{Disposition, Outcome, Packet},
};
use tokio::time::Instant;

use super::{
    subject::StaysOn,
    watch::{Sticky, Watch},
    world::{self, Flow, Probe},
};

impl Watch {
    /// Lets a client call. Records which endpoint it reached; its connection continues.
    pub(super) fn call(&mut self, state: &mut State) {
        // A Service that the kernel refuses is called more often than others.
        let of_refused = |probe: &&Probe| Some(probe.service) == self.refused;
        let mut some: Vec<&Probe> = self.probes.iter().filter(of_refused).collect();
        if some.is_empty() || self.random.chance(500) {
            some = self.probes.iter().collect();
        }
        let probe = some[self.random.below(some.len())].clone();
        self.call_by(state, probe);
    }

    /// Lets all UDP clients call.
    pub(super) fn call_over_udp(&mut self, state: &mut State) {
        let is_udp = |probe: &&Probe| world::protocol(probe.service) == Protocol::Udp;
        let probes: Vec<Probe> = self.probes.iter().filter(is_udp).cloned().collect();
        for probe in probes {
            self.call_by(state, probe);
        }
    }

    fn call_by(&mut self, state: &mut State, probe: Probe) {
        let family = world::family(probe.service);
        let found = self.outcomes(state, probe.service, &probe.packet);
        let found: Vec<_> = found.into_iter().collect();
        let Outcome {
            disposition,
            updates,
            ..
        } = &found[self.random.below(found.len())];
        let Disposition::Passes(to) = *disposition else {
            return;
        };
        for update in updates {
            self.rules.remember(state, family, update);
        }
        if !updates.is_empty() {
            let client = (probe.service, probe.packet.source.ip());
            let is_of_client = |one: &Probe| (one.service, one.packet.source.ip()) == client;
            match self.rules.stays_on() {
                StaysOn::OfKind => {}
                StaysOn::Any => drop(self.visited.entry(client).or_default().insert(to)),
                StaysOn::Last => {
                    let all = self.sticky.iter_mut();
                    let of_client = all.filter(|sticky| is_of_client(&sticky.probe));
                    of_client.for_each(|sticky| sticky.on = to);
                }
            }
            let same = |one: &Sticky| one.probe.packet == probe.packet;
            self.sticky.retain(|sticky| !same(sticky));
        }
        // The rules that send clients back to their endpoint may be missing.
        let is_damaged =
            self.damaged.get(family).is_some() || self.histories[probe.service].is_damaged;
        if !updates.is_empty() && !is_damaged {
            self.sticky.push(Sticky {
                probe: probe.clone(),
                on: to,
                until: Instant::now() + world::AFFINITY,
            });
        }
        if world::protocol(probe.service) == Protocol::Udp {
            let tuple = |source, destination| netlink::conntrack::flows::Tuple {
                source,
                destination,
            };
            let packet = &probe.packet;
            let original = tuple(packet.source, packet.destination);
            let led = self.rules.tracked(state, family, packet, to);
            let reply = tuple(led, packet.source);
            state.conntrack.enter(packet.protocol, original, reply);
        }
        self.record(|| format!("{:?} calls {:?} and gets {to}", probe.caller, probe.packet));
        if to == probe.packet.destination {
            return;
        }
        if self.flows.len() == 6 {
            let Flow { packet, .. } = self.flows.remove(0);
            let mut others = self.flows.iter();
            if let Some(led) = packet.established
                && others.all(|other| other.packet != packet)
            {
                self.rules.disconnect(state, &packet, led);
            }
        }
        self.rules.connect(state, &probe.packet, to);
        let open = self.rules.accept(&probe.packet);
        self.flows.push(Flow {
            open,
            service: probe.service,
            called: probe.called,
            caller: probe.caller,
            packet: Packet {
                established: Some(to),
                ..probe.packet
            },
        });
    }
}

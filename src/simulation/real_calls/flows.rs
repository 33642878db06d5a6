//! Connections, and UDP clients that keep using their socket, while Services change.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use net::Protocol;
use netlink::conntrack::flows::Tuple;
use simulated::packet::Packet;

use super::{
    Probe, Run, SILENT,
    call::{Client, Seen},
    expected::Expected,
};
use crate::simulation::{subject::Subject, world};

/// How many are open at once.
const FLOWS: usize = 12;
/// The kernel forgets UDP clients that were silent for longer
/// (`nf_conntrack_udp_timeout`).
const REMEMBERED: Duration = Duration::from_secs(20);

/// A client with its socket.
pub(super) struct Flow {
    probe: Probe,
    client: Client,
    packet: Packet,
    /// The endpoint that answers, and the address that it sees.
    ends: (SocketAddr, SocketAddr),
    asked: Instant,
}

impl<S: Subject> Run<S> {
    /// Opens some flows, only to endpoints: a client connected to another host at an address that
    /// later becomes a Service's continues by the route that its socket remembers.
    pub(super) fn open_flows(&mut self) {
        let all = Probe::all();
        while self.flows.len() < FLOWS {
            let probe = all[self.random.below(all.len())];
            let answers = |(one, _): &(Expected, _)| match one {
                Expected::Answer(by, _) => by.port() == world::TARGET,
                Expected::Refused | Expected::Silence => false,
            };
            let packet = probe.packet(&self.network);
            let expected = self.sides.expected(&packet);
            if !expected.iter().all(answers) {
                continue;
            }
            let (Some(mut client), _) = self.call_once(&probe, &packet) else {
                continue;
            };
            let Seen::Answer(by, from) = self.sides.run(client.ask(super::ANSWERED)) else {
                self.fail(&probe, "an open connection is not answered again");
            };
            self.enter(&packet, by, from);
            self.flows.push(Flow {
                probe,
                client,
                packet: Packet {
                    established: Some(by),
                    ..packet
                },
                ends: (by, from),
                asked: Instant::now(),
            });
        }
    }

    /// Enters a flow in the model.
    fn enter(&self, packet: &Packet, by: SocketAddr, from: SocketAddr) {
        self.sides.connect(packet, by);
        let original = Tuple {
            source: packet.source,
            destination: packet.destination,
        };
        let reply = Tuple {
            source: by,
            destination: from,
        };
        self.sides.model(|state| {
            state.conntrack.enter(packet.protocol, original, reply);
        });
    }

    /// Returns whether the model still has the entry of a flow.
    fn is_tracked(&self, packet: &Packet) -> bool {
        self.sides.model(|state| {
            let mut flows = state.conntrack.flows();
            flows.any(|flow| {
                let of = (flow.original.source, flow.original.destination);
                of == (packet.source, packet.destination)
            })
        })
    }

    /// Checks that each flow continues where the model says.
    pub(super) fn check_flows(&mut self) {
        for mut flow in std::mem::take(&mut self.flows) {
            let is_udp = flow.probe.protocol() == Protocol::Udp;
            if is_udp && flow.asked.elapsed() > REMEMBERED {
                continue;
            }
            self.calls += 1;
            if is_udp && !self.is_tracked(&flow.packet) {
                self.check_new(flow);
                continue;
            }
            let (by, from) = flow.ends;
            let expected = self.sides.expected(&flow.packet);
            let goes_on = |(one, _): &(Expected, _)| match one {
                Expected::Answer(to, _) => *to == by,
                Expected::Refused | Expected::Silence => false,
            };
            if is_udp && !expected.iter().all(goes_on) {
                self.check_new(flow);
                continue;
            }
            let shown = expected.iter().map(|(one, _)| match one {
                Expected::Answer(to, _) if *to == by => Seen::Answer(by, from),
                // Another host does not know of such a connection.
                Expected::Answer(..) | Expected::Refused => Seen::Refused,
                Expected::Silence => Seen::Silence,
            });
            let mut shown: Vec<Seen> = shown.collect();
            shown.dedup();
            let patience = if shown == [Seen::Silence] {
                SILENT
            } else {
                super::ANSWERED
            };
            let seen = self.sides.run(flow.client.ask(patience));
            if !shown.contains(&seen) {
                let packet = &flow.packet;
                let why = format!("open as {packet:?}: {seen:?}, and the model: {shown:?}");
                self.fail(&flow.probe, &why);
            }
            if seen == Seen::Answer(by, from) {
                flow.asked = Instant::now();
                self.flows.push(flow);
            }
        }
    }

    /// Checks that a UDP client whose entry was deleted, or whose flow does not continue, is
    /// treated as a new one.
    fn check_new(&mut self, mut flow: Flow) {
        let packet = Packet {
            established: None,
            ..flow.packet
        };
        let expected = self.sides.expected(&packet);
        let is_silent = expected.iter().all(|(one, _)| *one == Expected::Silence);
        let patience = if is_silent { SILENT } else { super::ANSWERED };
        let seen = self.sides.run(flow.client.ask(patience));
        let own = self.network.own();
        let found = expected
            .iter()
            .find(|(one, _)| one.is(&seen, packet.source, &own));
        let Some((_, outcome)) = found else {
            let why = format!("again as {packet:?}: {seen:?}, and the model: {expected:?}");
            self.fail(&flow.probe, &why);
        };
        self.sides
            .remember(world::family(flow.probe.service), outcome);
        if let Seen::Answer(by, from) = seen {
            self.enter(&packet, by, from);
            flow.packet.established = Some(by);
            flow.ends = (by, from);
            flow.asked = Instant::now();
            self.flows.push(flow);
        }
    }
}

//! Puts the steps of packets and the changes of conntrack together: which connection
//! began, what it met, and where it was sent. Pure.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::{
    report::{self, Outcome, Report},
    words::End,
};
use crate::kernel::{
    conntrack::{
        events::{Change, Event},
        flows::Flow,
    },
    nftables::{Headers, TraceTarget},
};

/// So long after its last step a packet's way has ended, be that not said: the kernel
/// needs microseconds.
const ENDED: Duration = Duration::from_millis(500);

/// What is known of a first packet.
#[derive(Debug)]
struct Way {
    input: Option<String>,
    steps: Vec<report::Step>,
    translated_to: Option<SocketAddr>,
    last: Instant,
}

/// Which packet a step is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Id {
    /// That of this number, by which nf_tables tell packets apart.
    Number(u32),
    /// The one that comes from there: the legacy tables have no number.
    From(SocketAddr),
}

/// A step of a packet, in words.
#[derive(Debug)]
pub(super) struct Step {
    /// Which packet it is of.
    pub id: Id,
    /// Headers of the packet at this step; `None`: the step has none.
    pub packet: Option<Headers>,
    /// Name of the interface through which it arrived; `None`: this node sent it, or it is not
    /// known.
    pub input: Option<String>,
    /// The words, and whether its way ends; `None`: not worth a line.
    pub words: Option<(report::Step, Option<End>)>,
}

/// What the running proxy does with connections, as far as the endings of packets follow
/// from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Sockets of it relay them.
    pub relays: bool,
    /// The destination is one that it serves, where it relays.
    pub serves: bool,
    /// Endpoints that it connects to, where it relays and does not tell for which client.
    pub endpoints: Vec<SocketAddr>,
    /// The node's addresses.
    pub own: Vec<IpAddr>,
}

/// What is known of the connections that begin.
pub(super) struct Stories {
    target: TraceTarget,
    proxy: Proxy,
    /// Packets whose way is not known to its end, by their number and by client.
    packets: HashMap<Id, SocketAddr>,
    ways: HashMap<SocketAddr, Way>,
    /// Clients whose packets came to where the proxy relays, which nothing has answered yet,
    /// and when.
    reached: HashMap<SocketAddr, Instant>,
    /// Clients that were reported.
    reported: HashMap<SocketAddr, Outcome>,
}

impl Stories {
    pub(super) fn new(target: TraceTarget, proxy: Proxy) -> Stories {
        Stories {
            target,
            proxy,
            packets: HashMap::new(),
            ways: HashMap::new(),
            reached: HashMap::new(),
            reported: HashMap::new(),
        }
    }

    /// Adds a step; returns the connection if that ends it.
    pub(super) fn step(&mut self, step: Step, now: Instant) -> Option<Report> {
        let (id, packet) = (step.id, step.packet);
        let begins = packet.filter(|packet| self.is_meant(packet));
        let client = match begins {
            Some(packet) => packet.source,
            None => *self.packets.get(&id)?,
        };
        // It sends once more what was refused, or another datagram.
        let again = match self.reported.get(&client) {
            Some(Outcome::Refused | Outcome::Dropped) => true,
            Some(_) => self.target.protocol != crate::net::Protocol::Tcp,
            None => false,
        };
        if again {
            return None;
        }
        self.packets.insert(id, client);
        let way = self.ways.entry(client).or_insert_with(|| Way {
            input: None,
            steps: Vec::new(),
            translated_to: None,
            last: now,
        });
        way.last = now;
        way.input = way.input.take().or(step.input);
        if let Some(packet) = packet.filter(|packet| packet.destination != self.target.to) {
            way.translated_to = Some(packet.destination);
        }
        let (words, end) = step.words?;
        let by = words.at.clone();
        way.steps.push(words);
        let outcome = match end? {
            End::Refused => Outcome::Refused,
            End::Dropped => Outcome::Dropped,
        };
        Some(self.report(client, outcome, |connection| connection.by = Some(by)))
    }

    fn is_meant(&self, packet: &Headers) -> bool {
        let TraceTarget { to, protocol, from } = self.target;
        packet.destination == to
            && packet.protocol == protocol.number()
            && from.is_none_or(|from| packet.source.ip() == from)
    }

    /// Adds a change of conntrack; returns what is to be said of it. `real_server` finds
    /// where IPVS sends a client, where conntrack does not say.
    pub(super) fn change(
        &mut self,
        event: &Event,
        now: Instant,
        real_server: impl FnOnce(SocketAddr) -> Option<SocketAddr>,
    ) -> Option<Report> {
        let flow = &event.flow;
        let is_meant = self.is_meant(&Headers {
            protocol: flow.protocol,
            source: flow.original.source,
            destination: flow.original.destination,
        });
        if !is_meant {
            return self.dialed(event).map(Report::Dialed);
        }
        let client = flow.original.source;
        let state = flow.state.name(flow.protocol).to_owned();
        let ended = event.change == Change::Destroy;
        if self.reached.contains_key(&client) {
            return self.answer(flow, ended);
        }
        if event.change == Change::New && self.is_relayed(flow) {
            self.reached.insert(client, now);
            return self.answer(flow, ended);
        }
        if event.change == Change::New {
            let translated_to = translated_to(flow);
            let (outcome, endpoint) = self.outcome(translated_to, || real_server(client));
            return Some(self.report(client, outcome, |connection| {
                connection.endpoint = endpoint.map(|at| at.to_string());
                connection.state = Some(state);
            }));
        }
        let known = if ended {
            self.reported.remove(&client)
        } else {
            self.reported.get(&client).copied()
        };
        known.map(|_| {
            Report::Change(report::Change {
                client: client.to_string(),
                state,
                ended,
            })
        })
    }

    /// Returns the connection that came to where the proxy relays if `flow`, which may have
    /// ended, says what became of it: whether a socket takes it is known by its answer.
    fn answer(&mut self, flow: &Flow, ended: bool) -> Option<Report> {
        let is_tcp = self.target.protocol == crate::net::Protocol::Tcp;
        let outcome = match (flow.state.is_answered(), ended) {
            (true, _) => Outcome::Relayed,
            // What ends an entry that soon is a reset (`nf_conntrack_tcp_packet` of
            // linux/net/netfilter/nf_conntrack_proto_tcp.c).
            (false, true) if is_tcp => Outcome::Refused,
            (false, true) => Outcome::Unanswered,
            (false, false) => return None,
        };
        let state = flow.state.name(flow.protocol).to_owned();
        Some(self.report(flow.original.source, outcome, |connection| {
            connection.by = (outcome == Outcome::Refused).then(|| "a reset".to_owned());
            connection.state = Some(state);
        }))
    }

    /// Returns whether the packets of `flow` are led to sockets of the proxy.
    fn is_relayed(&self, flow: &Flow) -> bool {
        self.proxy.relays && (self.proxy.serves || translated_to(flow).is_some())
    }

    /// Returns the connection of the proxy's to an endpoint that the event is of.
    fn dialed(&self, event: &Event) -> Option<report::Dialed> {
        let flow = &event.flow;
        let (from, endpoint) = (flow.original.source, flow.original.destination);
        let is_one = self.proxy.relays
            && event.change == Change::New
            && flow.protocol == self.target.protocol.number()
            && self.proxy.endpoints.contains(&endpoint)
            && self.proxy.own.contains(&from.ip());
        is_one.then(|| report::Dialed {
            from: Some(from.to_string()),
            endpoint: endpoint.to_string(),
            client: None,
            to: None,
            error: None,
        })
    }

    /// Returns the clients whose packets ended their way without a word of it, all with
    /// `now` being none.
    pub(super) fn overdue(&mut self, now: Option<Instant>) -> Vec<SocketAddr> {
        let has_ended = |last: Instant| now.is_none_or(|now| now >= last + ENDED);
        let reached = self.reached.iter();
        let reached = reached.map(|(client, at)| (client, *at));
        let ways = self.ways.iter().map(|(client, way)| (client, way.last));
        // Those that reached the proxy have their time from then on.
        let ways = ways.filter(|(client, _)| !self.reached.contains_key(client));
        let ended = reached.chain(ways).filter(|(_, last)| has_ended(*last));
        let ended: Vec<SocketAddr> = ended.map(|(client, _)| *client).collect();
        let (again, new): (Vec<_>, Vec<_>) = ended
            .into_iter()
            .partition(|client| self.reported.contains_key(client));
        for client in again {
            // What it sent once more is of the connection that was reported.
            self.forget(client);
        }
        new
    }

    /// Returns the connection of a client that is overdue; `held` is what conntrack holds
    /// of it.
    pub(super) fn end(
        &mut self,
        client: SocketAddr,
        held: Option<&Flow>,
        real_server: impl FnOnce(SocketAddr) -> Option<SocketAddr>,
    ) -> Report {
        let by_nat = held.and_then(translated_to);
        let by_nat = by_nat.or_else(|| self.ways.get(&client)?.translated_to);
        let (outcome, endpoint) = match (held, by_nat) {
            (None, _) if self.reached.contains_key(&client) => (Outcome::Unanswered, None),
            (Some(flow), _) if self.is_relayed(flow) && flow.state.is_answered() => {
                (Outcome::Relayed, None)
            }
            (Some(flow), _) if self.is_relayed(flow) => (Outcome::Unanswered, None),
            (None, _) if self.proxy.relays => (Outcome::Unknown, None),
            (None, None) => (Outcome::Unknown, None),
            _ => match self.outcome(by_nat, || real_server(client)) {
                (Outcome::Forwarded, at) if held.is_some() => (Outcome::ForwardedAsBefore, at),
                other => other,
            },
        };
        let state = held.map(|flow| flow.state.name(flow.protocol).to_owned());
        self.report(client, outcome, |connection| {
            connection.endpoint = endpoint.map(|at| at.to_string());
            connection.state = state;
        })
    }

    fn outcome(
        &self,
        translated_to: Option<SocketAddr>,
        real_server: impl FnOnce() -> Option<SocketAddr>,
    ) -> (Outcome, Option<SocketAddr>) {
        match translated_to.or_else(real_server) {
            Some(endpoint) => (Outcome::Forwarded, Some(endpoint)),
            None => (Outcome::NotTranslated, None),
        }
    }

    fn forget(&mut self, client: SocketAddr) -> Option<Way> {
        self.packets.retain(|_, of| *of != client);
        self.ways.remove(&client)
    }

    fn report(
        &mut self,
        client: SocketAddr,
        outcome: Outcome,
        fill: impl FnOnce(&mut report::Connection),
    ) -> Report {
        let way = self.forget(client);
        self.reached.remove(&client);
        self.reported.insert(client, outcome);
        let (input, steps) = way.map_or((None, Vec::new()), |way| (way.input, way.steps));
        let mut connection = report::Connection {
            client: client.to_string(),
            input,
            steps,
            outcome,
            endpoint: None,
            by: None,
            state: None,
        };
        fill(&mut connection);
        Report::Connection(connection)
    }
}

/// Returns where nat leads the packets of `flow`, if anywhere.
fn translated_to(flow: &Flow) -> Option<SocketAddr> {
    let answers = flow.reply.source;
    (answers != flow.original.destination).then_some(answers)
}

#[cfg(test)]
mod tests;

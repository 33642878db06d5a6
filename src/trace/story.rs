//! Combines the steps of packets with the changes of conntrack: the connections that began, the
//! rules that they passed, and their endpoints. Pure.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use netlink::conntrack::{
    events::{Change, Event},
    flows::Flow,
};
use nftables::{Headers, TraceTarget};

use super::report::{self, Outcome, Report};

/// A packet's path counts as ended this long after its last step, even if no end was reported: the
/// kernel needs microseconds.
const ENDED: Duration = Duration::from_millis(500);

/// The path of a connection's first packet, as far as it is known.
#[derive(Debug)]
struct Way {
    input: Option<String>,
    steps: Vec<report::Step>,
    translated_to: Option<SocketAddr>,
    last: Instant,
}

/// A step of a packet, in words.
#[derive(Debug)]
pub(super) struct Step {
    /// The number by which nf_tables distinguishes packets.
    pub id: u32,
    /// Headers of the packet at this step; `None` if the step has none.
    pub packet: Option<Headers>,
    /// Name of the interface through which it arrived; `None` if this node sent it, or it is not
    /// known.
    pub input: Option<String>,
    /// The words, and the end of the packet's path if this step is one; `None` if not worth a line.
    pub words: Option<(report::Step, Option<Outcome>)>,
}

/// The behaviour of the running proxy, as far as the outcome of packets depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Whether its sockets relay them.
    pub relays: bool,
    /// Whether it serves the destination, if it relays.
    pub serves: bool,
    /// Endpoints to which it connects, if it relays and does not report for which client.
    pub endpoints: Vec<SocketAddr>,
    /// The node's addresses.
    pub own: Vec<IpAddr>,
}

/// Connections that began, as far as they are known.
pub(super) struct Stories {
    target: TraceTarget,
    proxy: Proxy,
    /// The client of each packet whose end is not known yet.
    packets: HashMap<u32, SocketAddr>,
    ways: HashMap<SocketAddr, Way>,
    /// Clients whose packets arrived at the relay of the proxy and have not been answered yet, each
    /// with the time.
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

    /// Adds a step. Returns the connection if the step ends it.
    pub(super) fn step(&mut self, step: Step, now: Instant) -> Option<Report> {
        let (id, packet) = (step.id, step.packet);
        let begins = packet.filter(|packet| self.is_meant(packet));
        let client = match begins {
            Some(packet) => packet.source,
            None => *self.packets.get(&id)?,
        };
        // The client repeats a refused connection, or sends another datagram.
        let again = match self.reported.get(&client) {
            Some(Outcome::Refused | Outcome::Dropped) => true,
            Some(_) => self.target.protocol != net::Protocol::Tcp,
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
        Some(self.report(client, end?, |connection| connection.by = Some(by)))
    }

    fn is_meant(&self, packet: &Headers) -> bool {
        let TraceTarget { to, protocol, from } = self.target;
        packet.destination == to
            && packet.protocol == protocol.number()
            && from.is_none_or(|from| packet.source.ip() == from)
    }

    /// Adds a change of conntrack. Returns a report, if it results in one. `real_server` finds
    /// where IPVS sends a client, if conntrack does not show that.
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
            acknowledges: None,
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
            let endpoint = translated_to(flow).or_else(|| real_server(client));
            let outcome = endpoint.map_or(Outcome::NotTranslated, |_| Outcome::Forwarded);
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

    /// Returns the connection that arrived at the relay of the proxy, if `flow`, which may have
    /// ended, shows its outcome: only an answer shows that a socket accepts it.
    fn answer(&mut self, flow: &Flow, ended: bool) -> Option<Report> {
        let is_tcp = self.target.protocol == net::Protocol::Tcp;
        let outcome = match (flow.state.is_answered(), ended) {
            (true, _) => Outcome::Relayed,
            // An entry that ends this soon was ended by a reset (`nf_conntrack_tcp_packet` of
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

    /// Returns whether the packets of `flow` are sent to sockets of the proxy.
    fn is_relayed(&self, flow: &Flow) -> bool {
        self.proxy.relays && (self.proxy.serves || translated_to(flow).is_some())
    }

    /// Recognizes a connection of the proxy to an endpoint in an event.
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

    /// Returns the clients whose packets' paths have ended although no step said so; all clients if
    /// `now` is `None`.
    pub(super) fn overdue(&mut self, now: Option<Instant>) -> Vec<SocketAddr> {
        let has_ended = |last: Instant| now.is_none_or(|now| now >= last + ENDED);
        let reached = self.reached.iter();
        let reached = reached.map(|(client, at)| (client, *at));
        let ways = self.ways.iter().map(|(client, way)| (client, way.last));
        // For clients that reached the proxy the time counts from that moment.
        let ways = ways.filter(|(client, _)| !self.reached.contains_key(client));
        let ended = reached.chain(ways).filter(|(_, last)| has_ended(*last));
        let ended: Vec<SocketAddr> = ended.map(|(client, _)| *client).collect();
        let (again, new): (Vec<_>, Vec<_>) = ended
            .into_iter()
            .partition(|client| self.reported.contains_key(client));
        for client in again {
            // Repeated packets belong to the connection that was reported.
            self.remove(client);
        }
        new
    }

    /// Reports the connection of an overdue client; `held` is its entry in conntrack.
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
            _ => match by_nat.or_else(|| real_server(client)) {
                None => (Outcome::NotTranslated, None),
                at if held.is_some() => (Outcome::ForwardedAsBefore, at),
                at => (Outcome::Forwarded, at),
            },
        };
        let state = held.map(|flow| flow.state.name(flow.protocol).to_owned());
        self.report(client, outcome, |connection| {
            connection.endpoint = endpoint.map(|at| at.to_string());
            connection.state = state;
        })
    }

    fn remove(&mut self, client: SocketAddr) -> Option<Way> {
        self.packets.retain(|_, of| *of != client);
        self.ways.remove(&client)
    }

    fn report(
        &mut self,
        client: SocketAddr,
        outcome: Outcome,
        fill: impl FnOnce(&mut report::Connection),
    ) -> Report {
        let way = self.remove(client);
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

/// Returns the destination to which nat translates the packets of `flow`, if any.
fn translated_to(flow: &Flow) -> Option<SocketAddr> {
    let answers = flow.reply.source;
    (answers != flow.original.destination).then_some(answers)
}

#[cfg(test)]
mod tests;

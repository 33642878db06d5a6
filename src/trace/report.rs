//! The reports; each is a line of `--output=json`. Fields may be added to version 1; none is
//! removed or changes its meaning.

use serde::Serialize;

/// The traced destination, printed first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Start {
    /// Destination of the packets, with its port.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Their source; `None`: any.
    pub from: Option<String>,
    /// The mode of the running proxy; `None` if it does not answer.
    pub mode: Option<String>,
    /// `namespace/name:port` of the ServicePort to which the destination belongs; `None` if it
    /// belongs to none, or this is not known.
    pub service_port: Option<String>,
    /// Why the destination belongs to it, in the words of `tripod explain`.
    pub steps: Vec<String>,
    /// Packets and events that are invisible here, with the reasons.
    pub unseen: Vec<String>,
}

/// A connection or UDP client, from its first packet to its destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection {
    /// Source address and port of the client.
    pub client: String,
    /// The interface by which the packet arrived; `None` if this node sent it, or this is not
    /// known.
    pub input: Option<String>,
    /// The rules that it passed, in order.
    pub steps: Vec<Step>,
    /// Outcome of the connection.
    pub outcome: Outcome,
    /// The endpoint to which it was sent; `None` if it was not translated.
    pub endpoint: Option<String>,
    /// The rule or chain that refused or dropped it; `None` if none did, or it is not known.
    pub by: Option<String>,
    /// Its state in conntrack; `None` if conntrack has no entry of it.
    pub state: Option<String>,
}

/// A rule that a packet passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Step {
    /// The rule, or the end of a chain.
    pub at: String,
    /// The verdict of the rule, in the words of `nft`.
    pub verdict: String,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// It was sent to an endpoint.
    Forwarded,
    /// It was sent to an endpoint by an existing entry of conntrack, without a new choice.
    ForwardedAsBefore,
    /// It reached a socket of Tripod, which relays it or ends it.
    Relayed,
    /// It arrived at the relay of Tripod, and has not been answered yet.
    Unanswered,
    /// It continued to its destination, untranslated.
    NotTranslated,
    /// It was refused with an answer.
    Refused,
    /// It was dropped without an answer.
    Dropped,
    /// Neither a rule nor conntrack shows its outcome.
    Unknown,
}

/// A later change of a reported connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    /// Source address and port of the client.
    pub client: String,
    /// Its state in conntrack; for an ended connection, its last state.
    pub state: String,
    /// Whether its entry in conntrack is gone.
    pub ended: bool,
}

/// A connection of Tripod to an endpoint, in userspace mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dialed {
    /// The address and port that Tripod sends from; `None` if the endpoint was not reached, or this
    /// is not known.
    pub from: Option<String>,
    /// Address and port of the endpoint.
    pub endpoint: String,
    /// The client for which it was made; `None` if the running proxy does not report it.
    pub client: Option<String>,
    /// The destination to which that client sends; `None` if it is not known.
    pub to: Option<String>,
    /// Why the endpoint did not accept the client; `None` if it did, or this is not known.
    pub error: Option<String>,
}

/// The totals, printed last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Number of reported connections.
    pub connections: usize,
    /// Endpoints, and the number of connections that were sent to each.
    pub endpoints: Vec<Counted>,
    /// Rules that refused connections, and the number for each.
    pub refused: Vec<Counted>,
    /// Rules that dropped connections, and the number for each.
    pub dropped: Vec<Counted>,
    /// Number of connections that reached sockets of Tripod.
    pub relayed: usize,
    /// In userspace mode: endpoints, and how often Tripod connected to each.
    pub dialed: Vec<Counted>,
    /// Endpoints that did not accept a client, and how often.
    pub failed: Vec<Counted>,
    /// Number of connections that arrived at the relay of Tripod and were not answered.
    pub unanswered: usize,
    /// Number of connections that were not translated.
    pub not_translated: usize,
    /// Number of connections with an unknown outcome.
    pub unknown: usize,
    /// Whether packets arrived faster than they were read, so that some are missing here.
    pub lost: bool,
}

/// Number of connections of one endpoint or rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counted {
    /// An endpoint or a rule.
    pub what: String,
    /// Number of connections that were sent to the endpoint, or refused or dropped by the rule.
    pub connections: usize,
}

/// A line of the output; its field `kind` names the variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind")]
pub(super) enum Report {
    #[serde(rename = "TraceStart")]
    Start(Start),
    #[serde(rename = "TracedConnection")]
    Connection(Connection),
    #[serde(rename = "TracedChange")]
    Change(Change),
    #[serde(rename = "TracedDial")]
    Dialed(Dialed),
    #[serde(rename = "TraceSummary")]
    Summary(Summary),
}

impl Summary {
    /// Adds a report to the totals.
    pub(super) fn add(&mut self, report: &Report) {
        match report {
            Report::Connection(connection) => self.add_connection(connection),
            Report::Dialed(dialed) if dialed.error.is_some() => {
                count(&mut self.failed, &dialed.endpoint);
            }
            Report::Dialed(dialed) => count(&mut self.dialed, &dialed.endpoint),
            Report::Start(_) | Report::Change(_) | Report::Summary(_) => {}
        }
    }

    fn add_connection(&mut self, connection: &Connection) {
        self.connections += 1;
        let at = connection.endpoint.as_deref().unwrap_or("-");
        let by = connection.by.as_deref().unwrap_or("-");
        match connection.outcome {
            Outcome::Forwarded | Outcome::ForwardedAsBefore => count(&mut self.endpoints, at),
            Outcome::Relayed => self.relayed += 1,
            Outcome::Unanswered => self.unanswered += 1,
            Outcome::NotTranslated => self.not_translated += 1,
            Outcome::Refused => count(&mut self.refused, by),
            Outcome::Dropped => count(&mut self.dropped, by),
            Outcome::Unknown => self.unknown += 1,
        }
    }
}

fn count(counted: &mut Vec<Counted>, what: &str) {
    match counted.iter_mut().find(|one| one.what == what) {
        Some(one) => one.connections += 1,
        None => counted.push(Counted {
            what: what.to_owned(),
            connections: 1,
        }),
    }
}

//! What is printed: each a line of `--output=json`. Fields may be added to version 1,
//! none is removed or changes its meaning.

use serde::Serialize;

/// What is followed, printed first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Start {
    /// Destination of the packets, with its port.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Their source; `None`: any.
    pub from: Option<String>,
    /// The mode of the running proxy; `None`: it does not answer.
    pub mode: Option<String>,
    /// `namespace/name:port` of the ServicePort to which the destination belongs; `None`: to none,
    /// or this is not known.
    pub service_port: Option<String>,
    /// Why they are for it, as `tripod explain` says it.
    pub steps: Vec<String>,
    /// What cannot be seen here, and why.
    pub unseen: Vec<String>,
}

/// A connection, or a UDP client, from its first packet to where that was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection {
    /// The address and port that the client sends from.
    pub client: String,
    /// The interface by which the packet came; `None`: this node sent it, or that is not
    /// known.
    pub input: Option<String>,
    /// The rules that it met, in their order.
    pub steps: Vec<Step>,
    /// Outcome of the connection.
    pub outcome: Outcome,
    /// The endpoint to which it was sent; `None`: it was not translated.
    pub endpoint: Option<String>,
    /// The rule or chain that refused or dropped it; `None`: none did, or it is not known.
    pub by: Option<String>,
    /// Its state in conntrack; `None`: conntrack has no entry of it.
    pub state: Option<String>,
}

/// A rule that a packet met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Step {
    /// The rule, or the end of a chain.
    pub at: String,
    /// What the rule had become of the packet, in the words of `nft`.
    pub verdict: String,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// It was sent to an endpoint.
    Forwarded,
    /// The same, by an entry that conntrack had before: no rule chose.
    ForwardedAsBefore,
    /// A socket of Tripod has it, which relays it or ends it.
    Relayed,
    /// It came to where Tripod relays, and nothing has answered it yet.
    Unanswered,
    /// It went on to its destination, untranslated.
    NotTranslated,
    /// It was answered that it is refused.
    Refused,
    /// It was dropped without an answer.
    Dropped,
    /// Neither a rule nor conntrack says.
    Unknown,
}

/// What became of a connection that was reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    /// The address and port that the client sends from.
    pub client: String,
    /// Its state, as conntrack has it; of one that ended, its last.
    pub state: String,
    /// Conntrack has it no more.
    pub ended: bool,
}

/// A connection of Tripod's to an endpoint, in userspace mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dialed {
    /// The address and port that Tripod sends from; `None`: the endpoint was not reached, or that
    /// is not known.
    pub from: Option<String>,
    /// Address and port of the endpoint.
    pub endpoint: String,
    /// The client that it is for; `None`: the running proxy does not tell.
    pub client: Option<String>,
    /// Where that client sends, if it is known.
    pub to: Option<String>,
    /// Why the endpoint did not take the client; `None`: it did, or that is not known.
    pub error: Option<String>,
}

/// What came of it all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Number of reported connections.
    pub connections: usize,
    /// To which endpoints how many were sent.
    pub endpoints: Vec<Counted>,
    /// Which rules refused how many.
    pub refused: Vec<Counted>,
    /// Which rules dropped how many.
    pub dropped: Vec<Counted>,
    /// How many came to sockets of Tripod.
    pub relayed: usize,
    /// In userspace mode, to which endpoints Tripod connected how often.
    pub dialed: Vec<Counted>,
    /// Which endpoints did not take a client, and how often.
    pub failed: Vec<Counted>,
    /// How many came to where Tripod relays and were not answered.
    pub unanswered: usize,
    /// How many were not translated.
    pub not_translated: usize,
    /// Of how many it is not known what became of them.
    pub unknown: usize,
    /// Packets came faster than they were read, and some are missing here.
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

/// A line of the output, whose field `kind` says which.
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
    /// Counts what is reported.
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

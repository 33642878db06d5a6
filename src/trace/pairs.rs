//! Matches the proxy's own connections to endpoints with clients, in userspace mode: the proxy
//! reports them on request. The state here is pure.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use net::Protocol;

use super::report::{Connection, Dialed, Outcome, Report};
use crate::{ask, status_api::Dial};

/// How long the running proxy may take for the first answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it may take for later answers, while the kernel's reports wait to be read.
const BRIEFLY: Duration = Duration::from_millis(300);

/// Maximum number of attempts that wait until their client is reported: most belong to other
/// addresses of the ServicePort. One answer of the proxy has at most this many.
const MOST_WAITING: usize = 4096;

/// Asks the running proxy for its attempts to reach endpoints of a ServicePort.
#[derive(Debug)]
pub(super) struct Asker {
    socket: PathBuf,
    service_port: String,
    protocol: Protocol,
    next: Option<u64>,
}

impl Asker {
    /// Asks at `socket` for attempts from now on.
    ///
    /// # Errors
    /// Says why the proxy does not report them.
    pub(super) async fn begin(
        socket: PathBuf,
        service_port: String,
        protocol: Protocol,
    ) -> Result<Asker, String> {
        let mut asker = Asker {
            socket,
            service_port,
            protocol,
            next: None,
        };
        asker.ask().await?;
        Ok(asker)
    }

    /// Returns the attempts since the last call, and whether some are missing.
    ///
    /// # Errors
    /// Says why the proxy does not answer; a later answer, if there is one, then includes the
    /// attempts.
    pub(super) async fn ask(&mut self) -> Result<(Vec<Dial>, bool), String> {
        let of = (&*self.service_port, self.protocol.name());
        let patience = self.next.map_or(PATIENCE, |_| BRIEFLY);
        let found = ask::dials(patience, &self.socket, of, self.next).await?;
        self.next = Some(found.next);
        Ok((found.items, found.lost))
    }
}

/// Attempts to reach endpoints, and the clients for which they are made.
#[derive(Debug)]
pub(super) struct Pairs {
    to: SocketAddr,
    /// Reported clients; `true`: the connection is relayed, and its endpoint is not known yet.
    clients: HashMap<String, bool>,
    /// Attempts for clients that were not reported.
    waiting: VecDeque<Dial>,
}

impl Pairs {
    /// Returns an empty state for clients that call `to`.
    pub(super) fn new(to: SocketAddr) -> Pairs {
        Pairs {
            to,
            clients: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Records that a connection was reported.
    pub(super) fn reported(&mut self, connection: &Connection) {
        let is_relayed = connection.outcome == Outcome::Relayed;
        self.clients.insert(connection.client.clone(), is_relayed);
    }

    /// Adds attempts. Returns reports on those attempts, and earlier ones, whose client was
    /// reported.
    pub(super) fn add(&mut self, dials: Vec<Dial>) -> Vec<Report> {
        self.waiting.extend(dials);
        let mut reports = Vec::new();
        let (clients, to) = (&mut self.clients, self.to);
        self.waiting.retain(|dial| {
            let Some(is_open) = clients.get_mut(&dial.client) else {
                return true;
            };
            *is_open &= dial.error.is_some();
            reports.push(Report::Dialed(Dialed {
                from: dial.from.clone(),
                endpoint: dial.endpoint.clone(),
                client: Some(dial.client.clone()),
                to: Some(to.to_string()),
                error: dial.error.clone(),
            }));
            false
        });
        let more = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..more);
        reports
    }

    /// Returns whether the endpoint of each relayed connection is known.
    pub(super) fn are_complete(&self) -> bool {
        !self.clients.values().any(|is_open| *is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(client: &str, endpoint: &str, error: Option<&str>) -> Dial {
        Dial {
            client: client.to_owned(),
            endpoint: endpoint.to_owned(),
            from: error.is_none().then(|| "10.244.0.1:50000".to_owned()),
            error: error.map(ToOwned::to_owned),
        }
    }

    fn connection(client: &str, outcome: Outcome) -> Connection {
        Connection {
            client: client.to_owned(),
            input: None,
            steps: Vec::new(),
            outcome,
            endpoint: None,
            by: None,
            state: None,
        }
    }

    #[test]
    fn a_try_is_told_once_its_client_was_reported() {
        let mut pairs = Pairs::new(([10, 96, 0, 1], 80).into());
        let endpoints = |reports: Vec<Report>| -> Vec<String> {
            let endpoint = |report| match report {
                Report::Dialed(dialed) => dialed.endpoint,
                other => panic!("{other:?}"),
            };
            reports.into_iter().map(endpoint).collect()
        };
        let early = [dial("a:1", "e1", Some("refused")), dial("b:1", "e1", None)];
        assert_eq!(pairs.add(early.into()), []);
        pairs.reported(&connection("a:1", Outcome::Relayed));
        pairs.reported(&connection("c:1", Outcome::Refused));
        assert_eq!(endpoints(pairs.add(Vec::new())), ["e1"]);
        assert!(!pairs.are_complete(), "no endpoint has taken it");
        assert_eq!(endpoints(pairs.add(vec![dial("a:1", "e2", None)])), ["e2"]);
        assert!(pairs.are_complete(), "what is refused has none");
        assert_eq!(pairs.add(Vec::new()), []);
        let others = 0..MOST_WAITING + 7;
        let others = others.map(|port| dial(&format!("d:{port}"), "e1", None));
        assert_eq!(pairs.add(others.collect()), []);
        assert_eq!(pairs.waiting.len(), MOST_WAITING);
    }
}

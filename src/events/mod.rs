//! Events (`events.k8s.io/v1`), by which Tripod reports to the cluster. The parts of the program
//! post them to a [`Recorder`]; [`post()`] takes them from its channel and writes them to the API
//! server.

mod limit;
mod post;

use std::fmt;

use tokio::sync::mpsc::{Receiver, Sender, channel};

pub use self::post::post;
use crate::services::ServiceName;

/// A Kubernetes Event, as `kubectl events` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The object that it is about.
    pub regarding: Regarding,
    /// Whether it is normal or a warning (`type`).
    pub severity: Severity,
    /// The cause, in one CamelCase word (`reason`).
    pub reason: &'static str,
    /// The action that was taken or failed, in one CamelCase word (`action`).
    pub action: &'static str,
    /// Text for people (`note`).
    pub note: String,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// The Node on which this runs.
    ThisNode,
    /// The Service of this name.
    Service(ServiceName),
}

/// How bad an event is (`type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The event is information.
    Normal,
    /// The event calls for action.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        })
    }
}

impl Event {
    /// The Event that a proxy of this node starts, in kube-proxy's words, which alerts may match.
    pub fn starting() -> Event {
        Event {
            regarding: Regarding::ThisNode,
            severity: Severity::Normal,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
        }
    }

    /// The Event that another mode than the configured one runs on this node; `note` names it and
    /// gives the reason.
    pub fn worse_mode(note: String) -> Event {
        Event {
            regarding: Regarding::ThisNode,
            severity: Severity::Warning,
            reason: "ProxyModeFallback",
            action: "ChooseProxyMode",
            note,
        }
    }

    /// The Event that endpoints, and programs that enforce NetworkPolicies, do not see clients on
    /// this node, which runs another mode than the configured one; `note` has the consequences.
    pub fn clients_hidden(note: String) -> Event {
        Event {
            regarding: Regarding::ThisNode,
            severity: Severity::Warning,
            reason: "ClientAddressesHidden",
            action: "ChooseProxyMode",
            note,
        }
    }

    /// The Event that `service` does not get addresses that other Services own; `note` names them.
    pub fn address_conflict(service: ServiceName, note: String) -> Event {
        Event {
            regarding: Regarding::Service(service),
            severity: Severity::Warning,
            reason: "AddressConflict",
            action: "SyncService",
            note,
        }
    }

    /// The Event that the last ready endpoints of `service` stay in use, as none is ready.
    pub fn none_ready(service: ServiceName, note: String) -> Event {
        Event {
            regarding: Regarding::Service(service),
            severity: Severity::Warning,
            reason: "NoneReady",
            action: "SyncService",
            note,
        }
    }

    /// The Event that `service` requests something that this node cannot do; `note` has the request
    /// and the reason.
    pub fn unsupported(service: ServiceName, note: String) -> Event {
        Event {
            regarding: Regarding::Service(service),
            severity: Severity::Warning,
            reason: "NotHonoured",
            action: "SyncService",
            note,
        }
    }
}

/// Takes events. Clones post to the same receiver.
#[derive(Clone, Debug)]
pub struct Recorder(Option<Sender<Event>>);

impl Recorder {
    /// Returns a recorder and the receiver of its events. Events beyond `capacity` that were not
    /// received are dropped: an unreachable API server must not cost memory.
    pub fn new(capacity: usize) -> (Recorder, Receiver<Event>) {
        let (sender, receiver) = channel(capacity.max(1));
        (Recorder(Some(sender)), receiver)
    }

    /// Returns a recorder that drops all events, for a process without an API server.
    pub fn nowhere() -> Recorder {
        Recorder(None)
    }

    /// Posts `event`, without waiting.
    pub fn post(&self, event: Event) {
        let Some(sender) = &self.0 else {
            return;
        };
        if let Err(error) = sender.try_send(event) {
            tracing::debug!("cannot post an Event: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_come_out_and_too_many_are_dropped() {
        let (recorder, mut events) = Recorder::new(2);
        for _ in 0..5 {
            recorder.clone().post(Event::starting());
        }
        drop(recorder);
        for _ in 0..2 {
            assert_eq!(events.recv().await, Some(Event::starting()));
        }
        assert_eq!(events.recv().await, None);
        Recorder::nowhere().post(Event::starting());
    }
}

//! Objects from the API server.
//!
//! `ask` makes one request, with the connection and credentials of `api_client`. `follow` lists and
//! watches one kind of objects and resumes after every failure; `intake` decodes and reduces the
//! answers, one object at a time, as `followed` says. `known` holds the objects and the changes that
//! were not sent yet; this file combines the kinds and sends batches.
//!
//! # Calls
//! RBAC must allow the following calls and no others (`tests/deploy/rights.rs`). Services and EndpointSlices are
//! requested in all namespaces, with a label selector; this node's own Node with the field selector
//! `metadata.name`, never by `get`. Other Nodes change every few seconds in a large cluster: they
//! are requested only if their weights count, and then only their metadata.
//!
//! A streaming list (KEP-3157) is a watch with `sendInitialEvents`; the server then requires the
//! verb `watch`.
//!
//! Events are created by `crate::events`, through [`Access::client`].
//!
//! ServiceCIDRs are watched only for nftables mode, which drops packets to cluster IPs that no
//! Service has, as in kube-proxy.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::{sleep, timeout},
};
use tracing::warn;

use self::{
    follow::Follower,
    followed::{Followed, followed},
    intake::Intake,
    known::Known,
    pause::Pauses,
    server::Server,
};
use crate::{api_client::Access, services::Batch, watch::SourceHealth};

mod ask;
mod follow;
mod followed;
mod intake;
mod known;
mod lines;
mod pause;
mod server;
mod splitter;

#[cfg(fuzzing)]
pub use intake::read_anything;

/// Changes within a short time become one batch: a roll-out changes objects in pairs, a Service
/// with its slice or one slice with the next.
const GATHER: Duration = Duration::from_millis(2);
/// How long complete Services and EndpointSlices wait for the first list of objects that the
/// program can do without. kube-proxy waits as long for its Node (`cmd/kube-proxy/app/server.go`,
/// `getNodeIPs`).
const PATIENCE: Duration = Duration::from_secs(30);

/// The objects to follow, and the pauses after failures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this node in the API.
    pub node_name: String,
    /// Whether weights of Nodes count: then all Nodes are followed.
    pub node_weights: bool,
    /// Whether ServiceCIDRs are followed as well.
    pub service_cidrs: bool,
    /// Longest pause after a first failure; it doubles with each further one.
    pub first_pause: Duration,
    /// Limit of these pauses. Half of each pause is random.
    pub longest_pause: Duration,
    /// Records the progress of following the objects.
    pub health: Arc<SourceHealth>,
}

impl Settings {
    /// Returns the settings for that node, with client-go's pauses (its
    /// reflector has 800 ms to 30 s).
    pub fn for_node(name: impl Into<String>) -> Settings {
        Settings {
            node_name: name.into(),
            node_weights: false,
            service_cidrs: false,
            first_pause: Duration::from_millis(800),
            longest_pause: Duration::from_secs(30),
            health: Arc::default(),
        }
    }
}

/// Follows Services, EndpointSlices, this Node, and on request the weights of other Nodes and
/// ServiceCIDRs, in a separate task on the current Tokio runtime.
///
/// The first batch has all objects. It is sent once Services and EndpointSlices are complete and
/// each other kind is complete, absent or forbidden, or 30 s after the former are complete. Each
/// later batch has the changes in reduced form, each object at most once. Whatever happens to the
/// server, the last known state stays in use. The task ends when the receiver of `batches` is
/// dropped.
pub fn spawn(access: Access, settings: Settings, batches: mpsc::Sender<Batch>) {
    tokio::spawn(async move {
        tokio::select! {
            () = follow_all(&access, &settings, &batches) => {}
            () = batches.closed() => {}
        }
    });
}

/// The objects of each kind that is followed.
type Kinds = [(Followed, Mutex<Known>)];

async fn follow_all(access: &Access, settings: &Settings, sender: &mpsc::Sender<Batch>) {
    let kinds = followed(settings).into_iter();
    let kinds: Vec<_> = kinds.map(|kind| (kind, Mutex::default())).collect();
    let (names, server, changes) = (Mutex::default(), Server::default(), Notify::new());
    let followers = kinds.iter().map(|(followed, known)| {
        let intake = Intake::new(followed, &names, known, settings);
        let pauses = Pauses::new(settings.first_pause, settings.longest_pause);
        Follower::new(access, &server, &changes, intake, pauses).run()
    });
    tokio::select! {
        _ = join_all(followers) => {}
        () = send(&kinds, &changes, sender) => {}
    }
}

/// Sends changes until the receiver is dropped.
async fn send(kinds: &Kinds, changes: &Notify, sender: &mpsc::Sender<Batch>) {
    settled(kinds, changes).await;
    let mut first = true;
    loop {
        if !first {
            changes.notified().await;
        }
        sleep(GATHER).await;
        // The receiver may be busy; changes in the meantime become part of the batch.
        let Ok(place) = sender.reserve().await else {
            return;
        };
        let mut events = Vec::new();
        for (_, known) in kinds {
            known.lock().send_changes(&mut events);
        }
        if std::mem::take(&mut first) || !events.is_empty() {
            place.send(events);
        }
    }
}

/// Waits until there is enough for a first batch.
async fn settled(kinds: &Kinds, changes: &Notify) {
    let is_open = |only_required: bool| {
        let mut kinds = kinds.iter();
        kinds.any(|(followed, known)| {
            (followed.required || !only_required) && !known.lock().is_settled()
        })
    };
    while is_open(true) {
        changes.notified().await;
    }
    let all = async {
        while is_open(false) {
            changes.notified().await;
        }
    };
    if timeout(PATIENCE, all).await.is_err() {
        warn!(
            "applying Services and EndpointSlices without other objects, which could not be \
             listed within {PATIENCE:?}; `tripod status` names them"
        );
    }
}

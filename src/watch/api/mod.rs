//! Objects from the API server.
//!
//! `ask` makes one request, with the connection and credentials of `api_client`. `follow` lists and
//! watches one kind of objects and resumes after every failure; `intake` decodes and reduces the
//! answers, one object at a time, with the types of `wire` and `kind`. `known` holds the objects
//! and the changes that were not sent yet; this file combines the kinds and sends batches.
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

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::{sleep, timeout},
};
use tracing::warn;

use self::{
    follow::Follower,
    intake::Intake,
    kind::{Elsewhere, Kind},
    known::Known,
    pause::Pauses,
    server::Server,
};
use crate::{
    api_client::Access,
    log_once::LogOnce,
    services::{Batch, EndpointSlice, Event, Names, Node, Service, ServiceCidr},
    watch::SourceHealth,
};

mod ask;
mod follow;
mod intake;
mod kind;
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

struct Objects {
    services: Mutex<Known<Service>>,
    slices: Mutex<Known<EndpointSlice>>,
    node: Mutex<Known<Node>>,
    /// `None`: weights of Nodes do not count, not even that of this node, because there would be
    /// none to compare it with.
    elsewhere: Option<Mutex<Known<Elsewhere>>>,
    /// `None`: they are not followed.
    service_cidrs: Option<Mutex<Known<ServiceCidr>>>,
    logged: Mutex<LogOnce>,
}

async fn follow_all(access: &Access, settings: &Settings, sender: &mpsc::Sender<Batch>) {
    let names = &Mutex::new(Names::default());
    let health = &*settings.health;
    let changes = &Notify::new();
    let objects = Objects {
        services: Mutex::new(Known::new()),
        slices: Mutex::new(Known::new()),
        node: Mutex::new(Known::new()),
        elsewhere: settings.node_weights.then(|| Mutex::new(Known::new())),
        service_cidrs: settings.service_cidrs.then(|| Mutex::new(Known::new())),
        logged: Mutex::default(),
    };
    let pauses = || Pauses::new(settings.first_pause, settings.longest_pause);
    let own = format!("metadata.name={}", settings.node_name);
    let others = format!("metadata.name!={}", settings.node_name);
    let server = &Server::default();
    let context = || follow::Context {
        access,
        server,
        changes,
        health,
    };
    let services = Follower::new(
        context(),
        None,
        Intake::new(names, &objects.services, health),
        pauses(),
    );
    let slices = Follower::new(
        context(),
        None,
        Intake::new(names, &objects.slices, health),
        pauses(),
    );
    let node = Follower::new(
        context(),
        Some(own),
        Intake::new(names, &objects.node, health),
        pauses(),
    );
    let elsewhere = objects.elsewhere.as_ref().map(|known| {
        let intake = Intake::new(names, known, health);
        Follower::new(context(), Some(others), intake, pauses())
    });
    let service_cidrs = objects.service_cidrs.as_ref().map(|known| {
        let intake = Intake::new(names, known, health);
        Follower::new(context(), None, intake, pauses())
    });
    tokio::select! {
        () = async {
            tokio::join!(
                services.run(),
                slices.run(),
                node.run(),
                run_if_any(elsewhere),
                run_if_any(service_cidrs),
            );
         } => {}
        () = objects.send(changes, sender) => {}
    }
}

/// Follows a kind of objects, if that is configured.
async fn run_if_any<K: Kind>(follower: Option<Follower<'_, K>>) {
    if let Some(follower) = follower {
        follower.run().await;
    }
}

/// Returns whether the kind is settled; also true if its objects are not followed.
fn is_settled<K: Kind>(followed: Option<&Mutex<Known<K>>>) -> bool {
    followed.is_none_or(|known| known.lock().is_settled())
}

impl Objects {
    /// Sends changes until the receiver is dropped.
    async fn send(&self, changes: &Notify, sender: &mpsc::Sender<Batch>) {
        self.settled(changes).await;
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
            let batch = self.batch();
            if std::mem::take(&mut first) || !batch.events.is_empty() {
                place.send(batch);
            }
        }
    }

    /// Waits until there is enough for a first batch.
    async fn settled(&self, changes: &Notify) {
        while !self.are_required_settled() {
            changes.notified().await;
        }
        let all = async {
            while !self.are_others_settled() {
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

    fn are_required_settled(&self) -> bool {
        self.services.lock().is_settled() && self.slices.lock().is_settled()
    }

    fn are_others_settled(&self) -> bool {
        self.node.lock().is_settled()
            && is_settled(self.elsewhere.as_ref())
            && is_settled(self.service_cidrs.as_ref())
    }

    fn batch(&self) -> Batch {
        let mut events = Vec::new();
        self.node.lock().send_changes(&mut events);
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.lock().send_changes(&mut events),
            None => self.leave_out_weights(&mut events),
        }
        if let Some(service_cidrs) = &self.service_cidrs {
            service_cidrs.lock().send_changes(&mut events);
        }
        self.services.lock().send_changes(&mut events);
        self.slices.lock().send_changes(&mut events);
        Batch { events }
    }

    fn leave_out_weights(&self, events: &mut [Event]) {
        for event in events {
            let Event::Node(node) = event else {
                continue;
            };
            if node.weight.is_some() {
                Arc::make_mut(node).weight = None;
                if self.logged.lock().is_new("a weight") {
                    warn!(
                        "Node {} has a weight, which is used only with --node-weights",
                        node.name
                    );
                }
            }
        }
    }
}

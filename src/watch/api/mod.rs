//! Objects from the API server.
//!
//! `access` says where it is and who we are, `ask` makes one request.
//! `follow` lists and watches one kind of objects and comes back after every
//! failure; `intake` decodes and reduces what it gets, one object at a time,
//! as `wire` and `kind` say. `known` holds them and knows what the receiver has not heard of; this
//! file brings the kinds together and tells.
//!
//! # Calls
//! [`CALLS`] has all calls that are made; RBAC has to allow these and no
//! others. Services and EndpointSlices are asked for in all namespaces, with a
//! label selector; our own Node with the field selector `metadata.name`, never
//! by `get`. Other Nodes change every few seconds in a large cluster: only if
//! their weights are to count are they asked for, and then for the metadata alone.
//!
//! A streaming list (KEP-3157) is a watch with `sendInitialEvents`; the server
//! asks for the verb `watch` then.
//!
//! Events are created through [`Access::client`] by who has something to say.
//!
//! ServiceCIDRs are not watched: kube-proxy uses them in nftables mode alone,
//! to refuse cluster IPs that no Service has, and we have no such mode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};
use tracing::warn;

use self::{follow::Follower, intake::Intake, kind::Elsewhere, known::Known, pause::Pauses};
use crate::{
    api_client::Access,
    services::{Batch, EndpointSlice, Event, Names, Node, Service},
};

mod ask;
mod calls;
mod follow;
mod intake;
mod kind;
mod known;
mod lines;
mod pause;
mod wire;

pub use calls::{CALLS, Call};

/// What is near in time becomes one batch: the changes of a roll-out come in
/// pairs, a Service with its slice or one slice with the next.
const GATHER: Duration = Duration::from_millis(2);

/// What to follow, and how patiently.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of our Node in the API.
    pub node_name: String,
    /// Weights of Nodes count: all Nodes are followed.
    pub node_weights: bool,
    /// Longest pause after a first failure ...
    pub first_pause: Duration,
    /// ... which doubles with each one that follows, up to this. Half of a
    /// pause is left to chance.
    pub longest_pause: Duration,
}

impl Settings {
    /// For that node, with client-go's pauses (its reflector has 800 ms to
    /// 30 s).
    pub fn for_node(name: impl Into<String>) -> Settings {
        Settings {
            node_name: name.into(),
            node_weights: false,
            first_pause: Duration::from_millis(800),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// Follows Services, EndpointSlices, our Node, and if asked the weights of others,
/// in a task of its own on the Tokio runtime that this is called in.
///
/// The first batch is everything that there is, when Services and
/// EndpointSlices are complete and our Node and the weights of others are
/// known, or known not to be there or not to be for us to see. Each later one is
/// what became different in reduced form, each object at most once. Whatever
/// happens to the server, the last known state stays in force. The task ends
/// when the receiver is dropped.
pub fn spawn(access: Access, settings: Settings) -> mpsc::Receiver<Batch> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = follow_all(&access, &settings, &sender) => {}
            () = sender.closed() => {}
        }
    });
    receiver
}

struct Objects {
    services: Mutex<Known<Service>>,
    slices: Mutex<Known<EndpointSlice>>,
    node: Mutex<Known<Node>>,
    /// `None`: weights of Nodes do not count, not even that of ours, as it would
    /// be compared with none.
    elsewhere: Option<Mutex<Known<Elsewhere>>>,
    weight_noted: AtomicBool,
}

async fn follow_all(access: &Access, settings: &Settings, sender: &mpsc::Sender<Batch>) {
    let names = &Mutex::new(Names::default());
    let news = &Notify::new();
    let objects = Objects {
        services: Mutex::new(Known::new()),
        slices: Mutex::new(Known::new()),
        node: Mutex::new(Known::new()),
        elsewhere: settings.node_weights.then(|| Mutex::new(Known::new())),
        weight_noted: AtomicBool::new(false),
    };
    let pauses = || Pauses::new(settings.first_pause, settings.longest_pause);
    let own = format!("metadata.name={}", settings.node_name);
    let others = format!("metadata.name!={}", settings.node_name);
    let services = Follower::new(
        access,
        None,
        Intake::new(names, &objects.services),
        news,
        pauses(),
    );
    let slices = Follower::new(
        access,
        None,
        Intake::new(names, &objects.slices),
        news,
        pauses(),
    );
    let node = Follower::new(
        access,
        Some(own),
        Intake::new(names, &objects.node),
        news,
        pauses(),
    );
    let elsewhere = async {
        if let Some(elsewhere) = &objects.elsewhere {
            let intake = Intake::new(names, elsewhere);
            let follower = Follower::new(access, Some(others), intake, news, pauses());
            follower.run().await;
        }
    };
    tokio::select! {
        () = async {
            tokio::join!(services.run(), slices.run(), node.run(), elsewhere);
         } => {}
        () = objects.tell(news, sender) => {}
    }
}

impl Objects {
    /// Tells what changed, until nobody listens.
    async fn tell(&self, news: &Notify, sender: &mpsc::Sender<Batch>) {
        let mut first = true;
        loop {
            news.notified().await;
            if !self.are_settled() {
                continue;
            }
            sleep(GATHER).await;
            // The receiver may be busy; what comes meanwhile goes along.
            let Ok(place) = sender.reserve().await else {
                return;
            };
            let batch = self.batch();
            if first || !batch.events.is_empty() {
                place.send(batch);
                first = false;
            }
        }
    }

    fn are_settled(&self) -> bool {
        self.services.lock().is_settled()
            && self.slices.lock().is_settled()
            && self.node.lock().is_settled()
            && self
                .elsewhere
                .as_ref()
                .is_none_or(|elsewhere| elsewhere.lock().is_settled())
    }

    fn batch(&self) -> Batch {
        let mut events = Vec::new();
        self.node.lock().tell(&mut events);
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.lock().tell(&mut events),
            None => self.leave_out_weights(&mut events),
        }
        self.services.lock().tell(&mut events);
        self.slices.lock().tell(&mut events);
        Batch { events }
    }

    fn leave_out_weights(&self, events: &mut [Event]) {
        for event in events {
            let Event::Node(node) = event else {
                continue;
            };
            if node.weight.is_some() {
                Arc::make_mut(node).weight = None;
                if !self.weight_noted.swap(true, Relaxed) {
                    warn!(
                        "Node {} has a weight: it counts with --node-weights only",
                        node.name
                    );
                }
            }
        }
    }
}

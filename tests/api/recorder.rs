//! Records every batch, applies it to a map as the program does, and checks what a user may expect:
//! there are no events about unchanged objects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    sync::mpsc::{Receiver, channel},
    time::{Instant, timeout_at},
};
use tripod::{
    api_client::{Access, Connection},
    services::{
        Batch, EndpointSlice, Event, Loopback, Names, Node, Object, ObjectName, Service,
        ServiceMap, Tracker,
    },
    watch::{
        SourceHealth,
        api::{self, Settings},
    },
};

use super::server::Server;

pub const NODE: &str = "node-a";

/// After this time without a batch none is in progress.
const REST: Duration = Duration::from_millis(100);

pub struct Recorder {
    batches: Receiver<Batch>,
    health: Arc<SourceHealth>,
    tracker: Tracker,
    /// Names in all events since [`Recorder::seen`] was called.
    seen: Vec<String>,
    /// Names that must not be in any event.
    untouched: Vec<&'static str>,
    count: usize,
}

impl Recorder {
    pub fn start(access: Access) -> Recorder {
        Recorder::with(access, Settings::for_node(NODE))
    }

    /// Like [`Recorder::start`], with the weights of Nodes.
    pub fn with_weights(access: Access) -> Recorder {
        let settings = Settings {
            node_weights: true,
            ..Settings::for_node(NODE)
        };
        Recorder::with(access, settings)
    }

    /// Like [`Recorder::start`], with ServiceCIDRs.
    pub fn with_service_cidrs(access: Access) -> Recorder {
        let settings = Settings {
            service_cidrs: true,
            ..Settings::for_node(NODE)
        };
        Recorder::with(access, settings)
    }

    fn with(access: Access, settings: Settings) -> Recorder {
        let health = Arc::clone(&settings.health);
        let (sender, batches) = channel(1);
        api::spawn(access, settings, sender);
        Recorder {
            health,
            batches,
            tracker: Tracker::new(NODE),
            seen: Vec::new(),
            untouched: Vec::new(),
            count: 0,
        }
    }

    /// Connects over TCP, and retries after short pauses.
    pub async fn connect(connection: Connection) -> Recorder {
        let settings = Settings {
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_millis(100),
            ..Settings::for_node(NODE)
        };
        Recorder::with(super::open(connection).await.unwrap(), settings)
    }

    /// From now on no event may be about these names.
    pub fn leave_alone(&mut self, names: &[&'static str]) {
        self.untouched.extend(names);
    }

    /// The reasons why kinds cannot be followed.
    pub fn troubles(&self) -> BTreeMap<&'static str, String> {
        let kinds = self.health.kinds().into_iter();
        let troubles = kinds.filter_map(|(name, kind)| Some((name, kind.trouble?.why)));
        troubles.collect()
    }

    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Names in events since the last call, sorted; those of deleted objects with a minus.
    pub fn seen(&mut self) -> Vec<String> {
        let mut seen = std::mem::take(&mut self.seen);
        seen.sort();
        seen
    }

    /// Batches so far.
    pub fn batches(&self) -> usize {
        self.count
    }

    /// The next batch, if there is one within that time.
    pub async fn next(&mut self, within: Duration) -> Option<usize> {
        self.before(Instant::now() + within).await
    }

    async fn before(&mut self, deadline: Instant) -> Option<usize> {
        let batch = timeout_at(deadline, self.batches.recv()).await.ok()?;
        let events = batch.expect("the source never ends");
        let length = events.len();
        self.count += 1;
        for event in &events {
            let name = match event {
                Event::Changed(Object::Service(service)) => service.name.name.to_string(),
                Event::Changed(Object::EndpointSlice(slice)) => slice.name.name.to_string(),
                Event::Changed(Object::Node(node)) => node.name.to_string(),
                Event::Gone(ObjectName::Service(name)) => format!("-{}", name.name),
                Event::Gone(ObjectName::EndpointSlice(name)) => format!("-{}", name.name),
                Event::Gone(ObjectName::Node(name))
                | Event::Gone(ObjectName::ServiceCidr(name)) => format!("-{name}"),
                Event::Changed(Object::ServiceCidr(cidr)) => cidr.name.to_string(),
                Event::Ejected(ejected) => panic!("no object: {ejected:?}"),
            };
            let bare = name.trim_start_matches('-');
            assert!(!self.untouched.contains(&bare), "{name} did not change");
            self.seen.push(name);
        }
        self.tracker.apply(events);
        Some(length)
    }

    /// Takes batches until the map equals the state of the server and no further ones come; fails
    /// after that time.
    pub async fn catches_up(&mut self, server: &Server, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            while self.next(REST).await.is_some() {}
            if *self.tracker.map() == map_of(server) {
                return;
            }
            let more = self.before(deadline).await;
            assert!(
                more.is_some(),
                "after {within:?} the map is {:#?} and the server has {:#?}",
                self.tracker.map(),
                map_of(server)
            );
        }
    }

    /// Checks that no batch comes for that time.
    pub async fn is_quiet(&mut self, time: Duration) {
        let more = self.next(time).await;
        assert_eq!(more, None, "seen {:?}", self.seen);
    }
}

/// The map for the state of the server, computed from scratch.
fn map_of(server: &Server) -> ServiceMap {
    let names = &mut Names::default();
    let objects: Vec<Value> = server.inspect(|cluster| cluster.all().cloned().collect());
    let events = objects
        .into_iter()
        .map(|object| match object["kind"].as_str() {
            Some("Service") => {
                let service = serde_json::from_value(object).unwrap();
                Event::Changed(Object::Service(
                    Service::reduce(&service, names).unwrap().object.into(),
                ))
            }
            Some("EndpointSlice") => {
                let slice = serde_json::from_value(object).unwrap();
                Event::Changed(Object::EndpointSlice(
                    EndpointSlice::reduce(&slice, Loopback::Refused, names)
                        .unwrap()
                        .object
                        .into(),
                ))
            }
            _ => {
                let node = serde_json::from_value(object).unwrap();
                Event::Changed(Object::Node(
                    Node::reduce(&node, names).unwrap().object.into(),
                ))
            }
        });
    let mut tracker = Tracker::new(NODE);
    tracker.apply(events);
    tracker.map().clone()
}

//! Connections that can never be answered end with a reset, for the Services that request it
//! (`tripod.proxy/reset`), in the modes whose translations connection tracking keeps.
//!
//! When an endpoint has left all EndpointSlices of its Service, or is ejected, its established
//! connections are looked up in connection tracking (`gone`). Connection tracking does not know
//! sequence numbers, and a client ignores a reset without the right one (RFC 5961). Therefore the
//! client is asked for it (`closing`). While no Service requests this, nothing is done.

mod closing;
mod gone;
mod segment;

use std::{net::SocketAddr, sync::Arc, time::Instant};

use futures_util::future::join_all;
use hashbrown::{HashMap, HashSet};
use net::{Family, PerFamily};
use netlink::{
    Error, Protocol, Socket,
    conntrack::flows::{self, Flow, Match, TCP},
};
use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedSender, unbounded_channel},
    },
    task::spawn_blocking,
};

use self::{
    closing::Closing,
    gone::{Followed, Gone},
};
use crate::{
    backoff::until,
    ejection::{self, Heard},
    events::Recorder,
    log_once::LogOnce,
    node::addresses,
    runner::AfterSync,
    services::{Changes, Preferences, SETTLED, ServiceMap, ServiceName, ServicePortName},
};

/// The most ejected endpoints that are called at once.
const CALLS: usize = 256;

/// Follows syncs, and tells this part of the process which endpoints are gone.
pub struct Follower(Arc<Shared>);

/// State shared by the follower and the task.
#[derive(Default)]
struct Shared {
    followed: Mutex<Followed>,
    /// Notified when an endpoint goes.
    changed: Notify,
}

/// Registers the metric of this part with `registry`, and resets connections from now on. Returns
/// the follower for the runner's syncs. If the kernel cannot do it, an Event says so to `recorder`
/// for each Service that requests it.
///
/// # Errors
/// When `registry` has a metric of this name already.
pub fn begin(registry: &Registry, recorder: Recorder) -> prometheus::Result<Follower> {
    let counter = IntCounter::new(
        "tripod_connections_reset_total",
        "Connections that ended with a reset because their endpoint was gone or ejected \
         (tripod.proxy/reset), in nftables and iptables mode.",
    )?;
    registry.register(Box::new(counter.clone()))?;
    let shared = Arc::new(Shared::default());
    let resetter = Resetter {
        shared: Arc::clone(&shared),
        counter,
        closing: PerFamily::default(),
        recorder,
        logged: LogOnce::default(),
    };
    tokio::spawn(resetter.run());
    Ok(Follower(shared))
}

impl AfterSync for Follower {
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes) {
        let now = Instant::now();
        if self.0.followed.lock().update(family, map, changes, now) {
            self.0.changed.notify_one();
        }
    }
}

struct Resetter {
    shared: Arc<Shared>,
    counter: IntCounter,
    /// Where the connections of each family are ended; `None`: none had to be.
    closing: PerFamily<Option<UnboundedSender<Vec<Flow>>>>,
    recorder: Recorder,
    logged: LogOnce,
}

impl Resetter {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut due = None;
        loop {
            tokio::select! {
                () = shared.changed.notified() => {}
                () = until(due) => {}
            }
            let new = shared.followed.lock().take_new();
            self.try_for(&new);
            let settled = Instant::now().checked_sub(SETTLED);
            let settled = settled.unwrap_or_else(Instant::now);
            let mut taken = shared.followed.lock().take_gone(settled);
            due = taken.next.map(|went| (went + SETTLED).into());
            self.reset(taken.left).await;
            leave_out_answering(&mut taken.ejected).await;
            self.reset(taken.ejected).await;
        }
    }

    /// Tries once whether connections of these ServicePorts could be reset.
    fn try_for(&mut self, new: &HashSet<ServicePortName>) {
        for family in Family::ALL {
            let of_family = new.iter().filter(|name| name.family == family);
            let services: HashSet<_> = of_family.map(|name| name.service.clone()).collect();
            if !services.is_empty()
                && let Err(why) = Closing::of(family)
            {
                self.report(&services, &why);
            }
        }
    }

    /// Resets the connections to endpoints that are `gone`.
    async fn reset(&mut self, gone: HashMap<ServicePortName, Gone>) {
        for family in Family::ALL {
            let of_family = gone.iter().filter(|(name, _)| name.family == family);
            let of_family: HashMap<_, _> = of_family
                .map(|(name, gone)| (name.clone(), gone.clone()))
                .collect();
            if of_family.is_empty() {
                continue;
            }
            let services: HashSet<_> = of_family.keys().map(|name| name.service.clone()).collect();
            // The table may have a million entries.
            let found = spawn_blocking(move || connections(family, &of_family)).await;
            let Ok(found) = found else {
                // The runtime shuts down.
                return;
            };
            let done = found.map_err(|error| error.to_string());
            match done.and_then(|found| self.close(family, found)) {
                Ok(()) => drop(self.logged.end()),
                Err(why) => self.report(&services, &why),
            }
        }
    }

    /// Has `connections` of `family` ended.
    fn close(&mut self, family: Family, connections: Vec<Flow>) -> Result<(), String> {
        if connections.is_empty() {
            return Ok(());
        }
        let closing = self.closing.get_mut(family);
        let sender = match closing {
            Some(sender) => sender,
            None => {
                let (sender, more) = unbounded_channel();
                tokio::spawn(Closing::of(family)?.run(more, self.counter.clone()));
                closing.insert(sender)
            }
        };
        // It fails only when the runtime shuts down.
        let _ = sender.send(connections);
        Ok(())
    }

    /// Says to `services` that their connections are not reset.
    fn report(&mut self, services: &HashSet<ServiceName>, why: &str) {
        let (logged, recorder) = (&mut self.logged, &self.recorder);
        ejection::report_unsupported(services, Preferences::RESET, why, logged, recorder);
    }
}

/// Leaves out the ejected endpoints that answer the node, or refuse its connection: one that only
/// refuses new connections may still serve those that are open.
async fn leave_out_answering(ejected: &mut HashMap<ServicePortName, Gone>) {
    let endpoints = ejected.values().flat_map(|gone| &gone.endpoints);
    let endpoints: HashSet<SocketAddr> = endpoints.copied().take(CALLS).collect();
    let calls = endpoints.into_iter().map(|endpoint| async move {
        let heard = ejection::call(endpoint).await;
        (heard == Some(Heard::Nothing)).then_some(endpoint)
    });
    let silent: HashSet<_> = join_all(calls).await.into_iter().flatten().collect();
    for gone in ejected.values_mut() {
        gone.endpoints.retain(|endpoint| silent.contains(endpoint));
    }
}

/// Lists the established connections of `family` to endpoints that are `gone`.
fn connections(family: Family, gone: &HashMap<ServicePortName, Gone>) -> Result<Vec<Flow>, Error> {
    let lost = gone::Lost::new(gone, addresses::own()?.into_iter().collect());
    let mut socket = Socket::open(Protocol::Netfilter)?;
    flows::list_if(&mut socket, family, &[Match::all(TCP)], |flow| {
        lost.has(flow)
    })
}

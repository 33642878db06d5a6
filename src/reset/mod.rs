//! Connections that can never be answered end with a reset, for the Services that request it
//! (`tripod.proxy/reset`), in the modes whose translations connection tracking keeps.
//!
//! When an endpoint has left all EndpointSlices of its Service, or is ejected, its established
//! connections are looked up in connection tracking ([`gone`]). Connection tracking does not know
//! sequence numbers, and a client ignores a reset without the right one (RFC 5961). Therefore the
//! client is asked for it ([`closing`]). While no Service requests this, nothing is done.

mod closing;
mod gone;
mod segment;

use std::{net::IpAddr, sync::Arc, time::Instant};

use hashbrown::{HashMap, HashSet};
use net::Family;
use netlink::{
    Error, Protocol, Socket, addresses,
    conntrack::flows::{self, Flow, Match, TCP},
};
use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use tokio::{sync::Notify, task::spawn_blocking};

use self::{
    closing::Closing,
    gone::{Followed, Gone},
};
use crate::{
    backoff::until,
    events::{Event, Recorder},
    log_once::LogOnce,
    runner::AfterSync,
    services::{Changes, Preferences, SETTLED, ServiceMap, ServiceName, ServicePortName},
};

/// The most connections that are reset at once: clients of others stay until they give up.
const MOST: usize = 65_536;

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
            let (gone, next) = shared.followed.lock().take_gone(settled);
            due = next.map(|went| (went + SETTLED).into());
            for family in Family::ALL {
                let mut of_family = gone.clone();
                of_family.retain(|name, _| name.family == family);
                if !of_family.is_empty() {
                    self.reset(family, of_family).await;
                }
            }
        }
    }

    /// Tries once whether connections of these ServicePorts could be reset.
    fn try_for(&mut self, new: &HashSet<ServicePortName>) {
        for family in Family::ALL {
            let of_family = new.iter().filter(|name| name.family == family);
            let services: HashSet<_> = of_family.map(|name| name.service.clone()).collect();
            if !services.is_empty()
                && let Err(why) = Closing::begin(family, Vec::new())
            {
                self.report(services, &why);
            }
        }
    }

    /// Resets the connections of `family` to endpoints that are `gone`.
    async fn reset(&mut self, family: Family, gone: HashMap<ServicePortName, Gone>) {
        let services = gone.keys().map(|name| name.service.clone()).collect();
        // The table may have a million entries.
        let Ok(found) = spawn_blocking(move || connections(family, &gone)).await else {
            // The runtime shuts down.
            return;
        };
        let begun = match found {
            Err(error) => Err(error.to_string()),
            Ok(found) if found.is_empty() => Ok(()),
            Ok(mut found) => {
                found.truncate(MOST);
                Closing::begin(family, found).map(|closing| {
                    tokio::spawn(closing.run(self.counter.clone()));
                })
            }
        };
        match begun {
            Ok(()) => drop(self.logged.end()),
            Err(why) => self.report(services, &why),
        }
    }

    /// Says to `services` that their connections are not reset.
    fn report(&mut self, services: HashSet<ServiceName>, why: &str) {
        let note = format!("{} is not supported here: {why}", Preferences::RESET);
        let mut current = Vec::new();
        for service in services {
            let message = format!("Service {service}: {note}");
            if self.logged.is_new(&message) {
                tracing::warn!("{message}");
                self.recorder
                    .post(Event::unsupported(service, note.clone()));
            }
            current.push(message);
        }
        self.logged.replace(current);
    }
}

/// Lists the established connections of `family` to endpoints that are `gone`.
fn connections(family: Family, gone: &HashMap<ServicePortName, Gone>) -> Result<Vec<Flow>, Error> {
    let own = addresses::list(&mut Socket::open(Protocol::Route)?)?;
    let own: HashSet<IpAddr> = own.into_iter().map(|own| own.address).collect();
    let lost = gone::Lost::new(gone, own);
    let mut socket = Socket::open(Protocol::Netfilter)?;
    flows::list_if(&mut socket, family, &[Match::all(TCP)], |flow| {
        lost.has(flow)
    })
}

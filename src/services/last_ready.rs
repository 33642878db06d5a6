//! The last ready endpoints of a Service stay in use when they become unready, if the Service wants
//! it (`tripod.proxy/when-none-ready: last`). When nodes lose the API server, their pods become
//! unready although they work, and a Service may have no endpoint left for a while.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::{EndpointSlice, Identity, ServiceName};

/// How long they stay in use: until a node that cannot reach the API server is known to be lost
/// (`tolerationSeconds` of the taint `node.kubernetes.io/unreachable` is 300 by default).
const LONGEST: Duration = Duration::from_secs(300);
/// How long before the last one an endpoint may have become unready to be used as well: they become
/// unready one after the other, and one alone could not serve all clients.
const TOGETHER: Duration = Duration::from_secs(60);

/// Endpoints of the Services that want their last ready ones to stay in use.
#[derive(Debug, Default)]
pub(super) struct LastReady(HashMap<ServiceName, Known>);

/// Endpoints that stay in use although they are not ready.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// Those endpoints.
    pub(super) endpoints: HashSet<Identity>,
    /// When they no longer are; `None` if there are none.
    pub(super) until: Option<Instant>,
}

/// The endpoints of one Service that were ready.
#[derive(Debug, Default)]
struct Known {
    /// Those that were ready, with the time when they ceased to be; `None`: they are ready.
    ceased: HashMap<Identity, Option<Instant>>,
    /// When the last one became unready; `None` while one takes connections.
    none_since: Option<Instant>,
}

impl LastReady {
    /// Takes note of which endpoints of a Service are ready now. Returns those that stay in use
    /// although they are not; none if the Service does not want that.
    pub(super) fn observe<'a>(
        &mut self,
        service: &ServiceName,
        is_wanted: bool,
        slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    ) -> InUse {
        if !is_wanted {
            self.0.remove(service);
            return InUse::default();
        }
        let now = Instant::now();
        let known = self.0.entry_ref(service).or_default();
        known.update(now, slices);
        match known.none_since {
            Some(none_since) if now < none_since + LONGEST => InUse {
                endpoints: known.used(none_since).collect(),
                until: Some(none_since + LONGEST),
            },
            _ => InUse::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Known {
    fn update<'a>(
        &mut self,
        now: Instant,
        slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    ) {
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        // Those that are being shut down are not meant to come back, and clients of those that are
        // gone would get no answer.
        let living = endpoints.clone().filter(|endpoint| !endpoint.terminating);
        let living: HashSet<Identity> = living.map(|endpoint| endpoint.identity).collect();
        let ready = endpoints.clone().filter(|endpoint| endpoint.ready);
        let ready: HashSet<Identity> = ready.map(|endpoint| endpoint.identity).collect();
        self.ceased.retain(|endpoint, _| living.contains(endpoint));
        for (endpoint, ceased) in &mut self.ceased {
            if !ready.contains(endpoint) {
                ceased.get_or_insert(now);
            }
        }
        let is_used = |endpoint: &super::SliceEndpoint| {
            endpoint.ready || (endpoint.serving && endpoint.terminating)
        };
        if endpoints.clone().any(is_used) {
            self.none_since = None;
            self.ceased
                .retain(|_, ceased| ceased.is_none_or(|ceased| now - ceased < TOGETHER));
            self.ceased
                .extend(ready.iter().map(|endpoint| (*endpoint, None)));
        } else if !self.ceased.is_empty() {
            self.none_since.get_or_insert(now);
        }
    }

    /// Returns the endpoints that were ready until about that time.
    fn used(&self, none_since: Instant) -> impl Iterator<Item = Identity> {
        let last = self.ceased.iter().filter(move |(_, ceased)| {
            ceased.is_some_and(|ceased| none_since.saturating_duration_since(ceased) < TOGETHER)
        });
        last.map(|(endpoint, _)| *endpoint)
    }
}

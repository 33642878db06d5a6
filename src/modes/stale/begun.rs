//! Connections that began before anything served where they were made: their entries translate to
//! nothing, and each SYN that a client sends again follows its entry.

use std::{collections::HashSet, sync::Arc, time::Instant};

use net::{Family, Frontend, Protocol};
use netlink::{Socket, conntrack::unanswered};

use super::{Failure, blocking, deleted};
use crate::{
    modes::Metrics,
    services::{Changes, ServiceMap, ServicePortName},
};

/// Protocols of connections.
const CONNECTIONS: [Protocol; 2] = [Protocol::Tcp, Protocol::Sctp];

/// Unanswered connections to destinations whose service begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// The ServicePorts to which connections are not examined yet.
    names: HashSet<ServicePortName>,
    /// Why the last attempt failed, and whether it will be the same the next time.
    failed: Option<bool>,
}

impl Begun {
    /// Adds ServicePorts that may be served now and were not before.
    pub fn extend<'a>(&mut self, names: impl IntoIterator<Item = &'a ServicePortName>) {
        let of_connections = |name: &&ServicePortName| CONNECTIONS.contains(&name.protocol);
        let names = names.into_iter().filter(of_connections);
        self.names.extend(names.cloned());
    }

    /// Deletes the entries of unanswered connections to them, so that the client's next SYN is
    /// translated.
    pub async fn clear(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        metrics: &dyn Metrics,
    ) {
        if self.failed.is_some() && !changes.full && !changes.retry {
            return;
        }
        let ports = self.names.iter().filter_map(|name| map.get(name));
        let reachable = ports.filter(|port| port.endpoints.any_taken_here());
        let frontends: HashSet<Frontend> = reachable.flat_map(|port| port.frontends()).collect();
        let begun = Instant::now();
        match delete_untranslated(family, frontends).await {
            Ok(count) => {
                self.names.clear();
                self.failed = None;
                if count > 0 {
                    metrics.conntrack_cleared(family, begun.elapsed(), count as u64);
                }
            }
            Err(failure) => {
                if self.failed.replace(failure.is_lasting).is_none() {
                    tracing::warn!(
                        "{family}: clients that called a Service before it was served may wait for \
                         minutes, because Tripod {}; the kernel needs nf_conntrack_netlink, and \
                         Tripod needs CAP_NET_ADMIN",
                        failure.error
                    );
                }
                self.names.retain(|name| map.get(name).is_some());
            }
        }
    }

    /// Returns unfinished work that is tried again, if there is any.
    pub fn unfinished(&self) -> Option<&'static str> {
        let waits = self.failed == Some(false);
        waits.then_some(
            "unanswered connections from before a Service was served are not deleted yet",
        )
    }
}

/// Deletes the entries of connections to `frontends` that were neither translated nor answered, and
/// returns how many there were.
///
/// # Errors
/// When the kernel could not be asked, or did not delete them.
pub async fn delete_untranslated(
    family: Family,
    frontends: HashSet<Frontend>,
) -> Result<usize, Failure> {
    let of = |protocol| {
        frontends
            .iter()
            .any(|at: &Frontend| at.protocol == protocol)
    };
    let protocols: Vec<Protocol> = CONNECTIONS.into_iter().filter(|one| of(*one)).collect();
    if protocols.is_empty() {
        return Ok(0);
    }
    let socket = Socket::open(netlink::Protocol::Netfilter);
    let work = move || {
        let mut socket = socket?;
        let mut count = 0;
        for protocol in protocols {
            count += unanswered::delete_untranslated(&mut socket, family, protocol, &frontends)?;
        }
        Ok(count)
    };
    deleted(blocking(work).await, Arc::default())
}

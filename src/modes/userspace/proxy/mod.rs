//! Relays bytes between clients and endpoints: runs on the workers, knows only service groups, and
//! reads their routing without locks.

pub mod affinity;
pub mod backends;
pub mod buffered;
pub mod captured;
pub mod cluster_local;
pub mod counters;
pub mod descriptors;
pub mod dials;
mod failing;
pub mod group;
mod placement;
mod proxy_protocol;
pub mod socket_memory;
pub mod tcp;
pub mod transparent;
pub mod udp;
pub mod usage;
pub mod workers;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use net::Protocol;

use self::{
    affinity::PinLimit,
    buffered::Buffered,
    captured::Captured,
    cluster_local::ClusterLocal,
    counters::Counters,
    descriptors::Descriptors,
    dials::DialLog,
    group::ServiceGroup,
    socket_memory::SocketMemory,
    transparent::Transparent,
    usage::{ConnectionLimits, Counted, Place, Usages},
};
use super::rings::Rings;
use crate::{hold::Holding, log_once::LoggedFlag, sched::Flow};

/// State shared by all connections and associations.
#[derive(Debug)]
pub struct Shared {
    /// The node's name.
    pub node: Arc<str>,
    /// The budget of file descriptors.
    pub descriptors: Descriptors,
    /// Usage of each Service and its clients.
    pub usages: Usages,
    /// Limits of Services that do not request their own.
    pub limits: ConnectionLimits,
    /// Limit on the number of clients with session affinity that are remembered.
    pub pins: Arc<PinLimit>,
    /// Bytes that relays buffer for slow receivers.
    pub buffered: Buffered,
    /// Memory of the kernel's socket buffers.
    pub socket_memory: SocketMemory,
    /// Counters for `/metrics`.
    pub counters: Counters,
    /// Resources shared by all UDP flows.
    pub udp: udp::Resources,
    /// How long an idle UDP client keeps its backend.
    pub udp_timeout: Duration,
    /// Limits of a client's search for a backend.
    pub dial: tcp::Limits,
    /// Attempts to reach endpoints of followed ServicePorts.
    pub dials: Arc<DialLog>,
    /// How long a peer may leave data unacknowledged; zero for the kernel's limit.
    pub tcp_user_timeout: Duration,
    /// Distinguishes cluster-local clients from others.
    pub cluster_local: Arc<ClusterLocal>,
    /// Decides which endpoints see the client's address.
    pub transparent: Arc<Transparent>,
    /// Addresses whose connections come to this process.
    pub captured: Arc<Captured>,
    /// The rings for the workers.
    pub rings: Rings,
    /// The holder that keeps sockets from one process to the next.
    pub holding: Holding,
    /// The first worker for the next listeners.
    pub next_worker: AtomicUsize,
    /// Whether it was logged that local ports run out.
    pub ports_logged: LoggedFlag,
}

impl Shared {
    /// The first worker for the next listeners, which have this many `sockets`.
    pub fn next_worker(&self, sockets: usize) -> usize {
        self.next_worker.fetch_add(sockets, Relaxed)
    }

    /// Returns whether `group` should leave memory to others: the kernel's socket buffers take much
    /// of it, and the group uses more than a quarter of all clients' descriptors.
    fn lacks_memory_for(&self, group: &ServiceGroup) -> bool {
        self.socket_memory.is_short() && group.descriptors() > self.descriptors.of_clients() / 4
    }

    /// Gives a `place` of the Service of `group` to the client of `flow`, if `limits` allow it
    /// another one; otherwise counts and logs the refusal.
    fn admit(
        &self,
        group: &ServiceGroup,
        place: Place,
        flow: &Flow,
        protocol: Protocol,
        limits: ConnectionLimits,
    ) -> Option<Counted> {
        let client = usage::client(flow, &self.cluster_local);
        let mut open = 0;
        let counted = place.give(client, protocol, |has, together| {
            open = has.all();
            let too_many = limits.client.is_some_and(|most| open >= most.get());
            let crowded = || match protocol {
                Protocol::Udp if self.udp.is_for_others(&group.label, has.udp()) => true,
                _ => {
                    let mut rooms = self.descriptors.rooms();
                    let together = together.descriptors();
                    rooms.any(|room| room.is_for_other_clients(has.descriptors(), together))
                }
            };
            !(too_many || limits.leaves_room && crowded())
        });
        if counted.is_none() {
            self.counters.client_limited.inc();
            group.usage.client_limited.fetch_add(1, Relaxed);
            if group.usage.client_logged.is_first() {
                tracing::warn!(
                    service = %group.label,
                    %client,
                    open,
                    "this client reached its connection limit: its new connections are reset, and \
                     datagrams of its new UDP flows are dropped \
                     (--userspace-max-connections-per-client, or the annotation \
                     tripod.proxy/max-connections-per-client); \
                     tripod_userspace_client_limited_total counts them"
                );
            }
        } else if group.usage.client_logged.is_over() {
            tracing::info!(
                service = %group.label,
                "no client of this Service has been at its connection limit for a minute"
            );
        }
        counted
    }

    /// A place for a connection or UDP flow of the Service of `group`; `None` if the Service is at
    /// its limit, which is counted and logged.
    fn place(&self, group: &ServiceGroup, limits: ConnectionLimits) -> Option<Place> {
        let place = group.usage.place(limits.service);
        if place.is_none() {
            self.counters.service_limited.inc();
            group.usage.service_limited.fetch_add(1, Relaxed);
            if group.usage.full_logged.is_first() {
                tracing::warn!(
                    service = %group.label,
                    open = group.usage.all(),
                    "the Service reached its connection limit: new connections wait, and datagrams \
                     of new UDP clients are dropped (--userspace-max-connections, or the \
                     annotation tripod.proxy/max-connections); \
                     tripod_userspace_service_limited_total counts it"
                );
            }
        } else if group.usage.full_logged.is_over() {
            tracing::info!(
                service = %group.label,
                open = group.usage.all(),
                "the Service has been below its connection limit for a minute"
            );
        }
        place
    }

    /// Returns whether connections to `endpoint` would come back to this process. Logs that once
    /// for each group, and when it is over.
    fn comes_back(&self, group: &ServiceGroup, protocol: Protocol, endpoint: SocketAddr) -> bool {
        let owner = self.captured.owner_at(protocol, endpoint);
        if owner.is_some() {
            group.is_known(endpoint);
        }
        if let Some(owner) = &owner
            && group.comes_back_logged.is_first()
        {
            tracing::warn!(
                service = %group.label,
                %endpoint,
                "this endpoint is not used, because its address is one of Service {owner}, so that \
                 calls would come back here; give this Service the endpoints of that one, or remove \
                 addresses of pods from the externalIPs of that one"
            );
        }
        if owner.is_none() && group.comes_back_logged.is_over() {
            tracing::info!(
                service = %group.label,
                "no endpoint with the address of a Service has been found for a minute"
            );
        }
        owner.is_some()
    }
}

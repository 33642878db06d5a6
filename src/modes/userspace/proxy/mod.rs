//! Relays bytes between clients and endpoints: runs on the workers, sees service groups
//! only, and reads their routing without locks.

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

/// What all connections and associations share.
#[derive(Debug)]
pub struct Shared {
    /// The node's name.
    pub node: Arc<str>,
    /// The budget of file descriptors.
    pub descriptors: Descriptors,
    /// What each Service and its clients have open.
    pub usages: Usages,
    /// How much they may have if a Service does not say.
    pub limits: ConnectionLimits,
    /// How many clients with session affinity are remembered.
    pub pins: Arc<PinLimit>,
    /// What relays keep for slow receivers.
    pub buffered: Buffered,
    /// What the kernel keeps for them.
    pub socket_memory: SocketMemory,
    /// What is counted for `/metrics`.
    pub counters: Counters,
    /// What all UDP flows share.
    pub udp: udp::Resources,
    /// How long an idle UDP client keeps its backend.
    pub udp_timeout: Duration,
    /// How far a client's search for a backend may go.
    pub dial: tcp::Limits,
    /// Tries to reach endpoints of the ServicePorts that are followed.
    pub dials: Arc<DialLog>,
    /// How long a peer may leave data unacknowledged; zero: as long as the kernel
    /// allows.
    pub tcp_user_timeout: Duration,
    /// Distinguishes cluster-local clients from others.
    pub cluster_local: Arc<ClusterLocal>,
    /// Which endpoints see the client's address.
    pub transparent: Arc<Transparent>,
    /// Addresses at which calls come back here.
    pub captured: Arc<Captured>,
    /// The rings for the workers.
    pub rings: Rings,
    /// What keeps sockets from one process to the next.
    pub holding: Holding,
    /// The worker where the next listeners begin.
    pub next_worker: AtomicUsize,
    /// Whether it was logged that local ports run out.
    pub ports_logged: LoggedFlag,
}

impl Shared {
    /// Returns the worker where the `sockets` of the next listeners begin.
    pub fn next_worker(&self, sockets: usize) -> usize {
        self.next_worker.fetch_add(sockets, Relaxed)
    }

    /// Returns whether `group` is to leave memory to others: the kernel's socket buffers take much
    /// of it, and the group has more than a quarter of what clients have open.
    fn lacks_memory_for(&self, group: &ServiceGroup) -> bool {
        self.socket_memory.is_short() && group.descriptors() > self.descriptors.of_clients() / 4
    }

    /// Gives a `place` of the Service of `group` to the client of `flow`, if it may have
    /// one more under `limits`; otherwise counts and logs that it may not.
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

    /// Returns a place for a connection or UDP flow of the Service of `group`; `None`: it has
    /// as many as it may under `limits`, which is counted and logged.
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

    /// Returns whether a call of `endpoint` would come back to this process; logs that
    /// once for each group, and when it is over.
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

//! The share of an open connection or UDP client in everything that is counted or limited.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use net::Protocol;

use super::{
    Shared,
    descriptors::Permits,
    group::{ListenerAddress, ServiceGroup},
    placement::{Placement, Seat},
    usage::{self, ConnectionLimits, PER_CONNECTION},
};
use crate::sched::{Flow, Load, RealServer};

/// What a TCP connection or UDP client has taken, from its admission until this is dropped.
#[derive(Debug)]
pub struct Ticket {
    pub shared: Arc<Shared>,
    pub group: Arc<ServiceGroup>,
    protocol: Protocol,
    /// Whether it counts towards the limit of the Service, and of the client once that is known.
    is_counted: AtomicBool,
    client: Option<IpAddr>,
    descriptors: Option<Permits>,
    open: Option<OpenConnection>,
    /// The load of the endpoint at which it counts.
    load: Option<Arc<Load>>,
    half_closed: bool,
    /// Number of bytes that are buffered for slow receivers.
    buffered: usize,
}

/// A TCP connection that is counted as open.
#[derive(Debug)]
struct OpenConnection {
    /// Keeps what the address needs, for example a route.
    _address: Arc<ListenerAddress>,
    seat: Arc<Seat>,
}

impl Ticket {
    /// A ticket for another connection or UDP client of the Service of `group`; `None` if the
    /// Service is at its limit, which is logged. Each datagram that is dropped is counted, and that
    /// connections have to wait from now on.
    pub fn request(
        shared: &Arc<Shared>,
        group: &Arc<ServiceGroup>,
        protocol: Protocol,
        limits: ConnectionLimits,
    ) -> Option<Ticket> {
        if !group.usage.take(limits.service) {
            if !group.usage.waits.swap(true, Relaxed) || protocol == Protocol::Udp {
                shared.counters.service_limited.inc();
                group.usage.service_limited.fetch_add(1, Relaxed);
            }
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
            return None;
        }
        if group.usage.waits.load(Relaxed) {
            group.usage.waits.store(false, Relaxed);
        }
        if group.usage.full_logged.is_over() {
            tracing::info!(
                service = %group.label,
                open = group.usage.all(),
                "the Service has been below its connection limit for a minute"
            );
        }
        Some(Ticket {
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            protocol,
            is_counted: AtomicBool::new(true),
            client: None,
            descriptors: None,
            open: None,
            load: None,
            half_closed: false,
            buffered: 0,
        })
    }

    /// Gives the ticket to the client of `flow`, if `limits` allow it another one; otherwise counts
    /// and logs the refusal.
    pub fn admit(mut self, flow: &Flow, limits: ConnectionLimits) -> Option<Ticket> {
        let (shared, group) = (&self.shared, &self.group);
        let client = usage::client(flow, &shared.cluster_local);
        let mut open = 0;
        let admitted = group.usage.add(client, self.protocol, |has, together| {
            open = has.all();
            let too_many = limits.client.is_some_and(|most| open >= most.get());
            let crowded = || match self.protocol {
                Protocol::Udp if shared.udp.is_for_others(&group.label, has.udp()) => true,
                _ => {
                    let mut rooms = shared.descriptors.rooms();
                    let together = together.descriptors();
                    rooms.any(|room| room.is_for_other_clients(has.descriptors(), together))
                }
            };
            !(too_many || limits.leaves_room && crowded())
        });
        if !admitted {
            shared.counters.client_limited.inc();
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
            return None;
        }
        if group.usage.client_logged.is_over() {
            tracing::info!(
                service = %group.label,
                "no client of this Service has been at its connection limit for a minute"
            );
        }
        self.client = Some(client);
        Some(self)
    }

    /// Takes its file descriptors, if they are free.
    pub fn try_take_descriptors(&mut self) -> bool {
        let count = self.needs_descriptors();
        self.descriptors = self.shared.descriptors.try_take(count);
        self.descriptors.is_some()
    }

    /// Takes its file descriptors, and waits until they are free.
    pub async fn take_descriptors(&mut self) {
        if !self.try_take_descriptors() {
            self.shared.counters.accept_paused.inc();
            let count = self.needs_descriptors();
            self.descriptors = Some(self.shared.descriptors.take(count).await);
        }
    }

    fn needs_descriptors(&self) -> u32 {
        match self.protocol {
            Protocol::Udp => 1,
            Protocol::Tcp | Protocol::Sctp => PER_CONNECTION,
        }
    }

    /// Counts an accepted TCP connection as open. Returns the worker that serves it.
    pub fn open(&mut self, address: &Arc<ListenerAddress>, placement: &Placement) -> Arc<Seat> {
        let seat = placement.take_seat();
        self.shared.counters.connections_total.inc();
        self.shared.counters.connections.inc();
        self.group.connections.fetch_add(1, Relaxed);
        self.open = Some(OpenConnection {
            _address: Arc::clone(address),
            seat: Arc::clone(&seat),
        });
        seat
    }

    /// Counts in the load of `endpoint` from now on.
    pub fn enter(&mut self, endpoint: &RealServer) {
        self.leave_endpoint();
        endpoint.load.active.fetch_add(1, Relaxed);
        self.load = Some(Arc::clone(&endpoint.load));
    }

    /// Records that one direction ended: as in ip_vs, connections past ESTABLISHED count as
    /// inactive.
    pub fn half_close(&mut self) {
        if let Some(load) = &self.load
            && !self.half_closed
        {
            self.half_closed = true;
            load.inactive.fetch_add(1, Relaxed);
            load.active.fetch_sub(1, Relaxed);
        }
    }

    /// Counts in the load of no endpoint any more; nothing is relayed then.
    pub fn leave_endpoint(&mut self) {
        self.set_buffered(0);
        let Some(load) = self.load.take() else {
            return;
        };
        let count = if std::mem::take(&mut self.half_closed) {
            &load.inactive
        } else {
            &load.active
        };
        count.fetch_sub(1, Relaxed);
    }

    /// Records how many bytes are buffered for slow receivers now.
    pub fn set_buffered(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.buffered, bytes);
        if before != bytes {
            self.shared.memory.buffered_changed(before, bytes);
        }
    }

    /// No longer counts towards the limits of its Service and client, for which another ticket
    /// counts instead.
    pub fn uncount(&self) {
        if self.is_counted.swap(false, Relaxed) {
            self.group.usage.give_back(self.client, self.protocol);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            open.seat.leave();
            self.shared.counters.connections.dec();
            self.group.connections.fetch_sub(1, Relaxed);
        }
        self.leave_endpoint();
        self.uncount();
    }
}

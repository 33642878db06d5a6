//! Relays bytes between clients and endpoints: runs on the workers, knows only service groups, and
//! reads their routing without locks.

pub mod affinity;
pub mod backends;
pub mod captured;
pub mod cluster_local;
pub mod counters;
pub mod descriptors;
pub mod dials;
mod failing;
pub mod group;
pub mod listener;
pub mod memory;
mod placement;
mod present;
mod proxy_protocol;
pub mod tcp;
mod ticket;
pub mod transparent;
pub mod udp;
pub mod usage;
pub mod workers;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use net::Protocol;

use self::{
    affinity::PinLimit, captured::Captured, cluster_local::ClusterLocal, counters::Counters,
    descriptors::Descriptors, dials::DialLog, group::ServiceGroup, memory::Memory,
    transparent::Transparent, usage::Usages,
};
use super::options::Options;
use crate::{
    kernel::{
        memory_limit::{self, MemoryLimit},
        socket::local_ports::LocalPorts,
    },
    log_once::LoggedFlag,
};

/// State shared by all connections and associations.
#[derive(Debug)]
pub struct Shared {
    /// The settings of the mode.
    pub options: Options,
    /// The budget of file descriptors.
    pub descriptors: Descriptors,
    /// Usage of each Service and its clients.
    pub usages: Usages,
    /// Limit on the number of clients with session affinity that are remembered.
    pub pins: Arc<PinLimit>,
    /// Memory for data that waits for slow receivers.
    pub memory: Memory,
    /// Counters for `/metrics`.
    pub counters: Counters,
    /// Resources shared by all UDP flows.
    pub udp: udp::Resources,
    /// Attempts to reach endpoints of followed ServicePorts.
    pub dials: Arc<DialLog>,
    /// Distinguishes cluster-local clients from others.
    pub cluster_local: Arc<ClusterLocal>,
    /// Decides which endpoints see the client's address.
    pub transparent: Arc<Transparent>,
    /// Addresses whose connections come to this process.
    pub captured: Arc<Captured>,
    /// The first worker for the next listeners.
    pub next_worker: AtomicUsize,
    /// Whether it was logged that local ports run out.
    pub ports_logged: LoggedFlag,
}

impl Shared {
    /// The state of a data path with these `options` that counts with `counters`.
    pub fn new(options: Options, counters: Counters) -> Arc<Shared> {
        let limit = memory_limit::of_this_process();
        Shared::with(
            options,
            counters,
            limit.as_ref(),
            LocalPorts::of_this_node(),
        )
    }

    /// The same with this limit of memory, if any, and these local ports.
    pub(in crate::modes::userspace) fn with(
        options: Options,
        counters: Counters,
        limit: Option<&MemoryLimit>,
        local_ports: Arc<LocalPorts>,
    ) -> Arc<Shared> {
        let cluster_local = Arc::new(ClusterLocal::new(options.detect_local.clone()));
        let memory = limit.map(|limit| limit.bytes);
        let descriptors = Descriptors::of_this_process(memory);
        let most = descriptors.in_memory().map(i64::try_from);
        counters
            .memory_descriptors
            .set(most.map_or(0, |most| most.unwrap_or(i64::MAX)));
        Arc::new(Shared {
            udp: udp::Resources::new(&descriptors, local_ports, options.udp_timeout),
            options,
            descriptors,
            usages: Usages::new(counters.clients.clone()),
            pins: Arc::new(PinLimit::new(memory, counters.affinity_evicted.clone())),
            memory: Memory::new(counters.buffered.clone(), limit),
            counters,
            dials: Default::default(),
            transparent: Arc::new(Transparent::new(Arc::clone(&cluster_local))),
            cluster_local,
            captured: Default::default(),
            next_worker: Default::default(),
            ports_logged: Default::default(),
        })
    }

    /// The first worker for the next listeners, which have this many `sockets`.
    pub fn next_worker(&self, sockets: usize) -> usize {
        self.next_worker.fetch_add(sockets, Relaxed)
    }

    /// Returns whether `group` should leave memory to others: the kernel's socket buffers take much
    /// of it, and the group uses more than a quarter of all clients' descriptors.
    fn lacks_memory_for(&self, group: &ServiceGroup) -> bool {
        self.memory.is_short() && group.descriptors() > self.descriptors.of_clients() / 4
    }

    /// The mark that connections to `endpoint` need, if any. Logs once for each group if they
    /// would come back to this process, and when that is over.
    ///
    /// # Errors
    /// When they would come back.
    fn mark_to(
        &self,
        group: &ServiceGroup,
        protocol: Protocol,
        endpoint: SocketAddr,
    ) -> io::Result<Option<u32>> {
        let owner = match self.captured.mark_to(&group.label, protocol, endpoint) {
            Ok(mark) => {
                if group.comes_back_logged.is_over() {
                    tracing::info!(
                        service = %group.label,
                        "no endpoint that is not used because of its address has been found for a \
                         minute"
                    );
                }
                return Ok(mark);
            }
            Err(owner) => owner,
        };
        // From now on, a failure that its callers record does not count.
        group.eject(endpoint);
        if group.comes_back_logged.is_first() {
            tracing::warn!(
                service = %group.label,
                %endpoint,
                "this endpoint is not used, because its address is one of Service {owner}, which \
                 would get the calls; give this Service the endpoints of that one, or remove \
                 addresses of pods from the externalIPs of that one"
            );
        }
        Err(io::Error::other("calls to it would reach a Service"))
    }
}

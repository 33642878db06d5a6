//! Settings of the data path.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use super::{
    proxy::{
        Shared,
        affinity::PinLimit,
        cluster_local::ClusterLocal,
        counters::Counters,
        descriptors::Descriptors,
        memory::Memory,
        tcp::Limits as DialLimits,
        transparent::Transparent,
        udp,
        usage::{ConnectionLimits, Usages},
    },
    rings::Rings,
};
use crate::{
    config::DetectLocal,
    hold::Holding,
    kernel::{memory_limit, socket::local_ports::LocalPorts},
    node::NodePorts,
    sched::SchedulerName,
};

/// Remedy if another program uses the port of a service address.
pub(super) const IF_TAKEN: &str = "bind it to one address, or use --userspace-capture=redirect";

/// Settings of the mode.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of this node.
    pub node: Arc<str>,
    /// `--proxy-port-range`: local ports for redirect capture; `None` for free ports that the
    /// kernel picks.
    pub port_range: Option<RangeInclusive<u16>>,
    /// `--udp-timeout`: how long an idle UDP client keeps its backend.
    pub udp_timeout: Duration,
    /// `--ipvs-scheduler`: the scheduler of Services that name none.
    pub scheduler: SchedulerName,
    /// `--nodeport-addresses`: where node ports are served.
    pub node_ports: Arc<NodePorts>,
    /// How pods are distinguished from other clients.
    pub detect_local: DetectLocal,
    /// Threads of the data path.
    pub workers: usize,
    /// `--userspace-transparent`: endpoints see the client's address.
    pub transparent: bool,
    /// `--userspace-dial-attempts` and `--userspace-dial-timeout`.
    pub dial: DialLimits,
    /// `--userspace-tcp-user-timeout`: how long a peer may leave data unacknowledged; zero for the
    /// kernel's limit.
    pub tcp_user_timeout: Duration,
    /// `--userspace-max-connections` and `--userspace-max-connections-per-client`.
    pub limits: ConnectionLimits,
    /// `--userspace-holder-socket`: the holder that keeps sockets from one process to the next.
    pub holding: Holding,
    /// `--userspace-io`: rings for the threads of the data path.
    pub rings: Rings,
}

/// Maximum number of threads of the data path if no number is given: more would multiply listening
/// sockets for little benefit.
const MOST_WORKERS: usize = 8;

/// The number of threads for `--userspace-workers=asked`.
pub fn workers(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_WORKERS)),
        n => n,
    }
}

impl Options {
    /// State shared by all connections and associations of a data path, counting with `counters`.
    pub(super) fn shared(&self, counters: Counters) -> Arc<Shared> {
        let cluster_local = Arc::new(ClusterLocal::new(self.detect_local.clone()));
        let limit = memory_limit::of_this_process();
        let memory = limit.as_ref().map(|limit| limit.bytes);
        let descriptors = Descriptors::of_this_process(memory);
        let most = descriptors.in_memory().map(i64::try_from);
        counters
            .memory_descriptors
            .set(most.map_or(0, |most| most.unwrap_or(i64::MAX)));
        let local_ports = LocalPorts::of_this_node();
        Arc::new(Shared {
            node: Arc::clone(&self.node),
            udp: udp::Resources::new(&descriptors, local_ports, self.udp_timeout),
            descriptors,
            usages: Usages::new(counters.clients.clone()),
            limits: self.limits,
            pins: Arc::new(PinLimit::new(memory, counters.affinity_evicted.clone())),
            memory: Memory::new(counters.buffered.clone(), limit.as_ref()),
            counters,
            udp_timeout: self.udp_timeout,
            dial: self.dial,
            dials: Default::default(),
            tcp_user_timeout: self.tcp_user_timeout,
            transparent: Arc::new(Transparent::new(Arc::clone(&cluster_local))),
            cluster_local,
            captured: Default::default(),
            holding: self.holding.clone(),
            rings: self.rings.clone(),
            next_worker: Default::default(),
            ports_logged: Default::default(),
        })
    }
}

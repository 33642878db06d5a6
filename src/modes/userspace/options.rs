//! Settings of the data path.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use super::{
    proxy::{tcp::Limits as DialLimits, usage::ConnectionLimits},
    rings::Rings,
};
use crate::{
    config::DetectLocal, modes::handover::Handover, node::NodePorts, sched::SchedulerName,
};

/// Which Services a data path serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All Services: it is the mode of the node.
    Mode,
    /// Services that choose this mode, next to a mode of the kernel, which serves the others and
    /// decides about other ports of their addresses.
    Chosen {
        /// Whether it serves node ports on loopback addresses: some modes do so themselves.
        loopback: bool,
    },
    /// Node ports on loopback addresses, for a mode of the kernel.
    LoopbackNodePorts,
}

impl Role {
    /// Remedy if another program uses the port of a service address.
    pub(super) fn if_taken(self) -> &'static str {
        match self {
            Role::Mode => "bind it to one address, or use --userspace-capture=redirect",
            Role::Chosen { .. } => "bind it to one address",
            Role::LoopbackNodePorts => {
                "bind it to other addresses, or leave loopback out of --nodeport-addresses"
            }
        }
    }
}

/// Settings of the mode.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which Services it serves.
    pub role: Role,
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
    /// The handover to and from other processes, shared by all that relay in this one.
    pub handover: Handover,
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

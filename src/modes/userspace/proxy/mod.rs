//! What carries bytes between clients and endpoints: runs on the workers, sees
//! service groups only, and reads them without locks.

pub mod affinity;
pub mod backends;
pub mod cluster_local;
pub mod counters;
pub mod descriptors;
mod failing;
pub mod group;
mod proxy_protocol;
pub mod tcp;
pub mod transparent;
pub mod udp;
pub mod workers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use self::{
    cluster_local::ClusterLocal, counters::Counters, descriptors::Descriptors,
    transparent::Transparent,
};

/// What all connections and associations share.
#[derive(Debug)]
pub struct Shared {
    /// The node's name.
    pub node: Arc<str>,
    /// The budget of file descriptors.
    pub descriptors: Descriptors,
    /// What is counted for `/metrics`.
    pub counters: Counters,
    /// What all UDP flows share.
    pub udp: udp::Resources,
    /// How long an idle UDP client keeps its backend.
    pub udp_timeout: Duration,
    /// How far a client's search for a backend may go.
    pub dial: tcp::Limits,
    /// How long a peer may acknowledge nothing of what is under way to it; zero: as
    /// long as the kernel allows.
    pub tcp_user_timeout: Duration,
    /// Distinguishes cluster-local clients from others.
    pub cluster_local: Arc<ClusterLocal>,
    /// Which endpoints see the client's address.
    pub transparent: Arc<Transparent>,
    /// The worker where the next listeners begin.
    pub next_worker: AtomicUsize,
    /// That local ports run out was logged.
    pub ports_logged: AtomicBool,
}

impl Shared {
    /// Returns the worker where the `sockets` of the next listeners begin.
    pub fn next_worker(&self, sockets: usize) -> usize {
        self.next_worker.fetch_add(sockets, Relaxed)
    }
}

//! Counters of the data path, for `/metrics`.

use prometheus::{HistogramVec, IntCounter, IntGauge, Registry};

use crate::{family_metrics::histogram, first_answer};

macro_rules! counters {
    ($($field:ident: $kind:ident = $name:literal, $help:literal;)*) => {
        /// Metrics of the userspace data path, named `tripod_userspace_…`.
        #[derive(Clone, Debug)]
        pub struct Counters {
            $(#[doc = $help] pub $field: $kind,)*
            /// How long clients waited for an endpoint that answers, in seconds.
            pub found: HistogramVec,
        }

        impl Counters {
            /// Registers the counters with `registry`, at zero.
            ///
            /// # Errors
            /// When `registry` has metrics of these names already.
            pub fn register(registry: &Registry) -> prometheus::Result<Self> {
                Ok(Counters {
                    $($field: {
                        let metric = $kind::new(concat!("tripod_userspace_", $name), $help)?;
                        registry.register(Box::new(metric.clone()))?;
                        metric
                    },)*
                    found: histogram(
                        registry,
                        "tripod_userspace_first_answer_duration_seconds",
                        "Time from accepting a TCP connection until an endpoint answered.",
                        first_answer::bounds(),
                    )?,
                })
            }
        }
    };
}

counters! {
    connections: IntGauge = "connections", "TCP connections that are open now.";
    connections_total: IntCounter = "connections_total", "TCP connections accepted.";
    connections_by_io_uring: IntCounter = "connections_by_io_uring_total", "Times that a TCP connection was handed to io_uring, because it and others exchanged short messages.";
    connections_failed: IntCounter = "connections_failed_total", "TCP connections reset because no endpoint answered.";
    connections_refused: IntCounter = "connections_refused_total", "TCP connections reset because source ranges exclude the peer.";
    dial_failures: IntCounter = "dial_failures_total", "Attempts to reach an endpoint that failed.";
    dial_retries: IntCounter = "dial_retries_total", "Attempts on another endpoint after a failure.";
    buffered: IntGauge = "buffered_bytes", "Bytes that are buffered for clients and endpoints that do not read them.";
    stalled_ended: IntCounter = "stalled_ended_total", "TCP connections that were reset because one end does not read, and the kernel's buffers for it and others take too much of the memory limit.";
    memory_descriptors: IntGauge = "memory_descriptors", "File descriptors of TCP connections, UDP clients and pipes that the memory limit leaves room for; 0 if there is no limit.";
    accept_paused: IntCounter = "accept_paused_total", "Times that accepting paused because file descriptors, or memory for them, ran out, or were reserved for other Services.";
    clients: IntGauge = "clients", "Clients that have TCP connections or UDP flows now, counted once for each Service that they call.";
    client_limited: IntCounter = "client_limited_total", "TCP connections that were reset, and datagrams of new UDP flows that were dropped, because their client reached its connection limit.";
    service_limited: IntCounter = "service_limited_total", "Times that accepting paused, and datagrams of new UDP clients that were dropped, because the Service reached its connection limit.";
    affinity_evicted: IntCounter = "affinity_evicted_total", "Clients with session affinity that were forgotten before their timeout, to make room for others.";
    udp_associations: IntGauge = "udp_associations", "UDP clients that have a backend now.";
    udp_exhausted: IntCounter = "udp_exhausted_total", "UDP clients that got no backend because local ports, file descriptors or memory for them ran out.";
    udp_ended_early: IntCounter = "udp_ended_early_total", "UDP clients that lost their backend while idle, to make room for others.";
    datagrams_dropped: IntCounter = "datagrams_dropped_total", "UDP datagrams that could not be passed on.";
}

//! Preferences of a Service beyond the API, as far as this mode supports them.

use net::Protocol;

use crate::{
    modes::Reason,
    sched::{SchedulerName, SchedulerNameError},
    services::{Forwarding, Preferences, ServicePort},
};

/// A replacement for the scheduler that a Service names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Scheduler that is used instead.
    pub instead: SchedulerName,
    /// Why the Service's own scheduler is not used.
    pub why: String,
}

/// The scheduler of `port`; `default` is used for Services that name none.
///
/// # Errors
/// The scheduler that is used instead, and why.
pub fn scheduler(port: &ServicePort, default: SchedulerName) -> Result<SchedulerName, Replaced> {
    let error = match port.scheduler(default.as_str()).parse() {
        Ok(name) => return Ok(name),
        Err(error) => error,
    };
    let instead = match &error {
        SchedulerNameError::KernelOnly { name } => match name.as_str() {
            // All three compare connections by weight; their additions are for caches and very many
            // servers.
            "lblc" | "lblcr" | "twos" => SchedulerName::Wlc,
            _ => SchedulerName::Rr,
        },
        SchedulerNameError::Unknown { .. } => default,
    };
    Err(Replaced {
        instead,
        why: format!("{error}; {instead} is used"),
    })
}

/// Preferences of `port` that this mode does not support.
pub fn unsupported(port: &ServicePort, default: SchedulerName) -> Vec<Reason> {
    let Some(preferences) = &port.preferences else {
        return Vec::new();
    };
    let scheduler = scheduler(port, default);
    let used = scheduler
        .as_ref()
        .map_or_else(|other| other.instead, |name| *name);
    let slow_start = Reason::of_slow_start(preferences, used.as_str());
    let scheduler = scheduler.err();
    let scheduler = scheduler
        .map(|used| Reason::new(Preferences::SCHEDULER, used.why).instead(used.instead.as_str()));
    let forwarding = match preferences.forwarding {
        Some(way @ (Forwarding::Dr | Forwarding::Tunnel)) => Some(Reason::new(
            Preferences::FORWARDING,
            format!(
                "{way} does not change packets, but here connections end at the node, which opens \
                 its own to the endpoint, as with fullnat; ipvs mode has {way}"
            ),
        )),
        Some(Forwarding::Nat | Forwarding::FullNat) | None => None,
    };
    let drain_timeout = preferences.drain_timeout.map(|_| {
        let why = "connections to a removed endpoint continue until one side ends them; ipvs mode \
                   can end them sooner";
        Reason::new(Preferences::DRAIN_TIMEOUT, why)
    });
    let udp = port.name.protocol == Protocol::Udp;
    let proxy_protocol = (preferences.proxy_protocol && udp).then(|| {
        let why = "v2 is sent on TCP connections, not on UDP datagrams: nat rules hide the address \
                   to which a datagram was sent";
        Reason::new(Preferences::PROXY_PROTOCOL, why)
    });
    let table_size = Reason::of_hash_table_size(preferences);
    [
        scheduler,
        slow_start,
        forwarding,
        drain_timeout,
        proxy_protocol,
        table_size,
        Reason::of_ports(port),
    ]
    .into_iter()
    .flatten()
    .collect()
}

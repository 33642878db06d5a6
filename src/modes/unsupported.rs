//! Preferences of Services that a mode does not support.

use std::sync::Arc;

use net::Family;

use crate::services::{
    Changes, Forwarding, Preferences, Retry, ServiceMap, ServicePort, ServicePortName,
};

/// A preference that the running mode does not support. Logged once, with an Event
/// on the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The ServicePort that asks for it; other ports of the Service may have the same.
    pub port: ServicePortName,
    /// The preference, and why it is not honoured.
    pub reason: Reason,
}

/// Something that is not done as asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The annotation, such as [`Preferences::SCHEDULER`], or another part of
    /// the Service.
    pub what: &'static str,
    /// Why it is not honoured, what the mode does instead, and what would help.
    pub why: String,
    /// The part or substitute that the mode applies.
    pub done: Done,
}

/// The part of a preference that is honoured, or its substitute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Done {
    /// Nothing: the mode does not support it.
    Nothing,
    /// Nothing, in no mode: it cannot be read.
    Unreadable,
    /// A part of it, in no mode all of it: there is too much of it.
    Part,
    /// The mode does this instead, such as the named scheduler.
    Instead(Arc<str>),
}

impl Reason {
    /// A reason about the preference `what`, which is not honoured because of `why`.
    pub fn new(what: &'static str, why: impl Into<String>) -> Reason {
        Reason {
            what,
            why: why.into(),
            done: Done::Nothing,
        }
    }

    /// Returns this reason where the mode does `other` instead.
    pub fn instead(self, other: &str) -> Reason {
        Reason {
            done: Done::Instead(other.into()),
            ..self
        }
    }

    /// A reason about `what`, which has no effect in any mode: `why` it cannot be read.
    pub fn unreadable(what: &'static str, why: impl Into<String>) -> Reason {
        Reason {
            done: Done::Unreadable,
            ..Reason::new(what, why)
        }
    }

    /// Returns the reason for which a Service is not served at all its addresses in any mode.
    pub fn too_many_addresses(why: impl Into<String>) -> Reason {
        Reason {
            done: Done::Part,
            ..Reason::new("the number of its addresses", why)
        }
    }

    /// Returns the reason for which a Service does not have all its endpoints in any mode.
    pub fn too_many_endpoints() -> Reason {
        let why = "its ports together have more of them than one Service may have, so that some of \
                   the last ports lack endpoints; name fewer ports, or create several Services";
        Reason {
            done: Done::Part,
            ..Reason::new("the number of its endpoints", why)
        }
    }

    /// The part of `tripod.proxy/retry` that is not honoured if the kernel sends a connection to
    /// one endpoint.
    pub fn of_retry(preferences: &Preferences) -> Option<Reason> {
        match preferences.retry? {
            Retry::FirstFlight | Retry::Connect => Some(Reason::new(
                Preferences::RETRY,
                "each connection goes to one endpoint, no other one is tried when it does not \
                 answer, and nothing is sent twice; userspace mode tries others",
            )),
            Retry::Off => None,
        }
    }

    /// The size of hash tables, which modes other than nftables mode do not let a Service choose.
    pub fn of_hash_table_size(preferences: &Preferences) -> Option<Reason> {
        let why = "only nftables mode lets a Service choose the size of its table of hashes";
        preferences
            .hash_table_size
            .map(|_| Reason::new(Preferences::HASH_TABLE_SIZE, why))
    }

    /// Resets, in a mode that does not end connections.
    pub fn of_reset(preferences: &Preferences) -> Option<Reason> {
        let why = "IPVS keeps connections to a removed real server, and sends no reset; nftables, \
                   iptables and userspace mode do";
        preferences
            .reset
            .then(|| Reason::new(Preferences::RESET, why))
    }

    /// A slow start, where the scheduler of the Service ignores weights.
    pub fn of_slow_start(preferences: &Preferences, scheduler: &str) -> Option<Reason> {
        preferences.slow_start?;
        let ignores = matches!(scheduler, "rr" | "lc" | "dh");
        ignores.then(|| {
            let why = format!(
                "the scheduler {scheduler} ignores weights, so a new endpoint gets its whole share \
                 at once; wrr and wlc follow weights"
            );
            Reason::new(Preferences::SLOW_START, why)
        })
    }

    /// A range of ports, in modes that have no rule for so many ports.
    pub fn of_ports(port: &ServicePort) -> Option<Reason> {
        let why = "these ports are not served, because each would need a rule or a socket of its \
                   own; nftables mode serves them";
        port.is_range()
            .then(|| Reason::new(Preferences::PORTS, why))
    }

    /// The limits that are not honoured if the kernel forwards connections.
    pub fn of_limits(preferences: &Preferences) -> impl Iterator<Item = Reason> {
        let why = "the kernel forwards connections, and nothing counts them when they begin; \
                   nftables and userspace mode do";
        let asked = preferences.limits();
        asked.map(move |(what, _)| Reason::new(what, why))
    }

    /// The preferences that are not honoured if rules translate addresses and the kernel forwards
    /// packets.
    pub fn of_nat_rules(preferences: &Preferences) -> impl Iterator<Item = Reason> {
        let other = preferences.forwarding.filter(|way| *way != Forwarding::Nat);
        let forwarding = other.map(|way| {
            let why =
                format!("packets are forwarded by nat instead of {way}, which ipvs mode can do");
            Reason::new(Preferences::FORWARDING, why)
        });
        let drain = preferences.drain_timeout.map(|_| {
            let why = "connections to a removed endpoint continue as long as it answers; ipvs mode \
                       can end them";
            Reason::new(Preferences::DRAIN_TIMEOUT, why)
        });
        let header = preferences.proxy_protocol.then(|| {
            let why = "the kernel forwards packets without looking into connections, so no header \
                       can be added; userspace mode can do that";
            Reason::new(Preferences::PROXY_PROTOCOL, why)
        });
        let all = [forwarding, drain, header, Reason::of_retry(preferences)];
        all.into_iter().flatten()
    }

    /// Attaches the reason to `port`.
    pub fn at(self, port: &ServicePortName) -> Unsupported {
        let port = port.clone();
        Unsupported { port, reason: self }
    }
}

/// Lists the ServicePorts of `family` that choose userspace mode and cannot be relayed in any case,
/// of those that a sync of `changes` has to apply.
pub fn unsupported_mode(family: Family, map: &ServiceMap, changes: &Changes) -> Vec<Unsupported> {
    of_changed(family, map, changes, |port| {
        let is_refused = port.preferences().relayed && !port.is_relayed();
        is_refused.then(|| {
            let what = if port.is_range() {
                "a range of ports"
            } else {
                "SCTP"
            };
            let why = format!("{what} is not relayed, so it stays with the mode of the node");
            Reason::new(Preferences::MODE, why)
        })
    })
}

/// Lists the `reasons` for the ServicePorts of `family` that a sync of `changes` has to apply.
pub fn of_changed<R>(
    family: Family,
    map: &ServiceMap,
    changes: &Changes,
    reasons: impl Fn(&ServicePort) -> R,
) -> Vec<Unsupported>
where
    R: IntoIterator<Item = Reason>,
{
    let all = changes.full.then(|| map.iter()).into_iter().flatten();
    let named = changes.ports.iter().filter(|_| !changes.full);
    let ports = all.chain(named.filter_map(|name| map.get(name)));
    let served = ports.filter(|port| port.name.family == family);
    served
        .flat_map(|port| {
            let reasons = reasons(port).into_iter();
            reasons.map(|reason| reason.at(&port.name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tries_one_endpoint_which_is_all_that_off_asks_for() {
        for (retry, supported) in [
            (None, true),
            (Some(Retry::Off), true),
            (Some(Retry::Connect), false),
            (Some(Retry::FirstFlight), false),
        ] {
            let preferences = Preferences {
                retry,
                ..Preferences::default()
            };
            let what = Reason::of_retry(&preferences).map(|reason| reason.what);
            let expected = (!supported).then_some(Preferences::RETRY);
            assert_eq!(what, expected, "{retry:?}");
        }
    }
}

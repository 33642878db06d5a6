//! Known differences of modes from kube-proxy's iptables mode, and the reasons. Each is tested as
//! well: if a column does not show a difference that is listed for it, its test fails.

use super::case::{Caller, Protocol, Target};
use super::columns::{
    Columns, in_iptables, ipvs_without_reject, output_is_asked, rules_without_addrtype,
    rules_without_reject, rules_without_statistic, userspace, userspace_without_reject,
};
use super::observation::{Answered, How, Observation, Source};

/// A reason, numbered in the document in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    ClientHidden,
    NoSctpInUserspace,
    NobodyHereIsRefused,
    AddressTakenWhole,
    OtherPortsRefused,
    OneServerForAllCallers,
    LoopbackIsNotServed,
    LoopbackOfBothFamilies,
    AffinityOutlivesConnections,
    RandomAlone,
    OwnPacketsAreStopped,
    OutputIsNotAsked,
    NoSctp,
    SpreadByPort,
    AffinityByAddress,
    NamedAddressesAlone,
    LoopbackUnguarded,
    DroppedNotRefused,
    RoundRobinInstead,
    LoopbackIsRelayed,
    HashesPorts,
    NoRanges,
}

const NOBODY_HERE: &str = "With `internalTrafficPolicy: Local` and no endpoint on the node, \
    kube-proxy's iptables mode drops packets. In this mode nothing listens at the address, so the \
    client is refused at once.";

const NO_RANGES: &str = "Only nftables mode with fib serves ranges of ports (`tripod.proxy/ports`); an \
    Event on the Service reports this.";

impl Why {
    pub const ALL: [Why; 22] = [
        Why::ClientHidden,
        Why::NoSctpInUserspace,
        Why::NobodyHereIsRefused,
        Why::AddressTakenWhole,
        Why::OtherPortsRefused,
        Why::OneServerForAllCallers,
        Why::LoopbackIsNotServed,
        Why::LoopbackOfBothFamilies,
        Why::AffinityOutlivesConnections,
        Why::RandomAlone,
        Why::OwnPacketsAreStopped,
        Why::OutputIsNotAsked,
        Why::NoSctp,
        Why::SpreadByPort,
        Why::AffinityByAddress,
        Why::NamedAddressesAlone,
        Why::LoopbackUnguarded,
        Why::DroppedNotRefused,
        Why::RoundRobinInstead,
        Why::LoopbackIsRelayed,
        Why::HashesPorts,
        Why::NoRanges,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Why::ClientHidden => {
                "Userspace mode opens a connection of its own: endpoints see the node's address."
            }
            Why::NoSctpInUserspace => {
                "Userspace mode cannot relay SCTP associations: nothing listens, so the node \
                 refuses them."
            }
            Why::NobodyHereIsRefused => NOBODY_HERE,
            Why::AddressTakenWhole => {
                "In this mode cluster IPs are addresses of the node: their other ports are \
                 refused instead of being forwarded to the router."
            }
            Why::OtherPortsRefused => {
                "Ports of a cluster IP that its Service does not name are refused, as in \
                 kube-proxy's nftables mode, instead of being forwarded to the router."
            }
            Why::OneServerForAllCallers => {
                "IPVS has one virtual server for all callers, as in kube-proxy: with \
                 `externalTrafficPolicy: Local`, pods and the node reach only the endpoints on \
                 the node as well, if there are any."
            }
            Why::LoopbackIsNotServed => {
                "Node ports are served at 127.0.0.1 only if `--nodeport-addresses` includes it."
            }
            Why::LoopbackOfBothFamilies => {
                "Node ports are also served at ::1: the kernel drops translated packets from or \
                 to ::1 as martians, but not packets to a socket."
            }
            Why::AffinityOutlivesConnections => {
                "IPVS keeps a client's affinity for two minutes after its last connection."
            }
            Why::RandomAlone => "iptables rules choose at random, by weights: no schedulers.",
            Why::OwnPacketsAreStopped => {
                "A program on the node whose datagram a rule drops gets EPERM from its own \
                 kernel, before anything is sent."
            }
            Why::OutputIsNotAsked => {
                "kube-proxy's rules that refuse calls to external addresses without endpoints do \
                 not apply to packets that the node itself sends: these leave the node."
            }
            Why::NoSctp => "This kernel has no SCTP.",
            Why::SpreadByPort => {
                "Without the statistic match, or numgen, rules choose by the client's port. A \
                 client uses successive ports, so its next connections may all reach the same \
                 endpoint."
            }
            Why::AffinityByAddress => {
                "Without the recent match, or dynamic maps, the client's address determines the \
                 endpoint: affinity does not expire."
            }
            Why::NamedAddressesAlone => {
                "Without the addrtype match, or fib, rules know only those addresses of the node \
                 that its Node object lists, and loopback."
            }
            Why::LoopbackUnguarded => {
                "Without the conntrack match, access of other hosts to the node's loopback \
                 addresses cannot be blocked: node ports are not served there."
            }
            Why::DroppedNotRefused => {
                "Without the REJECT target, or reject, callers get no answer where others refuse."
            }
            Why::RoundRobinInstead => {
                "If the kernel lacks its scheduler, a Service is served with rr, which ignores \
                 weights; an Event on the Service reports this."
            }
            Why::LoopbackIsRelayed => {
                "Calls to loopback addresses are relayed, as in kube-proxy's nftables mode \
                 (KEP-6032): only TCP, which an Event reports, and with a policy of Local only to \
                 endpoints on the node."
            }
            Why::HashesPorts => {
                "In ipvs mode `mh` also hashes the client's port, as in kube-proxy."
            }
            Why::NoRanges => NO_RANGES,
        }
    }
}

/// A difference that shows in every case where it can.
pub struct Rule {
    pub why: Why,
    pub columns: Columns,
    /// The result instead of the given one, if it differs.
    pub instead: fn(Caller, Target, Protocol, &Observation) -> Option<Observation>,
}

pub const RULES: &[Rule] = &[
    Rule {
        why: Why::NamedAddressesAlone,
        columns: rules_without_addrtype,
        instead: |_, target, _, observation| {
            let served = matches!(observation, Observation::Answered(_));
            (target == Target::SecondNodePort && served).then_some(Observation::Refused)
        },
    },
    Rule {
        why: Why::SpreadByPort,
        columns: rules_without_statistic,
        instead: |_, _, _, observation| match observation {
            Observation::Answered(answered) if answered.by.len() > 1 => {
                Some(Observation::Answered(Answered {
                    how: How::Some,
                    ..answered.clone()
                }))
            }
            _ => None,
        },
    },
    Rule {
        why: Why::NoSctpInUserspace,
        columns: userspace,
        // SCTP does not give up because of the router's message (`sctp_v4_err` in
        // net/sctp/input.c); the node itself refuses.
        instead: |_, target, protocol, _| {
            (protocol == Protocol::Sctp).then_some(match target {
                Target::NodePort => Observation::Refused,
                _ => Observation::Silent,
            })
        },
    },
    Rule {
        why: Why::ClientHidden,
        columns: userspace,
        instead: |_, _, _, observation| match observation {
            Observation::Answered(answered) if answered.source == Source::Kept => {
                Some(Observation::Answered(Answered {
                    source: Source::Node,
                    ..answered.clone()
                }))
            }
            _ => None,
        },
    },
    Rule {
        why: Why::OutputIsNotAsked,
        columns: in_iptables,
        instead: |caller, target, _, observation| {
            let outwards = matches!(target, Target::LoadBalancer | Target::ExternalIp);
            let refused = *observation == Observation::Refused;
            (caller == Caller::Node && outwards && refused).then_some(Observation::Unreached)
        },
    },
    Rule {
        why: Why::DroppedNotRefused,
        columns: rules_without_reject,
        instead: |_, target, _, observation| {
            (*observation == Observation::Refused).then_some(())?;
            match target {
                Target::ClusterIp | Target::LoadBalancer | Target::ExternalIp => {
                    Some(Observation::Silent)
                }
                // The node itself refuses a node port that no Service has.
                Target::NodePort => Some(Observation::SilentOrRefused),
                _ => None,
            }
        },
    },
    Rule {
        why: Why::DroppedNotRefused,
        columns: userspace_without_reject,
        // What redirect capture does not lead to a socket of Tripod is dropped.
        instead: |_, target, _, observation| {
            let own = matches!(target, Target::Loopback | Target::SecondNodePort);
            (*observation == Observation::Refused && !own).then_some(Observation::SilentOrRefused)
        },
    },
    Rule {
        why: Why::DroppedNotRefused,
        columns: ipvs_without_reject,
        // IPVS itself refuses ports that it knows, if it can.
        instead: |caller, target, protocol, observation| {
            let own = caller == Caller::Node && protocol == Protocol::Udp;
            let local = matches!(target, Target::Loopback | Target::SecondNodePort);
            (*observation == Observation::Refused && !own && !local)
                .then_some(Observation::SilentOrRefused)
        },
    },
    Rule {
        why: Why::OwnPacketsAreStopped,
        columns: output_is_asked,
        instead: |caller, target, protocol, observation| {
            let stopped = matches!(
                observation,
                Observation::Refused | Observation::Silent | Observation::SilentOrRefused
            );
            let stopped = caller == Caller::Node && protocol == Protocol::Udp && stopped;
            match target {
                Target::Loopback
                | Target::SecondNodePort
                | Target::NodeAddress
                | Target::SecondNodeAddress => None,
                // The node itself refuses a node port that no Service has.
                Target::NodePort => stopped.then_some(Observation::StoppedOrRefused),
                _ => stopped.then_some(Observation::Stopped),
            }
        },
    },
    Rule {
        why: Why::OwnPacketsAreStopped,
        columns: in_iptables,
        instead: |caller, target, protocol, observation| {
            let stopped = match observation {
                Observation::Refused => target == Target::ClusterIp,
                Observation::Silent => true,
                _ => false,
            };
            (caller == Caller::Node && protocol == Protocol::Udp && stopped)
                .then_some(Observation::Stopped)
        },
    },
];

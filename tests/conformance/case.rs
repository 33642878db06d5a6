//! Cases, and the words in which they are written.
//!
//! A case is one Service, then stages: in each the Service is in the given state, and certain
//! callers who call certain addresses of it see certain results.

use super::columns::{Column, Columns};
use super::differences::{self, Why};
use super::objects::Service;
use super::observation::Observation;

/// The client of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A pod on the node that is no endpoint.
    Pod,
    /// The node itself.
    Node,
    /// Pod `a`, an endpoint: it may be sent to itself.
    Backend,
    /// Another node of the cluster: not in the network of pods.
    OtherNode,
    /// A pod on the other node.
    RemotePod,
    /// A host that does not belong to the cluster.
    Outside,
}

/// The address that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    ClusterIp,
    /// The node port at the node's first address, that of its Node object.
    NodePort,
    /// The node port at another address of the node.
    SecondNodePort,
    /// The node port at 127.0.0.1 or ::1.
    Loopback,
    LoadBalancer,
    ExternalIp,
    /// The Service's port at the node's first address.
    NodeAddress,
    /// The same at the node's second address.
    SecondNodeAddress,
    /// The health-check node port, asked over HTTP.
    HealthCheck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

/// Flags of Tripod in addition to those of the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flags {
    Usual,
    MasqueradeAll,
    /// Node ports only at the node's first addresses, given as CIDRs.
    NodePortCidrs,
    /// The same given as `primary`.
    NodePortPrimary,
    /// The same, and loopback addresses.
    NodePortLocalhost,
}

impl Flags {
    pub const ALL: [Flags; 5] = [
        Flags::Usual,
        Flags::MasqueradeAll,
        Flags::NodePortCidrs,
        Flags::NodePortPrimary,
        Flags::NodePortLocalhost,
    ];

    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Flags::Usual => &[],
            Flags::MasqueradeAll => &["--masquerade-all"],
            Flags::NodePortCidrs => &["--nodeport-addresses=192.0.2.0/24,2001:db8::/64"],
            Flags::NodePortPrimary => &["--nodeport-addresses=primary"],
            Flags::NodePortLocalhost => &["--nodeport-addresses=primary,localhost"],
        }
    }
}

/// Callers, the addresses that they call, and the expected results.
#[derive(Clone, Debug)]
pub struct Expectation {
    pub callers: Vec<Caller>,
    pub targets: Vec<Target>,
    pub protocols: Vec<Protocol>,
    pub families: Vec<Family>,
    /// Number of the Service's port, if it is not the usual one.
    pub port: u16,
    /// One socket for the whole case instead of a new one for each call.
    pub one_socket: bool,
    /// Before the call, the endpoint sends a packet that is far outside the connection's window.
    pub stray: bool,
    /// Over UDP: question and answer do not fit into one packet.
    pub large: bool,
    pub observation: Observation,
    /// Different results in certain columns, and the reasons.
    pub but: Vec<(Columns, Why, Observation)>,
}

impl Expectation {
    /// Returns the expected result in `column` at `target` over `protocol`, and why it differs from
    /// kube-proxy's iptables mode, if it does.
    pub fn observation_in(
        &self,
        column: &Column,
        caller: Caller,
        target: Target,
        protocol: Protocol,
    ) -> Seen {
        let mut whys = Vec::new();
        let mut observation = self.observation.clone();
        if let Some((_, why, other)) = self.but.iter().find(|(columns, ..)| columns(column)) {
            observation = other.clone();
            whys.push(*why);
        }
        for rule in differences::RULES {
            if (rule.columns)(column)
                && let Some(other) = (rule.instead)(caller, target, protocol, &observation)
            {
                observation = other;
                whys.push(rule.why);
            }
        }
        Seen { observation, whys }
    }
}

/// The expected result in a column, and the reasons for a difference.
#[derive(Clone, Debug)]
pub struct Seen {
    pub observation: Observation,
    pub whys: Vec<Why>,
}

/// The time from one change of the Service to the next.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The change; empty for the first stage.
    pub after: &'static str,
    /// The Service; if `None`, it is deleted.
    pub service: Option<Service>,
    pub expectations: Vec<Expectation>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub flags: Flags,
    pub stages: Vec<Stage>,
}

/// Begins a case: `name` states the promise.
pub fn case(name: &'static str, service: Service) -> Case {
    Case {
        name,
        flags: Flags::Usual,
        stages: vec![Stage {
            after: "",
            service: Some(service),
            expectations: Vec::new(),
        }],
    }
}

impl Case {
    pub fn with_flags(mut self, flags: Flags) -> Case {
        self.flags = flags;
        self
    }

    pub fn when(self, callers: impl IntoIterator<Item = Caller>) -> When {
        When {
            case: self,
            callers: callers.into_iter().collect(),
        }
    }

    /// Adds a stage, in which the Service changes.
    pub fn then(mut self, after: &'static str, change: impl FnOnce(Service) -> Service) -> Case {
        let before = self.stages.iter().rev().find_map(|s| s.service.clone());
        let before = before.expect("a case begins with a Service");
        self.stages.push(Stage {
            after,
            service: Some(change(before)),
            expectations: Vec::new(),
        });
        self
    }

    /// Adds a stage, in which the Service and its slices are deleted.
    pub fn then_deleted(mut self) -> Case {
        self.stages.push(Stage {
            after: "it is deleted",
            service: None,
            expectations: Vec::new(),
        });
        self
    }

    /// The latest expectation, to which "but" or "and" refers.
    fn latest(&mut self) -> &mut Expectation {
        let stage = self.stages.last_mut().expect("a case has a stage");
        stage
            .expectations
            .last_mut()
            .expect("first say what is seen")
    }

    /// Sets a different observation for certain columns.
    pub fn but(mut self, columns: Columns, why: Why, observation: Observation) -> Case {
        self.latest().but.push((columns, why, observation));
        self
    }

    /// Explains why `column` cannot run this case on its kernel, if it cannot.
    pub fn obstacle(&self, column: &Column) -> Option<Why> {
        let wants_sctp = self
            .stages
            .iter()
            .flat_map(|stage| &stage.expectations)
            .any(|expectation| expectation.protocols.contains(&Protocol::Sctp));
        (wants_sctp && !column.kernel.has_sctp()).then_some(Why::NoSctp)
    }

    /// Lists all differences that show in `column`, without duplicates, in order.
    pub fn differences(&self, column: &Column) -> Vec<Why> {
        let mut whys = Vec::new();
        for stage in &self.stages {
            for expectation in &stage.expectations {
                for caller in &expectation.callers {
                    for target in &expectation.targets {
                        for protocol in &expectation.protocols {
                            let seen =
                                expectation.observation_in(column, *caller, *target, *protocol);
                            whys.extend(seen.whys);
                        }
                    }
                }
            }
        }
        whys.sort_unstable();
        whys.dedup();
        whys
    }
}

#[must_use]
pub struct When {
    case: Case,
    callers: Vec<Caller>,
}

impl When {
    pub fn calls(self, targets: impl IntoIterator<Item = Target>) -> Call {
        Call {
            case: self.case,
            expectation: Expectation {
                callers: self.callers,
                targets: targets.into_iter().collect(),
                protocols: vec![Protocol::Tcp],
                families: vec![Family::V4, Family::V6],
                port: super::addresses::PORT,
                one_socket: false,
                stray: false,
                large: false,
                observation: Observation::Refused,
                but: Vec::new(),
            },
        }
    }
}

#[must_use]
pub struct Call {
    case: Case,
    expectation: Expectation,
}

impl Call {
    /// Calls over these protocols; the default is TCP.
    pub fn over(mut self, protocols: impl IntoIterator<Item = Protocol>) -> Call {
        self.expectation.protocols = protocols.into_iter().collect();
        self
    }

    /// Calls with this family only; the default is both.
    pub fn by(mut self, family: Family) -> Call {
        self.expectation.families = vec![family];
        self
    }

    pub fn at_port(mut self, port: u16) -> Call {
        self.expectation.port = port;
        self
    }

    pub fn on_one_socket(mut self) -> Call {
        self.expectation.one_socket = true;
        self
    }

    /// Calls on one socket, after a packet of pod `a` that is far outside its window.
    pub fn after_a_stray_packet(mut self) -> Call {
        self.expectation.stray = true;
        self.on_one_socket()
    }

    pub fn with_large_datagrams(mut self) -> Call {
        self.expectation.large = true;
        self
    }

    pub fn sees(mut self, observation: Observation) -> Case {
        self.expectation.observation = observation;
        let stage = self.case.stages.last_mut().expect("a case has a stage");
        stage.expectations.push(self.expectation);
        self.case
    }
}

/// Allows a single word instead of several.
macro_rules! one_of_it {
    ($($word:ty),+) => { $(
        impl IntoIterator for $word {
            type Item = $word;
            type IntoIter = std::iter::Once<$word>;
            fn into_iter(self) -> Self::IntoIter {
                std::iter::once(self)
            }
        }
    )+ };
}
one_of_it!(Caller, Target, Protocol);

//! Pods that answer, and their endpoints in slices.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value, json};

use super::addresses::{NODE, OTHER_NODE};
use super::case::Family;

/// Pods that answer. `a` and `b` are on the node, `c` on the other one; two are
/// in the network of their nodes (`hostNetwork`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pod {
    A,
    B,
    C,
    OnNode,
    OnOther,
}

pub const ALL: [Pod; 3] = [Pod::A, Pod::B, Pod::C];
pub const HERE: [Pod; 2] = [Pod::A, Pod::B];
pub const ELSEWHERE: [Pod; 1] = [Pod::C];

impl Pod {
    pub fn name(self) -> &'static str {
        match self {
            Pod::A => "a",
            Pod::B => "b",
            Pod::C => "c",
            // The name of the backend in a node's own namespace.
            Pod::OnNode => "node",
            Pod::OnOther => "other",
        }
    }

    pub fn node(self) -> &'static str {
        match self {
            Pod::A | Pod::B | Pod::OnNode => "node",
            Pod::C | Pod::OnOther => "other",
        }
    }

    pub fn addresses(self) -> (Ipv4Addr, Ipv6Addr) {
        let (subnet, last) = match self {
            Pod::A => (0, 11),
            Pod::B => (0, 12),
            Pod::C => (1, 13),
            Pod::OnNode => return NODE[0],
            Pod::OnOther => return OTHER_NODE,
        };
        (
            Ipv4Addr::new(10, 244, subnet, last),
            Ipv6Addr::new(0xfd00, 0x244, 0, subnet.into(), 0, 0, 0, last.into()),
        )
    }
}

/// Its address of each family.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pod: Pod,
    ready: bool,
    serving: bool,
    terminating: bool,
    hints: Map<String, Value>,
}

pub fn ready(pod: Pod) -> Endpoint {
    Endpoint {
        pod,
        ready: true,
        serving: true,
        terminating: false,
        hints: Map::new(),
    }
}

pub fn unready(pod: Pod) -> Endpoint {
    Endpoint {
        ready: false,
        serving: false,
        ..ready(pod)
    }
}

/// Terminating, but still answering.
pub fn terminating(pod: Pod) -> Endpoint {
    Endpoint {
        ready: false,
        terminating: true,
        ..ready(pod)
    }
}

/// Terminating, and not answering any more.
pub fn ending(pod: Pod) -> Endpoint {
    Endpoint {
        serving: false,
        ..terminating(pod)
    }
}

impl Endpoint {
    /// Sets the state that the slice controller reports for an unready endpoint with
    /// `publishNotReadyAddresses`: ready.
    pub fn published_anyway(mut self) -> Endpoint {
        self.ready = true;
        self
    }

    pub fn for_zone(mut self, zone: &str) -> Endpoint {
        self.hints
            .insert("forZones".into(), json!([{"name": zone}]));
        self
    }

    pub fn for_node(mut self, node: &str) -> Endpoint {
        self.hints
            .insert("forNodes".into(), json!([{"name": node}]));
        self
    }

    pub fn manifest(&self, family: Family) -> Value {
        let (v4, v6) = self.pod.addresses();
        let address = match family {
            Family::V4 => IpAddr::from(v4),
            Family::V6 => v6.into(),
        };
        let mut endpoint = json!({
            "addresses": [address],
            "nodeName": self.pod.node(),
            "conditions": {
                "ready": self.ready, "serving": self.serving, "terminating": self.terminating,
            },
        });
        if !self.hints.is_empty() {
            endpoint["hints"] = self.hints.clone().into();
        }
        endpoint
    }
}

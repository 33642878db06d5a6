//! Where a ServicePort is called, as maps and sets of nf_tables have it.

use enumset::EnumSetType;
use ipnet::IpNet;
use net::Frontend;
use nftables::{Element, Value, concat};

/// Kind of address that a client called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Called {
    /// A service address.
    Address,
    /// A node port.
    NodePort,
}

/// The purposes of maps and sets. For each there is one for addresses and one for node ports.
#[derive(Debug, Hash, PartialOrd, Ord, EnumSetType)]
pub enum Role {
    /// Verdicts on packets of any sender.
    All,
    /// With an external policy of Local: verdicts on packets from pods here and from the node.
    FromCluster,
    /// The same for packets from others.
    FromOutside,
    /// Endpoints by slot.
    Endpoints,
    /// Refused packets.
    Refused,
    /// The chains that remember where clients were sent.
    Affinity,
    /// The chains that limit connections.
    Limits,
    /// Counts first packets of connections, by endpoint.
    Connections,
    /// Counts packets from clients, by endpoint.
    ToEndpoints,
    /// Counts packets to clients, by endpoint.
    FromEndpoints,
}

impl Role {
    /// Those of the sets that count the packets of a ServicePort.
    pub const COUNTERS: [Role; 3] = [Role::Connections, Role::ToEndpoints, Role::FromEndpoints];

    /// Name and comment of the map or set for that, of those for addresses or for node ports.
    pub(super) fn words(self, called: Called) -> (&'static str, &'static str) {
        let [address, node_port] = match self {
            Role::All => [
                ("services", "addresses of Services"),
                ("node-ports", "node ports of Services"),
            ],
            Role::FromCluster => ["from-cluster", "node-ports-from-cluster"].map(|name| {
                let calls = "externalTrafficPolicy Local: calls from pods here and from the node";
                (name, calls)
            }),
            Role::FromOutside => ["from-outside", "node-ports-from-outside"]
                .map(|name| (name, "externalTrafficPolicy Local: other calls")),
            Role::Endpoints => [
                ("endpoints", "a slot of a Service's address: an endpoint"),
                ("node-port-endpoints", "a slot of a node port: an endpoint"),
            ],
            Role::Refused => [
                ("refused", "addresses of Services without endpoints"),
                (
                    "refused-node-ports",
                    "node ports of Services without endpoints",
                ),
            ],
            Role::Affinity => ["affinity-services", "affinity-node-ports"].map(|name| {
                (
                    name,
                    "where clients are remembered that stay on their endpoint",
                )
            }),
            Role::Limits => ["limited-services", "limited-node-ports"]
                .map(|name| (name, "where the connections of a Service are counted")),
            Role::Connections => ["connections", "node-port-connections"]
                .map(|name| (name, "connections to endpoints")),
            Role::ToEndpoints => {
                ["to-endpoints", "node-port-to-endpoints"].map(|name| (name, "bytes from clients"))
            }
            Role::FromEndpoints => ["from-endpoints", "node-port-from-endpoints"]
                .map(|name| (name, "bytes to clients")),
        };
        match called {
            Called::Address => address,
            Called::NodePort => node_port,
        }
    }
}

/// Returns a key that begins with `frontend`.
pub(super) fn key(frontend: &Frontend, rest: &[Value]) -> Vec<u8> {
    let mut values = Vec::with_capacity(5);
    values.extend(frontend.address.map(Value::Ip));
    values.push(Value::Protocol(frontend.protocol.number()));
    values.push(Value::Port(frontend.port));
    values.extend_from_slice(rest);
    concat(&values)
}

/// Returns an element of a set of `frontend` and an address, with all addresses of a network.
pub(super) fn with_network(frontend: &Frontend, network: &IpNet) -> Element {
    between(
        frontend,
        [network.network(), network.broadcast()].map(|ip| vec![Value::Ip(ip)]),
    )
}

/// Returns an element of a set of `frontend`, with all ports of a range.
pub(super) fn element(frontend: &Frontend) -> Element {
    between(frontend, [vec![], vec![]])
}

fn between(frontend: &Frontend, rest: [Vec<Value>; 2]) -> Element {
    let last_port = Frontend {
        port: *frontend.ports().end(),
        ..*frontend
    };
    let [first, last] = rest;
    let (first, last) = (key(frontend, &first), key(&last_port, &last));
    let end = (first != last).then(|| last.into());
    Element {
        end,
        ..Element::new(first)
    }
}

impl Called {
    /// Returns which kind of address `frontend` is.
    pub(super) fn of(frontend: &Frontend) -> Called {
        match frontend.address {
            Some(_) => Called::Address,
            None => Called::NodePort,
        }
    }
}

//! Counts the traffic of ServicePorts, in the namespaces that the operator names: sets
//! whose elements count, and chains that look each packet of a translated connection up
//! in them.
//!
//! A key is the destination that the client called and the endpoint that it was sent to, as
//! connection tracking has them: the original destination, and the source of the answers. So
//! packets of both directions have the same key.

use std::net::SocketAddr;

use net::{Family, Frontend};
use nftables::{
    Chain, ChainType, Ct, Direction, Field, Hook, Meta, Rule, Statement, Test, Value, Verdict,
};

use super::{
    Options, Sets,
    frontend::{Called, Role, key},
    matches::{STATUS_DNAT, called, each_protocol},
    sets::SetId,
};
use crate::services::ServicePort;

/// After the chains that refuse.
const PRIORITY: i32 = 0;
/// Just before sources are translated (`NF_IP_PRI_NAT_SRC`).
const BEFORE_SNAT: i32 = 99;

/// An element that counts the traffic of one endpoint that is sent to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// Endpoint to which clients were sent.
    pub endpoint: SocketAddr,
    /// The set of the element.
    pub set: SetId,
    /// Key of the element in the set.
    pub key: Vec<u8>,
}

/// Returns the elements that count for `port`: none for a range of ports, as each of its ports would
/// need some. Endpoints that take no new connections may still have some.
pub fn counting(port: &ServicePort) -> Vec<Counting> {
    if port.is_range() {
        return Vec::new();
    }
    let mut frontends: Vec<Frontend> = Vec::new();
    for frontend in port.frontends() {
        // A Service may name an address twice.
        if !frontends.contains(&frontend) {
            frontends.push(frontend);
        }
    }
    let mut elements = Vec::new();
    for frontend in frontends {
        for endpoint in &port.endpoints.all {
            let endpoint = endpoint.address;
            let key = key(
                &frontend,
                &[Value::Ip(endpoint.ip()), Value::Port(endpoint.port())],
            );
            elements.extend(Role::COUNTERS.map(|role| Counting {
                endpoint,
                set: SetId::Of(role, Called::of(&frontend)),
                key: key.clone(),
            }));
        }
    }
    elements
}

/// The chains that count, each after those to which it jumps; none if nothing is counted.
pub(super) fn chains(options: &Options, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    if options.counted.is_empty() {
        return Vec::new();
    }
    let in_chain = |counter| {
        let key = key_of_packet(options.family);
        // The address comes first.
        let of_node_port = key.get(1..).unwrap_or_default();
        let of_both = [(&*key, Called::Address), (of_node_port, Called::NodePort)];
        let rules = of_both.map(|(key, called)| {
            let set = sets.get(SetId::Of(counter, called));
            each_protocol(|| Statement::In(key.to_vec(), (&**set).into()))
        });
        (Chain::new(chain_of(counter)), rules.concat())
    };
    let translated = || Statement::Match(Field::Ct(Ct::Status, None), Test::Any(STATUS_DNAT));
    let jump = |counter| Statement::Verdict(Verdict::Jump(chain_of(counter).into()));
    let way = |direction: Direction, counter| {
        let octets = vec![direction as u8];
        let matched = Statement::Match(Field::Ct(Ct::Direction, None), Test::Is(octets));
        Rule::new([translated(), matched, jump(counter)])
    };
    let packets = |name, hook, first: Option<Rule>| {
        let ways = [
            way(Direction::Original, Role::ToEndpoints),
            way(Direction::Reply, Role::FromEndpoints),
        ];
        let chain = Chain::base(name, ChainType::Filter, hook, PRIORITY);
        (chain, first.into_iter().chain(ways).collect())
    };
    // Chains of this type see the first packet of a connection alone.
    let connections = |name, hook| {
        let chain = Chain::base(name, ChainType::Nat, hook, BEFORE_SNAT);
        let rule = Rule::new([translated(), jump(Role::Connections)]);
        (chain, vec![rule])
    };
    let loopback = Test::Is(Value::Name("lo".to_owned()).octets());
    let counted_before = Rule::new([
        Statement::Match(Field::Meta(Meta::InputName), loopback),
        Statement::Verdict(Verdict::Return),
    ]);
    let mut chains: Vec<_> = Role::COUNTERS.map(in_chain).into();
    chains.extend([
        packets("count-forward", Hook::Forward, None),
        packets("count-output", Hook::Output, None),
        packets(
            "count-input",
            Hook::Input,
            Some(counted_before.commented("counted on its way out")),
        ),
        connections("count-postrouting", Hook::Postrouting),
        connections("count-nat-input", Hook::Input),
    ]);
    chains
}

/// The key by which a packet of a translated connection is looked up.
fn key_of_packet(family: Family) -> Vec<Field> {
    let answers = Some(Direction::Reply);
    let mut key = called(family);
    key.push(Field::Ct(Ct::SourceAddress(family), answers));
    key.push(Field::Ct(Ct::SourcePort, answers));
    key
}

/// Name of the chain that looks packets up for `counter`.
fn chain_of(counter: Role) -> String {
    let (set, _) = counter.words(Called::Address);
    format!("count-{set}")
}

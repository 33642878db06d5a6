//! Matches of rules.

use net::{Family, Protocol};
use nftables::{
    Chain, ChainType, Ct, Direction, Fib, Field, Hook, Meta, Rule, Statement, Test, Value, Verdict,
};

use super::{
    Options, Sets,
    frontend::{Called, Role},
    sets::{self, SetId},
};
use crate::{kernel::probe::NftPart, modes::detect_local::DetectLocal};

/// Bits of a connection's state and of its status (`enum ip_conntrack_info` and
/// `enum ip_conntrack_status`).
pub(super) const STATE_INVALID: u32 = 1;
pub(super) const STATE_NEW: u32 = 8;
const STATUS_CONFIRMED: u32 = 8;
pub(super) const STATUS_DNAT: u32 = 32;

/// `RTN_LOCAL` of `linux/rtnetlink.h`.
const LOCAL: u32 = 2;

/// Which of a packet's addresses is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Matches where an address of the packet is one of the node's own.
pub(super) fn is_nodes_own(side: Side, options: &Options, sets: &Sets) -> Statement {
    if options.features.contains(NftPart::Fib) {
        let fib = match side {
            Side::Source => Fib::Source,
            Side::Destination => Fib::Destination,
        };
        return Statement::Match(Field::Fib(fib), Test::Is(LOCAL.to_ne_bytes().to_vec()));
    }
    let address = match side {
        Side::Source => Field::SourceAddress(options.family),
        Side::Destination => Field::DestinationAddress(options.family),
    };
    let own = (&**sets.get(SetId::NodeAddresses)).into();
    Statement::In(vec![address], own)
}

/// Matches packets that do not come from a pod of this node; `None`: that cannot be known.
pub(super) fn not_local(detect: &DetectLocal, family: Family) -> Option<Statement> {
    let (field, same) = local(detect, family)?;
    let other = match same {
        Test::Prefix(ip, length) => Test::NotPrefix(ip, length),
        Test::Is(octets) => Test::IsNot(octets),
        same => same,
    };
    Some(Statement::Match(field, other))
}

/// Matches packets that come from a pod of this node; `None`: that cannot be known.
pub(super) fn is_local(detect: &DetectLocal, family: Family) -> Option<Statement> {
    local(detect, family).map(|(field, test)| Statement::Match(field, test))
}

fn local(detect: &DetectLocal, family: Family) -> Option<(Field, Test)> {
    match detect {
        DetectLocal::Unknown => None,
        DetectLocal::Within(network) => Some((
            Field::SourceAddress(family),
            Test::Prefix(network.network(), network.prefix_len()),
        )),
        DetectLocal::Through(link) => {
            let octets = match link.strip_suffix('+') {
                // Only this part of the name is compared.
                Some(prefix) => prefix.as_bytes().to_vec(),
                None => Value::Name(link.clone()).octets(),
            };
            Some((Field::Meta(Meta::InputName), Test::Is(octets)))
        }
    }
}

/// Matches the first packet of a connection whose destination was translated. A packet that is
/// repeated for lack of an answer is new, too, and follows the first one, whose endpoint may have
/// left the Service since; the entry of the first one is confirmed by then (`nf_conntrack_confirm`).
fn begins_translated() -> [Statement; 2] {
    let status = Field::Masked(
        Box::new(Field::Ct(Ct::Status, None)),
        STATUS_DNAT | STATUS_CONFIRMED,
    );
    [
        Statement::Match(Field::Ct(Ct::State, None), Test::Any(STATE_NEW)),
        Statement::Match(status, Test::Is(Value::Number(STATUS_DNAT).octets())),
    ]
}

/// Returns a chain that sends the first packet of each connection whose destination was translated to
/// the chain `to`.
pub(super) fn hook_of_translated(
    name: &str,
    hook: Hook,
    priority: i32,
    to: &str,
) -> (Chain, Vec<Rule>) {
    let jump = Statement::Verdict(Verdict::Jump(to.into()));
    let chain = Chain::base(name, ChainType::Filter, hook, priority);
    (
        chain,
        vec![Rule::new(begins_translated().into_iter().chain([jump]))],
    )
}

/// Matches packets whose destination was not translated.
pub(super) fn is_untranslated() -> Statement {
    let status = Field::Masked(Box::new(Field::Ct(Ct::Status, None)), STATUS_DNAT);
    Statement::Match(status, Test::Is(Value::Number(0).octets()))
}

/// Returns rules that look translated packets up in the verdict maps for `role`. A node port is looked
/// up together with the endpoint: otherwise a connection to the same port number of an address that
/// is not the node's would be found, too.
pub(super) fn by_service_port(role: Role, family: Family, sets: &Sets) -> Vec<Rule> {
    let mut of_node_port = called(family).split_off(1);
    of_node_port.extend(sets::endpoint(family));
    let of_both = [
        (called(family), Called::Address),
        (of_node_port, Called::NodePort),
    ];
    let rules = of_both.map(|(key, called)| {
        let map = sets.get(SetId::Of(role, called));
        each_protocol(|| Statement::VerdictMap(key.clone(), (&**map).into()))
    });
    rules.concat()
}

pub(super) fn of_protocol(protocol: Protocol) -> Statement {
    let octets = vec![protocol.number()];
    Statement::Match(Field::Meta(Meta::L4Proto), Test::Is(octets))
}

/// Returns a rule for each protocol, which has to be matched before ports of a connection
/// are used.
pub(super) fn each_protocol(statement: impl Fn() -> Statement) -> Vec<Rule> {
    let of = |protocol| Rule::new([of_protocol(protocol), statement()]);
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .map(of)
        .into()
}

/// Fields of a translated packet with the destination that the client called.
pub(super) fn called(family: Family) -> Vec<Field> {
    let original = Some(Direction::Original);
    vec![
        Field::Ct(Ct::DestinationAddress(family), original),
        Field::Meta(Meta::L4Proto),
        Field::Ct(Ct::DestinationPort, original),
    ]
}

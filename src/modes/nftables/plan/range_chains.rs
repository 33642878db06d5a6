//! Ranges of ports (`tripod.proxy/ports`), which are forwarded port for port.
//!
//! Each is one element of map `ranges` at each address, which goes to a chain of the range. What
//! follows from endpoints is in the chain and in map `range-endpoints`, so that the element stays as
//! long as the range is served there: an element of ranges that is replaced is missing for a moment
//! (`nft_pipapo_commit` before Linux 6.17).
//!
//! The chains that all ranges share are called by the kernel after all others that translate
//! destinations: a range has no port that anything else serves, and none of the node's own addresses.
//! They and the sets of ranges are there only while a Service has a range.

use nftables::{Chain, ChainType, Ct, Field, Hook, Rule, Statement, Test, Verdict};

use super::{
    Options, Sets,
    draws::{Masquerade, Scheduler},
    fixed::{FILTER, inside, reject},
    frontend::{Called, Role},
    matches::{STATE_NEW, Side, is_nodes_own, is_untranslated},
    names,
    sets::{self, SetId},
};
use crate::services::ServicePortName;

/// After rules of others that translate destinations, such as those for hostPorts
/// (`NF_IP_PRI_NAT_DST`).
const AFTER_OTHERS: i32 = -99;

/// The chains that all ranges share: two that look ranges up, and those that the kernel calls.
pub(super) const SHARED: [&str; 6] = [
    "ranges",
    "refuse-ranges",
    "ranges-prerouting",
    "ranges-output",
    "refuse-ranges-forward",
    "refuse-ranges-output",
];

/// A chain of one range. Its name stays when its rules change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeChain {
    pub(super) port: ServicePortName,
    pub(super) of: Calls,
    pub(super) does: Does,
}

/// The packets that pass a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Calls {
    ToClusterIp,
    ToExternalIp,
    /// From the node and its pods to external IPs, if their policy is Local.
    FromInside,
    /// To load-balancer IPs with source ranges.
    ToLoadBalancer,
}

/// Where packets in a chain go.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Does {
    /// They stay as they are, and are refused later, because no endpoint takes connections.
    Nothing,
    /// No endpoint may get them.
    Drop(Inside),
    Draw {
        inside: Inside,
        masquerade: Masquerade,
        /// How many slots there are, and the first one.
        slots: u32,
        first: u32,
        scheduler: Scheduler,
    },
    /// Those of clients in a source range are treated like calls to external IPs.
    Filter,
}

/// Whether packets from the node and its pods go to a chain of their own.
pub(super) type Inside = bool;

impl RangeChain {
    pub(super) fn name(&self) -> String {
        let of = match self.of {
            Calls::ToClusterIp => "range",
            Calls::ToExternalIp => "range-external",
            Calls::FromInside => "range-inside",
            Calls::ToLoadBalancer => "range-load-balancer",
        };
        format!("{of}/{}", names::own(&self.port))
    }

    fn other(&self, of: Calls) -> Statement {
        let name = RangeChain { of, ..self.clone() }.name();
        Statement::Verdict(Verdict::Goto(name.into()))
    }

    pub(super) fn rules(&self, options: &Options, sets: &Sets) -> Vec<Rule> {
        let family = options.family;
        let from_inside = |inside_apart: &Inside| match inside_apart {
            true => inside(options, sets, || self.other(Calls::FromInside)),
            false => Vec::new(),
        };
        match &self.does {
            Does::Nothing => Vec::new(),
            Does::Drop(inside) => {
                let mut rules = from_inside(inside);
                rules.push(Rule::new([Statement::Verdict(Verdict::Drop)]));
                rules
            }
            Does::Draw {
                inside,
                masquerade,
                slots,
                first,
                scheduler,
            } => {
                let mut rules = from_inside(inside);
                rules.extend(masquerade.rule(options));
                let map = sets.get(SetId::RangeEndpoints);
                let draw = |slot| {
                    let key = sets::slot_of_range(family, slot);
                    Statement::Dnat(family, key, (&**map).into())
                };
                rules.extend(scheduler.draws(*slots, *first, options, draw));
                rules
            }
            Does::Filter => {
                let mut caller = sets::fields(Called::Address, family);
                caller.push(Field::SourceAddress(family));
                let known = sets.get(SetId::RangeSources);
                let forbidden = Rule::new([
                    Statement::NotIn(caller, (&**known).into()),
                    Statement::Verdict(Verdict::Drop),
                ]);
                vec![
                    forbidden.commented("loadBalancerSourceRanges"),
                    Rule::new([self.other(Calls::ToExternalIp)]),
                ]
            }
        }
    }
}

/// Returns the chains that all ranges share. A port that is refused at the address is no part of a
/// range; others that are served were translated before.
pub(super) fn shared(options: &Options, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let [look_up, refuse, prerouting, output, forward, sent] = SHARED;
    let fields = || sets::fields(Called::Address, options.family);
    let contained = |id| Statement::In(fields(), (&**sets.get(id)).into());
    let unless = |matched| Rule::new([matched, Statement::Verdict(Verdict::Return)]);
    let of_node = || {
        let rule = unless(is_nodes_own(Side::Destination, options, sets));
        rule.commented("the node itself serves its addresses")
    };
    let ranges = (&**sets.get(SetId::Ranges)).into();
    let jump = |to: &str| Statement::Verdict(Verdict::Jump(to.into()));
    let nat = |name, hook| {
        let chain = Chain::base(name, ChainType::Nat, hook, AFTER_OTHERS);
        (chain, vec![Rule::new([jump(look_up)])])
    };
    let filter = |name, hook| {
        let chain = Chain::base(name, ChainType::Filter, hook, FILTER);
        let is_new = Statement::Match(Field::Ct(Ct::State, None), Test::Any(STATE_NEW));
        (chain, vec![Rule::new([is_new, jump(refuse)])])
    };
    let refused = [
        is_untranslated(),
        contained(SetId::RefusedRanges),
        reject(options),
    ];
    vec![
        (
            Chain::new(look_up),
            vec![
                of_node(),
                unless(contained(SetId::Of(Role::Refused, Called::Address))),
                Rule::new([Statement::VerdictMap(fields(), ranges)]),
            ],
        ),
        (Chain::new(refuse), vec![of_node(), Rule::new(refused)]),
        nat(prerouting, Hook::Prerouting),
        nat(output, Hook::Output),
        filter(forward, Hook::Forward),
        filter(sent, Hook::Output),
    ]
}

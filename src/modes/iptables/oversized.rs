//! ServicePorts whose change takes the programs long: those with thousands of endpoints. They are
//! written after all others, and their endpoints' chains some at a time. Pure.
//!
//! The time that iptables-nft-restore takes grows with the square of the number of chains in one
//! run, because it keeps their names in a sorted list (`cache_chain_list_insert` in
//! `iptables/nft-cache.c`).

use xtables::{
    rule::Table,
    transaction::{Action, CHAIN, Group, Op},
};

use super::{diff::PortSteps, observe::distance};

/// Returns whether groups weigh more than `limit` together.
pub fn are_oversized<'a>(groups: impl IntoIterator<Item = &'a PortSteps>, limit: usize) -> bool {
    let weights = groups.into_iter().map(Group::weight);
    weights.sum::<usize>() > limit
}

/// Returns the groups of a change with those of ServicePorts that weigh more than `limit` after
/// those of others, and divided; `None`: there are none. What has no owner stays first and last.
pub fn oversized_last(groups: &[PortSteps], limit: usize) -> Option<Vec<PortSteps>> {
    let is_oversized = |group: &&PortSteps| group.owner.is_some() && are_oversized([*group], limit);
    groups.iter().find(is_oversized)?;
    let (oversized, others): (Vec<_>, Vec<_>) = groups.iter().partition(is_oversized);
    let ports = others.iter().rposition(|group| group.owner.is_some());
    let (first, last) = others.split_at(ports.map_or(others.len().min(1), |at| at + 1));
    let parts = oversized.into_iter().flat_map(|group| {
        let Divided {
            before,
            main,
            after,
        } = Divided::of(group, limit);
        before.into_iter().chain([main]).chain(after)
    });
    let copied = |groups: &[&PortSteps]| groups.iter().copied().cloned().collect::<Vec<_>>();
    Some(
        copied(first)
            .into_iter()
            .chain(parts)
            .chain(copied(last))
            .collect(),
    )
}

/// The steps of one ServicePort, divided where nothing is different for its clients meanwhile.
pub struct Divided {
    /// Chains of endpoints, which others jump to later.
    pub before: Vec<PortSteps>,
    /// All that belongs together.
    pub main: PortSteps,
    /// Chains of endpoints that are deleted, to which no rule jumps any more.
    pub after: Vec<PortSteps>,
}

impl Divided {
    /// Divides `group`; no part but the main one weighs more than `limit`.
    pub fn of(group: &PortSteps, limit: usize) -> Divided {
        let Group { owner, ops } = group;
        let is_of_endpoint = |op: &Op| op.table == Table::Nat && distance(&op.chain) == ENDPOINT;
        let comes = |op: &&Op| is_of_endpoint(op) && matches!(op.action, Action::Fill(_));
        let goes = |op: &&Op| is_of_endpoint(op) && op.action == Action::Delete;
        let (comes, rest): (Vec<&Op>, Vec<&Op>) = ops.iter().partition(comes);
        let (goes, main): (Vec<&Op>, Vec<&Op>) = rest.into_iter().partition(goes);
        let group = |ops: &[&Op]| Group {
            owner: owner.clone(),
            ops: ops.iter().copied().cloned().collect(),
        };
        let most = (limit / CHAIN).max(1);
        let divided = |ops: &[&Op]| ops.chunks(most).map(group).collect();
        Divided {
            before: divided(&comes),
            main: group(&main),
            after: divided(&goes),
        }
    }
}

/// The [distance] of chains of endpoints.
const ENDPOINT: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{ServicePortName, service_ports::port_name};

    const LIMIT: usize = 4 * CHAIN;

    fn fill(chain: &str) -> Op {
        Op::new(Table::Nat, chain, Action::Fill(Vec::new()))
    }

    fn delete(chain: &str) -> Op {
        Op::new(Table::Nat, chain, Action::Delete)
    }

    fn chains(groups: &[PortSteps]) -> Vec<Vec<&str>> {
        let ops = groups.iter().map(|group| group.ops.iter());
        ops.map(|ops| ops.map(|op| &*op.chain).collect()).collect()
    }

    fn owner(name: &str) -> ServicePortName {
        port_name(name)
    }

    #[test]
    fn endpoints_come_before_what_leads_to_them_and_go_after_it() {
        let comes = ["1", "2", "3", "4", "5"].map(|n| fill(&format!("KUBE-SEP-{n}")));
        let goes = ["6", "7"].map(|n| delete(&format!("KUBE-SEP-{n}")));
        let between = [fill("KUBE-SVC-A"), delete("KUBE-EXT-A")];
        let oversized = Group::of(owner("a"), [&comes[..], &goes, &between].concat());
        let small = Group::of(owner("b"), vec![fill("KUBE-SVC-B")]);
        let all = [
            Group::common(Vec::new()),
            oversized,
            small,
            Group::common(vec![delete("LAST")]),
        ];
        let found = oversized_last(&all, LIMIT).expect("one is oversized");
        let expected: [&[&str]; 7] = [
            &[],
            &["KUBE-SVC-B"],
            &["KUBE-SEP-1", "KUBE-SEP-2", "KUBE-SEP-3", "KUBE-SEP-4"],
            &["KUBE-SEP-5"],
            &["KUBE-SVC-A", "KUBE-EXT-A"],
            &["KUBE-SEP-6", "KUBE-SEP-7"],
            &["LAST"],
        ];
        assert_eq!(chains(&found), expected);
        let owners = found[2..6]
            .iter()
            .all(|group| group.owner == Some(owner("a")));
        assert!(owners, "{found:?}");
        // Alone it comes between what has no owner, too.
        let all = [all[0].clone(), all[1].clone(), all[3].clone()];
        let found = oversized_last(&all, LIMIT).expect("one is oversized");
        assert_eq!(chains(&found).last(), Some(&vec!["LAST"]));
        assert!(oversized_last(&all, 100 * LIMIT).is_none());
    }
}

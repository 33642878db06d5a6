//! Virtual servers of one family that stay closed because the rules that guard them are not known
//! to be applied. Pure.
//!
//! Only closed virtual servers are blocked: those that the kernel does not have yet, and those that
//! must keep callers out, if they have no usable endpoint, or have kept nobody out until now. Open
//! virtual servers follow their endpoints, even after failures: neither rules nor members concern
//! them.

use std::{collections::BTreeSet, net::IpAddr};

use super::plan::{Member, NodeContext, NonEmptySets, ServerId, Set};

/// Returns true if a frontend with a member in `set` must not be opened before the rules that match
/// against that set are applied.
///
/// | set | its rule | without it |
/// |---|---|---|
/// | `Firewall` | filter: callers in no source range are dropped | every client is let in |
/// | `NotFromNode` | mangle: the same for callers on this node | they are let in |
/// | `LoadBalancer`, `ExternalIp`, `NodePort*` | nat: callers are masqueraded | endpoints on other nodes answer past this one, so a connection hangs where it should be refused |
/// | `LoadBalancerLocal`, `NodePortLocal*` | nat: callers are spared that | endpoints of policy Local see this node as the caller |
/// | `FullNat`, `Direct` | nat: always masqueraded, or never | answers do not come back |
/// | `ClusterIp` | nat: callers outside the cluster are masqueraded | only these get no answer; so it guards nothing, unless all callers are masqueraded |
///
/// `ServiceIps` is matched by rules that are always there: they keep clients from reaching other
/// listeners of this node through addresses of Services. So nothing is opened before the first
/// rules are applied. The other sets guard nothing: `LoopBack` is for endpoints that call
/// themselves, `HealthCheckNodePort` for a listener of this process, `SourceIp` and `SourceCidr`
/// admit callers, and `ExternalIpLocal` only keeps the rules of others away. No rule guards a
/// frontend of policy Local without endpoints here: its virtual server has none.
pub fn guards(set: Set, node: &NodeContext) -> bool {
    match set {
        Set::Firewall
        | Set::NotFromNode
        | Set::LoadBalancer
        | Set::LoadBalancerLocal
        | Set::ExternalIp
        | Set::NodePortTcp
        | Set::NodePortLocalTcp
        | Set::NodePortUdp
        | Set::NodePortLocalUdp
        | Set::NodePortSctp
        | Set::NodePortLocalSctp
        | Set::FullNat
        | Set::Direct => true,
        Set::ClusterIp => node.masquerade_all,
        Set::LoopBack
        | Set::ExternalIpLocal
        | Set::SourceIp
        | Set::SourceCidr
        | Set::HealthCheckNodePort
        | Set::ServiceIps => false,
    }
}

/// Returns true if the rules for a set keep callers out, or admit some past such rules.
pub fn keeps_out(set: Set) -> bool {
    matches!(set, Set::Firewall | Set::NotFromNode) || set.admits()
}

/// Returns those of the `members` of a ServicePort that keep callers out of `frontend`.
pub fn shutting(frontend: &ServerId, members: &[Member]) -> impl Iterator<Item = Member> {
    let members = members.iter().copied();
    members
        .filter(|member| keeps_out(member.set) && !member.set.admits() && member.is_about(frontend))
}

/// Returns the sets whose rules guard `frontend`, of whose ServicePort these are the
/// `members`.
pub fn guarding(frontend: &ServerId, members: &[Member], node: &NodeContext) -> NonEmptySets {
    let members = members.iter();
    let members = members.filter(|member| guards(member.set, node) && member.is_about(frontend));
    members.map(|member| member.set).collect()
}

/// Frontends that one sync of a family does not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Frontends whose guarding member was refused.
    unguarded: BTreeSet<ServerId>,
    /// Addresses for which the member that guards all frontends was refused.
    unguarded_addresses: BTreeSet<IpAddr>,
    /// Frontends that were asked about and stay closed.
    closed: BTreeSet<ServerId>,
}

impl Blocked {
    /// Records that a member that guards these frontends was refused.
    pub fn lacks_member(&mut self, frontends: impl IntoIterator<Item = ServerId>) {
        self.unguarded.extend(frontends);
    }

    /// Returns the frontends whose guarding member was refused.
    pub fn lacking(&self) -> &BTreeSet<ServerId> {
        &self.unguarded
    }

    /// Records that the member that guards all frontends at `address` was refused.
    pub fn lacks_address(&mut self, address: IpAddr) {
        self.unguarded_addresses.insert(address);
    }

    /// Returns true if the rules for the sets `guarding`, or members in them, which guard
    /// `frontend`, are not applied; `rules` is as for [`blocks`](Self::blocks).
    pub fn lacks(
        &self,
        frontend: &ServerId,
        guarding: NonEmptySets,
        rules: Option<NonEmptySets>,
    ) -> bool {
        !rules.is_some_and(|rules| rules.is_superset(guarding))
            || self.unguarded.contains(frontend)
            || self.unguarded_addresses.contains(&frontend.address.ip())
    }

    /// Returns true, and records it, if `frontend`, which is closed, must stay closed. The rules
    /// for the sets `guarding` guard it; `rules` are the sets that the rules known to be applied
    /// match against, `None` if no rules are known to be applied.
    pub fn blocks(
        &mut self,
        frontend: &ServerId,
        guarding: NonEmptySets,
        rules: Option<NonEmptySets>,
    ) -> bool {
        let blocks = self.lacks(frontend, guarding, rules);
        if blocks {
            self.closed.insert(*frontend);
        }
        blocks
    }

    /// Returns true if `address`, which the dummy link does not have, must not be
    /// added; `rules` is as for [`blocks`](Self::blocks), and `serves` whether some
    /// virtual server is there.
    pub fn blocks_address(
        &self,
        address: &IpAddr,
        rules: Option<NonEmptySets>,
        serves: impl FnOnce() -> bool,
    ) -> bool {
        let is_closed = || self.closed.iter().any(|f| f.address.ip() == *address);
        rules.is_none() || self.unguarded_addresses.contains(address) || is_closed() && !serves()
    }
}

#[cfg(test)]
mod tests {
    use ipvs::ipset::Element;
    use net::{Family, Protocol};

    use super::*;

    const SERVICE: [u8; 4] = [203, 0, 113, 1];

    fn frontend(port: u16) -> ServerId {
        ServerId::new((SERVICE, port), Protocol::Tcp)
    }

    fn member(set: Set, port: u16) -> Member {
        let element = match set {
            Set::ServiceIps => Element::Ip(SERVICE.into()),
            Set::NodePortTcp => Element::Port(port),
            _ => Element::ip_port(SERVICE.into(), Protocol::Tcp.number(), port),
        };
        Member {
            set,
            family: Family::V4,
            element,
        }
    }

    fn non_empty(sets: &[Set]) -> NonEmptySets {
        sets.iter().copied().collect()
    }

    #[test]
    fn a_frontend_waits_for_the_rules_that_guard_it_and_no_others() {
        use Set::{ClusterIp, ExternalIp, Firewall, LoadBalancer, NodePortTcp, ServiceIps};
        // Sets of the frontend at port 80, the applied rules, and whether it may be opened.
        type Sets = &'static [Set];
        let cases: [(Sets, Option<Sets>, bool); 9] = [
            (&[ClusterIp, ServiceIps], None, false),
            (&[ClusterIp, ServiceIps], Some(&[]), true),
            (&[ExternalIp], Some(&[ClusterIp]), false),
            (&[ExternalIp], Some(&[ExternalIp]), true),
            (&[LoadBalancer, Firewall], Some(&[LoadBalancer]), false),
            (
                &[LoadBalancer, Firewall],
                Some(&[LoadBalancer, Firewall]),
                true,
            ),
            (&[LoadBalancer], Some(&[LoadBalancer]), true),
            (&[NodePortTcp], Some(&[LoadBalancer]), false),
            (&[NodePortTcp], Some(&[NodePortTcp]), true),
        ];
        for (sets, rules, opens) in cases {
            // Nothing about another frontend of the same ServicePort matters.
            let others = [member(Firewall, 81), member(ExternalIp, 81)];
            let members: Vec<Member> = sets.iter().map(|s| member(*s, 80)).collect();
            let members = [&members[..], &others].concat();
            let mut blocked = Blocked::default();
            let in_force = rules.map(non_empty);
            let guarding = guarding(&frontend(80), &members, &NodeContext::default());
            let closed = blocked.blocks(&frontend(80), guarding, in_force);
            assert_eq!(closed, !opens, "{sets:?} with {rules:?}");
            let address = blocked.blocks_address(&SERVICE.into(), in_force, || false);
            assert_eq!(address, !opens, "{sets:?} with {rules:?}");
        }
    }

    #[test]
    fn cluster_ips_wait_for_masquerading_where_all_callers_need_it() {
        let members = [member(Set::ClusterIp, 80)];
        for (masquerade_all, expected) in [(false, &[][..]), (true, &[Set::ClusterIp])] {
            let node = NodeContext {
                masquerade_all,
                ..NodeContext::default()
            };
            let guarding = guarding(&frontend(80), &members, &node);
            assert_eq!(guarding, non_empty(expected));
        }
    }

    #[test]
    fn a_refused_member_costs_its_frontend() {
        let rules = Some(NonEmptySets::default());
        let none = NonEmptySets::default();
        let mut blocked = Blocked::default();
        assert!(!blocked.blocks(&frontend(80), none, rules));
        assert!(!blocked.blocks_address(&SERVICE.into(), rules, || false));
        blocked.lacks_member([frontend(80)]);
        assert!(blocked.blocks(&frontend(80), none, rules));
        assert!(!blocked.blocks(&frontend(81), none, rules));
        // At 81 something is served.
        assert!(!blocked.blocks_address(&SERVICE.into(), rules, || true));
        assert!(blocked.blocks_address(&SERVICE.into(), rules, || false));
        blocked.lacks_address(SERVICE.into());
        assert!(blocked.blocks(&frontend(81), none, rules));
        assert!(blocked.blocks_address(&SERVICE.into(), rules, || true));
    }
}

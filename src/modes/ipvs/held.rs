//! What of one family is not opened, because what guards it is not known to be in
//! force: pure.
//!
//! Only what is not in the kernel yet is held back. The endpoints of what is open
//! follow, whatever fails: neither rules nor members concern them.

use std::{collections::BTreeSet, net::IpAddr};

use super::plan::{Filled, Frontend, Member, Set, number};
use crate::kernel::ipset::Element;

/// Returns true if a frontend with a member in `set` must not be opened before the
/// rules that look into that set are in force.
///
/// | set | its rule | without it |
/// |---|---|---|
/// | `Firewall` | filter: who is in no source range is dropped | anybody is let in |
/// | `NotFromNode` | mangle: the same for callers on this node | they are let in |
/// | `LoadBalancer`, `ExternalIp`, `NodePort*` | nat: callers are masqueraded | endpoints on other nodes answer past this one, so a connection hangs where it should be refused |
/// | `LoadBalancerLocal`, `NodePortLocal*` | nat: callers are spared that | endpoints of policy Local see this node as the caller |
/// | `FullNat`, `Direct` | nat: always masqueraded, or never | answers do not come back |
/// | `ClusterIp` | nat: callers outside the cluster are masqueraded | only these get no answer; so it guards nothing, unless all callers are to be masqueraded |
///
/// `ServiceIps` is looked into by rules that are always there: they keep what
/// listens on this node from being reached through addresses of Services. So
/// nothing is opened before any rules are in force. The other sets guard nothing:
/// `LoopBack` is for endpoints that call themselves, `HealthCheckNodePort` for a
/// listener of this process, `SourceIp` and `SourceCidr` admit, and
/// `ExternalIpLocal` only keeps the rules of others away. No rule guards a frontend
/// of policy Local without endpoints here: its virtual server has none.
fn guards(set: Set, masquerade_all: bool) -> bool {
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
        Set::ClusterIp => masquerade_all,
        Set::LoopBack
        | Set::ExternalIpLocal
        | Set::SourceIp
        | Set::SourceCidr
        | Set::HealthCheckNodePort
        | Set::ServiceIps => false,
    }
}

/// Returns the sets whose rules guard `frontend`, of whose ServicePort these are the
/// `members`.
pub fn guarding(frontend: &Frontend, members: &[Member], masquerade_all: bool) -> Filled {
    let members = members.iter();
    let members = members.filter(|member| guards(member.set, masquerade_all));
    let of_frontend = |member: &&Member| match (member.element, member.frontend()) {
        (Element::Port(port), _) => port == frontend.port,
        (_, Some(of)) => of == (frontend.address, number(frontend.protocol), frontend.port),
        _ => false,
    };
    members.filter(of_frontend).map(|m| m.set).collect()
}

/// What of one family is not opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Sets that the rules known to be in force look into; `None`: no rules are
    /// known to be.
    rules: Option<Filled>,
    /// Why the rules are not as they should be.
    trouble: Option<String>,
    /// Those that a member guards which was refused.
    frontends: BTreeSet<Frontend>,
    /// The same of all frontends at an address.
    addresses: BTreeSet<IpAddr>,
    /// What was held back.
    blocked: BTreeSet<Frontend>,
}

impl Held {
    /// A sync begins, which finds out again what members are refused.
    pub fn begin(&mut self) {
        self.frontends.clear();
        self.addresses.clear();
        self.blocked.clear();
    }

    /// Rules for sets of which those `filled` have members are being written: from
    /// now on, any of them or of those before may be in force.
    pub fn rules_change(&mut self, filled: Filled) {
        self.rules = self.rules.map(|before| before.and(filled));
    }

    /// Rules for sets of which those `filled` have members are in force.
    pub fn rules_in_force(&mut self, filled: Filled) {
        self.rules = Some(filled);
        self.trouble = None;
    }

    /// Rules could not be read or written, or not yet. Those before are in force
    /// still, unless they are known to be `lost`.
    pub fn rules_failed(&mut self, why: String, lost: bool) {
        self.trouble = Some(why);
        if lost {
            self.rules = None;
        }
    }

    /// Sets that the rules known to be in force look into; `None`: no rules are
    /// known to be.
    pub fn rules(&self) -> Option<Filled> {
        self.rules
    }

    /// Why the rules are not as they should be.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// A member that guards these was refused.
    pub fn lacks_member(&mut self, frontends: impl IntoIterator<Item = Frontend>) {
        self.frontends.extend(frontends);
    }

    /// A member that guards all frontends at `address` was refused.
    pub fn lacks_address(&mut self, address: IpAddr) {
        self.addresses.insert(address);
    }

    /// Returns true, and notes it, if `frontend`, which is not open and which the
    /// rules for these sets guard, is to stay closed.
    pub fn blocks(&mut self, frontend: &Frontend, guarding: Filled) -> bool {
        let blocks = !self.rules.is_some_and(|rules| rules.covers(guarding))
            || self.frontends.contains(frontend)
            || self.addresses.contains(&frontend.address);
        if blocks {
            self.blocked.insert(*frontend);
        }
        blocks
    }

    /// Returns true if `address`, which the dummy link has not, is to stay away
    /// from it; `serves`: some virtual server is there.
    pub fn blocks_address(&self, address: &IpAddr, serves: impl FnOnce() -> bool) -> bool {
        let blocked = || self.blocked.iter().any(|f| f.address == *address);
        self.rules.is_none() || self.addresses.contains(address) || blocked() && !serves()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Family, Protocol};

    const SERVICE: [u8; 4] = [203, 0, 113, 1];

    fn frontend(port: u16) -> Frontend {
        Frontend {
            address: SERVICE.into(),
            port,
            protocol: Protocol::Tcp,
        }
    }

    fn member(set: Set, port: u16) -> Member {
        let element = match set {
            Set::ServiceIps => Element::Ip(SERVICE.into()),
            Set::NodePortTcp => Element::Port(port),
            _ => Element::ip_port(SERVICE.into(), number(Protocol::Tcp), port),
        };
        Member {
            set,
            family: Family::V4,
            element,
        }
    }

    fn filled(sets: &[Set]) -> Filled {
        sets.iter().copied().collect()
    }

    #[test]
    fn a_frontend_waits_for_the_rules_that_guard_it_and_no_others() {
        use Set::{ClusterIp, ExternalIp, Firewall, LoadBalancer, NodePortTcp, ServiceIps};
        // What the frontend at port 80 has, which rules are in force, and whether it
        // may be opened.
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
            // Of another frontend of the same ServicePort nothing matters.
            let others = [member(Firewall, 81), member(ExternalIp, 81)];
            let members: Vec<Member> = sets.iter().map(|s| member(*s, 80)).collect();
            let members = [&members[..], &others].concat();
            let mut held = Held::default();
            if let Some(rules) = rules {
                held.rules_in_force(filled(rules));
            }
            let guarding = guarding(&frontend(80), &members, false);
            let blocked = held.blocks(&frontend(80), guarding);
            assert_eq!(blocked, !opens, "{sets:?} with {rules:?}");
            let address = held.blocks_address(&SERVICE.into(), || false);
            assert_eq!(address, !opens, "{sets:?} with {rules:?}");
        }
    }

    #[test]
    fn cluster_ips_wait_for_masquerading_where_all_callers_need_it() {
        let members = [member(Set::ClusterIp, 80)];
        for (all, expected) in [(false, &[][..]), (true, &[Set::ClusterIp])] {
            let guarding = guarding(&frontend(80), &members, all);
            assert_eq!(guarding, filled(expected));
        }
    }

    #[test]
    fn a_failure_leaves_what_was_in_force_unless_that_is_lost() {
        let (old, new) = (filled(&[Set::LoadBalancer]), {
            filled(&[Set::LoadBalancer, Set::Firewall])
        });
        let mut held = Held::default();
        held.rules_failed("locked".to_owned(), false);
        assert_eq!(held.rules(), None, "what was never read is not known");
        held.rules_in_force(old);
        assert_eq!(held.trouble(), None);
        held.rules_change(new);
        held.rules_failed("locked".to_owned(), false);
        assert_eq!((held.rules(), held.trouble()), (Some(old), Some("locked")));
        assert!(!held.blocks(&frontend(80), old));
        assert!(held.blocks(&frontend(80), new));
        held.rules_in_force(new);
        // Some rules go, and come again before it is known that they went.
        held.rules_change(old);
        held.rules_failed("locked".to_owned(), false);
        assert!(held.blocks(&frontend(80), new));
        held.rules_failed("flushed, and locked".to_owned(), true);
        assert!(held.blocks(&frontend(80), Filled::default()));
    }

    #[test]
    fn a_refused_member_costs_its_frontend_until_the_next_sync() {
        let mut held = Held::default();
        held.rules_in_force(Filled::default());
        held.lacks_member([frontend(80)]);
        assert!(held.blocks(&frontend(80), Filled::default()));
        assert!(!held.blocks(&frontend(81), Filled::default()));
        // At 81 something is served.
        assert!(!held.blocks_address(&SERVICE.into(), || true));
        assert!(held.blocks_address(&SERVICE.into(), || false));
        held.lacks_address(SERVICE.into());
        assert!(held.blocks(&frontend(81), Filled::default()));
        assert!(held.blocks_address(&SERVICE.into(), || true));
        held.begin();
        assert!(!held.blocks(&frontend(80), Filled::default()));
        assert!(!held.blocks_address(&SERVICE.into(), || false));
    }
}

//! The mutants of ipvs mode.

use super::mutant::{Mutant, noticed, unnoticed};

const EXECUTE: &str = "src/modes/ipvs/execute/mod.rs";
const SERVERS: &str = "src/modes/ipvs/execute/servers.rs";
const FAMILY: &str = "src/modes/ipvs/family.rs";
const DIFF: &str = "src/modes/ipvs/diff.rs";
const NEEDS: &str = "src/modes/ipvs/desired/needs.rs";
const OWN_SERVERS: &str = "src/modes/ipvs/own_servers.rs";
const STATE: &str = "src/modes/state.rs";
const PLAN: &str = "src/modes/ipvs/plan/mod.rs";

/// All mutants of ipvs mode.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        EXECUTE,
        "        let closed = self.follow(&steps.follow, dirty)?;",
        "        let closed = HashSet::new();",
        "virtual servers that are open do not follow their endpoints",
    ),
    noticed(
        EXECUTE,
        "        self.change_members(&followed, dirty)?;",
        "",
        "source ranges that go still keep callers out",
    ),
    noticed(
        EXECUTE,
        "        self.change_members(&after, dirty)?;",
        "",
        "members that nothing needs stay",
    ),
    noticed(
        EXECUTE,
        "        self.report_unguarded();",
        "",
        "a Service counts as applied although its source ranges are not",
    ),
    noticed(
        EXECUTE,
        "        *self.state.pending() = self.results.again;",
        "        *self.state.pending() = Dirty::default();",
        "what was refused is not tried again",
    ),
    noticed(
        EXECUTE,
        "        self.rules.wait().await;",
        "",
        "nobody waits for the rules",
    ),
    noticed(
        SERVERS,
        "            self.results.found_unexpected |= is_unexpected(&error);\n            self.results.again.frontends.insert(frontend);",
        "",
        "a virtual server that was refused is not tried again",
    ),
    noticed(
        SERVERS,
        "                if self.results.blocked.blocks(&frontend, guarding, rules) {",
        "                if self.results.blocked.blocks(&frontend, guarding, rules) && self.desired.node().masquerade_all {",
        "virtual servers are opened before rules guard them",
    ),
    noticed(
        DIFF,
        "        match drains.decide(frontend, &leaving, now) {",
        "        drains.decide(frontend, &leaving, now);\n        match DrainAction::Delete {",
        "endpoints that leave are deleted with their connections",
    ),
    noticed(
        DIFF,
        "            let when = if ends_guard {",
        "            let when = if set == Set::Firewall {",
        "source ranges end before the virtual server goes",
    ),
    noticed(
        STATE,
        "        self.flows.clear(family, map, changes, metrics).await;",
        "        let _ = (family, changes, metrics);",
        "flows of UDP clients are never deleted",
    ),
    noticed(
        NEEDS,
        "stay.any(|frontend| member.is_about(frontend) && new.serves(frontend))",
        "stay.any(|frontend| new.serves(frontend))",
        "a load balancer of policy Local that comes is masqueraded at first",
    ),
    unnoticed(
        noticed(
            DIFF,
            "            } else if waits(member) {",
            "            } else if false {",
            "callers are let in before their virtual server left its old endpoints",
        ),
        "no: both changed in one sync in few of the steps; a test of diff.rs tells it",
    ),
    noticed(
        PLAN,
        "            self.member(Set::LoadBalancerLocal, element);",
        "",
        "load balancers of policy Local are masqueraded",
    ),
    noticed(
        STATE,
        "        self.flows.came_in_force(came_in_force);",
        "        drop(came_in_force);",
        "UDP clients that called while a Service was not applied bypass it",
    ),
    noticed(
        FAMILY,
        "            self.state.flows.rules_were_missing();",
        "",
        "UDP clients that called while virtual servers were missing are led past them",
    ),
    noticed(
        SERVERS,
        "                if self.waits_for_rules(&server, &members, dirty)? {",
        "                if self.waits_for_rules(&server, &members, dirty)? && false {",
        "endpoints come before the rules of source ranges that came with them",
    ),
    noticed(
        SERVERS,
        "        going.retain(|change| !stay.contains(&frontend_of(change)));",
        "",
        "the last real servers go while all new ones are refused",
    ),
    noticed(
        EXECUTE,
        "        let followed = self.members_of_those_that_followed(&steps.members.followed);",
        "        let followed = steps.members.followed.clone();",
        "callers are let in to real servers that the kernel refused to take away",
    ),
    noticed(
        EXECUTE,
        "                || member.set.admits() && guarded.iter().any(is_about)",
        "                || guarded.is_empty() && false",
        "callers are kept out while source ranges cannot be taken away",
    ),
    noticed(
        OWN_SERVERS,
        "                Element::Ip(ip) if !node.contains(&ip) => Some(ip),",
        "                Element::Ip(ip) if node.contains(&ip) => Some(ip),",
        "virtual servers stay whose address was removed before the process ended",
    ),
];

//! The mutants of nftables mode and of the code that all modes share.

use super::mutant::{Mutant, noticed, unnoticed};

const DIFF: &str = "src/modes/nftables/diff.rs";
const FAMILY: &str = "src/modes/nftables/family.rs";
const OBSERVE: &str = "src/modes/nftables/observe.rs";
const FORGET: &str = "src/modes/nftables/stale_clients.rs";
const MODE: &str = "src/modes/nftables/mod.rs";
const SERVICE: &str = "src/modes/nftables/plan/service.rs";
const WATCHER: &str = "crates/nftables/src/watcher.rs";
const STATE: &str = "src/modes/state.rs";
const STALE: &str = "src/modes/stale.rs";
const RUNNER: &str = "src/runner/mod.rs";

/// All mutants of nftables mode and of the code that all modes share.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        DIFF,
        "        batch.add(added, sets);\n        for name in &gone {",
        "        for name in &gone {",
        "added elements are omitted",
    ),
    noticed(
        DIFF,
        "batch.transaction.delete_elements(sets.get(set), elements);",
        "let _: Vec<Element> = elements;\n            let _ = set;",
        "what goes is not deleted",
    ),
    noticed(
        DIFF,
        "            batch.transaction.delete_chain(name);",
        "            drop(name);",
        "chains that nothing needs stay",
    ),
    noticed(
        DIFF,
        "            batch.transaction.delete_set(&set);",
        "            let _ = set;",
        "maps of clients stay that no ServicePort has",
    ),
    noticed(
        DIFF,
        "        applied.chains.change(self.chains);",
        "",
        "who needs a chain is not counted",
    ),
    noticed(
        DIFF,
        "        applied.shared.change(self.shared);",
        "",
        "who needs a shared element is not counted",
    ),
    noticed(
        DIFF,
        "            batch.transaction.delete_table().add_table();",
        "",
        "a table is written again without the old one being deleted",
    ),
    noticed(
        SERVICE,
        "                Endpoints::All if !cluster.endpoints.is_empty() => cluster,",
        "                _ if !cluster.endpoints.is_empty() => cluster,",
        "clients from outside stay on endpoints of other nodes with a policy of Local",
    ),
    unnoticed(
        noticed(
            DIFF,
            "        stale.remove(&self.preserved);",
            "",
            "clients are forgotten whose endpoints stay",
        ),
        "no: they are removed once more when the change is applied",
    ),
    noticed(
        FAMILY,
        "                    self.stale_clients.after(&mut batch.change);",
        "",
        "clients go on to endpoints that are gone",
    ),
    noticed(
        OBSERVE,
        "            elements.retain(|client| routes.contain(map, client));",
        "            elements.retain(|_| true);",
        "a table that is written again preserves clients of removed endpoints",
    ),
    noticed(
        FAMILY,
        "            let mut clients = observed.clients;",
        "            let mut clients = observed.clients;\n            clients.clear();",
        "a table that is written again preserves no clients",
    ),
    noticed(
        FAMILY,
        "            names.extend(self.state.failed().keys().cloned());",
        "",
        "what was refused is not tried again",
    ),
    noticed(
        FAMILY,
        "!state.has_failed(&port.name));",
        "(true, state).0);",
        "a table is written with what was refused just before",
    ),
    noticed(
        FAMILY,
        "                Err(NotInForce::Changed(error) | NotInForce::Unknown(error)) => {\n                    return Err(error.into());\n                }",
        "                Err(NotInForce::Changed(_) | NotInForce::Unknown(_)) => {\n                    batch.change.commit(&mut applied);\n                    break;\n                }",
        "what is not known to be applied counts as applied",
    ),
    noticed(
        STATE,
        "        self.flows.came_in_force(came_in_force);",
        "        drop(came_in_force);",
        "UDP clients that called while a Service was refused bypass it",
    ),
    noticed(
        FAMILY,
        "            state.flows.rules_were_missing();",
        "",
        "UDP clients that called while rules were missing are led past them",
    ),
    noticed(
        FAMILY,
        "        if self.options().is_some_and(|applied| *applied != options) {",
        "        if self.options().is_some_and(|applied| applied.family != options.family) {",
        "rules do not follow what all of them depend on",
    ),
    noticed(
        FORGET,
        "                    outcome = outcome.and(Err(error));",
        "                    self.routes.remove_map(&map);\n                    outcome = outcome.and(Err(error));",
        "clients that could not be deleted are not tried again",
    ),
    noticed(
        FORGET,
        "        left.retain(|client| self.routes.contain(map, client));",
        "",
        "all clients are forgotten",
    ),
    noticed(
        MODE,
        "                    served.table.externally_modified();",
        "",
        "what others changed is not repaired",
    ),
    noticed(
        MODE,
        "                    served.table.missed_changes();",
        "",
        "notifications that were lost are not suspected",
    ),
    noticed(
        WATCHER,
        "            *unwatched.missed.get_mut(other) = true;",
        "            let _ = other;",
        "what others change of one family while the other's table is written is missed",
    ),
    noticed(
        WATCHER,
        "        unwatched.left = self.socket.join(&[GROUP]).is_err();",
        "        unwatched.left = false;",
        "after a table was written nothing is watched",
    ),
    noticed(
        "crates/nftables/src/client.rs",
        "            Err(Failure::Refused(_)) if transaction.has_groups() => {",
        "            Err(Failure::Refused(_)) if transaction.is_empty() => {",
        "it is not found out which element is refused",
    ),
    noticed(
        "crates/netlink/src/socket.rs",
        "                Ok((answers, false)) => return Ok(answers),",
        "                Ok((answers, _)) => return Ok(answers),",
        "a list that was interrupted counts as whole",
    ),
    noticed(
        "crates/netlink/src/transaction.rs",
        "        if !refused.is_empty() {\n            return Ok(refused",
        "        if refused.len() > count {\n            return Ok(refused",
        "refusals are not read",
    ),
    noticed(
        STALE,
        "            if self.failed.is_none() {\n                self.stale",
        "            {\n                self.stale",
        "stale flows that could not be deleted are not tried again",
    ),
    noticed(
        STALE,
        "        if self.failed.is_none() || changes.full || changes.retry {",
        "        if self.failed.is_none() {",
        "stale flows that wait are never deleted",
    ),
    noticed(
        STALE,
        "        self.stale.merge(changes.stale.clone());",
        "",
        "flows to endpoints that are gone stay",
    ),
    noticed(
        RUNNER,
        "            pending.changes.merge(changes);",
        "            pending.changes = changes;",
        "changes that came before are lost where a sync failed",
    ),
    noticed(
        RUNNER,
        "                () = self.mode.externally_modified() => self.ask_all(&mut scheduler),",
        "                () = self.mode.externally_modified() => {}",
        "what others changed waits for the next full sync",
    ),
    noticed(
        "src/runner/schedule.rs",
        "                family.backoff.failed(now);\n                family.not_before",
        "                family.not_before",
        "what failed as a whole is not tried again",
    ),
    noticed(
        "src/runner/health.rs",
        "        *waiting = Some(waiting.unwrap_or_else(Instant::now));",
        "        *waiting = None;",
        "health does not report that nothing is applied",
    ),
    noticed(
        "src/backoff.rs",
        "            self.pause = (self.pause * 2).min(self.longest);",
        "",
        "pauses between retries do not grow",
    ),
    noticed(
        SERVICE,
        "            masquerade: Masquerade::All,",
        "            masquerade: Masquerade::None,",
        "external traffic of policy Cluster is not masqueraded",
    ),
];

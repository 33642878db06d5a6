//! The mutants of iptables mode.

use super::mutant::{Mutant, noticed, unnoticed};

const EXECUTE: &str = "src/modes/iptables/execute.rs";
const DIFF: &str = "src/modes/iptables/diff.rs";
const FAMILY: &str = "src/modes/iptables/family.rs";
const MODE: &str = "src/modes/iptables/mod.rs";
const STATE: &str = "src/modes/state.rs";
const SERVICE: &str = "src/modes/iptables/plan/service.rs";
const WATCH: &str = "crates/xtables/src/sync_watch.rs";
const DIFFERENCE: &str = "crates/xtables/src/difference.rs";
const RUN: &str = "crates/xtables/src/run.rs";
const TRANSACTION: &str = "crates/xtables/src/transaction.rs";
const PROGRAM: &str = "crates/xtables/src/program.rs";

/// All mutants of iptables mode.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        EXECUTE,
        "            self.run(groups, Phase::Close).await?;",
        "            let _ = groups;",
        "rules that exclude callers are omitted",
    ),
    noticed(
        EXECUTE,
        "            if self.is_guarded(&comes) {",
        "            if comes.owner.is_some() {",
        "traffic is forwarded although the rules that guard it were refused",
    ),
    noticed(
        EXECUTE,
        "            chunk.push(goes);",
        "            drop(goes);",
        "addresses that go lead on",
    ),
    noticed(
        EXECUTE,
        "            self.run(groups, Phase::Open).await?;",
        "            let _ = groups;",
        "rules that keep out stay when nothing needs them",
    ),
    noticed(
        TRANSACTION,
        "    pub const ALL: [Phase; 3] = [Phase::Close, Phase::Translate, Phase::Open];",
        "    pub const ALL: [Phase; 3] = [Phase::Translate, Phase::Close, Phase::Open];",
        "traffic is forwarded before the rules that exclude callers are written",
    ),
    noticed(
        DIFF,
        "        let goes = self.comparison.stale_leads(&chains.all()).into_iter();",
        "        let (goes, _) = (Vec::<Op>::new().into_iter(), chains);",
        "addresses that go lead to new endpoints for a while",
    ),
    noticed(
        DIFF,
        "                None => applied.remove(&name),",
        "                None => {}",
        "what is gone counts as applied",
    ),
    unnoticed(
        noticed(
            DIFF,
            "        for port in ports.filter(|port| !failed(&port.name)) {",
            "        let _ = failed;\n        for port in ports {",
            "what was refused counts as applied",
        ),
        "no: a Service that was refused is changed only after everything was read",
    ),
    noticed(
        FAMILY,
        "            || names.any(|name| self.state.has_failed(name))\n",
        "            || names.next().is_some_and(|_| false)\n",
        "what was refused is changed without reading the kernel",
    ),
    noticed(
        FAMILY,
        "        if !self.state.is_complete() || self.accounts.missing().is_some() {\n            self.state.suspect();\n        }",
        "",
        "after a refusal the kernel is not read again",
    ),
    unnoticed(
        noticed(
            STATE,
            "        self.flows.came_in_force(came_in_force);",
            "        drop(came_in_force);",
            "UDP clients that called while a Service was refused bypass it",
        ),
        "no: it is applied by a sync that reads the kernel, which looks for such flows in any case",
    ),
    noticed(
        FAMILY,
        "                Some(owner) => self.state.fail(owner, error.to_string()),",
        "                Some(_) => {}",
        "a Service that is refused counts as applied",
    ),
    noticed(
        FAMILY,
        "                None => self.state.leave_unfinished(error.to_string()),",
        "                None => {}",
        "what could not be taken away is not tried again",
    ),
    noticed(
        FAMILY,
        "                Err(error) => {\n                    metrics.unwritten(family, Unwritten::Changes, 1);",
        "                Err(error) => {\n                    return Err(error);",
        "a change that fails is not followed by reading the kernel",
    ),
    noticed(
        MODE,
        "                rules.watch.after(before, made, done.into());",
        "                let _: (_, u32, _) = (before, made, done);",
        "what others change is not noticed",
    ),
    unnoticed(
        noticed(
            WATCH,
            "                let is_right = done.observed || there.are_unmodified;",
            "                let is_right = done.observed || there.left.is_some();",
            "what others changed before a sync that reads nothing is never noticed (legacy tables)",
        ),
        "no: legacy tables are read at each full sync, before it is looked at",
    ),
    noticed(
        WATCH,
        "        let is_ours_alone = is_known && changed == done.transactions;",
        "        let is_ours_alone = is_known;",
        "what others change during a sync is not noticed (nf_tables)",
    ),
    noticed(
        DIFFERENCE,
        "    ops.extend(applied.stale(family));",
        "    drop(applied.stale(family));",
        "a change takes nothing away",
    ),
    noticed(
        DIFFERENCE,
        "                if list.ends_with(&closing) && closing.iter().all(once) {",
        "                if closing.iter().all(once) {",
        "closing rules need not come last",
    ),
    noticed(
        RUN,
        "        if !matches!(error, Error::Failed { .. }) || error.is_permission() || error.is_passing() {",
        "        if groups.len() > 1 || !matches!(error, Error::Failed { .. }) {",
        "it is not found out whose rules are refused",
    ),
    noticed(
        RUN,
        "                let other = Box::pin(self.run_some(other, phase, refusals, before)).await?;",
        "                let other = other.len().min(0) as u32;",
        "of rules one of which is refused only half are tried again",
    ),
    unnoticed(
        noticed(
            RUN,
            "                Err(error) if error.is_passing() => attempts.again(error).await?,",
            "                Err(error) if error.is_passing() => return Err(error),",
            "what fails for a passing reason is not tried again at once",
        ),
        "no: the sync fails, for a reason, and is tried again a second later",
    ),
    noticed(
        PROGRAM,
        "        self.checked(output, \"\")?;",
        "        drop(output);",
        "a reading that ends early counts as whole",
    ),
    noticed(
        SERVICE,
        "                rules.push(commented(\"masquerade traffic\").jump(names::MARK_MASQ));",
        "",
        "external traffic of policy Cluster is not masqueraded",
    ),
    noticed(
        FAMILY,
        "                self.state.flows.rules_were_missing();",
        "",
        "UDP clients that called while rules were missing are led past them",
    ),
];

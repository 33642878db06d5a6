//! What is changed of iptables mode.

use super::table::{Mutant, Simulated};

const fn noticed(
    file: &'static str,
    from: &'static str,
    to: &'static str,
    breaks: &'static str,
) -> Mutant {
    Mutant {
        simulated: Simulated::Iptables,
        file,
        from,
        to,
        breaks,
        unnoticed: None,
    }
}

const fn unnoticed(mutant: Mutant, why: &'static str) -> Mutant {
    Mutant {
        unnoticed: Some(why),
        ..mutant
    }
}

const EXECUTE: &str = "src/modes/iptables/execute.rs";
const DIFF: &str = "src/modes/iptables/diff.rs";
const FAMILY: &str = "src/modes/iptables/family.rs";
const MODE: &str = "src/modes/iptables/mod.rs";
const WATCH: &str = "src/modes/iptables/watch.rs";
const DIFFERENCE: &str = "src/kernel/xtables/difference.rs";
const RUN: &str = "src/kernel/xtables/run.rs";
const TRANSACTION: &str = "src/kernel/xtables/transaction.rs";
const PROGRAM: &str = "src/kernel/xtables/program.rs";

/// All of them.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        EXECUTE,
        "            self.run(groups, Phase::Close).await?;",
        "            let _ = groups;",
        "rules that keep out are left out",
    ),
    noticed(
        EXECUTE,
        "            if !self.refused.iter().any(|one| one.owner == comes.owner) {",
        "            if comes.owner.is_some() {",
        "traffic is led on although what guards it was refused",
    ),
    noticed(
        EXECUTE,
        "            chunk.push(goes);",
        "            drop(goes);",
        "addresses that go lead on",
    ),
    noticed(
        EXECUTE,
        "        for phase in [Phase::Carry, Phase::Open] {",
        "        for phase in [Phase::Carry] {",
        "rules that keep out stay when nothing needs them",
    ),
    noticed(
        TRANSACTION,
        "    pub const ALL: [Phase; 3] = [Phase::Close, Phase::Carry, Phase::Open];",
        "    pub const ALL: [Phase; 3] = [Phase::Carry, Phase::Close, Phase::Open];",
        "traffic is led on before the rules come that keep some out",
    ),
    noticed(
        DIFF,
        "        let goes = self.comparison.stale_leads(&chains.all());",
        "        let (goes, _) = (Vec::new(), chains);",
        "addresses that go lead to new endpoints for a while",
    ),
    noticed(
        DIFF,
        "            None => applied.remove(name),",
        "            None => {}",
        "what is gone counts as applied",
    ),
    noticed(
        DIFF,
        "        for port in ports.filter(|port| !failed(&port.name)) {",
        "        let _ = failed;\n        for port in ports {",
        "what was refused counts as applied",
    ),
    noticed(
        FAMILY,
        "        names.any(|name| self.state.has_failed(name))\n            || self.state",
        "        let _ = names.next();\n        self.state",
        "what was refused is changed without reading the kernel",
    ),
    noticed(
        FAMILY,
        "        if !self.state.is_complete() {\n            self.state.suspect();\n        }",
        "",
        "after a refusal the kernel is not read again",
    ),
    noticed(
        FAMILY,
        "        self.flows.came_in_force(&failed, map);",
        "",
        "UDP clients that called while a Service was refused are led past it",
    ),
    noticed(
        FAMILY,
        "            self.flows.rules_were_missing(self.family, map);",
        "",
        "UDP clients that called while rules were missing are led past them",
    ),
    noticed(
        FAMILY,
        "                Some(owner) => self.state.fail(owner, error.to_string()),",
        "                Some(_) => {}",
        "a Service that is refused counts as in force",
    ),
    noticed(
        FAMILY,
        "                None => self.state.leave_unfinished(error.to_string()),",
        "                None => {}",
        "what could not be taken away is not tried again",
    ),
    noticed(
        FAMILY,
        "                Err(error) => {\n                    counters.failed(family, Failure::Partial);",
        "                Err(error) => {\n                    return Err(error);",
        "a change that fails is not followed by reading the kernel",
    ),
    noticed(
        MODE,
        "                rules.watch.after(before, made, done);",
        "                let _ = (before, made, done);",
        "what others change is not noticed",
    ),
    noticed(
        WATCH,
        "                let is_right = done.observed || there.are_unmodified;",
        "                let is_right = done.observed || there.left.is_some();",
        "what others changed before a sync that reads nothing is never noticed (legacy tables)",
    ),
    noticed(
        WATCH,
        "        let is_expected = now.is_some() && now == expected;",
        "        let is_expected = now.is_some() && expected.is_some();",
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
        "                let other = Box::pin(self.run_phase(other, phase, refused)).await?;",
        "                let other = other.len().min(0) as u32;",
        "of rules one of which is refused only half are tried again",
    ),
    noticed(
        RUN,
        "                Err(error) if error.is_passing() => trials.again(error).await?,",
        "                Err(error) if error.is_passing() => return Err(error),",
        "what fails for a passing reason is not tried again at once",
    ),
    noticed(
        PROGRAM,
        "        self.checked(output, \"\")?;",
        "        drop(output);",
        "a reading that ends early counts as whole",
    ),
];

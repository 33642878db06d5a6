//! The mutants of userspace mode, with either capture.

use super::mutant::{Mutant, noticed, unnoticed};

const MODE: &str = "src/modes/userspace/mod.rs";
const DIFF: &str = "src/modes/userspace/diff.rs";
const CAPTURE: &str = "src/modes/userspace/capture/per_family.rs";
const CHAINS: &str = "src/modes/userspace/capture/redirect/chains.rs";
const REDIRECT: &str = "src/modes/userspace/capture/redirect/mod.rs";
const LOCAL: &str = "src/modes/userspace/capture/local/mod.rs";
const LOCAL_EXECUTE: &str = "src/modes/userspace/capture/local/execute.rs";
const CLOSE: &str = "src/modes/userspace/execute/close.rs";
const ASSIGNMENTS: &str = "src/modes/userspace/assignments/mod.rs";

/// All mutants of userspace mode.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        MODE,
        "                    self.executor.take_previous_ports(family, redirects);",
        "                    drop(redirects);",
        "a group gets the local port to which rules of an ended process lead others",
    ),
    noticed(
        DIFF,
        "        group.is_some_and(|group| loses_frontends(plan, group, &plans))",
        "        group.is_some_and(|group| loses_frontends(plan, group, &[]))",
        "a group that loses addresses to another is rerouted while they lead there",
    ),
    unnoticed(
        noticed(
            CAPTURE,
            "if !capture.is_reported && !capture.is_unmodified() {",
            "if !capture.is_unmodified() {",
            "what another process changed is reported again and again",
        ),
        "no: it is checked once a second at most, and so often the simulation lets syncs be tried",
    ),
    noticed(
        CHAINS,
        "            rules.extend(self.listeners.entries.values().map(guard));",
        "            rules.extend(self.listeners.entries.values().map(guard).take(0));",
        "the local ports answer who calls them directly",
    ),
    noticed(
        REDIRECT,
        "        self.stale.extend(difference.frontends);",
        "",
        "flows of UDP clients of what changed stay",
    ),
    noticed(
        LOCAL_EXECUTE,
        "refused.find(|(guard, _)| object.is_guarded_by(guard))",
        "refused.find(|(guard, _)| object.is_guarded_by(guard) && false)",
        "routing rules are added although the one that guards them was refused",
    ),
    noticed(
        LOCAL,
        "let deleted = self.deletions.happened().unwrap_or(true);",
        "let deleted = false;",
        "that another process deleted routes or rules is not noticed",
    ),
    noticed(
        CLOSE,
        "if self.desired.contains_key(&frontend) {",
        "if self.lingering.contains(&frontend) {",
        "the route of open connections goes that came in by a listener which closed before",
    ),
    noticed(
        ASSIGNMENTS,
        "            inherited.or_default().extend(assignments);",
        "            drop(inherited);",
        "clients do not stay on the endpoints that they had in the process before",
    ),
];

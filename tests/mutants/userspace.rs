//! What is changed of userspace mode with redirect capture.

use super::mutant::{Mutant, noticed};

const MODE: &str = "src/modes/userspace/mod.rs";
const DIFF: &str = "src/modes/userspace/diff.rs";
const CAPTURE: &str = "src/modes/userspace/capture/per_family.rs";
const CHAINS: &str = "src/modes/userspace/capture/redirect/chains.rs";
const REDIRECT: &str = "src/modes/userspace/capture/redirect/mod.rs";

/// All of them.
pub(super) const MUTANTS: &[Mutant] = &[
    noticed(
        MODE,
        "                    self.executor.take_left(family, left);",
        "                    drop(left);",
        "a group gets the local port to which rules of an ended process lead others",
    ),
    noticed(
        DIFF,
        "        group.is_some_and(|group| loses_frontends(plan, group, &plans))",
        "        group.is_some_and(|group| loses_frontends(plan, group, &[]))",
        "a group that loses addresses to another is rerouted while they lead there",
    ),
    noticed(
        CAPTURE,
        "if !capture.is_reported && !capture.is_unmodified() {",
        "if !capture.is_unmodified() {",
        "what another process changed is reported again and again",
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
];

//! The outcome of one try.

use super::{Ability, Findings, Unable};

/// The outcome of one try: `Ok` if it works.
pub(super) type Tried = Result<(), Unable>;

/// The stored answer in `findings` for `ability`, else the outcome of trying it.
pub(super) fn found_or(
    findings: Option<&Findings>,
    ability: &Ability,
    attempt: impl FnOnce() -> Tried,
) -> Tried {
    let known = findings.and_then(|findings| findings.tried(ability));
    known.unwrap_or_else(attempt)
}

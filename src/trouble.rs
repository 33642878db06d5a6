//! Failures, and the times at which they began.

use std::time::SystemTime;

/// A current failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The time at which it began.
    pub since: SystemTime,
    /// The latest reason.
    pub why: String,
}

impl Trouble {
    /// Continues the trouble `before`, or begins one now, for the reason `why`.
    pub fn now(before: Option<Trouble>, why: String) -> Trouble {
        let since = before.map(|before| before.since);
        Trouble {
            since: since.unwrap_or_else(SystemTime::now),
            why,
        }
    }
}

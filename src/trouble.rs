//! What does not work, and since when.

use std::time::SystemTime;

/// What does not work for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The time at which it began.
    pub since: SystemTime,
    /// The latest reason.
    pub why: String,
}

impl Trouble {
    /// Returns the trouble that goes on from `before`, or begins now, for the reason
    /// `why`.
    pub fn now(before: Option<Trouble>, why: String) -> Trouble {
        let since = before.map(|before| before.since);
        Trouble {
            since: since.unwrap_or_else(SystemTime::now),
            why,
        }
    }
}

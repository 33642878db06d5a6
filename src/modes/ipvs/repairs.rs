//! What other programs had changed, in the log.

/// Repairs of a kind that are named; the others are counted.
const NAMED: usize = 20;

/// Names in the log what other programs had changed.
pub fn log(repaired: &[String]) {
    for what in repaired.iter().take(NAMED) {
        tracing::warn!("repaired {what}, which another program had changed");
    }
    if let Some(more) = repaired.len().checked_sub(NAMED).filter(|more| *more > 0) {
        tracing::warn!("repaired {more} more things that another program had changed");
    }
}

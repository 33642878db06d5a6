//! The number of calls needed to see endpoints that are chosen at random.

/// The probability that, in all checks together, an endpoint that gets its share is missed.
pub(super) const MISSED: f64 = 1e-6;

/// Computes the number of calls needed to see each of `endpoints`, where the rarest one gets the
/// share `least` of all calls, in each of that many checks, except with the probability [`MISSED`].
pub(super) fn calls_to_see(endpoints: usize, least: f64, checks: usize) -> usize {
    // Bounded by the sum over all endpoints of the probability that one is missed, (1 -
    // share)^calls.
    let chance = MISSED / (endpoints.max(1) * checks.max(1)) as f64;
    // A number that is too large becomes the largest; a share of 1 needs no calls.
    (chance.ln() / (-least).ln_1p()).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_more_calls_for_more_endpoints_smaller_shares_and_more_checks() {
        for (endpoints, least, checks, calls) in [
            (1, 1.0, 1, 0),
            (2, 0.5, 1, 21),
            (3, 1.0 / 3.0, 1, 37),
            (4, 0.25, 1, 53),
            (2, 0.5, 1_000, 31),
            (2, 0.0, 1, usize::MAX),
        ] {
            let found = calls_to_see(endpoints, least, checks);
            assert_eq!(found, calls, "{endpoints} {least} {checks}");
        }
    }
}

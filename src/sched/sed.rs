//! `sed`: shortest expected delay, that is least (active + 1) / weight
//! (kernel `ip_vs_sed.c`).

use super::{RealServer, least::expected};

pub(super) fn cost(server: &RealServer) -> (u64, u32) {
    (expected(&server.load), server.weight)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{least::Least, tests::*},
        *,
    };

    #[test]
    fn prefers_the_shortest_expected_delay() {
        #[rustfmt::skip]
        let cases: &[LoadCase] = &[
            // An idle slow server waits while a fast one is better: 1/1 > 2/3.
            (&[(1, 0, 0), (3, 1, 0)], Some(1)),
            (&[(1, 0, 0), (3, 2, 0)], Some(0)),
            // Closing connections do not count.
            (&[(1, 1, 0), (1, 0, 9999)], Some(1)),
            (&[(0, 0, 0), (1, 9, 0)], Some(1)),
            (&[(1, u32::MAX, 0), (u32::MAX, u32::MAX, 0)], Some(1)),
            (&[(0, 0, 0)], None),
        ];
        assert_picks(&Least::new(cost, 0), cases);
    }

    #[test]
    fn connections_that_stay_follow_the_weights() {
        // (active + 1)/weight before each: 1/3 1/1 → a; 2/3 1/1 → a;
        // 3/3 1/1 → a (equal, the first); 4/3 1/1 → b; 4/3 2/1 → a.
        let servers = servers(&[3, 1]);
        assert_eq!(
            kept_connections(&Least::new(cost, 0), &servers, 5),
            [0, 0, 0, 1, 0]
        );
    }
}

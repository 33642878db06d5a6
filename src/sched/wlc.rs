//! `wlc`: least connections relative to the weight (kernel `ip_vs_wlc.c`).

use super::{RealServer, least::overhead};

pub(super) fn cost(server: &RealServer) -> (u64, u32) {
    (overhead(&server.load), server.weight)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{least::Least, tests::*},
        *,
    };

    #[test]
    fn prefers_the_least_loaded_for_its_weight() {
        #[rustfmt::skip]
        let cases: &[LoadCase] = &[
            (&[(1, 1, 0), (3, 2, 0)], Some(1)),
            (&[(1, 1, 0), (3, 3, 0)], Some(0)),
            (&[(1, 1, 0), (3, 3, 1)], Some(0)),
            (&[(1, 1, 1), (3, 3, 0)], Some(1)),
            (&[(0, 0, 0), (1, 9, 0)], Some(1)),
            (&[(1, u32::MAX, 0), (u32::MAX, u32::MAX, 0)], Some(1)),
            (&[(0, 0, 0), (0, 0, 0)], None),
        ];
        assert_picks(&Least::new(cost, 0), cases);
    }

    #[test]
    fn connections_that_stay_follow_the_weights() {
        // active/weight before each: 0/3 0/1 → a; 1/3 0/1 → b; 1/3 1/1 → a;
        // 2/3 1/1 → a; 3/3 1/1 → a (equal, the first); 4/3 1/1 → b.
        let servers = servers(&[3, 1]);
        assert_eq!(
            kept_connections(&Least::new(cost, 0), &servers, 6),
            [0, 1, 0, 0, 0, 1]
        );
    }
}

//! `lc`: least connections, regardless of the weight, as long as that is not 0 (kernel
//! `ip_vs_lc.c`).

use super::{RealServer, least::overhead};

pub(super) fn cost(server: &RealServer) -> (u64, u32) {
    (overhead(&server.load), 1)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{least::Least, tests::*},
        *,
    };

    #[test]
    fn prefers_the_least_loaded() {
        #[rustfmt::skip]
        let cases: &[LoadCase] = &[
            (&[(1, 3, 0), (1, 0, 0), (1, 2, 0)], Some(1)),
            (&[(1, 1, 0), (1, 1, 0)], Some(0)),
            (&[(9, 2, 0), (1, 1, 0)], Some(1)),
            (&[(1, 1, 0), (1, 0, 255)], Some(1)),
            (&[(1, 1, 0), (1, 0, 256)], Some(0)),
            (&[(1, 1, 0), (1, 0, 257)], Some(0)),
            (&[(0, 0, 0), (1, 500, 0)], Some(1)),
            (&[(1, u32::MAX, u32::MAX), (1, u32::MAX, 0)], Some(1)),
            (&[(0, 0, 0)], None),
        ];
        assert_picks(&Least::new(cost, 0), cases);
    }

    #[test]
    fn connections_that_stay_spread_evenly_whatever_the_weights() {
        let servers = servers(&[3, 1, 0, 1]);
        assert_eq!(
            kept_connections(&Least::new(cost, 0), &servers, 7),
            [0, 1, 3, 0, 1, 3, 0]
        );
    }
}

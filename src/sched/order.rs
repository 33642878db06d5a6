//! The place where a round continues after the set of real servers has changed.

use std::net::SocketAddr;

use hashbrown::HashMap;

use super::RealServer;

/// Finds the place of a round in `servers` after it served the first `served` of the servers
/// `before`: behind the last served one, or behind the nearest before it that is still there;
/// `None` if there is none. IPVS keeps its place in the same way (`ip_vs_rr_del_dest`).
pub(super) fn resume(
    before: &[RealServer],
    served: usize,
    servers: &[RealServer],
) -> Option<usize> {
    let served = &before[..served.min(before.len())];
    if served.is_empty() {
        return None;
    }
    let places: HashMap<SocketAddr, usize> = servers
        .iter()
        .enumerate()
        .map(|(i, server)| (server.address, i))
        .collect();
    let last = served.iter().rev().find_map(|old| places.get(&old.address));
    last.map(|i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::servers_at, *};

    /// The old set and the number of its servers that were served, the new set, and where the round
    /// resumes.
    type Case = (&'static [u16], usize, &'static [u16], Option<usize>);

    #[test]
    fn a_round_resumes_behind_the_last_served_or_the_nearest_before_it() {
        #[rustfmt::skip]
        let cases: &[Case] = &[
            (&[1, 2, 3], 0, &[1, 2, 3], None),
            (&[1, 2, 3], 2, &[1, 2, 3], Some(2)),
            (&[1, 2, 3], 3, &[1, 2, 3], Some(3)),
            (&[1, 2, 3], 2, &[1, 3], Some(1)),
            (&[1, 2, 3], 1, &[2, 3], None),
            (&[2, 3], 1, &[1, 2, 3], Some(2)),
            (&[1, 2, 3], 3, &[7, 8], None),
            (&[1, 2, 3], 3, &[], None),
            (&[], 0, &[1], None),
        ];
        for &(old, served, new, resumes) in cases {
            assert_eq!(
                resume(&servers_at(old), served, &servers_at(new)),
                resumes,
                "{old:?} {served} {new:?}"
            );
        }
    }
}

//! The server with which schedulers begin. IPVS begins with the first real server on every node of
//! a cluster, which then gets the first connection of each node, and with lc all connections while
//! nothing is busy.

use super::hash::mix;

/// Decides which server comes first where a scheduler has no other reason to
/// prefer one. The default is the first one, as in IPVS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a `service` on a `node`: different on other nodes, and the same after a restart.
    pub fn of(node: &str, service: &str) -> Self {
        // FNV-1a (draft-eastlake-fnv), whose lowest bits alone would spread badly.
        let bytes = node.bytes().chain([0xff]).chain(service.bytes());
        Seed(mix(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })))
    }

    /// Returns a number below `len`, or 0 if there is none.
    pub(super) fn position(self, len: usize) -> usize {
        let position = (self.0 & u64::from(u32::MAX)).checked_rem(len as u64);
        position.unwrap_or(0) as usize
    }

    /// Returns another number below `len`, independent of the first; 0 if there is none.
    pub(super) fn second(self, len: u32) -> u32 {
        let number = (self.0 >> 32) as u32;
        number.checked_rem(len).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_services_spread_and_a_restart_changes_nothing() {
        let mut counts = [[0; 2]; 3];
        for n in 0..3_000 {
            let seed = Seed::of(&format!("node-{n}"), "default/web");
            assert_eq!(seed, Seed::of(&format!("node-{n}"), "default/web"));
            counts[seed.position(3)][0] += 1;
            counts[seed.second(3) as usize][1] += 1;
        }
        assert!(
            counts
                .as_flattened()
                .iter()
                .all(|n| (900..1_100).contains(n)),
            "{counts:?}"
        );
        let of = |node, service| Seed::of(node, service);
        assert_ne!(of("a", "b"), of("a", "c"));
        assert_ne!(of("ab", "c"), of("a", "bc"));
        assert_eq!((of("a", "b").position(0), of("a", "b").second(0)), (0, 0));
        assert_eq!(Seed::default().position(7), 0);
    }
}

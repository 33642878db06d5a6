//! The table that sh and dh share: its buckets are dealt to the real servers in turn, and the hash
//! of an address selects a bucket.

use std::{fmt, net::IpAddr};

use super::{
    Candidates,
    hash::{Key, fold, hash_32, hsiphash},
};

/// Table size of IPVS (`IP_VS_SH_TAB_BITS`, `IP_VS_DH_TAB_BITS`).
const BITS: u32 = 8;
/// Minimum number of rounds of dealing that fit into the table. The last one is incomplete, so
/// shares deviate by at most one part in this many.
const ROUNDS: u64 = 16;
/// The table grows up to this size for [`ROUNDS`]; beyond it, turns shrink.
const MAX_BITS: u32 = 16;
/// Other buckets that are tried when the server of an address is unusable.
const PROBES: u32 = 16;
/// Any fixed key will do: it must only spread differently from [`hash_32`].
const PROBE_KEY: Key = [1, 2];

pub(super) struct Buckets {
    bits: u32,
    /// Index of the real server of each bucket; empty if there is none.
    table: Box<[u32]>,
}

impl Buckets {
    /// Deals the buckets: as many in a row to each server as it has turns (at least one), over and
    /// over until the table is full, as `ip_vs_sh_reassign` does.
    ///
    /// The kernel's table always has 256 buckets, in which weights of 130 and 100 become 156 and
    /// 100, and the 257th server gets nothing. Here it is larger where 256 is less than [`ROUNDS`]
    /// rounds, and otherwise the same.
    pub(super) fn deal(mut turns: Vec<u32>) -> Self {
        let round = |turns: &[u32]| turns.iter().map(|&t| u64::from(t.max(1))).sum::<u64>();
        while round(&turns) * ROUNDS > 1 << MAX_BITS && turns.iter().any(|&t| t > 1) {
            turns.iter_mut().for_each(|t| *t /= 2);
        }
        let turns_a_round = round(&turns);
        let size = (turns_a_round * ROUNDS)
            .min(1 << MAX_BITS)
            .max(turns_a_round)
            .max(1 << BITS)
            .next_power_of_two();
        let round = turns
            .iter()
            .enumerate()
            .flat_map(|(i, &t)| std::iter::repeat_n(i as u32, t.max(1) as usize));
        Buckets {
            bits: size.trailing_zeros(),
            table: round.cycle().take(size as usize).collect(),
        }
    }

    /// Picks the server of `address`. If it is unusable, the address goes to another one, always
    /// the same while the others stay usable. IPVS does this only with the flag `sh-fallback`, and
    /// shifts all addresses of the unusable server by the same distance, mostly to one neighbour;
    /// here each address is hashed again, so that all servers share the load by their turns.
    pub(super) fn pick(&self, address: IpAddr, of: Candidates<'_>) -> Option<usize> {
        let word = fold(address);
        let server = |bucket: u32| self.table.get(bucket as usize).map(|&i| i as usize);
        let own = server(hash_32(word, self.bits))?;
        if of.usable(own) {
            return Some(own);
        }
        let again = |probe: u32| hsiphash(word.wrapping_add(probe), PROBE_KEY);
        (1..=PROBES)
            .filter_map(|probe| server(again(probe) % self.table.len() as u32))
            .find(|&i| of.usable(i))
            .or_else(|| of.next_usable(again(0) as usize % of.servers.len().max(1)))
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets")
            .field("bits", &self.bits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(turns: &[u32]) -> Vec<usize> {
        let buckets = Buckets::deal(turns.to_vec());
        let mut shares = vec![0; turns.len()];
        for &i in &buckets.table {
            shares[i as usize] += 1;
        }
        shares
    }

    #[test]
    fn deals_in_rows_of_turns() {
        let buckets = Buckets::deal(vec![2, 1, 0]);
        assert_eq!(buckets.table.len(), 256);
        assert_eq!(buckets.table[..9], [0, 0, 1, 2, 0, 0, 1, 2, 0]);
    }

    #[test]
    fn everyone_has_a_place_and_shares_follow_the_turns() {
        for turns in [
            &[3, 1][..],
            &[130, 100],
            &[2000, 1999, 1],
            &[u32::MAX, u32::MAX / 2],
            &[1; 17],
            &[1; 300],
        ] {
            let shares = shares(turns);
            let all: usize = shares.iter().sum();
            let weight: f64 = turns.iter().map(|&t| f64::from(t)).sum();
            for (&share, &turns) in shares.iter().zip(turns) {
                let due = all as f64 * f64::from(turns) / weight;
                assert!(
                    (share as f64 - due).abs() <= (due / ROUNDS as f64).max(1.0),
                    "{share} buckets of {all} for {turns} turns of {weight}"
                );
            }
        }
        for turns in [vec![1; 70_000], vec![u32::MAX, 1, 1]] {
            assert!(shares(&turns).iter().all(|&n| n > 0));
        }
    }
}

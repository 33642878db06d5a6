//! `mh`: Maglev hashing. A client address keeps its real server, clients are spread in proportion
//! to the weights, and adding or removing a server moves little more than its own share (kernel
//! `ip_vs_mh.c`, without the flag `mh-port`; D. E. Eisenbud et al., "Maglev: a fast and reliable
//! software network load balancer", NSDI 2016, section 3.4).

use std::{fmt, net::SocketAddr, sync::Arc};

use super::{
    Flow, RealServer, Scheduler,
    hash::{Key, fold, hsiphash},
    next_usable, usable, weight_gcd,
};

/// Table sizes that the kernel offers. Its default is the fifth, as here; larger ones are for sets
/// that do not fit into that.
const PRIMES: [u32; 10] = [
    251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131_071,
];
const DEFAULT_PRIME: usize = 4;
/// `generate_hash_secret`: fixed, so that all nodes agree on the table.
const OFFSET_KEY: Key = [2_654_435_761; 2];
const SKIP_KEY: Key = [2_654_446_892; 2];
/// Other entries that are tried when the server of a client is unusable.
const PROBES: u32 = 32;
/// An entry that no server has.
const UNASSIGNED: u32 = u32::MAX;

pub(super) struct Maglev {
    /// The members that the table was made from: each server and its latest weight other than 0.
    members: Box<[(SocketAddr, u32)]>,
    /// Index of the real server of each entry; empty if no server ever had a
    /// weight.
    table: Arc<[u32]>,
}

impl Maglev {
    pub(super) fn new(servers: &[RealServer], previous: Option<&Maglev>) -> Self {
        let members: Box<[_]> = servers
            .iter()
            .enumerate()
            .map(|(i, server)| (server.address, latest_weight(i, server, previous)))
            .collect();
        let table = match previous {
            Some(previous) if previous.members == members => previous.table.clone(),
            _ => populate(&members).into(),
        };
        Maglev { members, table }
    }
}

/// Returns the weight for the server's share of the table. A server whose weight becomes 0 keeps
/// its entries, as in the kernel (`last_weight`), so that draining it moves no clients of other
/// servers.
fn latest_weight(i: usize, server: &RealServer, previous: Option<&Maglev>) -> u32 {
    if server.weight > 0 {
        return server.weight;
    }
    let Some(previous) = previous else { return 0 };
    let same = |(address, _): &&(SocketAddr, u32)| *address == server.address;
    // In most cases the set is the same and only the weight has changed.
    let near = previous.members.get(i).filter(same);
    near.or_else(|| previous.members.iter().find(same))
        .map_or(0, |&(_, weight)| weight)
}

/// A member's walk over the table: its order of preference for entries, and how many it takes in
/// each round.
struct Walk {
    at: u32,
    skip: u32,
    turns: u32,
}

fn populate(members: &[(SocketAddr, u32)]) -> Box<[u32]> {
    let gcd = weight_gcd(members.iter().map(|&(_, weight)| weight));
    if gcd == 0 {
        return Box::default();
    }
    let prime = (DEFAULT_PRIME..PRIMES.len() - 1)
        .find(|&i| members.len() <= PRIMES[i] as usize)
        .unwrap_or(PRIMES.len() - 1);
    let size = PRIMES[prime];

    // Rows stay short relative to the table: 6 bits of weight for the default one.
    let most = members.iter().map(|&(_, w)| w / gcd).max().unwrap_or(0);
    let shift = (u32::BITS - most.leading_zeros()).saturating_sub((prime as u32 + 8) / 2);
    let mut walks: Vec<Walk> = members
        .iter()
        .map(|&(address, weight)| {
            let word = fold(address.ip()).wrapping_add(u32::from(address.port()));
            Walk {
                at: hsiphash(word, OFFSET_KEY) % size,
                skip: hsiphash(word, SKIP_KEY) % (size - 1) + 1,
                turns: ((weight / gcd) >> shift).max(u32::from(weight > 0)),
            }
        })
        .collect();

    let mut table = vec![UNASSIGNED; size as usize].into_boxed_slice();
    let mut free = size;
    loop {
        for (member, walk) in walks.iter_mut().enumerate() {
            for _ in 0..walk.turns {
                // The size is prime, so each walk passes every entry.
                while table[walk.at as usize] != UNASSIGNED {
                    walk.at = (walk.at + walk.skip) % size;
                }
                table[walk.at as usize] = member as u32;
                free -= 1;
                if free == 0 {
                    return table;
                }
            }
        }
    }
}

impl Scheduler for Maglev {
    fn pick(
        &self,
        servers: &[RealServer],
        flow: &Flow,
        skip: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let word = fold(flow.client.ip());
        let size = self.table.len() as u32;
        let entry = |probe: u32| {
            let hash = hsiphash(word.wrapping_add(probe), OFFSET_KEY);
            hash.checked_rem(size).unwrap_or(0)
        };
        let server = |entry: u32| self.table.get(entry as usize).map(|&i| i as usize);
        let home = entry(0);
        if let Some(own) = server(home).filter(|&own| usable(servers, skip, own)) {
            return Some(own);
        }
        // The probes of `ip_vs_mh_get_fallback` (flag `mh-fallback`), but fewer than the table has
        // entries: even that many might miss the last usable server, which the walk after them does
        // not miss.
        (0..PROBES)
            .filter_map(|probe| server(entry((home + probe).checked_rem(size)?)))
            .find(|&i| usable(servers, skip, i))
            .or_else(|| next_usable(servers, skip, home as usize % servers.len().max(1)))
    }
}

impl fmt::Debug for Maglev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maglev")
            .field("members", &self.members)
            .field("size", &self.table.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SchedulerName, Seed, build, tests::*},
        *,
    };

    /// Clients in the measurements of disruption.
    const CLIENTS: u32 = 20_000;

    fn homes(scheduler: &dyn Scheduler, servers: &[RealServer]) -> Vec<SocketAddr> {
        (0..CLIENTS)
            .map(|client| {
                let picked = scheduler.pick(servers, &flow(client), &|_| false);
                servers[picked.unwrap()].address
            })
            .collect()
    }

    #[test]
    fn entries_follow_the_weights_to_a_hundredth() {
        for weights in [&[1; 10][..], &[3, 1], &[5, 0, 2, 1], &[400, 100]] {
            let maglev = Maglev::new(&servers(weights), None);
            assert_eq!(maglev.table.len(), 4093);
            let mut entries = vec![0; weights.len()];
            maglev.table.iter().for_each(|&i| entries[i as usize] += 1);
            assert_shares(&entries, weights, 0.01);
        }
    }

    #[test]
    fn a_client_keeps_its_server_and_clients_follow_the_weights() {
        for weights in [&[1, 1, 1, 1][..], &[3, 1], &[0, 2, 1]] {
            let servers = servers(weights);
            let maglev = Maglev::new(&servers, None);
            assert_shares(&counts(&maglev, &servers, CLIENTS), weights, 0.03);
            let mut other_port = flow(9);
            other_port.client.set_port(1);
            assert_eq!(
                maglev.pick(&servers, &other_port, &|_| false),
                maglev.pick(&servers, &flow(9), &|_| false)
            );
        }
    }

    #[test]
    fn a_server_that_goes_moves_little_but_its_own_clients() {
        for weights in [&[1; 10][..], &[4, 1, 2, 1, 3]] {
            let ports: Vec<u16> = (1..=weights.len() as u16).collect();
            let before = with_weights(servers_at(&ports), weights);
            for gone in 0..before.len() {
                let mut after = before.clone();
                let removed = after.remove(gone);
                let old = build(SchedulerName::Mh, &before, None, Seed::default());
                let new = build(
                    SchedulerName::Mh,
                    &after,
                    Some((&*old, &before)),
                    Seed::default(),
                );
                let pairs = homes(&*old, &before).into_iter().zip(homes(&*new, &after));
                let stayed_put = pairs.filter(|(old, _)| *old != removed.address);
                let (mut all, mut moved) = (0, 0);
                for (old, new) in stayed_put {
                    all += 1;
                    moved += u32::from(old != new);
                }
                let share = f64::from(moved) / f64::from(all);
                assert!(share < 0.02, "{weights:?} without {gone}: {share:.3} moved");
            }
        }
    }

    #[test]
    fn draining_a_server_moves_nobody_elses_client() {
        let before = with_weights(servers_at(&[1, 2, 3, 4]), &[2, 1, 3, 1]);
        let after = with_weights(before.clone(), &[2, 1, 0, 1]);
        let old = build(SchedulerName::Mh, &before, None, Seed::default());
        let new = build(
            SchedulerName::Mh,
            &after,
            Some((&*old, &before)),
            Seed::default(),
        );
        let drained = before[2].address;
        let mut taken_over = [0; 4];
        for (old, new) in homes(&*old, &before).into_iter().zip(homes(&*new, &after)) {
            if old == drained {
                taken_over[usize::from(new.port()) - 1] += 1;
            } else {
                assert_eq!(old, new);
            }
        }
        assert_shares(&taken_over, &[2, 1, 0, 1], 0.06);
    }

    #[test]
    fn a_set_larger_than_the_table_gets_a_larger_one() {
        let servers = servers(&[1; 5_000]);
        let maglev = Maglev::new(&servers, None);
        assert_eq!(maglev.table.len(), 8191);
        let mut entries = vec![0; servers.len()];
        maglev.table.iter().for_each(|&i| entries[i as usize] += 1);
        assert!(entries.iter().all(|n| (1..=2).contains(n)));
    }
}

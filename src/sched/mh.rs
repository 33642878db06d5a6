//! `mh`: Maglev hashing. A client address keeps its real server, clients are spread in proportion
//! to the weights, and adding or removing a server moves little more than its own share (kernel
//! `ip_vs_mh.c`; D. E. Eisenbud et al., "Maglev: a fast and reliable software network load
//! balancer", NSDI 2016, section 3.4). `mh-port` also looks at the client's port, as the kernel
//! does with the flag of that name.

use std::{cmp::Reverse, collections::BinaryHeap, fmt, net::SocketAddr, sync::Arc};

use super::{
    Candidates, Flow, RealServer, Scheduler,
    hash::{Key, fold, hsiphash},
    weight_gcd,
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
    /// Whether the client's port counts as well.
    by_port: bool,
    /// The members that the table was made from: each server and its latest weight other than 0.
    members: Box<[(SocketAddr, u32)]>,
    /// Index of the real server of each entry; empty if no server ever had a
    /// weight.
    table: Arc<[u32]>,
}

impl Maglev {
    pub(super) fn new(servers: &[RealServer], previous: Option<&Maglev>, by_port: bool) -> Self {
        let members: Box<[_]> = servers
            .iter()
            .enumerate()
            .map(|(i, server)| (server.address, latest_weight(i, server, previous)))
            .collect();
        let table = match previous {
            Some(previous) if previous.members == members => previous.table.clone(),
            _ => populate(&members).into(),
        };
        Maglev {
            by_port,
            members,
            table,
        }
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

/// A table that is being filled, and the walk of each member over it: its order of preference for
/// entries.
struct Filling {
    table: Box<[u32]>,
    free: u32,
    /// Where each member looks next, and how far it goes if it finds the entry taken.
    walks: Box<[(u32, u32)]>,
}

impl Filling {
    /// Begins to fill a table with a prime number of entries.
    fn new(size: u32, members: impl Iterator<Item = SocketAddr>) -> Filling {
        let walks = members.map(|address| {
            let word = fold(address.ip()).wrapping_add(u32::from(address.port()));
            let skip = hsiphash(word, SKIP_KEY) % (size - 1) + 1;
            (hsiphash(word, OFFSET_KEY) % size, skip)
        });
        Filling {
            table: vec![UNASSIGNED; size as usize].into_boxed_slice(),
            free: size,
            walks: walks.collect(),
        }
    }

    /// Gives the member the entry that it likes best among those that are free.
    fn take(&mut self, member: usize) {
        let size = self.table.len() as u32;
        let (at, skip) = &mut self.walks[member];
        // The size is prime, so each walk passes every entry.
        while self.free > 0 && self.table[*at as usize] != UNASSIGNED {
            *at = (*at + *skip) % size;
        }
        if self.free > 0 {
            self.table[*at as usize] = member as u32;
            self.free -= 1;
        }
    }
}

/// Sizes below those of the kernel, also prime, for Services with few endpoints.
const SMALL: [u32; 5] = [7, 13, 31, 61, 127];

/// Returns the smallest size of a table with at least `entries` entries; the largest if there is
/// none.
pub fn maglev_size(entries: usize) -> u32 {
    let mut sizes = SMALL.into_iter().chain(PRIMES);
    let fits = sizes.find(|size| *size as usize >= entries);
    fits.unwrap_or(PRIMES[PRIMES.len() - 1])
}

/// Returns for each entry of a table which member takes it. Each member with a weight has an
/// entry, and a share that differs from its weight by about an entry (turns by Sainte-Laguë's
/// divisors), unlike the kernel's, which rounds weights. The table depends on nothing else, so that
/// all nodes have the same.
pub fn maglev_table(members: &[(SocketAddr, u32)], size: u32) -> Box<[u32]> {
    let mut filling = Filling::new(size, members.iter().map(|(address, _)| *address));
    let with_weight = members
        .iter()
        .enumerate()
        .filter(|(_, (_, weight))| *weight > 0);
    // When a member that has so many entries takes its next one.
    let turn = |taken: u64, weight: u32| ((2 * taken + 1) << 32) / u64::from(weight);
    let mut turns = BinaryHeap::new();
    for (member, (_, weight)) in with_weight {
        filling.take(member);
        turns.push(Reverse((turn(1, *weight), member, 1)));
    }
    while filling.free > 0
        && let Some(Reverse((_, member, taken))) = turns.pop()
    {
        filling.take(member);
        turns.push(Reverse((
            turn(taken + 1, members[member].1),
            member,
            taken + 1,
        )));
    }
    filling.table
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
    let mut filling = Filling::new(size, members.iter().map(|(address, _)| *address));
    while filling.free > 0 {
        for (member, (_, weight)) in members.iter().enumerate() {
            let turns = ((weight / gcd) >> shift).max(u32::from(*weight > 0));
            (0..turns).for_each(|_| filling.take(member));
        }
    }
    filling.table
}

impl Scheduler for Maglev {
    fn pick(&self, of: Candidates<'_>, flow: &Flow) -> Option<usize> {
        let port = if self.by_port { flow.client.port() } else { 0 };
        let word = fold(flow.client.ip()).wrapping_add(u32::from(port));
        let size = self.table.len() as u32;
        let entry = |probe: u32| {
            let hash = hsiphash(word.wrapping_add(probe), OFFSET_KEY);
            hash.checked_rem(size).unwrap_or(0)
        };
        let server = |entry: u32| self.table.get(entry as usize).map(|&i| i as usize);
        let home = entry(0);
        if let Some(own) = server(home).filter(|&own| of.usable(own)) {
            return Some(own);
        }
        // The probes of `ip_vs_mh_get_fallback` (flag `mh-fallback`), but fewer than the table has
        // entries: even that many might miss the last usable server, which the walk after them does
        // not miss.
        (0..PROBES)
            .filter_map(|probe| server(entry((home + probe).checked_rem(size)?)))
            .find(|&i| of.usable(i))
            .or_else(|| of.next_usable(home as usize % of.servers.len().max(1)))
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
                let picked = scheduler.pick(Candidates::new(servers, &|_| false), &flow(client));
                servers[picked.unwrap()].address
            })
            .collect()
    }

    #[test]
    fn entries_follow_the_weights_to_a_hundredth() {
        for weights in [&[1; 10][..], &[3, 1], &[5, 0, 2, 1], &[400, 100]] {
            let maglev = Maglev::new(&servers(weights), None, false);
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
            let maglev = Maglev::new(&servers, None, false);
            assert_shares(&counts(&maglev, &servers, CLIENTS), weights, 0.03);
            let mut other_port = flow(9);
            other_port.client.set_port(1);
            assert_eq!(
                maglev.pick(Candidates::new(&servers, &|_| false), &other_port),
                maglev.pick(Candidates::new(&servers, &|_| false), &flow(9))
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
        let maglev = Maglev::new(&servers, None, false);
        assert_eq!(maglev.table.len(), 8191);
        let mut entries = vec![0; servers.len()];
        maglev.table.iter().for_each(|&i| entries[i as usize] += 1);
        assert!(entries.iter().all(|n| (1..=2).contains(n)));
    }
}

//! Which endpoint takes which slot. A Service has as many slots as its endpoints
//! have weights, or a table of consistent hashing; each new connection takes one of them.

use std::{collections::HashMap, net::SocketAddr, num::NonZeroU32};

use crate::{
    sched::{maglev_size, maglev_table, weight_gcd},
    services::{Endpoint, ServicePort},
};

/// The most slots of one kind of traffic of a ServicePort, unless there are more
/// endpoints. Weights whose ratio would take more are rounded.
const MOST: u64 = 1024;

/// Entries of a table of consistent hashing, if the Service names no other number: the default of
/// IPVS. Fewer take less memory, but move more clients when endpoints come or go. The number must not
/// depend on the endpoints: nearly all clients move when it changes.
const TABLE: u32 = 4093;

/// The most entries that a table may have, and so the most endpoints: a prime number below `LOCAL`.
const LARGEST: u32 = 65_521;

/// The first slot of endpoints on this node where the same address also has
/// slots of all endpoints.
pub const LOCAL: u32 = 1 << 16;

/// The most slots of one kind of traffic of a range of ports, and the first of those of endpoints on
/// this node: both kinds have numbers of 16 bits, next to the first port of the range.
const LOCAL_OF_RANGE: u32 = 1 << 15;

/// The most entries that a table may have if the Service has ranges of ports, whose tables are like
/// those of its other ports: a prime number below `LOCAL_OF_RANGE`.
const LARGEST_OF_RANGE: u32 = 32_749;

/// Which slots of an address are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoints {
    /// The first slots, those of all endpoints.
    All,
    /// Those of endpoints on this node, where the address has others, too.
    Local,
}

/// Returns the number of the first slot of these endpoints of a range of ports that begins with
/// `port`. No two ranges at an address begin with the same port.
pub(super) fn first_of_range(port: u16, of: Endpoints) -> u32 {
    let first = match of {
        Endpoints::All => 0,
        Endpoints::Local => LOCAL_OF_RANGE,
    };
    u32::from(port) << 16 | first
}

/// The slots of a ServicePort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// For traffic with policy Cluster.
    pub cluster: Taken,
    /// For traffic with policy Local.
    pub local: Taken,
}

/// The slots of one kind of traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Endpoints by slot: the first slots are taken.
    pub endpoints: Box<[SocketAddr]>,
    /// Among how many slots a connection draws: a power of two, of which more than a
    /// quarter is taken. It changes with the number of endpoints seldom: each change
    /// has the kernel check the whole table (`nf_tables_validate`).
    pub out_of: u32,
}

impl Slots {
    /// Assigns slots for a ServicePort that had none before.
    pub fn new(port: &ServicePort) -> Slots {
        Slots::after(port, &Slots::default())
    }

    /// Assigns slots for a ServicePort that had others `before`: as few as possible change.
    pub fn after(port: &ServicePort, before: &Slots) -> Slots {
        let of = |indices: &[u32], before: &Taken| {
            let most = match port.is_range() {
                true => LOCAL_OF_RANGE as usize,
                false => LOCAL as usize,
            };
            let chosen = chosen(port, indices);
            let shares = shares(&chosen[..most.min(chosen.len())]);
            let endpoints = assign(&shares, most, &before.endpoints);
            let out_of = room(endpoints.len(), before.out_of);
            Taken { endpoints, out_of }
        };
        Slots {
            cluster: of(&port.endpoints.cluster, &before.cluster),
            local: of(&port.endpoints.local, &before.local),
        }
    }

    /// Assigns slots for clients that a hash spreads: a table that few clients leave when endpoints
    /// come or go, and that is the same on each node. All ports of a Service that has ranges have the
    /// same table, so that a client reaches the same endpoint at each of them.
    pub fn hashed(port: &ServicePort) -> Slots {
        let asked = port.preferences().hash_table_size;
        let asked = asked.map_or(TABLE, NonZeroU32::get);
        let largest = match port.has_ranges() {
            true => LARGEST_OF_RANGE,
            false => LARGEST,
        };
        let wanted = asked.min(port.most_hash_entries).min(largest);
        let of = |indices: &[u32]| {
            let members = chosen(port, indices).into_iter().take(largest as usize);
            let members: Vec<&Endpoint> = members.collect();
            if members.is_empty() {
                return Taken::default();
            }
            let size = maglev_size(members.len().max(wanted as usize));
            let identity = |address: SocketAddr| match port.has_ranges() {
                true => SocketAddr::new(address.ip(), 0),
                false => address,
            };
            let identities = members.iter();
            let identities = identities.map(|one| (identity(one.address), one.share()));
            let table = maglev_table(&identities.collect::<Vec<_>>(), size);
            let entries = table
                .iter()
                .filter_map(|member| members.get(*member as usize));
            Taken {
                endpoints: entries.map(|endpoint| endpoint.address).collect(),
                out_of: size,
            }
        };
        Slots {
            cluster: of(&port.endpoints.cluster),
            local: of(&port.endpoints.local),
        }
    }
}

/// The endpoints at these positions that take connections.
fn chosen<'a>(port: &'a ServicePort, indices: &[u32]) -> Vec<&'a Endpoint> {
    let all = &port.endpoints.all;
    let chosen = indices.iter().filter_map(|at| all.get(*at as usize));
    chosen.filter(|endpoint| endpoint.weight > 0).collect()
}

/// Returns among how many slots a connection draws if that number is `taken`; it was `before`.
fn room(taken: usize, before: u32) -> u32 {
    let taken = u32::try_from(taken).unwrap_or(LOCAL);
    if taken <= before && taken > before / 4 {
        before
    } else {
        taken.next_power_of_two()
    }
}

/// Returns how many slots each endpoint takes: its weight, divided as far as the ratios of the
/// weights allow.
fn shares(endpoints: &[&Endpoint]) -> Vec<(SocketAddr, u64)> {
    // Of weights, so that the number of slots stays while shares grow.
    let weights = endpoints.iter().map(|endpoint| u32::from(endpoint.weight));
    let divisor = weight_gcd(weights).max(1);
    let whole = |endpoint: &&Endpoint| u64::from(endpoint.share() / divisor);
    let sum = endpoints.iter().map(whole).sum::<u64>();
    let most = MOST.max(endpoints.len() as u64);
    let share = |endpoint: &&Endpoint| {
        let whole = whole(endpoint);
        let share = if sum > most {
            ((whole * most + sum / 2) / sum).max(1)
        } else {
            whole
        };
        (endpoint.address, share)
    };
    endpoints.iter().map(share).collect()
}

/// Gives at most so many slots to endpoints by their shares. An endpoint that had a slot `before` keeps
/// it, as far as there are that many slots now.
fn assign(shares: &[(SocketAddr, u64)], most: usize, before: &[SocketAddr]) -> Box<[SocketAddr]> {
    let mut left: HashMap<SocketAddr, u64> = shares.iter().copied().collect();
    let count = shares.iter().map(|(_, share)| share).sum::<u64>();
    let count = usize::try_from(count).unwrap_or(0).min(most);
    let mut keep = |address: &SocketAddr| {
        let left = left.get_mut(address).filter(|left| **left > 0)?;
        *left -= 1;
        Some(*address)
    };
    let mut slots: Vec<Option<SocketAddr>> = before.iter().take(count).map(&mut keep).collect();
    slots.resize(count, None);
    let mut rest = spread(shares, &left).into_iter();
    let fill = |slot: Option<SocketAddr>| slot.or_else(|| rest.next());
    slots.into_iter().filter_map(fill).collect()
}

/// Returns the shares that are `left`, those of one endpoint as far from each other as
/// possible, which spreads connections evenly where slots are taken in turn.
fn spread(shares: &[(SocketAddr, u64)], left: &HashMap<SocketAddr, u64>) -> Vec<SocketAddr> {
    let mut placed = Vec::new();
    for (address, _) in shares {
        let count = left.get(address).copied().unwrap_or(0);
        // The middle of each of `count` equal parts of a whole.
        let places = (0..count).map(|at| ((2 * at + 1) << 32) / (2 * count));
        placed.extend(places.map(|place| (place, *address)));
    }
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, address)| address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots that are taken one after the other, and among how many a connection draws.
    #[test]
    fn few_changes_of_the_number_of_endpoints_change_the_room() {
        let mut before = 0;
        for (taken, expected) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (3, 4),
            (5, 8),
            (8, 8),
            (4, 8),
            (3, 8),
            (2, 2),
            (1, 2),
            (0, 1),
            (65_536, 65_536),
        ] {
            let found = room(taken, before);
            assert_eq!(found, expected, "{taken} after room for {before}");
            before = found;
        }
    }
}

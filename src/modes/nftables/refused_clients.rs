//! Clients that are not remembered because the map of their ServicePort is full: a rule counts
//! them. Some counters are read at a time, so that this takes as little time with thousands of
//! ServicePorts as with one.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use nftables::{Rules, Set, Table};
use tokio::time::Instant;

use super::{
    applied::{Applied, TABLE},
    plan::{ClientMap, SharedChain},
};

/// How often each counter is read at most.
const ROUND: Duration = Duration::from_secs(10);

/// How many counters are read at a time.
const AT_ONCE: usize = 16;

/// Counters of refused clients, as they were last read.
#[derive(Debug, Default)]
pub struct RefusedClients {
    /// Chains whose counters are still to be read in this round, with the maps that they write.
    left: Vec<(ClientMap, SharedChain)>,
    next_round: Option<Instant>,
    /// The value of each counter when it was last read, if it was not 0.
    counts: HashMap<ClientMap, u64>,
    /// Maps that refused clients when their counters were last read.
    full: HashSet<ClientMap>,
}

impl RefusedClients {
    /// Reads some counters, if a round is not over or another one is due. Returns by how much they
    /// grew, and logs the ServicePorts.
    pub fn count(&mut self, rules: &mut Rules, applied: &Applied) -> u64 {
        let now = Instant::now();
        if self.left.is_empty() && self.next_round.is_none_or(|due| due <= now) {
            self.begin(applied, now);
        }
        let some = self.left.len().saturating_sub(AT_ONCE);
        let mut refused = 0;
        for (map, chain) in self.left.split_off(some) {
            // A counter that cannot be read now is read in the next round.
            if let Ok(count) = read(rules, &map, &chain) {
                refused += self.add(map, count);
            }
        }
        refused
    }

    fn begin(&mut self, applied: &Applied, now: Instant) {
        self.next_round = Some(now + ROUND);
        let maps = applied.client_maps();
        self.left = maps
            .map(|(map, chain)| (map.clone(), chain.clone()))
            .collect();
        if !self.counts.is_empty() {
            let there: HashSet<&ClientMap> = self.left.iter().map(|(map, _)| map).collect();
            self.counts.retain(|map, _| there.contains(map));
            self.full.retain(|map| there.contains(map));
        }
    }

    /// Records that the counter of `map` has this `count`. Returns by how much it grew.
    fn add(&mut self, map: ClientMap, count: u64) -> u64 {
        let before = match count {
            0 => self.counts.remove(&map),
            _ => self.counts.insert(map.clone(), count),
        };
        let before = before.unwrap_or(0);
        // A counter begins again with its chain.
        let grown = count.checked_sub(before).unwrap_or(count);
        if grown == 0 {
            self.full.remove(&map);
            return 0;
        }
        if !self.full.contains(&map) {
            tracing::warn!(
                "{}: {grown} new connections of clients with session affinity were not remembered, \
                 because {} has {} clients, the maximum; such a client may get another endpoint \
                 with each connection; find out who calls from so many addresses, or shorten \
                 sessionAffinityConfig.clientIP.timeoutSeconds",
                map.port,
                map.name(),
                Set::MOST_DYNAMIC,
            );
            self.full.insert(map);
        }
        grown
    }
}

fn read(rules: &mut Rules, map: &ClientMap, chain: &SharedChain) -> Result<u64, netlink::Error> {
    let table = Table::new(map.port.family, TABLE);
    let mut packets = 0;
    for name in chain.names() {
        let counted = rules.counted(&table, &name)?;
        packets += counted.iter().map(|one| one.packets).sum::<u64>();
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::{super::plan::Endpoints, *};
    use crate::{log::lines, services::service_ports::port_name};

    #[test]
    fn counters_that_grow_are_added_up_and_logged_until_they_stop() {
        let map = ClientMap {
            port: port_name("web:http"),
            to: Endpoints::All,
        };
        // Value of a counter when it is read, and by how much it grew; 2 and 3: of a new chain.
        let read = [(0, 0), (5, 5), (5, 0), (7, 2), (2, 2), (0, 0), (3, 3)];
        let log = lines(0, || {
            let mut refused = RefusedClients::default();
            for (at, (count, grown)) in read.into_iter().enumerate() {
                assert_eq!(refused.add(map.clone(), count), grown, "reading {at}");
            }
        });
        assert_eq!(log.len(), 3, "{log:#?}");
        assert!(log[0].contains("web:http: 5 new connections"), "{log:#?}");
    }
}

//! Clients that were sent to an endpoint and must not be sent there again, because it
//! is gone. A map of clients can only be searched as a whole, which takes longer the
//! larger it is: maps are searched for a small share of the time at most, for all
//! endpoints that were removed meanwhile.

use std::time::Duration;

use hashbrown::HashSet;
use nftables::{Element, Failure, Refused, Rules, Table, Transaction};
use nix::errno::Errno;
use tokio::time::Instant;

use super::{
    Error,
    applied::TABLE,
    diff::{Change, Routes},
    plan::ClientMap,
};

/// After a search, there is none for this many times as long as it took.
const PAUSE_FACTOR: u32 = 10;

/// If there are more clients than this, the kernel may leave some out while it lists them, as
/// others expire meanwhile: it continues by their number, and a datagram of an answer has some
/// hundred.
const LISTED_AT_ONCE: usize = 100;

/// The clients whose entries must be deleted.
#[derive(Debug, Default)]
pub struct StaleClients {
    routes: Routes,
    not_before: Option<Instant>,
    /// Whether their entries were not deleted at once, so that they may still be sent there.
    is_late: bool,
    /// Whether entries were deleted late.
    were_late: bool,
    /// Maps that were searched, and where some may have been left out.
    repeated: HashSet<ClientMap>,
}

/// Result of searching a map.
#[derive(Default)]
struct Searched {
    /// How many clients there were.
    listed: usize,
    /// How many of them were stale, and have been deleted.
    stale: usize,
}

impl StaleClients {
    /// Adds the routes removed by a change that has been applied: no new entries for them are made
    /// any more.
    pub fn after(&mut self, change: &mut Change) {
        self.routes.extend(std::mem::take(&mut change.stale));
        self.routes.remove(&change.preserved);
    }

    /// Drops them: the maps of clients were written again, without them.
    pub fn clear(&mut self) {
        self.routes = Routes::default();
        self.repeated.clear();
        self.were_late |= std::mem::take(&mut self.is_late);
    }

    /// Returns true if entries were deleted since the last time, but not at once: UDP flows that
    /// these clients began meanwhile are translated to endpoints that are gone.
    pub fn take_late(&mut self) -> bool {
        std::mem::take(&mut self.were_late)
    }

    /// Deletes the entries of these clients, unless maps were searched just now.
    ///
    /// # Errors
    /// When the kernel refuses for a map, the first such error. It is tried again.
    pub fn delete(&mut self, rules: &mut Rules) -> Result<(), Error> {
        let now = Instant::now();
        if self.routes.is_empty() {
            return Ok(());
        }
        if self.not_before.is_some_and(|due| now < due) {
            self.is_late = true;
            return Ok(());
        }
        let mut outcome = Ok(());
        for map in self.routes.maps().cloned().collect::<Vec<_>>() {
            let Searched { listed, stale } = match self.search(rules, &map) {
                Ok(searched) => searched,
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    continue;
                }
            };
            self.were_late |= self.repeated.contains(&map) && stale > 0;
            if stale == 0 || listed <= LISTED_AT_ONCE {
                self.routes.remove_map(&map);
                self.repeated.remove(&map);
            } else {
                self.repeated.insert(map);
            }
        }
        let rest = now
            .elapsed()
            .saturating_mul(PAUSE_FACTOR)
            .max(Duration::from_millis(1));
        self.not_before = Some(Instant::now() + rest);
        if outcome.is_err() {
            self.is_late = true;
        } else {
            self.were_late |= std::mem::take(&mut self.is_late);
        }
        outcome
    }

    /// Returns true if [`take_late`](Self::take_late) would.
    pub fn were_late(&self) -> bool {
        self.were_late
    }

    fn search(&self, rules: &mut Rules, map: &ClientMap) -> Result<Searched, Error> {
        let (table, clients) = (Table::new(map.port.family, TABLE), map.set());
        let mut left: Vec<Element> = match rules.elements(&table, &clients) {
            // It went with its ServicePort.
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(Searched::default()),
            listed => listed?,
        };
        let listed = left.len();
        left.retain(|client| self.routes.contain(map, client));
        let stale = left.len();
        let searched = Searched { listed, stale };
        while !left.is_empty() {
            let mut transaction = Transaction::new(table.clone());
            transaction.delete_elements(&clients, left.clone());
            let refused = match rules.run(&transaction, None) {
                Ok(()) => return Ok(searched),
                Err(Failure::Refused(refused)) => refused,
                Err(failure) => return Err(failure.first().into()),
            };
            // Some may have expired.
            let gone = |refused: &Refused| match refused.error.errno() {
                Some(Errno::ENOENT) => refused.element,
                _ => None,
            };
            let gone: HashSet<usize> = refused.iter().filter_map(gone).collect();
            if gone.is_empty() {
                return Err(Failure::Refused(refused).first().into());
            }
            let mut at = 0..;
            left.retain(|_| at.next().is_some_and(|at| !gone.contains(&at)));
        }
        Ok(searched)
    }
}

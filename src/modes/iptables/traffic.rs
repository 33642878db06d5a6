//! Connections of endpoints that the kernel counted: each endpoint has a chain with one rule that
//! translates the destination of packets. Table nat sees the first packet of each connection, so
//! that rule's packets are connections; bytes are counted nowhere.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use xtables::{
    Error,
    rule::Table,
    run::Writer,
    words::{Line, target},
};

use super::plan::endpoint_chains;
use crate::services::{Namespaces, ServicePort};

/// How old counts may be when they are asked for again, where reading takes no longer
/// than a twentieth of that.
const RECENT: Duration = Duration::from_secs(1);
/// For this many times as long as reading took, nothing is read again: the program reads all rules
/// of the table, which takes seconds where there are hundreds of thousands.
const PAUSE: u32 = 20;

/// Connections by the name of the endpoint's chain.
type Found = HashMap<Box<str>, u64>;

/// Reads the counters in the rules of iptables mode.
#[derive(Debug)]
pub struct Traffic {
    writers: Vec<Writer>,
    counts: Counts,
    /// Nothing is read before this time.
    next: Option<Instant>,
}

/// The counts that were read last. They stay while new ones are read, so that meanwhile a caller
/// does not find less than before.
#[derive(Clone, Debug)]
pub struct Counts {
    counted: Namespaces,
    /// `None`: it is not known.
    found: Arc<ArcSwapOption<Found>>,
}

impl Traffic {
    /// A reader of the counts of Services in the namespaces `counted`, whose rules these `writers`
    /// write.
    pub fn new(writers: Vec<Writer>, counted: Namespaces) -> Traffic {
        Traffic {
            writers,
            counts: Counts {
                counted,
                found: Arc::default(),
            },
            next: None,
        }
    }

    /// The counts that were read last, at any time.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Reads the counts, unless they were read a short time ago.
    ///
    /// # Errors
    /// With the message of the program; nothing is known of its family then.
    pub async fn refresh(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        if self.next.is_some_and(|next| begun < next) {
            return Ok(());
        }
        let mut found = Found::new();
        let mut result = Ok(());
        for writer in &self.writers {
            match read(writer).await {
                Ok(of_family) => found.extend(of_family),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.counts.found.store(Some(Arc::new(found)));
        let ended = Instant::now();
        self.next = Some(ended + RECENT.max((ended - begun) * PAUSE));
        result
    }
}

/// Reads the counts of one family. Names of both families differ, as they are made of addresses.
async fn read(writer: &Writer) -> Result<Found, Error> {
    let mut found = Found::new();
    let each = |rule: Line<'_>, packets| {
        if let Line::Rule { chain, words } = rule
            && chain.starts_with("KUBE-SEP-")
            && target(words) == Some("DNAT")
        {
            found.insert(chain.into(), packets);
        }
    };
    writer.xtables.read_counted(Table::Nat, each).await?;
    Ok(found)
}

impl Counts {
    /// Returns how many connections each endpoint of each of `ports` got, in their order;
    /// nothing of those that are not counted.
    pub fn of(&self, ports: &[&Arc<ServicePort>]) -> Vec<HashMap<SocketAddr, u64>> {
        let found = self.found.load();
        let of_port = |port: &&Arc<ServicePort>| {
            let found = found.as_ref();
            let found = found.filter(|_| self.counted.contain(&port.name.service.namespace));
            let Some(found) = found else {
                return HashMap::new();
            };
            let chains = endpoint_chains(port).into_iter();
            let counted = chains.filter_map(|(at, chain)| Some((at, *found.get(&*chain)?)));
            counted.collect()
        };
        ports.iter().map(of_port).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Counts {
        /// Sets the last counts for each endpoint of `port` to `connections`.
        pub fn known(&self, port: &ServicePort, connections: u64) {
            let chains = endpoint_chains(port).into_iter();
            let found = chains.map(|(_, chain)| (Box::from(chain), connections));
            self.found.store(Some(Arc::new(found.collect())));
        }
    }
}

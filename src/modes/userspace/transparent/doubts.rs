//! Clients that an endpoint did not answer when it saw them: what routes say
//! is not all that there is.

use std::{net::IpAddr, time::Duration};

use hashbrown::HashMap;
use tokio::time::Instant;

/// How long such an endpoint sees the node's address instead: long enough for
/// one that is just slow or dead to be found out.
const SUSPECTED: Duration = Duration::from_secs(10);
/// How long when it then answered: after that the client is shown again, which
/// costs a connection its first timeout if nothing has changed.
const CONFIRMED: Duration = Duration::from_secs(60);
/// Pairs that are kept, at most.
const MOST: usize = 4096;

#[derive(Debug)]
struct Doubt {
    until: Instant,
    confirmed: bool,
}

/// Pairs of client and endpoint.
#[derive(Debug, Default)]
pub struct Doubts(HashMap<(IpAddr, IpAddr), Doubt>);

impl Doubts {
    /// The endpoint did not answer when it saw the client.
    pub fn add(&mut self, client: IpAddr, endpoint: IpAddr) {
        let now = Instant::now();
        if self.0.len() >= MOST {
            self.0.retain(|_, doubt| doubt.until > now);
        }
        if self.0.len() < MOST {
            let doubt = Doubt {
                until: now + SUSPECTED,
                confirmed: false,
            };
            self.0.insert((client, endpoint), doubt);
        }
    }

    /// The endpoint answered when it saw the node.
    pub fn confirm(&mut self, client: IpAddr, endpoint: IpAddr) {
        if let Some(doubt) = self.0.get_mut(&(client, endpoint))
            && !doubt.confirmed
        {
            *doubt = Doubt {
                until: Instant::now() + CONFIRMED,
                confirmed: true,
            };
        }
    }

    /// Whether the endpoint is not to see the client now.
    pub fn contains(&mut self, client: IpAddr, endpoint: IpAddr) -> bool {
        let Some(doubt) = self.0.get(&(client, endpoint)) else {
            return false;
        };
        let holds = doubt.until > Instant::now();
        if !holds {
            self.0.remove(&(client, endpoint));
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_doubt_passes_later_once_confirmed() {
        let [client, a, b] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut doubts = Doubts::default();
        doubts.confirm(client, a);
        assert!(!doubts.contains(client, a), "nobody doubted");
        doubts.add(client, a);
        doubts.add(client, b);
        assert!(doubts.contains(client, a) && !doubts.contains(a, client));
        doubts.confirm(client, a);
        tokio::time::advance(SUSPECTED).await;
        assert!(doubts.contains(client, a) && !doubts.contains(client, b));
        tokio::time::advance(SUSPECTED).await;
        // More answers do not put off the next try.
        doubts.confirm(client, a);
        tokio::time::advance(CONFIRMED - SUSPECTED).await;
        assert!(!doubts.contains(client, a));
        assert!(doubts.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn they_are_bounded() {
        let mut doubts = Doubts::default();
        let endpoint = IpAddr::from([10, 0, 0, 1]);
        let client = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..2 * MOST {
            doubts.add(client(n), endpoint);
        }
        assert_eq!(doubts.0.len(), MOST);
        tokio::time::advance(SUSPECTED).await;
        doubts.add(client(9999), endpoint);
        assert_eq!(doubts.0.len(), 1);
    }
}

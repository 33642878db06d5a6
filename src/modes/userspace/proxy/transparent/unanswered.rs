//! Clients that an endpoint did not answer when it saw them: routes do not show everything.

use std::{net::IpAddr, time::Duration};

use hashbrown::HashMap;
use tokio::time::Instant;

/// How long such an endpoint sees the node's address instead: long enough to detect an endpoint
/// that is just slow or dead.
const SUSPECTED: Duration = Duration::from_secs(10);
/// How long if it then answered: after that the client is shown again, which costs a connection its
/// first timeout if nothing has changed.
const CONFIRMED: Duration = Duration::from_secs(60);
/// Maximum number of remembered pairs.
const MOST: usize = 4096;

/// A client, and the endpoint that did not answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pair {
    client: IpAddr,
    endpoint: IpAddr,
}

/// Time for which an endpoint must not see a client.
#[derive(Debug)]
struct Silence {
    until: Instant,
    confirmed: bool,
}

/// Pairs of client and endpoint.
#[derive(Debug, Default)]
pub struct Unanswered(HashMap<Pair, Silence>);

impl Unanswered {
    /// Records that the endpoint did not answer when it saw the client.
    pub fn add(&mut self, client: IpAddr, endpoint: IpAddr) {
        let now = Instant::now();
        if self.0.len() >= MOST {
            self.0.retain(|_, silence| silence.until > now);
        }
        if self.0.len() < MOST {
            let silence = Silence {
                until: now + SUSPECTED,
                confirmed: false,
            };
            self.0.insert(Pair { client, endpoint }, silence);
        }
    }

    /// Records that the endpoint answered when it saw the node.
    pub fn confirm(&mut self, client: IpAddr, endpoint: IpAddr) {
        if let Some(silence) = self.0.get_mut(&Pair { client, endpoint })
            && !silence.confirmed
        {
            *silence = Silence {
                until: Instant::now() + CONFIRMED,
                confirmed: true,
            };
        }
    }

    /// Returns whether the endpoint must not see the client now.
    pub fn contains(&mut self, client: IpAddr, endpoint: IpAddr) -> bool {
        let pair = Pair { client, endpoint };
        let Some(silence) = self.0.get(&pair) else {
            return false;
        };
        let holds = silence.until > Instant::now();
        if !holds {
            self.0.remove(&pair);
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pair_is_tried_again_later_once_confirmed() {
        let [client, a, b] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut unanswered = Unanswered::default();
        unanswered.confirm(client, a);
        assert!(!unanswered.contains(client, a), "it was never silent");
        unanswered.add(client, a);
        unanswered.add(client, b);
        assert!(unanswered.contains(client, a) && !unanswered.contains(a, client));
        unanswered.confirm(client, a);
        tokio::time::advance(SUSPECTED).await;
        assert!(unanswered.contains(client, a) && !unanswered.contains(client, b));
        tokio::time::advance(SUSPECTED).await;
        // More answers do not postpone the next attempt.
        unanswered.confirm(client, a);
        tokio::time::advance(CONFIRMED - SUSPECTED).await;
        assert!(!unanswered.contains(client, a));
        assert!(unanswered.0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn they_are_bounded() {
        let mut unanswered = Unanswered::default();
        let endpoint = IpAddr::from([10, 0, 0, 1]);
        let client = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        for n in 0..2 * MOST {
            unanswered.add(client(n), endpoint);
        }
        assert_eq!(unanswered.0.len(), MOST);
        tokio::time::advance(SUSPECTED).await;
        unanswered.add(client(9999), endpoint);
        assert_eq!(unanswered.0.len(), 1);
    }
}

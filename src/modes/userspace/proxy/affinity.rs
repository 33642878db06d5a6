//! ClientIP affinity: which endpoint a client address is pinned to.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Pins above which the table is swept of expired ones; the next sweep comes
/// when what was left has doubled, so that a sweep is paid for by the
/// insertions before it.
const SWEEP_AT_GROWTH: usize = 1024;

#[derive(Debug)]
struct Pin {
    endpoint: SocketAddr,
    last_used: Instant,
}

#[derive(Debug)]
struct Table {
    pins: HashMap<IpAddr, Pin>,
    sweep_at: usize,
}

/// The pins of one ServicePort's clients.
#[derive(Debug)]
pub struct Affinity {
    timeout: Duration,
    table: Mutex<Table>,
}

impl Affinity {
    /// Returns a table without pins; each will last until its client was silent for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Affinity {
            timeout,
            table: Mutex::new(Table {
                pins: HashMap::new(),
                sweep_at: SWEEP_AT_GROWTH,
            }),
        }
    }

    /// Returns how long a client stays on its endpoint.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns each client with its endpoint, and how long it was silent.
    pub fn pins(&self) -> Vec<(IpAddr, SocketAddr, Duration)> {
        let now = Instant::now();
        let table = self.table.lock();
        let idle = |pin: &Pin| now.duration_since(pin.last_used);
        let pins = table.pins.iter();
        pins.map(|(client, pin)| (*client, pin.endpoint, idle(pin)))
            .filter(|(.., idle)| *idle < self.timeout)
            .collect()
    }

    /// Pins clients as [`Affinity::pins`] of another process says.
    pub fn inherit(&self, pins: impl Iterator<Item = (IpAddr, SocketAddr, Duration)>) {
        let now = Instant::now();
        let mut table = self.table.lock();
        for (client, endpoint, idle) in pins.filter(|(.., idle)| *idle < self.timeout) {
            let Some(last_used) = now.checked_sub(idle) else {
                continue;
            };
            let pin = Pin {
                endpoint,
                last_used,
            };
            table.pins.entry(client).or_insert(pin);
        }
        table.sweep_at = (table.pins.len() * 2).max(SWEEP_AT_GROWTH);
    }

    /// Pins `client` to what `choose` answers, given the endpoint that it is
    /// pinned to now, if any. One step under the table's lock, so that the
    /// first connections of a client, accepted by several workers at once,
    /// still agree.
    pub fn pin<T>(
        &self,
        client: IpAddr,
        choose: impl FnOnce(Option<SocketAddr>) -> Option<(SocketAddr, T)>,
    ) -> Option<T> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let current = table
            .pins
            .get(&client)
            .filter(|pin| now.duration_since(pin.last_used) < self.timeout)
            .map(|pin| pin.endpoint);
        let (endpoint, chosen) = choose(current)?;
        if table.pins.len() >= table.sweep_at {
            let timeout = self.timeout;
            table
                .pins
                .retain(|_, pin| now.duration_since(pin.last_used) < timeout);
            table.sweep_at = (table.pins.len() * 2).max(SWEEP_AT_GROWTH);
        }
        table.pins.insert(
            client,
            Pin {
                endpoint,
                last_used: now,
            },
        );
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 1)), 80);

    /// Returns the pin that a connection of `client` finds; it leaves a pin to `A`.
    fn connection(affinity: &Affinity, client: IpAddr) -> Option<SocketAddr> {
        affinity
            .pin(client, |current| Some((A, current)))
            .expect("an endpoint was chosen")
    }

    #[tokio::test(start_paused = true)]
    async fn a_pin_lasts_until_its_client_was_silent_for_the_timeout() {
        let affinity = Affinity::new(Duration::from_secs(10));
        let client = "10.1.0.1".parse().unwrap();
        assert_eq!(connection(&affinity, client), None);
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert_eq!(connection(&affinity, client), Some(A), "each use prolongs");
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(connection(&affinity, client), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_pins_do_not_accumulate() {
        let affinity = Affinity::new(Duration::from_secs(1));
        for i in 0..20_000u32 {
            if i % 500 == 0 {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            connection(&affinity, std::net::Ipv4Addr::from_bits(i).into());
        }
        assert!(affinity.table.lock().pins.len() <= 2 * SWEEP_AT_GROWTH);
    }

    #[tokio::test(start_paused = true)]
    async fn pins_of_another_process_last_as_long_as_they_would_have_there() {
        let clients: [IpAddr; 2] = ["10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap()];
        tokio::time::advance(Duration::from_secs(60)).await;
        let before = Affinity::new(Duration::from_secs(10));
        connection(&before, clients[0]);
        tokio::time::advance(Duration::from_secs(6)).await;
        connection(&before, clients[1]);
        let [first, second] = [[clients[0]], [clients[1]]].map(|of| {
            let after = Affinity::new(Duration::from_secs(10));
            let pins = before.pins().into_iter();
            after.inherit(pins.filter(|(client, ..)| of.contains(client)));
            after
        });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(connection(&first, clients[0]), None);
        assert_eq!(connection(&second, clients[1]), Some(A));
        assert_eq!(before.pins().len(), 1);
    }

    #[test]
    fn a_client_without_endpoint_gets_no_pin() {
        let affinity = Affinity::new(Duration::from_secs(1));
        let client = "10.1.0.1".parse().unwrap();
        assert_eq!(affinity.pin(client, |_| None::<(SocketAddr, ())>), None);
        assert!(affinity.table.lock().pins.is_empty());
    }
}

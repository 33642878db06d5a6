//! `sh`: source hashing. A client address keeps its real server; clients are
//! spread in proportion to the weights (kernel `ip_vs_sh.c`, without the flag
//! `sh-port`).

use super::{Candidates, Flow, RealServer, Scheduler, buckets::Buckets, weight_gcd};

#[derive(Debug)]
pub(super) struct SourceHash(Buckets);

impl SourceHash {
    pub(super) fn new(servers: &[RealServer]) -> Self {
        // The kernel deals rows as long as the weights themselves: weights of 100 give three
        // servers 100, 100 and 56 buckets. Rows of the reduced weights are fair in that case as
        // well, and the same where the gcd is 1.
        let gcd = weight_gcd(servers.iter().map(|s| s.weight)).max(1);
        SourceHash(Buckets::deal(
            servers.iter().map(|s| s.weight / gcd).collect(),
        ))
    }
}

impl Scheduler for SourceHash {
    fn pick(&self, of: Candidates<'_>, flow: &Flow) -> Option<usize> {
        self.0.pick(flow.client.ip(), of)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn a_client_keeps_its_server_whatever_its_port() {
        let servers = servers(&[1, 2, 1]);
        let sh = SourceHash::new(&servers);
        for client in 0..500 {
            let mut flow = flow(client);
            let first = sh.pick(Candidates::new(&servers, &|_| false), &flow);
            flow.client.set_port(flow.client.port() ^ 0x5555);
            flow.destination = "192.0.2.77".parse().unwrap();
            assert_eq!(sh.pick(Candidates::new(&servers, &|_| false), &flow), first);
        }
    }

    #[test]
    fn clients_spread_in_proportion_to_the_weights() {
        for weights in [
            &[1, 1, 1, 1][..],
            &[3, 1],
            &[100, 100, 100],
            &[300, 100],
            &[1, 0, 3],
        ] {
            let servers = servers(weights);
            let counts = counts(&SourceHash::new(&servers), &servers, 20_000);
            assert_shares(&counts, weights, 0.03);
        }
    }

    #[test]
    fn clients_of_an_unusable_server_are_shared_by_all_others() {
        let servers = servers(&[1, 1, 2, 1]);
        let sh = SourceHash::new(&servers);
        let mut moved = [0; 4];
        for client in 0..20_000 {
            let flow = flow(client);
            let home = sh
                .pick(Candidates::new(&servers, &|_| false), &flow)
                .unwrap();
            let away = sh
                .pick(Candidates::new(&servers, &|i| i == 1), &flow)
                .unwrap();
            if home == 1 {
                moved[away] += 1;
            } else {
                assert_eq!(away, home, "a client of a usable server moved");
            }
        }
        assert_shares(&moved, &[1, 0, 2, 1], 0.06);
    }
}
